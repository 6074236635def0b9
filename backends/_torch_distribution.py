"""``MaskedCategorical``: the masked policy as a ``torch.distributions.Distribution``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, constraints
from torch.distributions.kl import register_kl  # pyright: ignore
from torch.distributions.utils import lazy_property

from backends import _torch_functions as functions
from backends._torch_inputs import TensorLike, as_legal, as_logits, batch_of, working
from backends._torch_sampling import sample

__all__ = ["MaskedCategorical"]


class MaskedCategorical(Distribution):
    """A categorical distribution over the legal actions, one a row.

    Follows the contract of ``backends.torch_backend`` (empty, forced and NaN rows included): an
    illegal action has log_prob -inf rather than an error, and what is under the mask is never read.
    ``torch.distributions.kl_divergence`` is registered for two of these, and for one of these and
    a ``Categorical``.

    Args:
        logits: ``[..., A]`` unnormalised log-probabilities.
        mask: ``[..., A]``, True is legal; broadcasts against ``logits`` but for the action axis.
        validate_args: As in ``torch.distributions``: whether values given to ``log_prob`` are
            checked to be integers in ``[0, A)``.

    Raises:
        MaskError: For a mask that is not exactly 0/1 or does not fit the logits.

    >>> d = MaskedCategorical(torch.tensor([1.0, 5.0, 3.0]), torch.tensor([True, False, True]))
    >>> d.log_prob(torch.tensor(2)), d.mode
    (tensor(-0.1269), tensor(2))
    >>> d.sample((4,)).shape
    torch.Size([4])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # pyright: ignore # noqa: RUF012 (as in torch)
    has_enumerate_support = True

    def __init__(
        self, logits: TensorLike, mask: TensorLike, validate_args: bool | None = None
    ) -> None:
        z = as_logits(logits)
        legal = as_legal(mask, z)
        batch = torch.Size(batch_of(z, legal))
        shape = (*batch, z.shape[-1])
        self._raw = z.expand(shape)
        self._mask = legal.expand(shape)
        super().__init__(batch, validate_args=validate_args)

    def expand(
        self, batch_shape: Any, _instance: MaskedCategorical | None = None
    ) -> MaskedCategorical:
        """The same distribution, its batch axes broadcast to ``batch_shape`` without a copy."""
        new = self._get_checked_instance(MaskedCategorical, _instance)  # pyright: ignore
        batch = torch.Size(batch_shape)
        new._raw = self._raw.expand((*batch, self.num_actions))  # pyright: ignore
        new._mask = self._mask.expand((*batch, self.num_actions))  # pyright: ignore
        super(MaskedCategorical, new).__init__(batch, validate_args=False)  # pyright: ignore
        new._validate_args = self._validate_args
        return new  # pyright: ignore

    @property
    def num_actions(self) -> int:
        """A, the length of the action axis."""
        return self._raw.shape[-1]

    @property
    def param_shape(self) -> torch.Size:
        """``[..., A]``."""
        return self._raw.shape

    @property
    def mask(self) -> Tensor:
        """``[..., A]`` bool, True is legal."""
        return self._mask

    @property
    def raw(self) -> Tensor:
        """``[..., A]`` the logits as they were given, not normalised, not masked."""
        return self._raw

    @lazy_property
    def logits(self) -> Tensor:
        """``[..., A]`` log-probabilities (normalised, as in ``Categorical``); -inf if illegal."""
        return functions.masked_log_softmax(self._raw, self._mask)

    @lazy_property
    def probs(self) -> Tensor:
        """``[..., A]`` probabilities; exactly 0 if illegal."""
        return functions.masked_softmax(self._raw, self._mask)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> constraints.Constraint:  # pyright: ignore
        """Integers in ``[0, A)``; the illegal ones among them have probability 0."""
        return constraints.integer_interval(0, self.num_actions - 1)

    @property
    def mode(self) -> Tensor:
        """``[...]`` the most probable legal action, lowest index on a tie."""
        return functions.mode(self._raw, self._mask)

    @property
    def mean(self) -> Tensor:
        """NaN: actions are names, not numbers (as in ``Categorical``)."""
        return torch.full(self.batch_shape, torch.nan, dtype=self._raw.dtype)

    @property
    def variance(self) -> Tensor:
        """NaN, as the mean."""
        return self.mean

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """``[*sample_shape, ...]`` int64 actions; never an illegal one."""
        shape = torch.Size(sample_shape)
        actions, _ = sample(working(self._raw), self._mask, count=shape.numel())
        return actions.movedim(-1, 0).reshape((*shape, *self.batch_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """``[...]`` log-probability in nats of the actions ``value``."""
        if self._validate_args:
            self._validate_sample(value)
        return functions.log_prob(self._raw, self._mask, value)

    def entropy(self) -> Tensor:
        """``[...]`` entropy in nats."""
        return functions.entropy(self._raw, self._mask)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """``[A, ...]`` all actions, the illegal ones too: their log_prob is -inf."""
        values = torch.arange(self.num_actions, device=self._raw.device)
        values = values.view((-1,) + (1,) * len(self.batch_shape))
        return values.expand((-1, *self.batch_shape)) if expand else values


@register_kl(MaskedCategorical, MaskedCategorical)
def _kl_masked_masked(p: MaskedCategorical, q: MaskedCategorical) -> Tensor:  # pyright: ignore
    return functions.kl_divergence(p.raw, q.raw, p_mask=p.mask, q_mask=q.mask)


@register_kl(MaskedCategorical, Categorical)
def _kl_masked_plain(p: MaskedCategorical, q: Categorical) -> Tensor:  # pyright: ignore
    every = torch.ones_like(q.logits, dtype=torch.bool)
    return functions.kl_divergence(p.raw, q.logits, p_mask=p.mask, q_mask=every)


@register_kl(Categorical, MaskedCategorical)
def _kl_plain_masked(p: Categorical, q: MaskedCategorical) -> Tensor:  # pyright: ignore
    every = torch.ones_like(p.logits, dtype=torch.bool)
    return functions.kl_divergence(p.logits, q.raw, p_mask=every, q_mask=q.mask)
