"""KL and cross-entropy of two masked policies, with closed-form gradients.

The sum of p (log p - log q) cancels where p and q are close: in float32 it is wrong by 2% to a
factor of 1e5 in the first epochs of PPO. With D = (zq - top_q) - (zp - top_p) over the support of
p, ``mu = sum p D`` and ``t = D - mu`` (mean 0 under p)::

    exp(KL) - 1 = sum p (expm1(t) - t)          every term >= 0: nothing cancels
    log q - log p = t - KL                      so dKL/dq = p expm1(t - KL)
    dKL/dp = -p t

``p exp(t)`` is ``q exp(KL)`` and taken as such where t is not small: ``exp(zq - top_q)`` times a
number a row, which neither overflows nor multiplies a p that underflowed. In this form the sum
takes in what q gives to actions outside the support of p, and the identity still holds. A KL above
1 is ``log_total_q - log_total_p - mu``, which then does not cancel.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from backends._series import SERIES_BELOW, coefficients
from backends._tf_api import Tensor, tf
from backends._tf_rows import Rows

LARGE = 1.0


class Pair(NamedTuple):
    """Two policies a row; ``[..., 1]`` where a number a row."""

    p: Tensor  # [..., A] probabilities
    t: Tensor  # [..., A] log(q/p) without its mean, where p > 0
    kl: Tensor  # [..., 1]
    dead: Tensor  # [..., 1] bool: p empty or KL = +inf, where every gradient is 0
    forbidden: Tensor  # [..., 1] bool: p gives mass to what q forbids
    bad: Tensor  # [..., 1] bool: p or q is NaN


def pair(zp: Tensor, zq: Tensor, p_empty: Tensor, p: Rows, q: Rows) -> Pair:
    """KL(p | q) a row, and what its gradient needs."""
    zero = tf.zeros([], zp.dtype)
    support = tf.math.is_finite(zp)
    forbidden = tf.reduce_any(tf.logical_and(support, tf.equal(zq, -math.inf)), -1, keepdims=True)
    bad = tf.math.is_nan(p.total + q.total)

    prob = p.e / p.total
    d = tf.where(p.e > zero, (q.shifted - p.shifted) + (q.lost - p.lost), zero)
    mu = tf.reduce_sum(prob * d, -1, keepdims=True)
    mu = tf.where(bad, tf.constant(math.nan, zp.dtype), mu)
    t = d - mu
    t -= tf.reduce_sum(prob * t, -1, keepdims=True)  # what rounding left of the mean
    apart = (q.log_total - p.log_total) - mu
    large = apart > LARGE

    near = tf.logical_and(tf.abs(t) < SERIES_BELOW, p.e > zero)
    weight = tf.exp(tf.where(large, zero, -mu)) / p.total
    far_terms = q.e * weight - prob * (1 + t)
    terms = tf.where(near, prob * convexity(tf.where(near, t, zero)), far_terms)
    excess = tf.where(large, zero, tf.reduce_sum(terms, -1, keepdims=True))
    kl = tf.where(large, apart, tf.math.log1p(tf.maximum(excess, zero)))
    kl = tf.where(forbidden, tf.constant(math.inf, zp.dtype), kl)
    kl = tf.where(bad, tf.constant(math.nan, zp.dtype), kl)
    kl = tf.where(p_empty, zero, kl)
    dead = tf.logical_or(p_empty, tf.equal(kl, math.inf))
    return Pair(prob, t, kl, dead, forbidden, bad)


def to_q(r: Pair, q: Rows) -> Tensor:
    """``q - p`` ``[..., A]`` to full relative accuracy, 0 in dead rows."""
    zero = tf.zeros([], r.p.dtype)
    u = r.t - r.kl
    near = tf.logical_and(tf.logical_and(tf.abs(u) < 1, r.kl <= LARGE), r.p > zero)
    close = r.p * tf.math.expm1(tf.where(near, u, zero))
    return tf.where(r.dead, zero, tf.where(near, close, q.e / q.total - r.p))


def to_p(r: Pair) -> Tensor:
    """``p (log p - log q - KL)`` ``[..., A]``, 0 in dead rows."""
    return tf.where(r.dead, tf.zeros([], r.p.dtype), -r.p * r.t)


def cross(p_empty: Tensor, r: Pair, q: Rows) -> tuple[Tensor, Tensor]:
    """Cross-entropy ``-sum p log q`` ``[..., 1]`` and its gradient to p ``[..., A]``."""
    zero = tf.zeros([], r.p.dtype)
    depth = tf.where(r.p > zero, -q.shifted, zero)
    mean = tf.reduce_sum(r.p * depth, -1, keepdims=True)
    spread = depth - mean
    spread -= tf.reduce_sum(r.p * spread, -1, keepdims=True)  # what rounding left of the mean
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
