"""The step under XLA: its accuracy, and which rows leave the ordinary form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from test_accuracy import EPS, PAIRS, within

from backends import _tf_compiled, tf_backend
from backends._tf_inputs import as_policy
from maskcore.conformance import exact


@tf.function(jit_compile=True, reduce_retracing=True)
def step(new: Any, old: Any, mask: Any, actions: Any) -> Any:
    """The three values and the gradient of each to the new logits."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(new)
        values = tuple(tf_backend.evaluate_actions(new, mask, actions, old_logits=old))
    return values, [tape.gradient(value, new) for value in values]


@tf.function(jit_compile=True, reduce_retracing=True)
def special(new: Any, old: Any, mask: Any, old_mask: Any) -> Any:
    p, q = as_policy(old, old_mask), as_policy(new, mask)
    both = _tf_compiled.pair(q, p, _tf_compiled.side(q), _tf_compiled.side(p))
    return both.special


@pytest.mark.parametrize("name", PAIRS)
def test_bounds(name: str) -> None:
    p, q = (np.array(z, np.float32) for z in PAIRS[name])
    actions = np.arange(len(p))
    rows = [np.tile(z, (len(p), 1)) for z in (q, p)]
    values, gradients = step(*map(tf.constant, (*rows, np.ones(rows[0].shape, bool), actions)))
    log_prob, entropy, kl = (value.numpy() for value in values)
    d_log_prob, d_entropy, d_kl = (value.numpy() for value in gradients)
    expected = np.array([float(x) for x in exact.log_softmax(q)])
    assert within(log_prob, expected, 4 * EPS * np.maximum(1, np.abs(expected)))
    assert within(entropy, exact.entropy(q), 16 * EPS * exact.entropy(q))
    assert within(kl, exact.kl_divergence(p, q), 1e-5 * max(exact.kl_divergence(p, q), 1e-12))
    for found, expected in (
        (d_log_prob, np.array([exact.log_prob_gradient(q, a) for a in range(len(p))])),
        (d_entropy, np.array(exact.entropy_gradient(q))),
        (d_kl, np.array(exact.kl_gradients(p, q)[1])),
    ):
        assert within(found, expected, 8 * EPS * np.abs(expected).max(-1, keepdims=True))


def batch() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    old = rng.normal(size=(64, 33)).astype(np.float32)
    mask = rng.random(old.shape) < 0.5
    mask[:, 0] = True
    new = old + rng.normal(size=old.shape).astype(np.float32) * 1e-2
    return [new, np.where(mask, old, np.nan).astype(np.float32), mask, mask.copy()]


def test_ordinary_rows_need_no_second_look() -> None:
    new, old, mask, old_mask = batch()
    new[0] = old[0]  # equal
    new[1] = old[1] + 0.5  # offset
    new[2] = -old[2] * 30  # far
    new[4, 0], old[4, 0] = 40.0, 41.0  # nearly certain
    new[5] = old[5] = 0.0  # ties
    mask[6] = old_mask[6] = False
    assert not special(new, old, mask, old_mask)


@pytest.mark.parametrize("what", ["NaN", "new -inf", "old -inf", "masks", "hardly apart"])
def test_one_other_row_is_seen(what: str) -> None:
    new, old, mask, old_mask = batch()
    if what == "NaN":
        new[7, 0] = np.nan
    elif what == "new -inf":
        new[7, 0] = -np.inf
    elif what == "old -inf":
        old[7, 0] = -np.inf
    elif what == "masks":
        old_mask[7, 1] = not mask[7, 1]
    else:
        new[7] = old[7] * np.float32(1 + 2.0**-23)  # a last digit of each
    assert special(new, old, mask, old_mask)


@pytest.mark.parametrize("gap", [0.3, 1000.0])
def test_offset_keeps_the_digits_of_the_kl(gap: float) -> None:
    rng = np.random.default_rng(3)
    old = rng.normal(size=(16, 16)).astype(np.float32)
    new = (old + rng.normal(size=old.shape) * 1e-2 + gap).astype(np.float32)
    mask = np.ones(old.shape, bool)
    assert not special(new, old, mask, mask)
    found = step(*map(tf.constant, (new, old, mask, np.arange(16))))[0][2].numpy()
    expected = np.array([exact.kl_divergence(p, q) for p, q in zip(old, new, strict=True)])
    assert within(found, expected, 1e-5 * expected)
