"""What a network's logits layer was last given: the features that training-only layers work on."""

from __future__ import annotations

from typing import Any

from maskcore import MaskError
from rllib_integration.keras_setup import setup_keras

setup_keras()

import tensorflow as tf  # noqa: E402

__all__ = ["Features"]

# Where RLlib's networks keep the Keras model whose first output are the logits: fully connected
# and vision, complex input, LSTM, attention.
_KERAS_MODELS = ("_logits_branch", "_rnn_model", "logits_and_value_model", "base_model")


class Features:
    """Keeps the input of the logits layer of each forward pass. No pass is made twice for it.

    Args:
        network: A TFModelV2. RLlib's own are known; one of the user's own is if it has its Keras
            model, logits first among the outputs, under the attribute ``base_model``.
    """

    def __init__(self, network: Any) -> None:
        self._network_name = type(network).__name__
        self._last: Any = None
        self._size: int | None = None
        layer = _find_logits_layer(network)
        if layer is not None:
            self._size = int(layer.kernel.shape[-2])
            self._record_inputs_of(layer)

    @property
    def size(self) -> int:
        """Length along the last axis."""
        if self._size is None:
            raise MaskError(
                f"{self._network_name} has no logits layer where RLlib's networks have it "
                f"({', '.join(_KERAS_MODELS)}), so its features are not known. Keep them in an "
                "attribute of your own network, and size the training layers from it."
            )
        return self._size

    def last(self) -> Any:
        """The features ``[B, n]`` of the last forward pass."""
        size = self.size
        if self._last is None:
            raise MaskError("features() was called before the model. Call the model first.")
        return tf.reshape(self._last, [-1, size])

    def _record_inputs_of(self, layer: Any) -> None:
        original = layer.call

        @tf.autograph.experimental.do_not_convert
        def call(inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self._last = inputs
            return original(inputs, *args, **kwargs)

        layer.call = call


def _find_logits_layer(network: Any) -> Any:
    for name in _KERAS_MODELS:
        model = getattr(network, name, None)
        if isinstance(model, tf.keras.Model) and model.outputs:
            return _weighted_layer(model.outputs[0])
    return None


def _weighted_layer(tensor: Any) -> Any:
    """The layer with weights that a symbolic output comes from, past reshaping layers."""
    while True:
        layer = tensor._keras_history.layer
        if hasattr(layer, "kernel"):
            return layer
        tensor = layer.input
        if isinstance(tensor, (list, tuple)) or tensor is layer.output:
            return None
