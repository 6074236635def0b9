"""The sentinel is the smallest logit of the batch: a NaN in one row reaches every other."""

import numpy as np

from maskcore import spec
from maskcore.spec import *  # noqa: F403

CAUGHT_BY = "fault_a13_nan_under_one_mask"


def entropy(logits, mask):
    least = np.min(logits) if np.size(logits) else 0
    return spec.entropy(logits, mask) + np.where(np.isnan(least), least, 0)
