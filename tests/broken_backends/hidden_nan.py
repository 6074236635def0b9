"""NaN is cleaned away: a network that has diverged goes on unnoticed."""

import numpy as np

from maskcore import spec
from maskcore.spec import *  # noqa: F403

CAUGHT_BY = "legal_nan_values"


def entropy(logits, mask):
    return np.nan_to_num(spec.entropy(logits, mask))
