"""Rows on which a backend once missed a bound of the contract, on every backend.

Each alone and as one of thousands, which backends may compute in another way. ``make accuracy``
looks for more of them.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from maskcore.conformance import exact, load

EPS = float(np.finfo(np.float32).eps)

# name -> float32 logits of two policies over the same legal actions.
PAIRS = {
    "one constant apart": ([0, -9.232277], [0.6545824, -8.577491]),
    "one constant apart, exactly": (
        [-73.26426, -74.628265, -73.8541, -72.969154],
        [-73.74573, -75.10974, -74.33556, -73.450615],
    ),
    "thousands apart": ([4504.1206, 4504.1206], [-1.2931510e-07, 1.2972593e-07]),
    "thousands apart, in float64 too": (
        [5507.4033, 5507.4033],
        [-1.242588609784434e-06, -1.2531609172583558e-06],
    ),
    "one entry a hair apart": ([-34.576763, 0], [-34.576763, 1.51772128e-09]),
    "thousands apart, every digit lost": ([643.0054, 643.0054], [2.3470732e-06, 1.5814474e-05]),
    "nearly certain": ([-48.036427, 8.726213], [-48.03, 8.7262]),
    "nearly certain and far": ([-45.110107, -6.183577], [-31.028873, -3.7606149]),
    "nearly certain, one ulp apart": ([0.9210227, 37.595833], [0.92102265, 37.595833]),
    "nearly certain, shifted": ([-31.23795, 15.027432], [-31.238365, 15.02723]),
    "apart in a deep entry alone": (
        [41.04455, 33.75772, 0.2730283],
        [41.04455, 33.75772, 0.27302366],
    ),
    "apart in deep entries by one ulp": (
        [-39.477386, -6.7420044, -39.12549, 6.593489],
        [-39.477383, -6.742004, -39.12549, 6.5934896],
    ),
    "far with little mass": ([0, -10.946711], [120.566605, 119.72409]),
    "far with less": ([-3.2129633, 11.579016], [-2.5210469, 0.88719696]),
    "far with hardly any": ([0, -90], [0, -4]),
    "far with none that float32 holds": ([0, -110], [0, -4]),
    "far and offset": ([-7.3675604, 0], [266.537, 566.28375]),
    "large, both nearly certain": ([115.79204, 119.38836], [21.681711, 649.08026]),
    "large, from two equal ones": ([0.08635947, 0.08635947], [0, 4]),
    "large and offset": (
        [219.1211, 219.6313, 194.94672, 210.05537, 210.40396],
        [-0.7996314, -1.0099053, 4.492561, 8.576855, -12.661231],
    ),
}


@pytest.mark.parametrize("count", [1, 3000])
@pytest.mark.parametrize("name", PAIRS)
def test_bounds(backend: ModuleType, name: str, count: int) -> None:
    m = load(backend.__name__)
    p, q = (np.array(z, np.float32) for z in PAIRS[name])
    rows, ones = np.tile(p, (count, 1)), np.ones(count)
    mask = np.ones(rows.shape, bool)
    masks = {"p_mask": mask, "q_mask": mask}
    others = np.tile(q, (count, 1))

    entropy, kl = exact.entropy(p), exact.kl_divergence(p, q)
    assert within(m.call("entropy", rows, mask), entropy, 16 * EPS * entropy)
    # Below 1e-12 no bound is stated; ours hold much further down, and 0 is not less than the truth.
    found = m.call("kl_divergence", rows, others, **masks)
    assert within(found, kl, 1e-5 * max(kl, 1e-12))
    assert (found >= 0).all()

    d_entropy = np.array(exact.entropy_gradient(p))
    found = m.gradient("entropy", rows, mask, cotangent=ones)[0]
    assert within(found, d_entropy, 8 * EPS * np.abs(d_entropy).max())
    dp, dq = map(np.array, exact.kl_gradients(p, q))
    found_p, found_q = m.gradient(
        "kl_divergence", rows, others, wrt=(0, 1), cotangent=ones, **masks
    )
    size = np.abs(dq).max()
    assert within(found_q, dq, 8 * EPS * size)
    assert within(found_p, dp, 8 * EPS * max(size, np.abs(dp).max()))
    for action in range(len(p)):
        expected = np.array(exact.log_prob_gradient(p, action))
        actions = np.full(count, action)
        found = m.gradient("log_prob", rows, mask, actions, cotangent=ones)[0]
        assert within(found, expected, 8 * EPS * np.abs(expected).max())


@pytest.mark.parametrize("count", [1, 3000])
@pytest.mark.parametrize("name", PAIRS)
def test_bounds_of_evaluate_actions(backend: ModuleType, name: str, count: int) -> None:
    m = load(backend.__name__)
    p, q = (np.array(z, np.float32) for z in PAIRS[name])
    rows, ones = np.tile(p, (count, 1)), np.ones(count)
    others, mask = np.tile(q, (count, 1)), np.ones(rows.shape, bool)
    actions = np.arange(count) % len(p)

    found = m.call("evaluate_actions", others, mask, actions, old_logits=rows)
    entropy, kl = exact.entropy(q), exact.kl_divergence(p, q)
    log_prob = np.array([float(x) for x in exact.log_softmax(q)])[actions]
    assert within(found.log_prob, log_prob, 4 * EPS * np.maximum(1, np.abs(log_prob)))
    assert within(found.entropy, entropy, 16 * EPS * entropy)
    assert within(found.kl_divergence, kl, 1e-5 * max(kl, 1e-12))
    if m.lacks("grad evaluate_actions"):
        return

    def gradient(field: str) -> np.ndarray:
        arguments = (others, mask, actions)
        options = {"old_logits": rows, "field": field, "cotangent": ones}
        return m.gradient("evaluate_actions", *arguments, **options)[0]

    d_log_prob = np.array([exact.log_prob_gradient(q, a) for a in range(len(p))])[actions]
    bound = 8 * EPS * np.abs(d_log_prob).max(-1, keepdims=True)
    assert within(gradient("log_prob"), d_log_prob, bound)
    d_entropy, d_kl = np.array(exact.entropy_gradient(q)), np.array(exact.kl_gradients(p, q)[1])
    assert within(gradient("entropy"), d_entropy, 8 * EPS * np.abs(d_entropy).max())
    assert within(gradient("kl_divergence"), d_kl, 8 * EPS * np.abs(d_kl).max())


def within(found: np.ndarray, expected: np.ndarray | float, bound: np.ndarray | float) -> bool:
    """Whether every row is as near as that; numbers below the smallest normal one may be 0."""
    tiny = 100 * float(np.finfo(np.float32).tiny)
    return bool((np.abs(found.astype(np.float64) - expected) <= bound + tiny).all())
