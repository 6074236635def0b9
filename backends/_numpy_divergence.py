"""KL and cross-entropy of two policies a row, with what their gradients need.

The identity of ``_tf_divergence``: with D = zq - zp over the support of p, ``mu = sum p D`` and
``t = D - mu`` (mean 0 under p)::

    exp(KL) - 1 = sum p (expm1(t) - t)          every term >= 0: nothing cancels
    dKL/dq = q - p = p expm1(t - KL)            dKL/dp = -p t

The sum takes in what q gives to actions outside the support of p, where p exp(t) is q exp(KL).

D, mu and t are float64 for float32 logits, which makes D exact and ``expm1(t) - t`` good to the
last float32 digit from |t| = 1e-9 up. For float64 logits D carries its rounding error along and
``expm1(t) - t`` is a series near 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from backends._numpy_inputs import Array, BoolArray
from backends._numpy_rows import Rows, lost_in, row_dot
from backends._series import SERIES_BELOW, coefficients

LARGE = 1.0
"""From this KL on, ``log_total_q - log_total_p - mu`` does not cancel, and cannot overflow."""


class Pair(NamedTuple):
    """Two policies a row."""

    p: Array  # [N, A] float64, 0 outside the support
    t: Array  # [N, A] float64
    kl: Array  # [N] float64
    forbidden: BoolArray  # [N] p gives mass to what q forbids
    bad: BoolArray  # [N] p or q is NaN


def pair(zp: Array, zq: Array, p: Rows, q: Rows) -> Pair:
    """KL(p | q) of masked logits ``[N, A]``, both float32 or both float64."""
    support = zp > -np.inf
    forbidden = (support & (zq == -np.inf)).any(-1)
    bad = p.bad | q.bad
    w = p.e.astype(np.float64)
    total = w.sum(-1)
    weightless = w == 0
    t = _difference(zp, zq, p)
    np.copyto(t, 0, where=weightless)
    mu = row_dot(w, t) / total
    t -= mu[:, None]
    shift = _shift(zq, p, q) - mu
    apart: Array = shift + (q.log_total.astype(np.float64) - p.log_total)
    large = ~(apart <= LARGE)

    terms = _remainder(t, double=zp.dtype == np.float64)
    terms *= w
    far = np.flatnonzero((weightless | (np.abs(t) >= SERIES_BELOW)).reshape(-1))
    if far.size:
        row = far // t.shape[1]
        scale = np.exp(np.where(large, 0, shift))[row]
        terms.reshape(-1)[far] = q.e.reshape(-1)[far] * scale
        terms.reshape(-1)[far] -= w.reshape(-1)[far] * (1 + t.reshape(-1)[far])
    close: Array = np.log1p(np.maximum(terms.sum(-1) / total, 0))
    kl: Array = np.where(large, apart, close)
    kl[forbidden] = np.inf
    kl[bad] = np.nan
    kl[p.empty] = 0
    w /= total[:, None]
    return Pair(w, t, kl, forbidden, bad)


def kl_gradients(r: Pair, p: Rows, q: Rows) -> tuple[Array, Array]:
    """``-p t`` and ``q - p`` ``[N, A]``, 0 in rows where p is empty or KL is +inf."""
    dq = _q_minus_p(r, q)
    dp = np.multiply(r.p, -r.t)
    return _finished(dp, r.kl, p, r.bad), _finished(dq, r.kl, p, r.bad)


def cross_entropy(zq: Array, r: Pair, p: Rows, q: Rows) -> tuple[Array, Array]:
    """``-sum p log q`` ``[N]``, and its gradient to p ``[N, A]``: every term >= 0."""
    depth = np.subtract(q.top[:, None], zq, dtype=np.float64)
    np.copyto(depth, 0, where=r.p == 0)
    mean = row_dot(r.p, depth)
    value = mean + q.log_total
    value[r.forbidden] = np.inf
    value[r.bad] = np.nan
    value[p.empty] = 0
    depth -= mean[:, None]
    depth -= row_dot(r.p, depth)[:, None]  # what rounding left of the mean
    depth *= r.p
    return value, _finished(depth, value, p, r.bad)


def cross_entropy_gradient_to_q(r: Pair, p: Rows, q: Rows) -> Array:
    """``q - p`` ``[N, A]``."""
    return _finished(_q_minus_p(r, q), r.kl, p, r.bad)


def _q_minus_p(r: Pair, q: Rows) -> Array:
    u = r.t - r.kl[:, None]
    near = (np.abs(u) < 1) & (r.kl <= LARGE)[:, None] & (r.p > 0)
    direct = np.flatnonzero(~near.reshape(-1))
    dq = np.expm1(u, out=u)
    dq *= r.p
    row = direct // dq.shape[1]
    # In float64: where p and q are both nearly 1, the float32 rounding of a total is all there is.
    of_q = q.e.reshape(-1)[direct] / q.e.sum(-1, dtype=np.float64)[row]
    dq.reshape(-1)[direct] = of_q - r.p.reshape(-1)[direct]
    return dq


def _finished(gradient: Array, value: Array, p: Rows, bad: BoolArray) -> Array:
    gradient[(value == np.inf) | p.empty] = 0
    gradient[bad & ~p.empty] = np.nan
    return gradient


def _difference(zp: Array, zq: Array, p: Rows) -> Array:
    """``D - D_k`` for ``D = zq - zp`` ``[N, A]``, in float64, to the last digit.

    Relative to p's largest entry, so that where p is nearly deterministic mu is a sum of small
    terms, and what is left at that entry, -mu, keeps every digit.
    """
    at = np.arange(len(zp)), p.k
    difference = np.subtract(zq, zp, dtype=np.float64)
    lost = lost_in(zq, zp) if zp.dtype == np.float64 else None
    difference -= difference[at][:, None]
    if lost is not None:
        lost -= lost[at][:, None]
        difference += lost
    return difference


def _shift(zq: Array, p: Rows, q: Rows) -> Array:
    """``(top_q - top_p) - D_k`` ``[N]`` in float64."""
    return np.subtract(q.top, zq[np.arange(len(zq)), p.k], dtype=np.float64)


def _remainder(t: Array, *, double: bool) -> Array:
    """``expm1(t) - t``."""
    value = np.expm1(t)
    value -= t
    if double:
        near = np.flatnonzero((np.abs(t) < SERIES_BELOW).reshape(-1))
        x = t.reshape(-1)[near]
        series = np.zeros_like(x)
        for c in reversed(coefficients(double=True)):
            series *= x
            series += c
        value.reshape(-1)[near] = series * x * x
    return value
