"""The 100-digit oracle of the accuracy rows, against mpmath, and the specification against it."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given

from maskcore import spec
from maskcore.conformance import Case, exact, strategies
from maskcore.conformance.case import support

NEAR = strategies.cases(
    kinds=("ordinary",), dtypes=("float32",), relations=("near",), max_rows=1, max_actions=5
)


def mp_log_softmax(z: np.ndarray) -> list[mpmath.mpf]:
    numbers = [mpmath.mpf(float(x)) for x in z]
    top = max(numbers)
    total = mpmath.log(mpmath.fsum(mpmath.exp(x - top) for x in numbers))
    return [x - top - total for x in numbers]


@given(NEAR)
def test_exact_equals_mpmath(case: Case) -> None:
    with mpmath.workdps(150):
        s = support(case.logits, case.mask)[0]
        log_p, log_q = mp_log_softmax(case.logits[0, s]), mp_log_softmax(case.q_logits[0, s])
        p, q = [mpmath.exp(x) for x in log_p], [mpmath.exp(x) for x in log_q]
        entropy = -mpmath.fsum(a * x for a, x in zip(p, log_p, strict=True))
        kl = mpmath.fsum(a * (x - y) for a, x, y in zip(p, log_p, log_q, strict=True))
        pairs = [
            (exact.entropy(case.logits[0, s]), float(entropy)),
            (exact.kl_divergence(case.logits[0, s], case.q_logits[0, s]), float(kl)),
        ]
        found = exact.entropy_gradient(case.logits[0, s])
        expected = [float(-a * (x + entropy)) for a, x in zip(p, log_p, strict=True)]
        pairs += zip(found, expected, strict=True)
        dp, dq = exact.kl_gradients(case.logits[0, s], case.q_logits[0, s])
        terms = zip(p, log_p, log_q, strict=True)
        pairs += zip(dp, [float(a * (x - y - kl)) for a, x, y in terms], strict=True)
        pairs += zip(dq, [float(b - a) for a, b in zip(p, q, strict=True)], strict=True)
        found = exact.log_prob_gradient(case.logits[0, s], 0)
        expected = [float((i == 0) - a) for i, a in enumerate(p)]
        pairs += zip(found, expected, strict=True)
    for f, e in pairs:
        assert f == pytest.approx(e, rel=1e-12, abs=1e-90)


@given(NEAR)
def test_the_specification_is_float64_accurate(case: Case) -> None:
    """Absolute errors of a few float64 eps of the terms that its textbook sums add."""
    s = support(case.logits, case.mask)[0]
    eps = float(np.finfo(np.float64).eps)
    z, q = case.wide, case.q_wide
    size = 1 + abs(float(spec.cross_entropy(z, q, p_mask=case.mask, q_mask=case.q_mask)[0]))
    found = float(spec.entropy(z, case.mask)[0])
    assert found == pytest.approx(exact.entropy(z[0, s]), abs=16 * eps * size)
    found = float(spec.kl_divergence(z, q, p_mask=case.mask, q_mask=case.q_mask)[0])
    assert found == pytest.approx(exact.kl_divergence(z[0, s], q[0, s]), abs=64 * eps * size)
