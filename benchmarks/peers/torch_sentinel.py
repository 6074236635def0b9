"""``torch.distributions.Categorical`` over logits masked with the smallest float."""

from __future__ import annotations

import torch
from torch.distributions import Categorical

from benchmarks.peers.claims import ACCURACY, EMPTY, HALF, LOUD, NO_MINUS_INF, SENTINEL, VALIDATION
from benchmarks.peers.torch_base import TorchPeer


def make(logits: torch.Tensor, mask: torch.Tensor) -> Categorical:
    return Categorical(logits=torch.where(mask, logits, torch.finfo(logits.dtype).min))


class _Sentinel(TorchPeer):
    masked_log_softmax = None  # `.logits` holds the sentinel: not a log-softmax of the mask


PEER = _Sentinel(
    "torch.distributions with a sentinel",
    make,
    package="torch",
    not_claimed={**EMPTY, **ACCURACY, **HALF, **NO_MINUS_INF, **VALIDATION, **LOUD, **SENTINEL},
    leaves_out=frozenset(
        {"empty rows", "junk", "legal -inf", "extremes", "illegal actions", "different masks"}
    ),
)
