"""PPO's loss under a mask, TensorFlow: its parts over the valid rows, and the rows that are not.

The same parts as ``torch_policy`` computes, as tensors that work in a static graph, under tracing
and eagerly. Rows that say nothing about the policy (padding, empty masks, actions illegal under
their own mask, masks that contradict the stored ones) are left out of every mean and counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rllib_integration.keras_setup import setup_keras

setup_keras()

import tensorflow as tf  # noqa: E402
from ray.rllib.evaluation.postprocessing import Postprocessing  # noqa: E402
from ray.rllib.policy.sample_batch import SampleBatch  # noqa: E402
from ray.rllib.utils.numpy import SMALL_NUMBER  # noqa: E402

from backends import tf_backend  # noqa: E402
from rllib_integration.tf_distribution import split_inputs  # noqa: E402

__all__ = ["Parts", "missing_stats", "ppo_parts", "present_rows", "sum_of_parts"]

# name -> (coefficient, scalar); the coefficient is a number or a variable.
Parts = dict[str, tuple[Any, Any]]


def ppo_parts(policy: Any, model: Any, batch: Any) -> tuple[Parts, dict[str, Any]]:
    """PPO's clipped surrogate, value loss, entropy and KL(old, new), means over valid rows.

    Args:
        policy: A masked PPO policy: its config and coefficients.
        model: The masked model; called once.
        batch: A train batch.

    Returns:
        The parts of the loss, and statistics by the names under which they are reported.
    """
    config = policy.config
    inputs, state = model(batch)
    logits, mask = split_inputs(inputs)
    old_logits, old_mask = split_inputs(batch[SampleBatch.ACTION_DIST_INPUTS])
    actions = tf.cast(batch[SampleBatch.ACTIONS], tf.int64)
    use_kl = bool(config["use_kl_loss"])
    log_prob, entropy, kl = tf_backend.evaluate_actions(
        logits,
        mask,
        actions,
        old_logits=old_logits if use_kl else None,
        old_mask=old_mask if use_kl else None,
    )
    present = present_rows(batch, state, logits)
    valid, stats = _valid_rows(logits, mask, old_mask, actions, present)
    kept = tf.cast(valid, logits.dtype)
    count = tf.reduce_sum(kept)
    weights = kept / tf.maximum(count, 1.0)

    def mean(values: Any) -> Any:
        """Over the valid rows; 0, with a gradient of 0, where there is none."""
        return tf.reduce_sum(tf.math.multiply_no_nan(values, weights))

    advantages = batch[Postprocessing.ADVANTAGES]
    # Kept before the exponential: a stored -inf would make 0 * inf of its gradient.
    ratio = tf.exp(_keep(valid, log_prob - batch[SampleBatch.ACTION_LOGP]))
    clip = config["clip_param"]
    clipped = tf.clip_by_value(ratio, 1 - clip, 1 + clip)
    surrogate = mean(-tf.minimum(advantages * ratio, advantages * clipped))
    parts: Parts = {"policy": (1.0, surrogate)}
    value_loss = tf.zeros_like(surrogate)
    stats.update(missing_stats())
    if config["use_critic"]:
        values, targets = model.value_function(), batch[Postprocessing.VALUE_TARGETS]
        value_loss = mean(tf.clip_by_value((values - targets) ** 2, 0, config["vf_clip_param"]))
        parts["value"] = (config["vf_loss_coeff"], value_loss)
        unexplained = _variance(targets - values, mean) / (_variance(targets, mean) + SMALL_NUMBER)
        explained = tf.maximum(-1.0, 1.0 - unexplained)  # As RLlib's `explained_variance`.
        stats["vf_explained_var"] = tf.where(count > 1, explained, float("nan"))
    mean_entropy = mean(entropy)
    parts["entropy"] = (-policy.entropy_coeff, mean_entropy)
    if use_kl:
        parts["kl"] = (policy.kl_coeff, mean(kl))
        finite = valid & tf.math.is_finite(kl)
        finite_kl = _keep(finite, kl)
        # Over no row: NaN, and a largest of 0, because RLlib warns of a lone NaN there.
        stats["kl"] = tf.reduce_sum(finite_kl) / tf.reduce_sum(tf.cast(finite, kl.dtype))
        stats["max_kl"] = tf.reduce_max(finite_kl)
    else:
        stats["kl"] = tf.zeros_like(surrogate)
    stats.update(policy_loss=surrogate, vf_loss=value_loss, entropy=mean_entropy)
    return parts, stats


def sum_of_parts(parts: Parts) -> Any:
    """The loss; a part with coefficient 0 adds 0, and no gradient, even where it is infinite."""
    return tf.add_n([_times(tf.reshape(value, []), coeff) for coeff, value in parts.values()])


def _times(value: Any, coeff: Any) -> Any:
    if isinstance(coeff, (int, float)) and coeff == 1:
        return value
    return tf.math.multiply_no_nan(value, tf.cast(coeff, value.dtype))


def _variance(values: Any, mean: Callable[[Any], Any]) -> Any:
    return mean((values - mean(values)) ** 2)


def missing_stats() -> dict[str, Any]:
    """What RLlib's PPO reads after each iteration, as "not measured"; the rest is left out."""
    return {name: tf.constant(float("nan")) for name in ("policy_loss", "vf_loss", "kl")}


def _keep(rows: Any, values: Any) -> Any:
    return tf.where(rows, values, tf.zeros_like(values))


def present_rows(batch: Any, state: Any, logits: Any) -> Any:
    """Which rows are no padding ``[B]``.

    The length is read off the data, not off the lengths: sequences of 2 and 3 steps are padded to
    ``max_seq_len`` for attention networks.
    """
    if not state:
        return tf.ones(tf.shape(logits)[:1], tf.bool)
    lengths = batch[SampleBatch.SEQ_LENS]
    longest = tf.shape(logits)[0] // tf.shape(lengths)[0]
    return tf.reshape(tf.sequence_mask(lengths, longest), [-1])


def _valid_rows(
    logits: Any, mask: Any, old_mask: Any, actions: Any, present: Any
) -> tuple[Any, dict[str, Any]]:
    """Rows that belong in the loss ``[B]``, and how many others there are of each kind."""
    taken = tf.one_hot(actions, mask.shape[-1], on_value=True, off_value=False, dtype=tf.bool)
    legal = tf.reduce_any(mask & taken, -1)
    choices = present & tf.reduce_any(mask, -1) & tf.reduce_any(old_mask, -1)
    chosen = choices & legal
    valid = chosen & ~tf.reduce_any(old_mask & ~mask, -1)
    nonfinite = present & tf.reduce_any(~tf.math.is_finite(logits) & mask, -1)
    groups = tf.stack([present, choices, chosen, valid, nonfinite])
    all_rows, some, of_some, of_these, bad = tf.unstack(
        tf.reduce_sum(tf.cast(groups, tf.float32), -1)
    )
    counts = {
        "rows_empty_mask": all_rows - some,
        "rows_illegal_action": some - of_some,
        "rows_masks_differ": of_some - of_these,
        "rows_nonfinite_logits": bad,
    }
    return valid, counts
