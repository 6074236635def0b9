"""The masked categorical as an RLlib action distribution, TensorFlow: graph, tracing and eager.

Its inputs are ``[logits | mask]``, the concatenation along the last axis of the network's raw
logits ``[B, A]`` and the mask ``[B, A]`` as 0/1 numbers. The distribution so carries its own mask:
RLlib builds it from the model's output at rollout, in ``compute_actions`` and in the loss, and from
the stored ACTION_DIST_INPUTS for the old policy, with the old mask, exactly as it was.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from maskcore import MaskError
from rllib_integration.keras_setup import setup_keras

setup_keras()

import tensorflow as tf  # noqa: E402
from ray.rllib.models.tf.tf_action_dist import TFActionDistribution  # noqa: E402
from ray.rllib.utils.annotations import override  # noqa: E402

from backends import tf_backend  # noqa: E402

__all__ = ["TFMaskedCategorical", "split_inputs", "tf_masked_categorical_with_temperature"]


def split_inputs(inputs: Any) -> tuple[Any, Any]:
    """``[logits | mask]`` ``[..., 2A]`` -> logits ``[..., A]``, mask ``[..., A]`` bool.

    Raises:
        MaskError: For an odd or unknown length.
    """
    size = inputs.shape[-1]
    if size is None or size % 2:
        raise MaskError(
            f"distribution inputs have shape {tuple(inputs.shape)}. Expected [..., 2A]: logits and "
            "mask side by side, as the masked model returns them."
        )
    # Not `!= 0`: on Ray workers RLlib switches TensorFlow to v1, where that compares identities.
    return inputs[..., : size // 2], tf.not_equal(inputs[..., size // 2 :], 0)


class TFMaskedCategorical(TFActionDistribution):
    """Categorical over the legal actions; total on the batches of zeros RLlib builds policies from.

    Args:
        inputs: ``[B, 2A]``: logits and mask side by side.
        model: The model, or None.
        temperature: Divides the logits; > 0.

    Attributes:
        logits: ``[B, A]``, raw: what is under the mask is never read.
        mask: ``[B, A]`` bool, True is legal.
    """

    @override(TFActionDistribution)
    def __init__(self, inputs: Any, model: Any = None, *, temperature: float = 1.0) -> None:
        if not temperature > 0.0:
            raise MaskError(f"temperature is {temperature}. Expected a number > 0.")
        inputs = tf.convert_to_tensor(inputs)
        self.logits, self.mask = split_inputs(inputs)
        if temperature != 1.0:
            self.logits = self.logits / temperature
        super().__init__(inputs, model)

    @override(TFActionDistribution)
    def logp(self, actions: Any) -> Any:
        """Log-probability ``[B]`` in nats; -inf for an illegal action, 0 in an empty row."""
        # Drawn from these logits, an action depends on them; its gradient is 0.
        actions = tf.stop_gradient(tf.cast(actions, tf.int64))
        return tf_backend.log_prob(self.logits, self.mask, actions)

    @override(TFActionDistribution)
    def entropy(self) -> Any:
        """Entropy ``[B]`` in nats over the legal actions."""
        return tf_backend.entropy(self.logits, self.mask)

    @override(TFActionDistribution)
    def kl(self, other: TFMaskedCategorical) -> Any:
        """KL(self, other) ``[B]`` in nats; +inf where ``other`` forbids what ``self`` may do."""
        return tf_backend.kl_divergence(
            self.logits, other.logits, p_mask=self.mask, q_mask=other.mask
        )

    @override(TFActionDistribution)
    def deterministic_sample(self) -> Any:
        """The most probable legal action a row ``[B]`` int64, the lowest index on a tie."""
        return tf.cast(tf_backend.mode(self.logits, self.mask), tf.int64)

    @override(TFActionDistribution)
    def _build_sample_op(self) -> Any:
        return tf.cast(tf_backend.sample(self.logits, self.mask), tf.int64)

    @staticmethod
    @override(TFActionDistribution)
    def required_model_output_shape(
        action_space: gym.Space[Any], model_config: dict[str, Any]
    ) -> int:
        """``2A``: the logits and the mask."""
        if not isinstance(action_space, gym.spaces.Discrete):
            raise MaskError(
                f"the action space is {action_space!r}. Expected Discrete(A) under this mask."
            )
        return 2 * int(action_space.n)


def tf_masked_categorical_with_temperature(temperature: float) -> type[TFMaskedCategorical]:
    """``TFMaskedCategorical`` with another default temperature, as a class of its own."""

    class TFMaskedCategoricalWithTemperature(TFMaskedCategorical):
        def __init__(
            self, inputs: Any, model: Any = None, *, temperature: float = temperature
        ) -> None:
            super().__init__(inputs, model, temperature=temperature)

    return TFMaskedCategoricalWithTemperature
