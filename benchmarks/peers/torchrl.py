"""TorchRL's MaskedCategorical."""

from __future__ import annotations

import torch
from torchrl.modules import MaskedCategorical

from benchmarks.peers.claims import ACCURACY, EMPTY, HALF, NO_MINUS_INF, VALIDATION
from benchmarks.peers.torch_base import TorchPeer


def make(logits: torch.Tensor, mask: torch.Tensor) -> MaskedCategorical:
    return MaskedCategorical(logits=logits, mask=mask)


PEER = TorchPeer(
    "TorchRL",
    make,
    package="torchrl",
    not_claimed={
        **EMPTY,
        **ACCURACY,
        **HALF,
        **NO_MINUS_INF,
        **VALIDATION,
        "broadcasting_*": "masks of the logits' shape",
        "fault_a17_*": "masks of the logits' shape",
    },
    leaves_out=frozenset({"empty rows", "junk", "legal -inf", "extremes"}),
)
