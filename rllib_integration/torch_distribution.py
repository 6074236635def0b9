"""The masked categorical as an RLlib action distribution, Torch.

Its inputs are ``[logits | mask]``, the concatenation along the last axis of the network's raw
logits ``[B, A]`` and the mask ``[B, A]`` as 0/1 numbers. The distribution so carries its own mask:
RLlib builds it from the model's output at rollout, in ``compute_actions`` and in the loss, and from
the stored ACTION_DIST_INPUTS for the old policy, with the old mask, exactly as it was.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.models.torch.torch_action_dist import TorchDistributionWrapper
from ray.rllib.utils.annotations import override
from torch import Tensor

from backends import torch_backend
from maskcore import MaskError

__all__ = ["TorchMaskedCategorical", "split_inputs", "torch_masked_categorical_with_temperature"]


def split_inputs(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """``[logits | mask]`` ``[..., 2A]`` -> logits ``[..., A]``, mask ``[..., A]`` bool.

    Raises:
        MaskError: For an odd length.

    >>> split_inputs(torch.tensor([[0.5, 0.25, 1.0, 0.0]]))
    (tensor([[0.5000, 0.2500]]), tensor([[ True, False]]))
    """
    size = inputs.shape[-1]
    if size % 2:
        raise MaskError(
            f"distribution inputs have shape {tuple(inputs.shape)}. Expected [..., 2A]: logits and "
            "mask side by side, as the masked model returns them."
        )
    return inputs[..., : size // 2], inputs[..., size // 2 :] != 0


class TorchMaskedCategorical(TorchDistributionWrapper):
    """Categorical over the legal actions; total on the batches of zeros RLlib builds policies from.

    Args:
        inputs: ``[B, 2A]``: logits and mask side by side.
        model: The model, or None.
        temperature: Divides the logits; > 0.

    Attributes:
        logits: ``[B, A]``, raw: what is under the mask is never read.
        mask: ``[B, A]`` bool, True is legal.
    """

    @override(TorchDistributionWrapper)
    def __init__(self, inputs: Any, model: Any = None, *, temperature: float = 1.0) -> None:
        if not temperature > 0.0:
            raise MaskError(f"temperature is {temperature}. Expected a number > 0.")
        super().__init__(inputs, model)
        self.logits, self.mask = split_inputs(self.inputs)
        if temperature != 1.0:
            self.logits = self.logits / temperature
        self._last_log_prob: Tensor | None = None

    @override(TorchDistributionWrapper)
    def logp(self, actions: Any) -> Tensor:
        """Log-probability ``[B]`` in nats; -inf for an illegal action, 0 in an empty row."""
        return torch_backend.log_prob(self.logits, self.mask, _indices(actions, self.logits))

    @override(TorchDistributionWrapper)
    def entropy(self) -> Tensor:
        """Entropy ``[B]`` in nats over the legal actions."""
        return torch_backend.entropy(self.logits, self.mask)

    @override(TorchDistributionWrapper)
    def kl(self, other: TorchMaskedCategorical) -> Tensor:
        """KL(self, other) ``[B]`` in nats; +inf where ``other`` forbids what ``self`` may do."""
        return torch_backend.kl_divergence(
            self.logits, other.logits, p_mask=self.mask, q_mask=other.mask
        )

    @override(TorchDistributionWrapper)
    def sample(self) -> Tensor:
        """One legal action a row ``[B]``; 0 in an empty row."""
        drawn = torch_backend.sample_with_log_prob(self.logits, self.mask)
        self.last_sample, self._last_log_prob = drawn
        return self.last_sample

    @override(TorchDistributionWrapper)
    def deterministic_sample(self) -> Tensor:
        """The most probable legal action a row ``[B]``, the lowest index on a tie."""
        self.last_sample = torch_backend.mode(self.logits, self.mask)
        self._last_log_prob = None
        return self.last_sample

    @override(TorchDistributionWrapper)
    def sampled_action_logp(self) -> Tensor:
        """Log-probability ``[B]`` of what ``sample`` or ``deterministic_sample`` last returned."""
        if self.last_sample is None:
            raise MaskError("nothing was sampled yet. Call sample() or deterministic_sample().")
        if self._last_log_prob is None or self.logits.requires_grad:
            return self.logp(self.last_sample)
        return self._last_log_prob  # That of `logp`, without its gradient.

    @staticmethod
    @override(TorchDistributionWrapper)
    def required_model_output_shape(
        action_space: gym.Space[Any], model_config: dict[str, Any]
    ) -> int:
        """``2A``: the logits and the mask."""
        if not isinstance(action_space, gym.spaces.Discrete):
            raise MaskError(
                f"the action space is {action_space!r}. Expected Discrete(A) under this mask."
            )
        return 2 * int(action_space.n)


def torch_masked_categorical_with_temperature(
    temperature: float,
) -> type[TorchMaskedCategorical]:
    """``TorchMaskedCategorical`` with another default temperature, as a class of its own."""

    class TorchMaskedCategoricalWithTemperature(TorchMaskedCategorical):
        def __init__(
            self, inputs: Any, model: Any = None, *, temperature: float = temperature
        ) -> None:
            super().__init__(inputs, model, temperature=temperature)

    return TorchMaskedCategoricalWithTemperature


def _indices(actions: Any, logits: Tensor) -> Tensor:
    """RLlib hands actions over as int tensors, as arrays, and from batches of zeros as floats."""
    if not isinstance(actions, Tensor):
        actions = torch.as_tensor(np.asarray(actions))
    return actions.to(device=logits.device, dtype=torch.long)
