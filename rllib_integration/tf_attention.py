"""RLlib's attention layer with one window for acting and learning, TensorFlow.

When RLlib 2.60 acts, a step attends to the ``memory_inference`` steps before it. When it learns, it
is given a chunk of steps after the same memory, and step t of the chunk attends to the whole memory
and to the t steps before it: to up to ``max_seq_len - 1`` steps more than when the action was
chosen. The ratio of new and old probability is then not 1 before the first update. The window below
ends that; nothing else differs, and the variables are the same.
"""

from __future__ import annotations

from typing import Any

from rllib_integration.keras_setup import setup_keras

setup_keras()

import tensorflow as tf  # noqa: E402
from ray.rllib.models.tf.layers import RelativeMultiHeadAttention  # noqa: E402
from ray.rllib.models.tf.tf_modelv2 import TFModelV2  # noqa: E402

__all__ = ["WindowedAttention", "attend_within_window"]


class WindowedAttention(RelativeMultiHeadAttention):
    """``RelativeMultiHeadAttention`` in which each step sees the same number of steps before it."""

    def call(self, inputs: Any, memory: Any = None) -> Any:
        """Attend.

        Follows RLlib's method of the same name (Apache License 2.0), which follows Transformer-XL,
        https://www.aclweb.org/anthology/P19-1285.pdf.

        Args:
            inputs: ``[B, T, n]``, the steps.
            memory: ``[B, tau, n]``, the steps before them; no gradient flows into it.

        Returns:
            ``[B, T, out_dim]``; step t attends to itself and the tau steps before it.
        """
        steps, tau = tf.shape(inputs)[1], tf.shape(memory)[1]
        heads, size = self._num_heads, self._head_dim
        inputs = tf.concat([tf.stop_gradient(memory), inputs], axis=1)
        if self._input_layernorm is not None:
            inputs = self._input_layernorm(inputs)
        queries, keys, values = tf.split(self._qkv_layer(inputs), 3, -1)
        queries = tf.reshape(queries[:, -steps:], [-1, steps, heads, size])
        keys = tf.reshape(keys, [-1, tau + steps, heads, size])
        values = tf.reshape(values, [-1, tau + steps, heads, size])
        positions = self._pos_proj(self._pos_embedding(tau + steps))
        positions = tf.reshape(positions, [tau + steps, heads, size])
        score = tf.einsum("bihd,bjhd->bijh", queries + self._uvar, keys)
        pos_score = tf.einsum("bihd,jhd->bijh", queries + self._vvar, positions)
        score = (score + self.rel_shift(pos_score)) / size**0.5
        ahead = tf.range(tau + steps)[None, :] - tf.range(steps)[:, None]
        outside = (ahead < 0) | (ahead > tau)  # RLlib leaves only what lies ahead out.
        score = tf.where(outside[None, :, :, None], tf.constant(float("-inf"), score.dtype), score)
        weights = tf.nn.softmax(score, axis=2)
        out = tf.einsum("bijh,bjhd->bihd", weights, values)
        return self._linear_layer(tf.reshape(out, [-1, steps, heads * size]))


def attend_within_window(network: TFModelV2) -> None:
    """Turn every attention layer of RLlib's in ``network`` into a ``WindowedAttention``."""
    for value in vars(network).values():
        if isinstance(value, TFModelV2):
            attend_within_window(value)
        elif isinstance(value, tf.Module):
            for layer in value.submodules:
                if type(layer) is RelativeMultiHeadAttention:
                    layer.__class__ = WindowedAttention  # It adds no state: the variables stay.
