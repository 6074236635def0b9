"""Anything that is not 0 is legal: a filtered mask goes through."""

import numpy as np

from maskcore import spec
from maskcore.spec import *  # noqa: F403

CAUGHT_BY = "mask_of_other_values_is_refused"


def masked_softmax(logits, mask):
    return spec.masked_softmax(logits, np.asarray(mask).astype(bool))
