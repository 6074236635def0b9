"""RLlib's TF Categorical over the masked logits of RLlib's own example model."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.tf_base import TFPeer, tf  # before Ray: it switches eager execution off

# isort: split
from ray.rllib.models.tf.tf_action_dist import Categorical

from benchmarks.peers.claims import ACCURACY, EMPTY, HALF, LOUD, NO_MINUS_INF, SENTINEL, VALIDATION


def make(logits: Any, mask: Any) -> Categorical:
    inf_mask = tf.maximum(tf.math.log(tf.cast(mask, logits.dtype)), logits.dtype.min)
    return Categorical(logits + inf_mask, None)


class _RLlib(TFPeer):
    def masked_softmax(self, logits: Any, mask: Any) -> Any:
        return tf.nn.softmax(self._make(logits, mask).inputs)

    def log_prob(self, logits: Any, mask: Any, actions: Any) -> Any:
        return self._make(logits, mask).logp(actions)

    def entropy(self, logits: Any, mask: Any) -> Any:
        return self._make(logits, mask).entropy()

    def kl_divergence(self, p_logits: Any, q_logits: Any, *, p_mask: Any, q_mask: Any) -> Any:
        return self._make(p_logits, p_mask).kl(self._make(q_logits, q_mask))

    def mode(self, logits: Any, mask: Any) -> Any:
        return self._make(logits, mask).deterministic_sample()

    def sample(self, logits: Any, mask: Any) -> Any:
        return self._make(logits, mask).sample()


PEER = _RLlib(
    "RLlib, TensorFlow",
    make,
    package="ray",
    not_claimed={
        **EMPTY,
        **ACCURACY,
        **HALF,
        **NO_MINUS_INF,
        **VALIDATION,
        **LOUD,
        **SENTINEL,
        "broadcasting_*": "logits and masks are [B, A]",
        "fault_a17_*": "logits and masks are [B, A]",
        "single_row_*": "logits and masks are [B, A]",
    },
    leaves_out=frozenset(
        {"empty rows", "junk", "legal -inf", "extremes", "illegal actions", "different masks"}
    ),
)
