"""PPO's loss under a mask, TensorFlow: its parts over the valid rows, and the rows that are not.

The same parts as ``torch_policy`` computes, as tensors that work in a static graph, under tracing
and eagerly. Rows that say nothing about the policy (padding, empty masks, actions illegal under
their own mask, masks that contradict the stored ones) are left out of every mean and counted.
"""

from __future__ import annotations

from typing import Any

from rllib_integration.keras_setup import setup_keras

setup_keras()

import tensorflow as tf  # noqa: E402
from ray.rllib.evaluation.postprocessing import Postprocessing  # noqa: E402
from ray.rllib.policy.sample_batch import SampleBatch  # noqa: E402
from ray.rllib.utils.tf_utils import explained_variance  # noqa: E402

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
    count = tf.reduce_sum(tf.cast(valid, logits.dtype))

    def mean(values: Any) -> Any:
        """Over the valid rows; 0, with a gradient of 0, where there is none."""
        return tf.reduce_sum(_keep(valid, values)) / tf.maximum(count, 1.0)

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
        explained = explained_variance(
            tf.boolean_mask(targets, valid), tf.boolean_mask(values, valid)
        )
        stats["vf_explained_var"] = tf.where(count > 1, explained, float("nan"))
    mean_entropy = mean(entropy)
    parts["entropy"] = (-policy.entropy_coeff, mean_entropy)
    if use_kl:
        parts["kl"] = (policy.kl_coeff, mean(kl))
        finite = valid & tf.math.is_finite(kl)
        some = tf.reduce_any(finite)
        total = tf.reduce_sum(_keep(finite, kl))
        finite_mean = total / tf.maximum(tf.reduce_sum(tf.cast(finite, kl.dtype)), 1.0)
        stats["kl"] = tf.where(some, finite_mean, stats["kl"])
        stats["max_kl"] = tf.reduce_max(_keep(finite, kl))  # 0 over no row: RLlib warns of a NaN.
    else:
        stats["kl"] = tf.zeros_like(surrogate)
    stats.update(policy_loss=surrogate, vf_loss=value_loss, entropy=mean_entropy)
    return parts, stats


def sum_of_parts(parts: Parts) -> Any:
    """The loss; a part with coefficient 0 adds 0, and no gradient, even where it is infinite."""
    terms = [
        tf.math.multiply_no_nan(tf.reshape(value, []), tf.cast(coeff, value.dtype))
        for coeff, value in parts.values()
    ]
    return tf.add_n(terms)


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
    num_actions = mask.shape[-1]
    in_range = (actions >= 0) & (actions < num_actions)
    index = tf.clip_by_value(actions, 0, num_actions - 1)
    legal = in_range & tf.gather(mask, index, batch_dims=1)
    empty = present & ~(tf.reduce_any(mask, -1) & tf.reduce_any(old_mask, -1))
    illegal = present & ~empty & ~legal
    differ = present & ~empty & ~illegal & tf.reduce_any(old_mask & ~mask, -1)
    nonfinite = present & tf.reduce_any(~tf.math.is_finite(logits) & mask, -1)
    faults = {
        "rows_empty_mask": empty,
        "rows_illegal_action": illegal,
        "rows_masks_differ": differ,
        "rows_nonfinite_logits": nonfinite,
    }
    counts = {name: tf.reduce_sum(tf.cast(rows, tf.float32)) for name, rows in faults.items()}
    return present & ~(empty | illegal | differ), counts
