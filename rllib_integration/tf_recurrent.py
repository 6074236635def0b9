"""RLlib's recurrent networks made right under padding, TensorFlow: which rows they read.

RLlib 2.60 masks the padding of its LSTM by ``tf.sequence_mask(seq_lens)``, which is as long as the
longest sequence of the *minibatch*, while the data is padded to the longest of the *train batch*.
Where a minibatch holds shorter sequences only, the LSTM reads past the end of the mask and raises.
"""

from __future__ import annotations

from typing import Any

from rllib_integration.keras_setup import setup_keras

setup_keras()

import tensorflow as tf  # noqa: E402
from ray.rllib.models.tf.recurrent_net import LSTMWrapper  # noqa: E402

__all__ = ["mask_all_padding"]


def mask_all_padding(network: Any) -> None:
    """Let RLlib's LSTM mask as many steps as its input has; other networks stay as they are."""
    if not isinstance(network, LSTMWrapper):
        return
    rnn = network._rnn_model
    steps, lengths, *state = (
        tf.keras.layers.Input(shape=tensor.shape[1:], dtype=tensor.dtype) for tensor in rnn.inputs
    )
    mask = tf.sequence_mask(lengths, maxlen=tf.shape(steps)[1])
    out, *new_state = rnn.get_layer("lstm")(inputs=steps, mask=mask, initial_state=state)
    logits, values = rnn.get_layer("logits")(out), rnn.get_layer("values")(out)
    network._rnn_model = tf.keras.Model([steps, lengths, *state], [logits, values, *new_state])
