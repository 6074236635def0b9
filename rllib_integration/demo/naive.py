"""The fault this project exists for, as people write it: masked when acting, not when learning.

The model adds a large negative number to illegal logits when it chooses an action, and RLlib's
stock distribution and PPO policy do the rest. The update evaluates the same observations with the
model in training mode, where no mask is applied: the probability an action was sampled with and the
probability the update computes for it are then different functions, before any learning.
"""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.models.torch.fcnet import FullyConnectedNetwork
from ray.rllib.models.torch.torch_modelv2 import TorchModelV2
from torch import Tensor, nn

__all__ = ["NaiveMaskedModel"]


class NaiveMaskedModel(TorchModelV2, nn.Module):
    """A fully connected network whose mask is forgotten in the update. Do not use."""

    def __init__(
        self,
        obs_space: Any,
        action_space: Any,
        num_outputs: int,
        model_config: dict[str, Any],
        name: str,
    ) -> None:
        nn.Module.__init__(self)
        TorchModelV2.__init__(self, obs_space, action_space, num_outputs, model_config, name)
        seen = obs_space.original_space["observations"]
        self.network = FullyConnectedNetwork(
            seen, action_space, num_outputs, model_config, f"{name}_network"
        )

    def forward(
        self, input_dict: Any, state: list[Tensor], seq_lens: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Logits ``[B, A]``, masked only where RLlib acts (it then sets the model to eval mode)."""
        observation = input_dict["obs"]
        logits, _ = self.network({"obs": observation["observations"]})
        if not self.training:
            sentinel = torch.finfo(torch.float32).min
            logits = logits + torch.clamp(torch.log(observation["action_mask"]), min=sentinel)
        return logits, state

    def value_function(self) -> Tensor:
        return self.network.value_function()
