"""``expm1(t) - t``, the remainder of the exponential after its tangent, near 0.

``expm1(t) - t`` as written loses every digit below |t| = epsilon. For |t| < 1 it is
``t^2 (1/2! + t/3! + t^2/4! + ...)``; the numbers are shared by the backends, which differ in how
they evaluate them.
"""

from __future__ import annotations

import math

__all__ = ["FACTORS", "FACTORS_NEAR", "NEAR", "SERIES_BELOW", "coefficients"]

SERIES_BELOW = 1.0
"""The series is used for |t| below this; from there on ``exp(t) - 1 - t`` loses 3 bits at most."""

FACTORS = (
    2.52884348994e-5,
    (
        (4.66641640161, 4.26145401067),
        (1.59691167789, 22.9185050668),
        (-2.24389350588, 24.7812059752),
    ),
)
"""``(c, ((a, b), ...))``: ``expm1(t) - t`` is ``c t^2`` times the product of ``(t + a)^2 + b``.

The polynomial of degree 6 through ``(expm1(t) - t) / t^2`` at the Chebyshev nodes of [-1, 1], by
its roots; relative error 1.1e-7. Every factor is positive, so nothing cancels, and each is two
operations on an array.
"""

NEAR = 0.5
"""Below this |t| the shorter ``FACTORS_NEAR`` will do."""

FACTORS_NEAR = (
    1.39666095235e-3,
    (
        (3.56834143376, 5.53113396507),
        (-0.562761218171, 19.2843115285),
    ),
)
"""The same of degree 4 on [-1/2, 1/2]; relative error 8.6e-7."""


def coefficients(*, double: bool) -> tuple[float, ...]:
    """``1/2!, 1/3!, ...``, as many as leave less than an epsilon of the sum for |t| < 1.

    >>> coefficients(double=False)[:3]
    (0.5, 0.16666666666666666, 0.041666666666666664)
    """
    return tuple(1 / math.factorial(n) for n in range(2, 19 if double else 12))
