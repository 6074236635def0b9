"""The same step inside ``tf.function``: ours, RLlib's Categorical, TensorFlow Probability's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from backends import tf_backend

Quantities = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


@dataclasses.dataclass
class Batch:
    logits: tf.Variable
    old_logits: tf.Tensor
    mask: tf.Tensor
    actions: tf.Tensor
    advantages: tf.Tensor

    @classmethod
    def random(cls, rows: int, actions: int, *, legal: float = 0.5, seed: int = 0) -> Batch:
        rng = np.random.default_rng(seed)
        old = rng.normal(size=(rows, actions)).astype(np.float32)
        logits = old + 0.05 * rng.normal(size=old.shape).astype(np.float32)
        mask = rng.random(old.shape) < legal
        taken = rng.integers(actions, size=rows)
        mask[np.arange(rows), taken] = True
        advantages = rng.normal(size=rows).astype(np.float32)
        return cls(
            tf.Variable(logits),
            tf.constant(old),
            tf.constant(mask),
            tf.constant(taken),
            tf.constant(advantages),
        )


def step(
    batch: Batch, quantities: Callable[..., Quantities], *, xla: bool
) -> Callable[[], tf.Tensor]:
    @tf.function(jit_compile=xla)
    def run(logits, old_logits, mask, actions, advantages):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            log_prob, entropy, kl = quantities(logits, old_logits, mask, actions)
            loss = tf.reduce_mean(-advantages * log_prob - 0.01 * entropy + 0.2 * kl)
        return tape.gradient(loss, logits)

    arguments = (
        tf.convert_to_tensor(batch.logits),
        batch.old_logits,
        batch.mask,
        batch.actions,
        batch.advantages,
    )
    return lambda: run(*arguments).numpy()


def ours(logits, old_logits, mask, actions) -> Quantities:
    result = tf_backend.evaluate_actions(logits, mask, actions, old_logits=old_logits)
    return result.log_prob, result.entropy, result.kl_divergence


def rllib(logits, old_logits, mask, actions) -> Quantities:
    """RLlib's example mask (log of the mask, clamped) and its Categorical."""
    from ray.rllib.models.tf.tf_action_dist import Categorical

    penalty = tf.maximum(tf.math.log(tf.cast(mask, logits.dtype)), logits.dtype.min)
    new = _distribution(Categorical, logits + penalty)
    old = _distribution(Categorical, old_logits + penalty)
    return new.logp(actions), new.entropy(), old.kl(new)


def _distribution(kind, inputs):
    """RLlib's distribution without the draw that its constructor adds to the graph."""
    distribution = kind.__new__(kind)
    distribution.inputs = inputs
    return distribution


def tfp(logits, old_logits, mask, actions) -> Quantities:
    import tensorflow_probability as tfp

    def make(values):
        return tfp.distributions.Categorical(logits=tf.where(mask, values, -1e9))

    new, old = make(logits), make(old_logits)
    return new.log_prob(actions), new.entropy(), old.kl_divergence(new)
