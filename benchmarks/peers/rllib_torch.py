"""RLlib's TorchCategorical over the masked logits of RLlib's own examples (new and old stack)."""

from __future__ import annotations

import torch
from ray.rllib.core.distribution.torch.torch_distribution import TorchCategorical
from ray.rllib.utils.torch_utils import FLOAT_MIN

from benchmarks.peers.claims import ACCURACY, EMPTY, HALF, LOUD, NO_MINUS_INF, SENTINEL, VALIDATION
from benchmarks.peers.torch_base import TorchPeer


class _Distribution(TorchCategorical):
    """The methods under the standard names."""

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        return self.logp(actions)


def masked_logits(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """As in action_masking_rlm.py and action_mask_model.py: the clamped log of the mask, added."""
    return logits + torch.clamp(torch.log(mask.to(logits.dtype)), min=FLOAT_MIN)


class _RLlib(TorchPeer):
    def masked_softmax(self, logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self._make(logits, mask)._dist.probs

    masked_log_softmax = None  # the logits hold the sentinel: not a log-softmax of the mask

    def mode(self, logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self._make(logits, mask)._dist.mode  # what to_deterministic() argmaxes over

    def kl_divergence(
        self,
        p_logits: torch.Tensor,
        q_logits: torch.Tensor,
        *,
        p_mask: torch.Tensor,
        q_mask: torch.Tensor,
    ) -> torch.Tensor:
        return self._make(p_logits, p_mask).kl(self._make(q_logits, q_mask))


PEER = _RLlib(
    "RLlib, Torch",
    lambda logits, mask: _Distribution(logits=masked_logits(logits, mask)),
    package="ray",
    not_claimed={
        **EMPTY,
        **ACCURACY,
        **HALF,
        **NO_MINUS_INF,
        **VALIDATION,
        **LOUD,
        **SENTINEL,
        "float16_*": "FLOAT_MIN is of float32",
        "results_have_*": "FLOAT_MIN is of float32",
        "fault_a10_*": "FLOAT_MIN is of float32",
        "actions_out_of_range_*": "validation is off by design",
    },
    leaves_out=frozenset(
        {"empty rows", "junk", "legal -inf", "extremes", "illegal actions", "different masks"}
    ),
)
