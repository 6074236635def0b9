"""sum p (log p - log q) in float32: right to 1e-7, which is what a KL of PPO is."""

import numpy as np

from maskcore import spec
from maskcore.spec import *  # noqa: F403

CAUGHT_BY = "kl_divergence_accuracy"


def kl_divergence(p_logits, q_logits, *, p_mask, q_mask):
    right = spec.kl_divergence(p_logits, q_logits, p_mask=p_mask, q_mask=q_mask)
    log_p = spec.masked_log_softmax(p_logits, p_mask)
    log_q = spec.masked_log_softmax(q_logits, q_mask)
    with np.errstate(invalid="ignore"):
        terms = np.where(np.isfinite(log_p), np.exp(log_p) * (log_p - log_q), 0)
    usual = terms.sum(-1, dtype=p_logits.dtype)
    return np.where(np.isfinite(right) & (right > 0), usual, right).astype(p_logits.dtype)
