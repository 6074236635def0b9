"""The step that PPO does a minibatch, and a draw with its log-prob, in each Torch library.

The step: log_prob of the taken actions, entropy, KL(old, new), one loss over the three, and the
backward pass to the new logits. Every candidate gets the same inputs and the same loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from backends import torch_backend

Quantities = tuple[Tensor, Tensor, Tensor]


@dataclasses.dataclass
class Batch:
    """One minibatch; ``pattern`` names how the mask was drawn."""

    logits: Tensor
    old_logits: Tensor
    mask: Tensor
    actions: Tensor
    advantages: Tensor
    pattern: str

    @classmethod
    def random(cls, rows: int, actions: int, *, legal: float = 0.5, seed: int = 0) -> Batch:
        """Half the entries legal at random, a different row each; the taken actions are legal."""
        generator = torch.Generator().manual_seed(seed)
        old = torch.randn(rows, actions, generator=generator)
        logits = old + 0.05 * torch.randn(rows, actions, generator=generator)
        mask = torch.rand(rows, actions, generator=generator) < legal
        taken = torch.randint(actions, (rows,), generator=generator)
        mask[torch.arange(rows), taken] = True
        advantages = torch.randn(rows, generator=generator)
        pattern = f"{legal:.0%} legal, random, another mask each row"
        return cls(logits.requires_grad_(), old, mask, taken, advantages, pattern)


def ppo_loss(batch: Batch, log_prob: Tensor, entropy: Tensor, kl: Tensor) -> Tensor:
    """A loss over the three quantities, the same for every candidate."""
    return (-batch.advantages * log_prob - 0.01 * entropy + 0.2 * kl).mean()


def step(batch: Batch, quantities: Callable[[Batch], Quantities]) -> Callable[[], Tensor]:
    """A function that runs one step and returns the gradient."""

    def run() -> Tensor:
        loss = ppo_loss(batch, *quantities(batch))
        return torch.autograd.grad(loss, batch.logits)[0]

    return run


def ours(batch: Batch, *, compiled: bool = False) -> Quantities:
    result = torch_backend.evaluate_actions(
        batch.logits, batch.mask, batch.actions, old_logits=batch.old_logits, compiled=compiled
    )
    return result.log_prob, result.entropy, result.kl_divergence


def ours_compiled(batch: Batch) -> Quantities:
    return ours(batch, compiled=True)


def empty_step(batch: Batch) -> Quantities:
    """The floor: an autograd function that computes nothing."""
    nothing = _Nothing.apply(batch.logits)
    return nothing, nothing, nothing


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits):
        ctx.shape = logits.shape
        return logits.new_zeros(logits.shape[:-1])

    @staticmethod
    def backward(ctx, grad):
        return grad.new_empty(ctx.shape)


def sb3_contrib(*, validate: bool | None) -> Callable[[Batch], Quantities]:
    from sb3_contrib.common.maskable.distributions import MaskableCategorical
    from torch.distributions import kl_divergence

    def quantities(batch: Batch) -> Quantities:
        def make(logits: Tensor) -> MaskableCategorical:
            return MaskableCategorical(logits=logits, masks=batch.mask, validate_args=validate)

        new, old = make(batch.logits), make(batch.old_logits)
        return new.log_prob(batch.actions), new.entropy(), kl_divergence(old, new)

    return quantities


def rllib(batch: Batch) -> Quantities:
    """RLlib's example mask (log of the mask, clamped) and its TorchCategorical."""
    from ray.rllib.models.torch.torch_action_dist import TorchCategorical
    from ray.rllib.utils.torch_utils import FLOAT_MIN

    mask = batch.mask.float()  # the mask arrives as a float observation

    def make(logits: Tensor) -> TorchCategorical:
        return TorchCategorical(logits + torch.clamp(torch.log(mask), min=FLOAT_MIN), None)

    new, old = make(batch.logits), make(batch.old_logits)
    return new.logp(batch.actions), new.entropy(), old.kl(new)


def torch_sentinel(batch: Batch) -> Quantities:
    """torch.distributions.Categorical over logits filled with -1e9."""
    from torch.distributions import Categorical, kl_divergence

    def make(logits: Tensor) -> Categorical:
        return Categorical(logits=logits.masked_fill(~batch.mask, -1e9))

    new, old = make(batch.logits), make(batch.old_logits)
    return new.log_prob(batch.actions), new.entropy(), kl_divergence(old, new)


def torchrl_dense(batch: Batch) -> Quantities:
    return _torchrl(batch, mask=batch.mask)


def torchrl_sparse(indices: Tensor) -> Callable[[Batch], Quantities]:
    return lambda batch: _torchrl(batch, indices=indices)


def _torchrl(batch: Batch, **mask: Tensor) -> Quantities:
    """TorchRL has no KL of masked distributions: the usual sum over its log-probabilities."""
    from torchrl.modules import MaskedCategorical

    new = MaskedCategorical(logits=batch.logits, **mask)
    old = MaskedCategorical(logits=batch.old_logits, **mask)
    log_q, log_p = new.logits.log_softmax(-1), old.logits.log_softmax(-1)
    p = log_p.exp()
    kl = torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1)
    return new.log_prob(batch.actions), new.entropy(), kl


def draws(batch: Batch) -> dict[str, Callable[[], object]]:
    """A draw an each row with its log-prob."""
    from sb3_contrib.common.maskable.distributions import MaskableCategorical
    from torchrl.modules import MaskedCategorical

    logits, mask = batch.logits.detach(), batch.mask

    def ours_drawn() -> object:
        return torch_backend.sample_with_log_prob(logits, mask)

    def drawn(make: Callable[[], torch.distributions.Distribution]) -> Callable[[], object]:
        def run() -> object:
            distribution = make()
            actions = distribution.sample()
            return actions, distribution.log_prob(actions)

        return run

    return {
        "maskcore": ours_drawn,
        "sb3-contrib": drawn(lambda: MaskableCategorical(logits=logits, masks=mask)),
        "TorchRL": drawn(lambda: MaskedCategorical(logits=logits, mask=mask)),
        "torch.distributions": drawn(
            lambda: torch.distributions.Categorical(logits=logits.masked_fill(~mask, -1e9))
        ),
    }


def modes(batch: Batch) -> dict[str, Callable[[], object]]:
    from sb3_contrib.common.maskable.distributions import MaskableCategorical

    logits, mask = batch.logits.detach(), batch.mask
    return {
        "maskcore": lambda: torch_backend.mode(logits, mask),
        "sb3-contrib": lambda: MaskableCategorical(logits=logits, masks=mask).mode,
    }
