"""KL and cross-entropy of two masked policies, with closed-form gradients.

The sum of p (log p - log q) cancels where p and q are close: in float32 it is wrong by 2% to a
factor of 1e5 in the first epochs of PPO. With D = (zq - zq_k) - (zp - zp_k) over the support of p,
k being its largest entry, ``t = D - mu`` for a mu about the mean of D, and ``r = sum p t``::

    A = sum p (expm1(t) - t)                    every term >= 0: nothing cancels
    B = sum p expm1(t)
    KL = log1p(exp(-r) (A - (expm1(r) - r)))
    dKL/dq = q - p = (p expm1(t) - p B) / (1 + B)
    dKL/dp = -p (t - r)

With mu the mean itself, r is 0 and KL = log1p(A) = log1p(B). mu is the mean over |D| < 1: an entry
far out would carry it, and with it every t, away from the small differences of the others.

``p exp(t)`` is ``q (1 + B)`` and taken as such where t is not small: ``exp(zq - top_q)`` times a
number a row, which neither overflows nor multiplies a p that underflowed. In this form the sums
take in what q gives to actions outside the support of p, and the identities still hold. A KL above
1 is ``log q - log p`` at k, less ``sum p D``, which then does not cancel.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from backends._series import FACTORS, FACTORS_NEAR, SERIES_BELOW, coefficients
from backends._tf_api import Tensor, tf
from backends._tf_rows import Rows, rounding_error

LARGE = 1.0


class Pair(NamedTuple):
    """Two policies a row; ``[..., 1]`` where a number a row."""

    p: Tensor  # [..., A] probabilities
    t: Tensor  # [..., A] D - mu, where p > 0
    spread: Tensor  # [..., A] t - r
    direct: Tensor  # [..., A] q - p as a difference
    growth: Tensor  # [..., A] p expm1(t), where KL is not large
    total: Tensor  # [..., 1] B
    kl: Tensor  # [..., 1]
    large: Tensor  # [..., 1] bool: KL > 1
    dead: Tensor  # [..., 1] bool: p empty or KL = +inf, where every gradient is 0
    forbidden: Tensor  # [..., 1] bool: p gives mass to what q forbids
    bad: Tensor  # [..., 1] bool: p or q is NaN


def pair(zp: Tensor, zq: Tensor, p_empty: Tensor, p: Rows, q: Rows) -> Pair:
    """KL(p | q) a row, and what its gradient needs."""
    zero, nan = tf.zeros([], zp.dtype), tf.constant(math.nan, zp.dtype)
    support = tf.math.is_finite(zp)
    forbidden = tf.reduce_any(tf.logical_and(support, tf.equal(zq, -math.inf)), -1, keepdims=True)
    bad = tf.math.is_nan(p.total + q.total)

    prob = p.e / p.total
    at_k = tf.reduce_max(tf.where(tf.equal(p.shifted, zero), zq, -math.inf), -1, keepdims=True)
    at_k = tf.stop_gradient(tf.where(tf.math.is_finite(at_k), at_k, q.top))
    shifted = zq - at_k
    lost = tf.stop_gradient(rounding_error(zq, at_k, shifted)) - p.lost
    d = tf.where(p.e > zero, (shifted - p.shifted) + lost, zero)
    mu = _sum(prob * tf.where(tf.abs(d) < SERIES_BELOW, d, zero))
    t = d - tf.where(bad, nan, mu)
    r = _sum(prob * t)
    below = (q.top - at_k) - mu
    apart = (q.log_total - p.log_total) + below - r
    large = apart > LARGE

    near = tf.logical_and(tf.abs(t) < SERIES_BELOW, p.e > zero)
    weight = tf.exp(tf.where(large, zero, below)) / p.total
    x = tf.where(near, t, zero)
    terms = tf.where(near, prob * convexity(x), q.e * weight - prob * (1 + t))
    growth = tf.where(near, prob * (x + convexity(x)), q.e * weight - prob)
    excess = tf.where(large, zero, _sum(terms) - excess_of_mean(tf.where(large, zero, r)))
    close = tf.math.log1p(tf.exp(tf.where(large, zero, -r)) * tf.maximum(excess, zero))
    kl = tf.where(large, apart, close)
    kl = tf.where(forbidden, tf.constant(math.inf, zp.dtype), kl)
    kl = tf.where(bad, nan, kl)
    kl = tf.where(p_empty, zero, kl)
    dead = tf.logical_or(p_empty, tf.equal(kl, math.inf))
    carried = tf.logical_and(large, p.total < 2)
    spread = tf.where(carried, _spread_about_top(zq, p, prob, bad), t - r)
    # Where p and q are both nearly 1, their difference is that of what is left to the others.
    both = tf.logical_and(tf.equal(p.tau, zero), tf.equal(q.tau, zero))
    both = tf.logical_and(both, tf.logical_and(p.total < 2, q.total < 2))
    direct = tf.where(both, p.rest / p.total - q.rest / q.total, q.e / q.total - prob)
    return Pair(prob, t, spread, direct, growth, _sum(growth), kl, large, dead, forbidden, bad)


def to_q(r: Pair, q: Rows) -> Tensor:
    """``q - p`` ``[..., A]`` to full relative accuracy, 0 in dead rows."""
    zero = tf.zeros([], r.p.dtype)
    near = tf.logical_and(tf.logical_not(r.large), tf.abs(r.t) < SERIES_BELOW)
    near = tf.logical_and(near, r.p > zero)
    total = tf.where(r.large, zero, r.total)
    close = (r.growth - r.p * total) / (1 + total)
    return tf.where(r.dead, zero, tf.where(near, close, r.direct))


def to_p(r: Pair) -> Tensor:
    """``p (log p - log q - KL)`` ``[..., A]``, 0 in dead rows."""
    return tf.where(r.dead, tf.zeros([], r.p.dtype), -r.p * r.spread)


def _spread_about_top(zq: Tensor, p: Rows, prob: Tensor, bad: Tensor) -> Tensor:
    """``t - r`` where one entry has most of p: D relative to that entry's, so that what is left
    there is a sum of small terms, whatever D itself is."""
    zero = tf.zeros([], zq.dtype)
    zq = tf.where(tf.math.is_finite(zq), zq, zero)
    at_top = _sum(tf.where(tf.equal(p.tau, zero), zq, zero))
    c = tf.where(p.e > zero, (zq - at_top) - p.shifted, zero)
    return tf.where(bad, tf.constant(math.nan, zq.dtype), c - _sum(prob * c))


def excess_of_mean(r: Tensor) -> Tensor:
    """``expm1(r) - r`` of a number a row ``[..., 1]``."""
    near = tf.abs(r) < SERIES_BELOW
    zero = tf.zeros([], r.dtype)
    far = tf.where(near, zero, r)
    return tf.where(near, convexity(tf.where(near, r, zero)), tf.math.expm1(far) - far)


def cross(p_empty: Tensor, r: Pair, q: Rows) -> tuple[Tensor, Tensor]:
    """Cross-entropy ``-sum p log q`` ``[..., 1]`` and its gradient to p ``[..., A]``."""
    zero = tf.zeros([], r.p.dtype)
    depth = tf.where(r.p > zero, -q.shifted, zero)
    mean = _sum(r.p * depth)
    spread = depth - mean
    spread -= _sum(r.p * spread)  # what rounding left of the mean
    value = tf.where(r.forbidden, tf.constant(math.inf, r.p.dtype), mean + q.log_total)
    value = tf.where(r.bad, tf.constant(math.nan, r.p.dtype), value)
    value = tf.where(p_empty, zero, value)
    dead = tf.logical_or(p_empty, tf.equal(value, math.inf))
    return value, tf.where(dead, zero, r.p * spread)


def convexity(t: Tensor) -> Tensor:
    """``expm1(t) - t`` for |t| < 1 as a power series: every digit of it near 0."""
    series = tf.zeros_like(t)
    for c in reversed(coefficients(double=t.dtype == tf.float64)):
        series = series * t + c
    return series * t * t


def remainder(t: Tensor, *, near: bool = False) -> Tensor:
    """``(expm1(t) - t) / t`` for |t| < 1, or below NEAR."""
    if t.dtype == tf.float32:
        scale, factors = FACTORS_NEAR if near else FACTORS
        series = scale * t
        for a, b in factors:
            series *= tf.math.squared_difference(t, -a) + b
        return series
    series = tf.zeros_like(t)
    for c in reversed(coefficients(double=True)):
        series = series * t + c
    return series * t


def _sum(array: Tensor) -> Tensor:
    return tf.reduce_sum(array, -1, keepdims=True)
