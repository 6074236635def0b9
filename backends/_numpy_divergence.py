"""KL and cross-entropy of two policies a row, with what their gradients need.

The identities of ``_tf_divergence``: with D = (zq - zq_k) - (zp - zp_k) over the support of p, k
its largest entry, ``t = D - mu`` for the mean mu of D over |D| < 1, and ``r = sum p t``::

    A = sum p (expm1(t) - t)                    every term >= 0: nothing cancels
    B = sum p expm1(t)
    KL = log1p(exp(-r) (A - (expm1(r) - r)))
    dKL/dq = q - p = (p expm1(t) - p B) / (1 + B)
    dKL/dp = -p (t - r)

Everything here is float64, also for float32 logits: ``expm1(t) - t`` is good to the last float32
digit from |t| = 1e-9 up. For float64 logits it is a series near 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from backends._numpy_inputs import Array, BoolArray
from backends._numpy_rows import Rows, lost_in, row_dot
from backends._series import SERIES_BELOW, coefficients

LARGE = 1.0
"""From this KL on, the difference of log q and log p does not cancel."""


class Pair(NamedTuple):
    """Two policies a row."""

    p: Array  # [N, A] 0 outside the support
    t: Array  # [N, A]
    r: Array  # [N]
    growth: Array  # [N, A] p expm1(t), where KL is not large
    kl: Array  # [N]
    forbidden: BoolArray  # [N] p gives mass to what q forbids
    bad: BoolArray  # [N] p or q is NaN


def pair(zp: Array, zq: Array, p: Rows, q: Rows, *, double: bool) -> Pair:
    """KL(p | q) of masked float64 logits ``[N, A]``; ``double`` unless they came as float32."""
    forbidden = ((zp > -np.inf) & (zq == -np.inf)).any(-1)
    bad = p.bad | q.bad
    prob = p.e / p.total[:, None]
    weightless = prob == 0
    at = np.arange(len(zp)), p.k
    at_k = np.where(np.isfinite(zq[at]), zq[at], q.top)
    t = _difference(zp, zq, p.top, at_k)
    np.copyto(t, 0, where=weightless)
    mu = row_dot(prob, np.where(np.abs(t) < 1, t, 0))
    t -= mu[:, None]
    r = row_dot(prob, t)
    below = (q.top - at_k) - mu
    apart: Array = (q.log_total - p.log_total) + below - r
    large = ~(apart <= LARGE)

    growth = np.expm1(t)
    terms = _remainder(t, growth, double=double)
    growth *= prob
    terms *= prob
    far = np.flatnonzero((weightless | (np.abs(t) >= SERIES_BELOW)).reshape(-1))
    if far.size:
        scale = (np.exp(np.where(large, 0, below)) / p.total)[far // t.shape[1]]
        far_p = prob.reshape(-1)[far]
        grown = q.e.reshape(-1)[far] * scale - far_p
        growth.reshape(-1)[far] = grown
        terms.reshape(-1)[far] = grown - far_p * t.reshape(-1)[far]
    excess = np.maximum(terms.sum(-1) - _excess_of_mean(r, double=double), 0)
    kl: Array = np.where(large, apart, np.log1p(np.exp(np.where(large, 0, -r)) * excess))
    kl[forbidden] = np.inf
    kl[bad] = np.nan
    kl[p.empty] = 0
    return Pair(prob, t, r, growth, kl, forbidden, bad)


def kl_gradients(r: Pair, p: Rows, q: Rows) -> tuple[Array, Array]:
    """``-p (t - r)`` and ``q - p`` ``[N, A]``, 0 in rows where p is empty or KL is +inf."""
    dp = r.p * (r.r[:, None] - r.t)
    return _finished(dp, r.kl, p, r.bad), _finished(_q_minus_p(r, q), r.kl, p, r.bad)


def cross_entropy(zq: Array, r: Pair, p: Rows, q: Rows) -> tuple[Array, Array]:
    """``-sum p log q`` ``[N]``, and its gradient to p ``[N, A]``: every term >= 0."""
    depth = q.top[:, None] - zq
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
    direct = q.e / q.total[:, None] - r.p
    near = (np.abs(r.t) < SERIES_BELOW) & (r.kl <= LARGE)[:, None] & (r.p > 0)
    total = r.growth.sum(-1)[:, None]
    return np.where(near, (r.growth - r.p * total) / (1 + total), direct)


def _finished(gradient: Array, value: Array, p: Rows, bad: BoolArray) -> Array:
    gradient[(value == np.inf) | p.empty] = 0
    gradient[bad & ~p.empty] = np.nan
    return gradient


def _difference(zp: Array, zq: Array, zp_k: Array, zq_k: Array) -> Array:
    """D ``[N, A]`` to the last digit: logits far from 0 would take those of a D near 0."""
    uq, up = zq - zq_k[:, None], zp - zp_k[:, None]
    lost = lost_in(zq, zq_k[:, None])
    lost -= lost_in(zp, zp_k[:, None])
    uq -= up
    uq += lost
    return uq


def _remainder(t: Array, growth: Array, *, double: bool) -> Array:
    """``expm1(t) - t`` ``[N, A]``, given expm1(t)."""
    value = growth - t
    if double:
        near = np.flatnonzero((np.abs(t) < SERIES_BELOW).reshape(-1))
        x = t.reshape(-1)[near]
        series = np.zeros_like(x)
        for c in reversed(coefficients(double=True)):
            series *= x
            series += c
        value.reshape(-1)[near] = series * x * x
    return value


def _excess_of_mean(r: Array, *, double: bool) -> Array:
    """``expm1(r) - r`` of a number a row ``[N]``."""
    return _remainder(r[:, None], np.expm1(r)[:, None], double=double)[:, 0]
