"""The gradient of log_prob is that of the unmasked softmax."""

import numpy as np

from maskcore import spec
from maskcore.spec import *  # noqa: F403

CAUGHT_BY = "gradients_ordinary_row"


def log_prob_grad(logits, mask, actions):
    everything = np.ones_like(mask)
    return spec.log_prob_grad(np.nan_to_num(logits), everything, actions)
