"""What is TensorFlow's own: higher derivatives, the fused step, imports, shapes, messages."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import mpmath
import numpy as np
import pytest
import tensorflow as tf

from backends import _tf_step, tf_backend
from backends._series import FACTORS, FACTORS_NEAR, NEAR, SERIES_BELOW
from maskcore import MaskError, spec

RNG = np.random.default_rng(7)
LOGITS, OLD = RNG.normal(size=(2, 3, 5))
MASK = np.array([[1, 1, 0, 1, 1], [1, 0, 1, 0, 1], [0, 1, 1, 1, 1]], bool)
ACTIONS = np.array([0, 2, 4])
WEIGHTS = RNG.normal(size=(3, 3))
DIRECTION = RNG.normal(size=(3, 5))


def loss(z: Any, old: Any) -> Any:
    """A scalar over all three outputs of the fused step."""
    result = tf_backend.evaluate_actions(z, MASK, ACTIONS, old_logits=old)
    return sum(tf.reduce_sum(v * v * w) for v, w in zip(result, WEIGHTS, strict=True))


def parts(z: Any, old: Any) -> Any:
    """The same over the functions that are not fused."""
    values = (
        tf_backend.log_prob(z, MASK, ACTIONS),
        tf_backend.entropy(z, MASK),
        tf_backend.kl_divergence(old, z, p_mask=MASK, q_mask=MASK),
    )
    return sum(tf.reduce_sum(v * v * w) for v, w in zip(values, WEIGHTS, strict=True))


def gradient(function: Any, z: Any, old: Any, which: int) -> Any:
    with tf.GradientTape() as tape:
        tape.watch([z, old])
        value = function(z, old)
    return tape.gradient(value, [z, old])[which]


def second(function: Any, z: Any, old: Any, which: int) -> Any:
    """The derivative of the gradient along DIRECTION, to both arguments."""
    with tf.GradientTape() as tape:
        tape.watch([z, old])
        value = tf.reduce_sum(gradient(function, z, old, which) * DIRECTION)
    return tape.gradient(value, [z, old], unconnected_gradients=tf.UnconnectedGradients.ZERO)


@pytest.mark.parametrize("function", [loss, parts], ids=["fused", "parts"])
@pytest.mark.parametrize("which", [0, 1], ids=["new", "old"])
@pytest.mark.parametrize("mode", ["eager", "function", "xla"])
def test_second_derivatives(function: Any, which: int, mode: str) -> None:
    run = second
    if mode != "eager":
        run = tf.function(second, jit_compile=mode == "xla", autograph=False)
    z, old = tf.constant(LOGITS), tf.constant(OLD)
    found = run(function, z, old, which)
    step = 1e-5

    def along(array: Any, position: int, i: int, j: int) -> float:
        values = []
        for sign in (1, -1):
            moved = array.copy()
            moved[i, j] += sign * step
            pair = [z, old]
            pair[position] = tf.constant(moved)
            values.append(np.sum(gradient(function, *pair, which).numpy() * DIRECTION))
        return float(values[0] - values[1]) / (2 * step)

    for position, array in enumerate((LOGITS, OLD)):
        for i, j in ((0, 0), (0, 2), (1, 4), (2, 1)):
            numeric = along(array, position, i, j)
            assert found[position][i, j].numpy() == pytest.approx(numeric, rel=1e-6, abs=1e-8)


def test_second_derivatives_are_0_under_the_mask_and_in_empty_rows() -> None:
    z = np.where(MASK, LOGITS, np.nan)
    mask = MASK.copy()
    mask[1] = False

    def function(z: Any, old: Any) -> Any:
        result = tf_backend.evaluate_actions(z, mask, ACTIONS, old_logits=old)
        return sum(tf.reduce_sum(v * w) for v, w in zip(result, WEIGHTS, strict=True))

    for found in second(function, tf.constant(z), tf.constant(np.where(mask, OLD, np.inf)), 0):
        assert np.isfinite(found).all()
        assert (found.numpy()[~mask] == 0).all()


@pytest.mark.parametrize("old_mask", [None, MASK], ids=["one mask", "two masks"])
def test_the_fused_step_is_used(monkeypatch: pytest.MonkeyPatch, old_mask: Any) -> None:
    calls: list[int] = []
    step = _tf_step.step
    monkeypatch.setattr(tf_backend, "step", lambda *args: calls.append(1) or step(*args))
    tf_backend.evaluate_actions(LOGITS, MASK, ACTIONS, old_logits=OLD, old_mask=old_mask)
    assert calls == [1]


@pytest.mark.parametrize("gap", [0.0, 0.3, 1000.0], ids=["level", "drift", "offset"])
def test_fused_kl_of_near_policies_keeps_its_digits(gap: float) -> None:
    rng = np.random.default_rng(3)
    old = rng.normal(size=(64, 16)).astype(np.float32)
    new = (old + rng.normal(size=old.shape) * 1e-4 + gap).astype(np.float32)
    ones = np.ones(old.shape, bool)
    found = tf_backend.evaluate_actions(new, ones, np.zeros(64, int), old_logits=old)
    with mpmath.workdps(50):
        for p, q, kl in zip(old, new, found.kl_divergence.numpy(), strict=True):
            p, q = ([mpmath.mpf(float(v)) for v in row] for row in (p, q))
            zp, zq = (mpmath.fsum(map(mpmath.exp, row)) for row in (p, q))
            terms = (mpmath.exp(a) / zp * (a - b) for a, b in zip(p, q, strict=True))
            exact = mpmath.fsum(terms) + mpmath.log(zq / zp)
            assert abs(float(kl) / float(exact) - 1) < 1e-5


def test_ties_are_not_taken_for_a_dominant_action() -> None:
    z = tf.zeros([1, 4])
    with tf.GradientTape() as tape:
        tape.watch(z)
        result = tf_backend.evaluate_actions(z, np.ones((1, 4), bool), [2])
    np.testing.assert_allclose(result.log_prob, [-np.log(4)], rtol=1e-6)
    np.testing.assert_allclose(result.entropy, [np.log(4)], rtol=1e-6)
    found = tape.gradient(result.log_prob, z)
    np.testing.assert_allclose(found, [[-0.25, -0.25, 0.75, -0.25]], rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "xla"])
def test_forced_rows_are_exact_in_the_fused_step(compiled: bool) -> None:
    mask = np.eye(4, dtype=bool)
    z = np.where(mask, RNG.normal(size=(4, 4)) * 30, np.nan).astype(np.float32)

    @tf.function(jit_compile=compiled)
    def run(z: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(z)
            result = tf_backend.evaluate_actions(z, mask, tf.range(4), old_logits=z + 1)
            total = tf.add_n([tf.reduce_sum(v) for v in result])
        return [*result, tape.gradient(total, z)]

    for value in run(tf.constant(z)):
        assert (value.numpy() == 0).all()


def test_a_dropped_row_does_not_pass_its_nan_on() -> None:
    old = OLD.copy()
    old[1, 0] = np.nan
    with tf.GradientTape() as tape:
        z = tf.constant(LOGITS)
        tape.watch(z)
        result = tf_backend.evaluate_actions(z, MASK, ACTIONS, old_logits=old)
        finite = tf.math.is_finite(result.kl_divergence)
        kept = tf.where(finite, result.kl_divergence, tf.zeros_like(result.kl_divergence))
        total = tf.reduce_sum(kept + result.log_prob)
    assert not finite.numpy()[1]
    found = tape.gradient(total, z).numpy()
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[1], spec.log_prob_grad(LOGITS, MASK, ACTIONS)[1], atol=1e-12)


@pytest.mark.parametrize(
    ("series_of", "reach", "error"),
    [(FACTORS, SERIES_BELOW, 1.2e-7), (FACTORS_NEAR, NEAR, 9e-7)],
    ids=["long", "short"],
)
def test_the_factors_are_the_remainder_of_the_exponential(
    series_of: tuple[float, tuple[tuple[float, float], ...]], reach: float, error: float
) -> None:
    scale, factors = series_of
    with mpmath.workdps(40):
        for t in np.linspace(-reach, reach, 201):
            x = mpmath.mpf(float(t))
            exact = mpmath.expm1(x) - x
            series = scale * x * x * mpmath.fprod((x + a) ** 2 + b for a, b in factors)
            assert abs(series - exact) <= error * exact


@pytest.mark.parametrize("apart", [0.9, 1.2, 1.5, 1.9, 2.1])
def test_policies_further_apart_than_either_series_reaches(apart: float) -> None:
    """Where all rows are alike in that: one row beyond the reach would send all on another path."""
    old = np.zeros((3, 4), np.float32)
    new = np.array([[0, apart, 0, apart]] * 3, np.float32)
    mask, actions = np.ones(old.shape, bool), np.zeros(3, int)
    found = tf_backend.evaluate_actions(new, mask, actions, old_logits=old).kl_divergence
    exact = spec.kl_divergence(old, new, p_mask=mask, q_mask=mask)
    np.testing.assert_allclose(found.numpy(), exact, rtol=1e-6)


@pytest.mark.parametrize("legacy", ["0", "1"], ids=["keras 3", "tf-keras"])
def test_no_keras_is_imported_beyond_what_tensorflow_imports(legacy: str) -> None:
    code = (
        "import sys, tensorflow; names = {'keras', 'tf_keras'}; before = names & set(sys.modules);"
        "import backends.tf_backend as b; b.evaluate_actions([[0., 0.]], [[1, 1]], [0]);"
        "assert names & set(sys.modules) == before"
    )
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": legacy}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_sample_is_reproducible_from_a_stateless_seed() -> None:
    z, mask = np.zeros((200, 9), np.float32), np.ones((200, 9), bool)
    seeds = [tf.constant([1, 2]), tf.constant([1, 2]), tf.constant([1, 3])]
    a, b, c = (tf_backend.sample(z, mask, seed=seed).numpy() for seed in seeds)
    assert (a == b).all()
    assert (a != c).any()


def test_sample_shape() -> None:
    policy = tf_backend.MaskedCategorical(LOGITS, MASK)
    drawn = policy.sample((40, 2)).numpy()
    assert drawn.shape == (40, 2, 3)
    assert np.take_along_axis(np.broadcast_to(MASK, (40, 2, 3, 5)), drawn[..., None], -1).all()
    assert len(np.unique(drawn[..., 0])) > 1


def test_a_distribution_made_eagerly_can_be_used_in_a_function_and_after() -> None:
    policy = tf_backend.MaskedCategorical(LOGITS, MASK)
    inside = tf.function(policy.entropy)()
    np.testing.assert_array_equal(inside, policy.entropy())


def test_shapes_that_do_not_fit_are_named_while_tracing() -> None:
    # AutoGraph turns an error inside a converted function into its own, with the message kept.
    run = tf.function(tf_backend.entropy, autograph=False).get_concrete_function
    shapes = tf.TensorSpec([None, 5]), tf.TensorSpec([None, 1], tf.bool)
    with pytest.raises(MaskError, match=r"mask has shape \(None, 1\).*same length on the last"):
        run(*shapes)


def test_float_actions_are_refused_by_name() -> None:
    with pytest.raises(MaskError, match=r"actions have dtype float32.*Expected integers"):
        tf_backend.log_prob(LOGITS, MASK, tf.zeros(3))


def test_two_policies_name_the_mask_that_is_wrong() -> None:
    bad = MASK * 0.5
    with pytest.raises(MaskError, match="q_mask"):
        tf_backend.kl_divergence(LOGITS, OLD, p_mask=MASK, q_mask=bad)
    with pytest.raises(MaskError, match="old_mask"):
        tf_backend.evaluate_actions(LOGITS, MASK, ACTIONS, old_logits=OLD, old_mask=bad)
