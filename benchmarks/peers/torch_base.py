"""A ``torch.distributions``-like masked distribution as a module that the kit can run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


class TorchPeer:
    """The functions of the specification over ``make(logits, mask)``.

    ``kl`` takes two distributions; ``legal`` gives mask arguments as the peer wants them.
    """

    REFUSES_WITH = (ValueError, RuntimeError, IndexError)

    def __init__(
        self,
        name: str,
        make: Callable[[Tensor, Tensor], Any],
        *,
        package: str,
        not_claimed: Mapping[str, str],
        leaves_out: frozenset[str],
        slack: float = 1e-3,
    ) -> None:
        self.NAME = name
        self.PACKAGE = package
        self.NOT_CLAIMED = not_claimed
        self.LEAVES_OUT = leaves_out
        self.SLACK = slack
        self._make = make

    @staticmethod
    def asarray(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(array))

    @staticmethod
    def to_numpy(tensor: Tensor) -> np.ndarray:
        tensor = tensor.detach()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()

    @staticmethod
    def vjp(fn: Callable[..., Tensor], *arrays: Tensor, cotangent: Tensor) -> tuple[Tensor, ...]:
        leaves = [a.detach().requires_grad_() for a in arrays]
        total = fn(*leaves)
        found = torch.autograd.grad(total, leaves, cotangent, allow_unused=True)
        return tuple(
            torch.zeros_like(a) if g is None else g for g, a in zip(found, leaves, strict=True)
        )

    def masked_softmax(self, logits: Tensor, mask: Tensor) -> Tensor:
        return self._make(logits, mask).probs

    def masked_log_softmax(self, logits: Tensor, mask: Tensor) -> Tensor:
        return self._make(logits, mask).logits

    def log_prob(self, logits: Tensor, mask: Tensor, actions: Tensor) -> Tensor:
        return self._make(logits, mask).log_prob(actions)

    def entropy(self, logits: Tensor, mask: Tensor) -> Tensor:
        return self._make(logits, mask).entropy()

    def kl_divergence(
        self, p_logits: Tensor, q_logits: Tensor, *, p_mask: Tensor, q_mask: Tensor
    ) -> Tensor:
        p, q = self._make(p_logits, p_mask), self._make(q_logits, q_mask)
        return torch.distributions.kl_divergence(p, q)

    def mode(self, logits: Tensor, mask: Tensor) -> Tensor:
        return self._make(logits, mask).mode

    def sample(self, logits: Tensor, mask: Tensor) -> Tensor:
        return self._make(logits, mask).sample()
