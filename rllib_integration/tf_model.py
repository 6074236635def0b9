"""The masked TFModelV2: a network of RLlib's or the user's inside, the mask outermost.

The network sees the observation without the mask and returns raw logits ``[B, A]``; this model
puts the mask beside them, ``[logits | mask]``, and the distribution does the rest. Recurrent and
attention layers are inside, so what they are padded with never meets the mask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from maskcore import MaskError
from rllib_integration.keras_setup import setup_keras

setup_keras()

import tensorflow as tf  # noqa: E402
from ray.rllib.models.catalog import ModelCatalog  # noqa: E402
from ray.rllib.models.modelv2 import ModelV2  # noqa: E402
from ray.rllib.models.tf.tf_modelv2 import TFModelV2  # noqa: E402
from ray.rllib.policy.sample_batch import SampleBatch  # noqa: E402
from ray.rllib.policy.view_requirement import ViewRequirement  # noqa: E402
from ray.rllib.utils.annotations import override  # noqa: E402
from ray.tune.registry import RLLIB_MODEL, _global_registry  # noqa: E402

from rllib_integration.observations import find_masked_observation  # noqa: E402
from rllib_integration.tf_attention import attend_within_window  # noqa: E402
from rllib_integration.tf_features import Features  # noqa: E402
from rllib_integration.tf_recurrent import mask_all_padding  # noqa: E402
from rllib_integration.tf_variables import AllVariables, check_layers_are_built  # noqa: E402

__all__ = ["MaskedTFModel"]


class MaskedTFModel(AllVariables, TFModelV2):
    """Masks the output of any TFModelV2.

    Subclass it for layers that exist only for training (``build_training_layers``), a loss of the
    model's own (``custom_loss``), or another network (``build_network``). ``custom_loss``,
    ``metrics`` and ``build_training_layers`` of the network inside are honoured as well.

    Args:
        obs_space: The policy's observation space, mask included.
        action_space: ``Discrete(A)``.
        num_outputs: ``2A``, as the masked distribution asks for.
        model_config: RLlib's model config; describes the network inside.
        name: The model's name.
        mask_key, obs_key: Keys in the Dict observation; ``obs_key=None``: all but the mask.
        no_masking: Put ones in place of the mask, for ablations.
        network: A TFModelV2 class to use inside, or its registered name; RLlib's choice for the
            observation space if None. Given the space under ``obs_key`` and ``num_outputs=A``.
        network_config: Keyword arguments for ``network``.

    Raises:
        MaskError: If the observation space has no mask to find, if no masked distribution reads
            the output, or if a layer is not built.
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
        network: type[TFModelV2] | str | None = None,
        network_config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(obs_space, action_space, num_outputs, model_config, name)
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
                'to "maskcore_tf_masked_categorical"; use_lstm and use_attention work through '
                "with_action_masking only, which puts them inside the mask."
            )
        self.network: Any = self.build_network(
            self.where.network_space,
            action_space,
            self.num_actions,
            {
                **model_config,
                "custom_model": _with_all_variables(network),
                "custom_model_config": dict(network_config or {}),
                "custom_action_dist": None,
            },
            f"{name}_network",
        )
        attend_within_window(self.network)
        mask_all_padding(self.network)
        self._features = Features(self.network)
        self.view_requirements = {
            **self.network.view_requirements,
            SampleBatch.OBS: ViewRequirement(shift=0, space=obs_space),
        }
        build_in_network = getattr(self.network, "build_training_layers", None)
        if callable(build_in_network):
            build_in_network()
        self.build_training_layers()
        check_layers_are_built(self)

    def build_network(
        self,
        obs_space: gym.Space[Any],
        action_space: gym.Space[Any],
        num_outputs: int,
        model_config: dict[str, Any],
        name: str,
    ) -> TFModelV2:
        """Build the network inside; RLlib's own choice for ``obs_space`` unless overridden."""
        return ModelCatalog.get_model_v2(
            obs_space, action_space, num_outputs, model_config, framework="tf", name=name
        )

    def build_training_layers(self) -> None:
        """Create layers that only a loss uses; override, and assign them to attributes.

        Runs after the network is there and before the optimizer is built. A Keras layer has no
        variables before it is built, so build it here: ``layer.build((None, n))``, with
        ``self.feature_size`` the length of ``self.features()``.
        """

    @property
    def feature_size(self) -> int:
        """Length of ``features()`` along the last axis."""
        return self._features.size

    def features(self) -> Any:
        """The input of the network's logits layer, ``[B, n]``, in the last forward pass.

        Raises:
            MaskError: Before the first pass, or for a network without a known logits layer.
        """
        return self._features.last()

    @override(ModelV2)
    def forward(self, input_dict: Any, state: list[Any], seq_lens: Any) -> tuple[Any, list[Any]]:
        """``[logits | mask]`` ``[B, 2A]`` and the new recurrent state; ``input_dict`` unchanged."""
        observation = input_dict[SampleBatch.OBS]
        network_input = (
            input_dict.copy(shallow=True)
            if isinstance(input_dict, SampleBatch)
            else dict(input_dict)
        )
        network_input[SampleBatch.OBS] = self.where.network_input(
            observation, flatten=_flatten, concat=lambda parts: tf.concat(list(parts), axis=1)
        )
        logits, new_state = self.network(network_input, state, seq_lens)
        if logits.shape[-1] != self.num_actions:
            raise MaskError(
                f"{type(self.network).__name__} returned {tuple(logits.shape)}. Expected "
                f"[B, {self.num_actions}], one logit an action."
            )
        mask = self.where.mask(observation)
        legal = tf.ones_like(mask, tf.bool) if self.no_masking else tf.not_equal(mask, 0)
        return tf.concat([logits, tf.cast(legal, logits.dtype)], axis=-1), list(new_state)

    @override(ModelV2)
    def value_function(self) -> Any:
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

    @override(TFModelV2)
    def update_ops(self) -> list[Any]:
        return self.network.update_ops()


def _with_all_variables(network: type[TFModelV2] | str | None) -> Any:
    """The user's class with ``AllVariables`` in front, so that registering a variable adds it."""
    if isinstance(network, str):
        if not _global_registry.contains(RLLIB_MODEL, network):
            return network  # A path to import, or unknown: RLlib says so.
        network = _global_registry.get(RLLIB_MODEL, network)
    if network is None or issubclass(network, AllVariables):
        return network
    if not issubclass(network, TFModelV2):
        raise MaskError(
            f"the custom model {network.__name__} is not a TFModelV2. Expected a subclass of "
            "ray.rllib.models.tf.tf_modelv2.TFModelV2 for framework 'tf' or 'tf2'."
        )
    return type(network.__name__, (AllVariables, network), {"__module__": network.__module__})


def _flatten(part: Any) -> Any:
    return tf.cast(tf.reshape(part, [-1, math.prod(part.shape[1:])]), tf.float32)
