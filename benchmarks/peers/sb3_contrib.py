"""sb3-contrib's MaskableCategorical."""

from __future__ import annotations

import torch
from sb3_contrib.common.maskable.distributions import MaskableCategorical

from benchmarks.peers.claims import ACCURACY, EMPTY, HALF, LOUD, NO_MINUS_INF, SENTINEL, VALIDATION
from benchmarks.peers.torch_base import TorchPeer


def make(logits: torch.Tensor, mask: torch.Tensor) -> MaskableCategorical:
    return MaskableCategorical(logits=logits, masks=mask)


class _Sentinel(TorchPeer):
    masked_log_softmax = None  # `.logits` holds the sentinel: not a log-softmax of the mask


PEER = _Sentinel(
    "sb3-contrib",
    make,
    package="sb3-contrib",
    not_claimed={
        **EMPTY,
        **ACCURACY,
        **HALF,
        **NO_MINUS_INF,
        **VALIDATION,
        **LOUD,
        **SENTINEL,
        "broadcasting_*": "masks of the logits' shape",
        "fault_a17_*": "masks of the logits' shape",
        "mask_as_lists": "masks are arrays",
    },
    leaves_out=frozenset({"empty rows", "junk", "legal -inf", "extremes", "illegal actions"}),
)
