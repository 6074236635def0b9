"""The specification: its closed forms against finite differences, its corners by hand."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest

import maskcore
from maskcore import MaskError, masks, spec

NAN, INF = np.nan, np.inf
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(6, 5)) * 3
OTHER = LOGITS + RNG.normal(size=(6, 5))
MASK = np.array(
    [[1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1], [1] * 5],
    dtype=bool,
)
WIDER = MASK | np.array([False, True, False, False, False]) & MASK.any(-1, keepdims=True)
ACTIONS = np.array([4, 2, 1, 0, 3, 0])


@pytest.mark.parametrize("module", [spec, masks])
def test_examples_in_docstrings_run(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def difference_quotient(function, z, h=1e-6):
    grad = np.zeros_like(z)
    for index in np.ndindex(*z.shape):
        step = np.zeros_like(z)
        step[index] = h
        grad[index] = (function(z + step) - function(z - step))[index[:-1]] / (2 * h)
    return grad


def test_log_prob_grad_is_the_derivative_of_log_prob():
    np.testing.assert_allclose(
        spec.log_prob_grad(LOGITS, MASK, ACTIONS),
        difference_quotient(lambda z: spec.log_prob(z, MASK, ACTIONS), LOGITS),
        atol=1e-8,
    )


def test_entropy_grad_is_the_derivative_of_entropy():
    np.testing.assert_allclose(
        spec.entropy_grad(LOGITS, MASK),
        difference_quotient(lambda z: spec.entropy(z, MASK), LOGITS),
        atol=1e-8,
    )


@pytest.mark.parametrize("name", ["kl_divergence", "cross_entropy"])
def test_gradients_of_divergences_are_their_derivatives(name):
    value, grad = getattr(spec, name), getattr(spec, name + "_grad")
    dp, dq = grad(LOGITS, OTHER, p_mask=MASK, q_mask=WIDER)
    assert np.isfinite(value(LOGITS, OTHER, p_mask=MASK, q_mask=WIDER)).all()
    np.testing.assert_allclose(
        dp,
        difference_quotient(lambda z: value(z, OTHER, p_mask=MASK, q_mask=WIDER), LOGITS),
        atol=1e-8,
    )
    np.testing.assert_allclose(
        dq,
        difference_quotient(lambda z: value(LOGITS, z, p_mask=MASK, q_mask=WIDER), OTHER),
        atol=1e-8,
    )


def test_cross_entropy_is_entropy_plus_kl():
    np.testing.assert_allclose(
        spec.cross_entropy(LOGITS, OTHER, p_mask=MASK, q_mask=WIDER),
        spec.entropy(LOGITS, MASK) + spec.kl_divergence(LOGITS, OTHER, p_mask=MASK, q_mask=WIDER),
        rtol=1e-12,
    )


def test_a_nan_row_is_nan_and_no_other_row_is():
    logits = np.array([[NAN, 1.0, 2.0], [0.0, 1.0, 2.0]])
    mask = np.array([[1, 1, 0], [1, 1, 0]])
    assert np.isnan(spec.entropy(logits, mask)).tolist() == [True, False]
    assert np.isnan(spec.log_prob(logits, mask, [1, 1])).tolist() == [True, False]
    assert np.isnan(spec.log_prob(logits, mask, [2, 1])).tolist() == [True, False]
    grad = spec.entropy_grad(logits, mask)
    assert np.isnan(grad[0, :2]).all()
    assert grad[0, 2] == 0
    assert np.isfinite(grad[1]).all()


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_forced_row_whose_logit_is_not_finite_is_nan(bad):
    assert np.isnan(spec.entropy([bad, 1.0], [1, 0]))
    assert np.isnan(spec.log_prob([bad, 1.0], [1, 0], 0))
    assert np.isnan(spec.kl_divergence([bad, 1.0], [1.0, 1.0], p_mask=[1, 0], q_mask=[1, 0]))


def test_a_legal_minus_infinity_has_probability_zero():
    logits, mask = [-INF, 0.0, 0.0, 5.0], [1, 1, 1, 0]
    assert spec.masked_softmax(logits, mask).tolist() == [0, 0.5, 0.5, 0]
    assert spec.entropy(logits, mask) == pytest.approx(math.log(2))
    assert spec.log_prob(logits, mask, 0) == -INF
    assert spec.entropy_grad(logits, mask).tolist() == [0, 0, 0, 0]


def test_kl_is_infinite_by_masks_and_minus_infinity_only():
    def kl(p, q, p_mask, q_mask):
        return float(spec.kl_divergence(p, q, p_mask=p_mask, q_mask=q_mask))

    assert kl([0.0, -2000.0], [0.0, 0.0], [1, 1], [1, 0]) == INF  # p underflows to 0 there
    assert kl([0.0, -2000.0], [0.0, 1e5], [1, 1], [1, 1]) == pytest.approx(1e5)
    assert kl([0.0, -INF], [0.0, 0.0], [1, 1], [1, 0]) == 0.0
    assert kl([0.0, 0.0], [0.0, -INF], [1, 1], [1, 1]) == INF
    assert kl([0.0, 0.0], [0.0, NAN], [0, 0], [1, 1]) == 0.0
    assert np.isnan(kl([0.0, 0.0], [0.0, NAN], [1, 0], [1, 1]))
    dp, dq = spec.kl_divergence_grad([0.0, 0.0], [0.0, 0.0], p_mask=[1, 1], q_mask=[1, 0])
    assert dp.tolist() == dq.tolist() == [0, 0]


def test_results_have_the_dtype_of_the_logits():
    for dtype in (np.float16, np.float32, np.float64):
        z = LOGITS.astype(dtype)
        assert spec.masked_softmax(z, MASK).dtype == dtype
        assert spec.log_prob(z, MASK, ACTIONS).dtype == dtype
        assert spec.entropy_grad(z, MASK).dtype == dtype
    assert spec.entropy([1, 2], [1, 1]).dtype == np.float64


def test_sample_follows_the_masked_probabilities():
    rng = np.random.default_rng(3)
    rows = np.broadcast_to(LOGITS[1], (20_000, 5))
    drawn = spec.sample(rows, MASK[1], rng)
    frequency = np.bincount(drawn, minlength=5) / len(drawn)
    p = spec.masked_softmax(LOGITS[1], MASK[1])
    assert (frequency[~MASK[1]] == 0).all()
    assert (np.abs(frequency - p) <= 5 * np.sqrt(p * (1 - p) / len(drawn))).all()


def test_sample_refuses_a_row_without_a_distribution():
    with pytest.raises(MaskError, match="diverged"):
        spec.sample([NAN, 0.0], [1, 1], np.random.default_rng(0))


def test_sample_and_mode_of_an_empty_row_are_zero():
    assert spec.sample([3.0, 4.0], [0, 0], np.random.default_rng(0)) == 0
    assert spec.mode([3.0, 4.0], [0, 0]) == 0
    assert spec.mode([-INF, -INF, 1.0], [0, 1, 0]) == 1


@pytest.mark.parametrize("actions", [[5], [-1]])
def test_actions_out_of_range_are_refused(actions):
    with pytest.raises(MaskError, match=r"Expected \[0, 5\)"):
        spec.log_prob(LOGITS[:1], MASK[:1], actions)


def test_actions_that_do_not_fit_the_batch_or_are_no_integers_are_refused():
    with pytest.raises(MaskError, match="one action a row"):
        spec.log_prob(LOGITS, MASK, [0, 1])
    with pytest.raises(MaskError, match="Expected integers"):
        spec.log_prob(LOGITS, MASK, ACTIONS.astype(float))


def test_public_names_are_the_ones_listed():
    assert maskcore.__all__ == sorted(maskcore.__all__)
    public = {name for name in vars(maskcore) if not name.startswith(("_", "@"))}
    submodules = {"masks", "spec", "conformance", "layouts"}
    assert public - submodules == set(maskcore.__all__)
