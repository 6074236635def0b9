"""What only graphs have: sizes that are left open, and actions that come from the same logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from backends import tf_backend as backend
from maskcore import spec


@pytest.mark.parametrize("jit_compile", [False, True])
def test_open_sizes_are_broadcast_when_the_graph_runs(jit_compile: bool) -> None:
    entries = tf.TensorSpec([None, None, 4], tf.float32)
    mask_entries = tf.TensorSpec([None, None, 4], tf.bool)
    rows = tf.TensorSpec([None, None], tf.int32)

    @tf.function(input_signature=[entries, mask_entries, rows, entries], jit_compile=jit_compile)
    def evaluate(z: Any, mask: Any, actions: Any, old: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch((z, old))
            found = backend.evaluate_actions(z, mask, actions, old_logits=old)
            alone = backend.evaluate_actions(z, mask, actions)
        gradients = [tape.gradient(value, (z, old)) for value in found[::2]]
        return found, alone[:2], gradients[0][0], gradients[1], tape.gradient(alone.entropy, z)

    rng = np.random.default_rng(0)
    z = rng.normal(size=(2, 1, 4)).astype(np.float32)
    old = rng.normal(size=(1, 1, 4)).astype(np.float32)
    mask = np.array([[[1, 1, 0, 1], [1, 1, 1, 1], [0, 1, 1, 1]]], bool)
    actions = np.array([[0, 1, 2], [3, 2, 1]], np.int32)
    found, alone, d_log_prob, (d_new, d_old), d_entropy = evaluate(z, mask, actions, old)

    wide = [np.broadcast_to(x, (2, 3, 4)) for x in (z, mask, old)]
    masks = {"p_mask": wide[1], "q_mask": wide[1]}
    log_prob, entropy = spec.log_prob(*wide[:2], actions), spec.entropy(*wide[:2])
    for value, expected in (
        (found.log_prob, log_prob),
        (found.entropy, entropy),
        (found.kl_divergence, spec.kl_divergence(wide[2], wide[0], **masks)),
        (alone[0], log_prob),
        (alone[1], entropy),
        (d_log_prob, spec.log_prob_grad(*wide[:2], actions).sum(1, keepdims=True)),
        (d_entropy, spec.entropy_grad(*wide[:2]).sum(1, keepdims=True)),
    ):
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-5, atol=1e-6)
    dp, dq = spec.kl_divergence_grad(wide[2], wide[0], **masks)
    np.testing.assert_allclose(d_new.numpy(), dq.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(d_old.numpy(), dp.sum((0, 1), keepdims=True), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["log_prob", "evaluate_actions", "MaskedCategorical"])
def test_actions_and_masks_of_the_same_network_in_a_v1_graph(name: str) -> None:
    """TensorFlow refuses custom gradients of functions that reach a variable by another way."""
    with tf.Graph().as_default():
        observations = tf.compat.v1.placeholder(tf.float32, [None, 4])
        weights = tf.compat.v1.get_variable("weights", [4, 3], use_resource=True)
        logits = tf.matmul(observations, weights)
        mask = logits > tf.reduce_min(logits, -1, keepdims=True)
        actions = backend.sample(logits, mask)
        if name == "MaskedCategorical":
            value = backend.MaskedCategorical(logits, mask).log_prob(actions)
        else:
            value = getattr(backend, name)(logits, mask, actions)
            value = value if name == "log_prob" else value.log_prob
        optimizer = tf.compat.v1.train.AdamOptimizer()
        ((gradient, _),) = optimizer.compute_gradients(value, [weights])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            fed = {observations: np.eye(4)[:2]}
            z, m, a, g = session.run([logits, mask, actions, gradient], fed)
    assert m[np.arange(2), a].all()
    np.testing.assert_allclose(g[:2], spec.log_prob_grad(z, m, a), rtol=1e-5, atol=1e-6)
