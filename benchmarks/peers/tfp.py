"""TensorFlow Probability's Categorical over logits masked with -inf."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.tf_base import TFPeer, tf

# isort: split
import tensorflow_probability as tfp

from benchmarks.peers.claims import ACCURACY, EMPTY, HALF, LOUD, VALIDATION


def make(logits: Any, mask: Any) -> Any:
    least = tf.constant(-float("inf"), logits.dtype)
    return tfp.distributions.Categorical(logits=tf.where(mask, logits, least))


class _TFP(TFPeer):
    def masked_softmax(self, logits: Any, mask: Any) -> Any:
        return self._make(logits, mask).probs_parameter()

    def log_prob(self, logits: Any, mask: Any, actions: Any) -> Any:
        return self._make(logits, mask).log_prob(actions)

    def entropy(self, logits: Any, mask: Any) -> Any:
        return self._make(logits, mask).entropy()

    def kl_divergence(self, p_logits: Any, q_logits: Any, *, p_mask: Any, q_mask: Any) -> Any:
        return self._make(p_logits, p_mask).kl_divergence(self._make(q_logits, q_mask))

    def mode(self, logits: Any, mask: Any) -> Any:
        return self._make(logits, mask).mode()

    def sample(self, logits: Any, mask: Any, seed: int) -> Any:
        return self._make(logits, mask).sample(seed=seed)


PEER = _TFP(
    "TensorFlow Probability",
    make,
    package="tensorflow-probability",
    not_claimed={**EMPTY, **ACCURACY, **HALF, **VALIDATION, **LOUD},
    leaves_out=frozenset({"empty rows", "junk", "extremes"}),
)
