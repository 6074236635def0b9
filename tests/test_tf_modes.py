"""TensorFlow gives the same values and gradients eagerly, in tf.function, under XLA and in TF1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from backends import tf_backend as backend
from maskcore import spec

Array = NDArray[Any]
NAMES = ("log_prob", "entropy", "kl", "d_new", "d_old", "mode", "softmax", "log_softmax", "ce")
JUNK = np.array([np.nan, np.inf, -np.inf, 3e38, 1e6])


def batch(num_actions: int, dtype: str, *, rare: bool, seed: int = 0) -> list[Array]:
    """logits, mask, old logits, old mask, actions and three cotangents.

    ``rare`` adds NaN, infinite, empty, tied and nearly deterministic rows, masks that differ and
    policies that are far apart; without it no row leaves the ordinary branch of the fused step.
    """
    rng = np.random.default_rng(seed)
    n = 40
    z = rng.normal(size=(n, num_actions))
    old = z + rng.normal(size=z.shape) * 1e-2
    mask = rng.random(z.shape) < 0.6
    mask[:, 0] = True
    old_mask = mask.copy()
    if rare:
        z *= 10.0 ** rng.integers(-3, 3, size=(n, 1))
        old = z + rng.normal(size=z.shape) * 10.0 ** rng.integers(-5, 2, size=(n, 1))
        old_mask[20:] = rng.random((20, num_actions)) < 0.5
        z[rng.random(z.shape) < 0.02] = -np.inf
        old[rng.random(z.shape) < 0.02] = -np.inf
        z[0, 0], z[1, 0], z[2], old[3, 0], old[4] = np.nan, np.inf, -np.inf, np.nan, -np.inf
        z[5], z[6] = 0.0, np.where(np.arange(num_actions) == 0, 20.3, -20.1)
        old_mask[3, 0] = old_mask[4, 0] = True
        mask[7], mask[8], old_mask[8], old_mask[9] = False, False, False, False
    z = np.where(mask, z, rng.choice(JUNK, size=z.shape))
    old = np.where(old_mask, old, rng.choice(JUNK, size=z.shape))
    actions, cotangents = rng.integers(0, num_actions, n), rng.normal(size=(3, n))
    return [z.astype(dtype), mask, old.astype(dtype), old_mask, actions, cotangents.astype(dtype)]


def quantities(z: Any, mask: Any, old: Any, old_mask: Any, actions: Any, cotangents: Any) -> Any:
    """Everything, differentiated by ``tf.gradients`` in TF1 and by a tape elsewhere."""
    weights = tf.unstack(cotangents)

    def evaluate() -> Any:
        return list(backend.evaluate_actions(z, mask, actions, old_logits=old, old_mask=old_mask))

    if not tf.executing_eagerly() and not tf.inside_function():
        values = evaluate()
        gradients = tf.gradients(values, [z, old], grad_ys=weights)
    else:
        with tf.GradientTape() as tape:
            tape.watch([z, old])
            values = evaluate()
        gradients = tape.gradient(values, [z, old], output_gradients=weights)
    masks = {"p_mask": old_mask, "q_mask": mask}
    return [
        *values,
        *gradients,
        backend.mode(z, mask),
        backend.masked_softmax(z, mask),
        backend.masked_log_softmax(z, mask),
        backend.cross_entropy(old, z, **masks),
    ]


def in_v1_graph(function: Callable[..., Any], arrays: list[Array]) -> list[Array]:
    """Run in a TF1 graph and session of their own, with unknown batch sizes."""
    with tf.Graph().as_default():
        shapes = [[3, None] if i == 5 else [None, *a.shape[1:]] for i, a in enumerate(arrays)]
        inputs = [
            tf.compat.v1.placeholder(a.dtype, shape)
            for a, shape in zip(arrays, shapes, strict=True)
        ]
        outputs = function(*inputs)
        with tf.compat.v1.Session() as session:
            return session.run(outputs, dict(zip(inputs, arrays, strict=True)))


def in_tensors(function: Callable[..., Any], arrays: list[Array]) -> list[Array]:
    return [result.numpy() for result in function(*map(tf.constant, arrays))]


MODES: dict[str, Callable[[Callable[..., Any], list[Array]], list[Array]]] = {
    "eager": in_tensors,
    "function": lambda f, arrays: in_tensors(tf.function(f), arrays),
    "xla": lambda f, arrays: in_tensors(tf.function(f, jit_compile=True), arrays),
    "v1": in_v1_graph,
}


def expected(z: Array, mask: Array, old: Array, old_mask: Array, a: Array, w: Array) -> list[Array]:
    """The same from the specification in float64."""
    z, old, w = z.astype(float), old.astype(float), w.astype(float)[..., None]
    masks = {"p_mask": old_mask, "q_mask": mask}
    to_old, to_new = spec.kl_divergence_grad(old, z, **masks)
    to_new = w[2] * to_new + w[0] * spec.log_prob_grad(z, mask, a)
    return [
        spec.log_prob(z, mask, a),
        spec.entropy(z, mask),
        spec.kl_divergence(old, z, **masks),
        to_new + w[1] * spec.entropy_grad(z, mask),
        w[2] * to_old,
        spec.mode(z, mask),
        spec.masked_softmax(z, mask),
        spec.masked_log_softmax(z, mask),
        spec.cross_entropy(old, z, **masks),
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("num_actions", [1, 2, 33])
@pytest.mark.parametrize("rare", [False, True], ids=["ordinary", "rare"])
@pytest.mark.parametrize("mode", MODES)
def test_equals_the_specification(mode: str, rare: bool, num_actions: int, dtype: str) -> None:
    arrays = batch(num_actions, dtype, rare=rare)
    found = MODES[mode](quantities, arrays)
    bound = 2e-5 if dtype == "float32" else 1e-10
    for name, value, exact in zip(NAMES, found, expected(*arrays), strict=True):
        np.testing.assert_allclose(
            value, exact, rtol=bound, atol=bound, equal_nan=True, err_msg=f"{name}, {mode}"
        )


@pytest.mark.parametrize("mode", MODES)
def test_evaluate_actions_without_old_logits(mode: str) -> None:
    arrays = batch(5, "float32", rare=True)

    def function(z: Any, mask: Any, old: Any, old_mask: Any, actions: Any, cotangents: Any) -> Any:
        result = backend.evaluate_actions(z, mask, actions)
        assert result.kl_divergence is None
        return [result.log_prob, result.entropy]

    found = MODES[mode](function, arrays)
    for value, exact in zip(found, expected(*arrays)[:2], strict=True):
        np.testing.assert_allclose(value, exact, rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("mode", ["function", "xla", "v1"])
def test_actions_out_of_range_count_as_illegal_in_graphs(mode: str) -> None:
    arrays = batch(4, "float32", rare=False)
    arrays[4] = np.where(np.arange(40) % 2, 4, -1)

    def function(z: Any, mask: Any, old: Any, old_mask: Any, actions: Any, cotangents: Any) -> Any:
        return [
            backend.log_prob(z, mask, actions),
            backend.evaluate_actions(z, mask, actions).log_prob,
        ]

    for found in MODES[mode](function, arrays):
        assert np.isneginf(found).all()


@pytest.mark.parametrize("mode", ["function", "xla", "v1"])
def test_draws_from_nan_rows_are_legal_actions_in_graphs(mode: str) -> None:
    arrays = batch(6, "float32", rare=True)

    def function(z: Any, mask: Any, old: Any, old_mask: Any, actions: Any, cotangents: Any) -> Any:
        return [backend.sample(z, mask)]

    (drawn,) = MODES[mode](function, arrays)
    legal = np.take_along_axis(arrays[1], drawn[:, None], -1)[:, 0]
    assert (legal | ~arrays[1].any(-1)).all()
    assert (drawn[~arrays[1].any(-1)] == 0).all()


@pytest.mark.parametrize("mode", ["eager", "function", "xla", "v1"])
def test_draws_follow_the_probabilities(mode: str) -> None:
    n = 20_000
    arrays = batch(4, "float32", rare=False)
    logits = np.tile(np.float32([[0.5, np.nan, -1.0, 1.5]]), (n, 1))
    arrays[:2] = logits, np.tile([[True, False, True, True]], (n, 1))

    def function(z: Any, mask: Any, old: Any, old_mask: Any, actions: Any, cotangents: Any) -> Any:
        return [backend.sample(z, mask)]

    (drawn,) = MODES[mode](function, arrays)
    p = spec.masked_softmax(logits[0], arrays[1][0])
    frequency = np.bincount(drawn, minlength=4) / n
    assert frequency[1] == 0
    np.testing.assert_array_less(np.abs(frequency - p), 6 * np.sqrt(p * (1 - p) / n) + 1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_masked_categorical(mode: str) -> None:
    arrays = batch(7, "float32", rare=True)

    def function(z: Any, mask: Any, old: Any, old_mask: Any, actions: Any, cotangents: Any) -> Any:
        new = backend.MaskedCategorical(z, mask)
        before = backend.MaskedCategorical(old, old_mask)
        return [new.log_prob(actions), new.entropy(), before.kl_divergence(new), new.mode()]

    found = MODES[mode](function, arrays)
    exact = expected(*arrays)
    for value, reference in zip(found, [*exact[:3], exact[5]], strict=True):
        np.testing.assert_allclose(value, reference, rtol=2e-5, atol=2e-5, equal_nan=True)


def test_eager_code_is_undisturbed_by_a_v1_graph() -> None:
    in_v1_graph(quantities, batch(3, "float32", rare=False))
    assert tf.executing_eagerly()
    assert backend.entropy([0.0, 0.0], [1, 1]).numpy() == np.float32(np.log(2))
