"""``MaskedCategorical``: the functions of the NumPy backend, held together with their mask."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from backends import _numpy_quantities as quantities
from backends._numpy_inputs import Array, BoolArray, as_actions, as_pair, as_policy, shaped
from maskcore.masks import as_bool


class MaskedCategorical:
    """A categorical policy over the legal actions, for serving without a framework.

    Args:
        logits: ``[..., A]`` unnormalised log-probabilities.
        mask: ``[..., A]``, True is legal; broadcasts with ``logits``.

    Raises:
        MaskError: For a mask that is not exactly 0/1 or does not fit the logits.

    >>> d = MaskedCategorical([1.0, 5.0, 3.0], [True, False, True])
    >>> float(d.entropy().round(6))
    0.365334
    """

    def __init__(self, logits: ArrayLike, mask: ArrayLike) -> None:
        self._logits: Array = np.array(logits)
        self._mask: BoolArray = np.array(as_bool(mask))
        self._policy = as_policy(self._logits, self._mask)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The common batch shape of logits and mask."""
        return self._policy.batch

    @property
    def num_actions(self) -> int:
        """``A``."""
        return self._logits.shape[-1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of every result."""
        return self._policy.dtype

    @property
    def mask(self) -> BoolArray:
        """``[..., A]``, True is legal, broadcast to the batch."""
        return np.broadcast_to(self._mask, (*self.batch_shape, self.num_actions))

    @property
    def probs(self) -> Array:
        """``[..., A]``; illegal entries are exactly 0."""
        return shaped(quantities.softmax(self._policy), self._policy)

    @property
    def logits(self) -> Array:
        """``[..., A]`` log-probabilities in nats; illegal entries are -inf."""
        return shaped(quantities.log_softmax(self._policy), self._policy)

    def log_prob(self, actions: ArrayLike) -> Array:
        """``[...]`` in nats; -inf where an action is illegal, 0 in an empty row."""
        policy, a = as_actions(self._logits, self._mask, actions)
        return shaped(quantities.log_prob(policy, a), policy)

    def entropy(self) -> Array:
        """``[...]`` in nats."""
        return shaped(quantities.entropy(self._policy), self._policy)

    def kl_divergence(self, other: MaskedCategorical) -> Array:
        """``[...]`` KL(self, other) in nats; +inf where other forbids what self may do."""
        p, q, dtype = as_pair(self._logits, other._logits, self._mask, other._mask)
        return shaped(quantities.kl_divergence(p, q, dtype), p)

    def cross_entropy(self, other: MaskedCategorical) -> Array:
        """``[...]`` ``-sum p log q`` in nats, p being self."""
        p, q, dtype = as_pair(self._logits, other._logits, self._mask, other._mask)
        return shaped(quantities.cross_entropy(p, q, dtype), p)

    def mode(self) -> Array:
        """``[...]`` the most probable legal action, the lowest index on a tie."""
        return shaped(quantities.mode(self._policy), self._policy)

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] = ()) -> Array:
        """``[*size, ...]`` draws, never illegal.

        Raises:
            MaskError: For a row without a distribution.

        >>> d = MaskedCategorical([1.0, 5.0, 3.0], [False, False, True])
        >>> d.sample(np.random.default_rng(0), size=3)
        array([2, 2, 2])
        """
        size = (size,) if isinstance(size, int) else tuple(size)
        policy = as_policy(self._logits, self._mask, batch=(*size, *self.batch_shape))
        return shaped(quantities.sample(policy, rng), policy)
