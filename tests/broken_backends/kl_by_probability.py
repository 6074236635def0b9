"""KL is infinite where a probability underflowed, not where q forbids."""

import numpy as np

from maskcore import spec
from maskcore.spec import *  # noqa: F403

CAUGHT_BY = "kl_infinite_exactly_by_rule"


def kl_divergence(p_logits, q_logits, *, p_mask, q_mask):
    right = spec.kl_divergence(p_logits, q_logits, p_mask=p_mask, q_mask=q_mask)
    p, q = spec.masked_softmax(p_logits, p_mask), spec.masked_softmax(q_logits, q_mask)
    return np.where(((p > 0) & (q == 0)).any(-1), np.inf, right).astype(p.dtype)
