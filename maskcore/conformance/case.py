"""One generated input: everything that a contract row may need, as plain NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Case", "loud_rows", "support"]

Array = NDArray[Any]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]
T = TypeVar("T")


def loud_rows(logits: Array, mask: BoolArray) -> BoolArray:
    """Rows ``[...]`` without a distribution: a legal NaN or +inf, or nothing legal but -inf."""
    bad = np.isnan(logits) | np.isposinf(logits)
    nothing = mask.any(-1) & (~mask | np.isneginf(logits)).all(-1)
    return np.asarray((mask & bad).any(-1) | nothing)


def support(logits: Array, mask: BoolArray) -> BoolArray:
    """Entries ``[..., A]`` that have mass: legal, with a logit other than -inf."""
    return np.asarray(mask & ~np.isneginf(logits))


@dataclass(frozen=True)
class Case:
    """A batch of rows, and a second batch for the quantities that compare two policies.

    Attributes:
        logits: ``[..., A]`` float.
        mask: ``[..., A]`` bool, True is legal; broadcasts against ``logits``.
        actions: ``[...]`` int64 in ``[0, A)``.
        q_logits, q_mask: The second policy, ``[..., A]``.
        cotangent: ``[...]`` weights of the rows in the scalar that gradients are taken of.
        entry_cotangent: ``[..., A]`` weights of the entries, for entrywise quantities.
        turn: Which of its quantities a row that is about all of them looks at; see ``turns``.
    """

    logits: Array
    mask: BoolArray
    actions: IntArray
    q_logits: Array
    q_mask: BoolArray
    cotangent: Array
    entry_cotangent: Array
    turn: int = 0

    def turns(self, names: Sequence[T], *, most: int = 2) -> list[T]:
        """``most`` of ``names``, others in other cases: all of them in every case take too long."""
        return [names[(self.turn + i) % len(names)] for i in range(min(most, len(names)))]

    @property
    def shape(self) -> tuple[int, ...]:
        """The broadcast shape ``[..., A]`` of logits and mask."""
        return np.broadcast_shapes(self.logits.shape, self.mask.shape)

    @property
    def legal(self) -> BoolArray:
        """The mask ``[..., A]`` at full shape."""
        return np.broadcast_to(self.mask, self.shape)

    @property
    def eps(self) -> float:
        """The epsilon of the logits' dtype."""
        return float(np.finfo(self.logits.dtype).eps)

    @property
    def wide(self) -> Array:
        """The logits as float64: the same numbers, so that the specification rounds nothing."""
        return self.logits.astype(np.float64)

    @property
    def q_wide(self) -> Array:
        """``q_logits`` as float64."""
        return self.q_logits.astype(np.float64)

    @property
    def masks(self) -> dict[str, Any]:
        """The keyword arguments of ``kl_divergence`` and ``cross_entropy``."""
        return {"p_mask": self.mask, "q_mask": self.q_mask}
