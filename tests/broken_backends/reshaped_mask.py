"""A mask of the right size and the wrong shape is reshaped."""

import numpy as np

from maskcore import spec
from maskcore.spec import *  # noqa: F403

CAUGHT_BY = "fault_b4_mask_not_reshaped"


def masked_softmax(logits, mask):
    mask = np.asarray(mask)
    if mask.size == logits.size:
        mask = mask.reshape(logits.shape)
    return spec.masked_softmax(logits, mask)
