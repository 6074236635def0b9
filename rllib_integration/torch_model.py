"""The masked TorchModelV2: a network of RLlib's or the user's inside, the mask outermost.

The network sees the observation without the mask and returns raw logits ``[B, A]``; this model
puts the mask beside them, ``[logits | mask]``, and the distribution does the rest. Recurrent and
attention layers are inside, so what they are padded with never meets the mask.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from ray.rllib.models.catalog import ModelCatalog
from ray.rllib.models.modelv2 import ModelV2
from ray.rllib.models.torch.torch_modelv2 import TorchModelV2
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.policy.view_requirement import ViewRequirement
from ray.rllib.utils.annotations import override
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from maskcore import MaskError, as_bool
from rllib_integration.observations import find_masked_observation
from rllib_integration.torch_attention import attend_within_window

__all__ = ["MaskedTorchModel"]


class MaskedTorchModel(TorchModelV2, nn.Module):
    """Masks the output of any TorchModelV2.

    Subclass it for layers that exist only for training (``build_training_layers``), a loss of the
    model's own (``custom_loss``), or another network (``build_network``). ``custom_loss`` and
    ``metrics`` of the network inside are honoured as well.

    Args:
        obs_space: The policy's observation space, mask included.
        action_space: ``Discrete(A)``.
        num_outputs: ``2A``, as the masked distribution asks for.
        model_config: RLlib's model config; describes the network inside.
        name: The model's name.
        mask_key, obs_key: Keys in the Dict observation; ``obs_key=None``: all but the mask.
        no_masking: Put ones in place of the mask, for ablations.
        network: A TorchModelV2 class to use inside, or its registered name; RLlib's choice for the
            observation space if None. Given the space under ``obs_key`` and ``num_outputs=A``.
        network_config: Keyword arguments for ``network``.

    Raises:
        MaskError: If the observation space has no mask to find, or if no masked distribution reads
            the output.
    """

    def __init__(
        self,
        obs_space: gym.Space[Any],
        action_space: gym.Space[Any],
        num_outputs: int,
        model_config: dict[str, Any],
        name: str,
        *,
        mask_key: str = "action_mask",
        obs_key: str | None = "observations",
        no_masking: bool = False,
        network: type[TorchModelV2] | str | None = None,
        network_config: Mapping[str, Any] | None = None,
    ) -> None:
        nn.Module.__init__(self)
        TorchModelV2.__init__(self, obs_space, action_space, num_outputs, model_config, name)
        self.where = find_masked_observation(
            obs_space, action_space, mask_key=mask_key, obs_key=obs_key
        )
        self.num_actions = self.where.num_actions
        self.no_masking = no_masking
        if num_outputs != 2 * self.num_actions:
            raise MaskError(
                f"the masked model is asked for {num_outputs} outputs for {self.num_actions} "
                f"actions. Expected {2 * self.num_actions}, logits and mask: no masked "
                "distribution would read them. Use with_action_masking, or set custom_action_dist "
                'to "maskcore_torch_masked_categorical"; use_lstm and use_attention work through '
                "with_action_masking only, which puts them inside the mask."
            )
        self.network: Any = self.build_network(
            self.where.network_space,
            _with_plain_size(action_space),
            self.num_actions,
            {
                **model_config,
                "custom_model": network,
                "custom_model_config": dict(network_config or {}),
                "custom_action_dist": None,
            },
            f"{name}_network",
        )
        attend_within_window(self.network)
        self._plain = network is None and not (
            model_config.get("use_lstm") or model_config.get("use_attention")
        )
        self._features: Tensor | None = None
        logits_layer = _find_logits_layer(self.network)
        if logits_layer is not None:
            logits_layer.register_forward_pre_hook(self._keep_features)
        self.view_requirements = {
            **self.network.view_requirements,
            SampleBatch.OBS: ViewRequirement(shift=0, space=obs_space),
        }
        self.build_training_layers()
        _check_layers_are_built(self)

    def build_network(
        self,
        obs_space: gym.Space[Any],
        action_space: gym.Space[Any],
        num_outputs: int,
        model_config: dict[str, Any],
        name: str,
    ) -> TorchModelV2:
        """Build the network inside; RLlib's own choice for ``obs_space`` unless overridden."""
        return ModelCatalog.get_model_v2(
            obs_space, action_space, num_outputs, model_config, framework="torch", name=name
        )

    def build_training_layers(self) -> None:
        """Create layers that only a loss uses; override, and assign them to attributes.

        Runs after the network is there and before the optimizer is built. Layers need their sizes:
        ``self.feature_size`` is the length of ``self.features()``.
        """

    @property
    def feature_size(self) -> int:
        """Length of ``features()`` along the last axis."""
        logits_layer = _find_logits_layer(self.network)
        if logits_layer is None:
            raise MaskError(
                f"{type(self.network).__name__} has no logits layer under a name RLlib's networks "
                "use, so the size of its features is not known. Size the training layers from "
                "your own network's attributes."
            )
        return int(next(logits_layer.parameters()).shape[1])

    def features(self) -> Tensor:
        """The input of the network's logits layer, ``[B, n]``, in the last forward pass.

        Raises:
            MaskError: Before the first pass, or for a network without a known logits layer.
        """
        if self._features is None:
            raise MaskError(
                f"{type(self.network).__name__} has kept no features. Call the model first; a "
                f"network of your own has its logits layer under one of {_LOGITS_LAYERS}."
            )
        return self._features.reshape(-1, self.feature_size)

    @override(TorchModelV2)
    def forward(
        self, input_dict: Any, state: list[Tensor], seq_lens: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """``[logits | mask]`` ``[B, 2A]`` and the new recurrent state; ``input_dict`` unchanged."""
        observation = input_dict[SampleBatch.OBS]
        network_input: Any = {
            SampleBatch.OBS: self.where.network_input(
                observation,
                flatten=lambda part: part.reshape(part.shape[0], -1),
                concat=lambda parts: torch.cat(list(parts), dim=1),
            )
        }
        if not self._plain:  # It may ask for previous actions, rewards, or its state.
            copied = (
                input_dict.copy(shallow=True)
                if isinstance(input_dict, SampleBatch)
                else dict(input_dict)
            )
            copied[SampleBatch.OBS] = network_input[SampleBatch.OBS]
            network_input = copied
        logits, new_state = self.network(network_input, state, seq_lens)
        if logits.shape[-1] != self.num_actions:
            raise MaskError(
                f"{type(self.network).__name__} returned {tuple(logits.shape)}. Expected "
                f"[B, {self.num_actions}], one logit an action."
            )
        mask = self.where.mask(observation).to(logits.dtype)
        legal = (mask != 0).to(logits.dtype)
        if not self.training and not torch.equal(mask, legal):  # It costs little; RLlib trains on
            _refuse_mask(mask, self.where.mask_key)  # what it has sampled.
        if self.no_masking:
            legal = torch.ones_like(legal)
        return torch.cat([logits, legal], dim=-1), new_state

    @override(nn.Module)
    def train(self, mode: bool = True) -> MaskedTorchModel:
        """As Torch's. RLlib calls it for every step and minibatch: most change nothing."""
        return self if self.training == mode else super().train(mode)

    @override(TorchModelV2)
    def value_function(self) -> Tensor:
        """The network's value ``[B]``: computed from the observation without the mask."""
        return self.network.value_function()

    @override(ModelV2)
    def get_initial_state(self) -> list[Any]:
        return self.network.get_initial_state()

    @override(ModelV2)
    def custom_loss(self, policy_loss: Any, loss_inputs: Any) -> Any:
        """The loss of the network inside, if it has one; override to add the model's own."""
        return self.network.custom_loss(policy_loss, loss_inputs)

    @override(ModelV2)
    def metrics(self) -> dict[str, Any]:
        return self.network.metrics()

    @override(TorchModelV2)
    def variables(self, as_dict: bool = False) -> Any:
        """The parameters, each once; RLlib 2.60 counts those of shared layers twice by name."""
        return dict(self.named_parameters()) if as_dict else list(self.parameters())

    @override(ModelV2)
    def is_time_major(self) -> bool:
        return self.network.is_time_major()

    def _keep_features(self, _layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features = inputs[0]


# Where RLlib's networks keep their last layer: complex input, LSTM and attention, others.
_LOGITS_LAYERS = ("logits_layer", "_logits_branch", "_logits")


def _find_logits_layer(network: nn.Module) -> nn.Module | None:
    for name in _LOGITS_LAYERS:
        layer = getattr(network, name, None)
        if isinstance(layer, nn.Module):
            return layer
    return None


def _with_plain_size(action_space: gym.Space[Any]) -> gym.Space[Any]:
    """Discrete(A) whose ``n`` is a Python int.

    Ray 2.60 adds it to the input size of an LSTM with previous actions; torch.nn.LSTM refuses the
    np.int64 that Gymnasium makes of it.
    """
    plain: Any = copy.copy(action_space)
    plain.n = int(plain.n)
    return plain


def _refuse_mask(mask: Tensor, key: str) -> None:
    as_bool(mask.detach().cpu().numpy(), name=f"the mask under {key!r}")


def _check_layers_are_built(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            layer = name.rpartition(".")[0]
            raise MaskError(
                f"layer {layer!r} is not built yet: its parameter {name!r} has no shape, so the "
                "optimizer would not train it. Give its sizes (nn.Linear(in, out) in place of "
                "nn.LazyLinear(out); self.feature_size is the length of self.features()), or run "
                "it once in build_training_layers."
            )
