"""Illegal logits become -1e9 instead of leaving the distribution."""

import numpy as np

from maskcore.spec import *  # noqa: F403

CAUGHT_BY = "fault_a7_legal_logits_below_the_sentinel"


def masked_softmax(logits, mask):
    z = np.where(mask, logits, -1e9).astype(np.float64)
    e = np.exp(z - z.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(logits.dtype)
