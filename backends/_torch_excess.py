"""The excess ``exp(KL) - 1 = sum p phi(s)`` of the fast eager path, with every digit.

``phi(s) = expm1(s) - s >= 0`` and ``sum p s = 0``. Near 0, where the difference cancels::

    phi(s) = expm1(s) s (1/2 - s/12 + s^3/720 - s^5/30240 + ...)

because ``1/s - 1/expm1(s)`` has the Bernoulli numbers B_n / n! as its coefficients. Further out the
difference itself is exact enough, unless the row's sum is so small that only entries near 0 make it
up: there both are used, each where it holds.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from backends._torch_block import constant

NEAR = 1.0  # |s| up to which the series holds with the terms below
FARTHEST = 80.0  # s is cut here, so that expm1 stays finite in float32
SMALL_VARIANCE = 2e-3  # sum p s^2 below which the plain difference is not exact enough

# Coefficients of s^3, s^5, ...; in float32 each is needed from |s| = the second number up.
_SERIES = (
    (1 / 720, 0.09),
    (-1 / 30240, 0.45),
    (1 / 1209600, NEAR),
    (-1 / 47900160, NEAR),
    (691 / 1307674368000, NEAR),
    (-1 / 74724249600, NEAR),
    (3617 / 10670622842880000, NEAR),
    (-43867 / 5109094217170944000, NEAR),
)


def largest(s: Tensor, square: Tensor | None = None) -> tuple[float, Tensor]:
    """The largest |s|, NaN if there is one, and ``s * s`` in the buffer."""
    square = torch.mul(s, s, out=square)
    return math.sqrt(square.amax().item()), square


def excess(
    s: Tensor,
    p: Tensor,
    reach: float,
    square: Tensor,
    *,
    w: Tensor | None = None,
    scratch: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``sum p phi(s)`` of rows ``[n, A]``, in buffers where they are given.

    Args:
        s, p: ``[n, A]``.
        reach, square: From ``largest(s)``; ``square`` is overwritten.

    Returns:
        The sums ``[n, 1]``, and ``p expm1(s)`` with s cut at FARTHEST.
    """
    if reach <= NEAR:
        w = torch.expm1(s, out=w).mul_(p)
        return _series(s, square, reach, scratch).mul_(w).sum(-1, keepdim=True), w
    if not reach <= FARTHEST:
        s = s.clamp(max=FARTHEST)
    w = torch.expm1(s, out=w)
    value = torch.sub(w, s, out=scratch).mul_(p).sum(-1, keepdim=True)
    variance = square.mul_(p).sum(-1, keepdim=True)
    if not (variance * (variance - constant(SMALL_VARIANCE, s.dtype))).amin().item() >= 0:
        near = s.clamp(-NEAR, NEAR)
        near_expm1 = torch.expm1(near)
        torch.mul(near, near, out=square)
        value = _series(near, square, NEAR, scratch).mul_(near_expm1)
        further = torch.sub(w, near_expm1, out=near_expm1).sub_(near.neg_().add_(s))  # 0 if near
        value = value.add_(further).mul_(p).sum(-1, keepdim=True)
    return value, w.mul_(p)


def _series(s: Tensor, square: Tensor, reach: float, out: Tensor | None) -> Tensor:
    """``s (1/2 - s/12 + s^3/720 - ...)``, with enough terms for |s| <= reach."""
    out = torch.add(constant(0.5, s.dtype), s, alpha=-1 / 12, out=out)
    power = s
    for n, (coefficient, needed_from) in enumerate(_SERIES):
        if reach <= needed_from and s.dtype == torch.float32:
            break
        if n:
            power = power * square
        out.addcmul_(power, square, value=coefficient)
    return out.mul_(s)
