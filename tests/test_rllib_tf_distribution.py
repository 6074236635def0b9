"""The masked categorical as RLlib calls it, TensorFlow: in graph and eager."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rllib_tf_support
import tensorflow as tf
from gymnasium import spaces

import maskcore
from maskcore import MaskError
from rllib_integration.tf_distribution import (
    TFMaskedCategorical,
    split_inputs,
    tf_masked_categorical_with_temperature,
)

pytestmark = rllib_tf_support.TF_MARKS

tf1 = tf.compat.v1


def inputs_of(logits: Any, mask: Any) -> Any:
    return tf.concat([tf.constant(logits, tf.float32), tf.constant(mask, tf.float32)], -1)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_the_distribution_agrees_with_the_specification(graph: bool) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (50, 7)).astype(np.float32)
    mask = rng.random((50, 7)) < 0.4
    other = rng.normal(0, 3, (50, 7)).astype(np.float32)

    def found() -> list[Any]:
        p = TFMaskedCategorical(inputs_of(logits, mask))
        q = TFMaskedCategorical(inputs_of(other, mask))
        actions = p.sample()
        assert actions.dtype == p.deterministic_sample().dtype == tf.int64
        greedy = p.deterministic_sample()
        return [actions, p.logp(actions), p.sampled_action_logp(), p.entropy(), p.kl(q), greedy]

    if graph:
        with tf1.Graph().as_default(), tf1.Session() as session:
            values = session.run(found())
    else:
        values = [value.numpy() for value in found()]
    actions, log_prob, sampled_log_prob, entropy, kl, mode = values
    assert (mask[np.arange(50), actions] | ~mask.any(-1)).all()
    for value, expected in (
        (log_prob, maskcore.log_prob(logits, mask, actions)),
        (sampled_log_prob, maskcore.log_prob(logits, mask, actions)),
        (entropy, maskcore.entropy(logits, mask)),
        (kl, maskcore.kl_divergence(logits, other, p_mask=mask, q_mask=mask)),
    ):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(mode, maskcore.mode(logits, mask))


def test_the_distribution_is_total_on_a_batch_of_zeros() -> None:
    inputs = tf.zeros((4, 6))
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        p = TFMaskedCategorical(inputs)
        total = tf.reduce_sum(p.logp(p.sample()) + p.entropy() + p.kl(p))
    assert p.sample().numpy().tolist() == [0] * 4
    assert float(total) == 0.0
    assert not np.any(tape.gradient(total, inputs))


def test_what_is_stored_carries_its_own_mask_for_the_kl() -> None:
    """FAULTS A5: the old and the new mask differ; infinite, with gradient 0."""
    new = inputs_of([[1.0, 2.0, 9.9]], [[1, 1, 0]])
    with tf.GradientTape() as tape:
        tape.watch(new)
        old = TFMaskedCategorical(inputs_of([[1.0, 9.9, 3.0]], [[1, 0, 1]]))
        kl = old.kl(TFMaskedCategorical(new))
    assert kl.numpy().tolist() == [float("inf")]
    assert not np.any(tape.gradient(kl, new))


def test_temperature_divides_the_logits() -> None:
    inputs = inputs_of([[1.0, 3.0, 5.0]], [[1, 1, 0]])
    warm = tf_masked_categorical_with_temperature(2.0)(inputs)
    expected = maskcore.log_prob([[0.5, 1.5, 2.5]], [[1, 1, 0]], [1])
    np.testing.assert_allclose(warm.logp(tf.constant([1])), expected, 1e-6)
    with pytest.raises(MaskError, match="temperature is 0"):
        TFMaskedCategorical(inputs, temperature=0.0)


def test_misuse_of_the_distribution_is_named() -> None:
    with pytest.raises(MaskError, match=r"shape \(1, 5\). Expected \[..., 2A\]"):
        split_inputs(tf.zeros((1, 5)))
    with pytest.raises(MaskError, match="Discrete"):
        TFMaskedCategorical.required_model_output_shape(spaces.MultiDiscrete([2, 2]), {})
