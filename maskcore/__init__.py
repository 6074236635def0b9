"""Action masking, specified once: masked softmax, log-prob, entropy and KL in plain NumPy.

Importing ``maskcore`` loads no framework. The contract is the table in ``maskcore.spec``.
"""

from maskcore.masks import MaskError, as_bool, check_actions, check_mask, check_shapes
from maskcore.spec import (
    cross_entropy,
    cross_entropy_grad,
    entropy,
    entropy_grad,
    kl_divergence,
    kl_divergence_grad,
    log_prob,
    log_prob_grad,
    masked_log_softmax,
    masked_softmax,
    mode,
    sample,
)

__version__ = "0.1.0"

__all__ = [
    "MaskError",
    "as_bool",
    "check_actions",
    "check_mask",
    "check_shapes",
    "cross_entropy",
    "cross_entropy_grad",
    "entropy",
    "entropy_grad",
    "kl_divergence",
    "kl_divergence_grad",
    "log_prob",
    "log_prob_grad",
    "masked_log_softmax",
    "masked_softmax",
    "mode",
    "sample",
]
