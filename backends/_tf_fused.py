"""log_prob, entropy and KL(old, new) of a PPO step in few passes over the entries.

The quantities are those of ``_tf_quantities``, which is the plain form beside this one, its test,
and the derivative of its gradient. What differs is how they are computed::

    depth = top - z                        >= 0
    p     = softmax(z)
    rest  = sum of p below the largest     log p_k = log1p(-rest): keeps every digit
    t     = z - z_old - mean
    P2    = p_old (expm1(t) - t)           then KL and q - p as in _tf_divergence

``multiply_no_nan`` (0 where the second factor is 0) takes the place of most masking. Nearly
deterministic rows, entries with |t| >= 1, logits of -inf, masks that differ, policies that differ
only where p is below 1e-6 and logits that all move take a second, general look, skipped where there
are none.
XLA has a form of its own (``_tf_compiled``).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from backends._series import NEAR, SERIES_BELOW
from backends._tf_api import Tensor, tf
from backends._tf_divergence import excess_of_mean, remainder
from backends._tf_rows import rounding_error

DEEP = 1e-5
"""Rows whose ``rest`` is below this get the exact exponent."""

SURE = 0.75
"""Rows whose largest p is above this get log p and 1 - p of it from the other p."""

TAIL = 1e-6
"""A KL that entries of p below this may make up takes the general form: p has lost digits there."""

OFFSET = 1 / 64
"""So does one below this part of the squared mean times 1 - p: the mean has cost t digits."""


class Side(NamedTuple):
    """One policy a row; ``[..., 1]`` where a number a row. NaN in empty rows."""

    z: Tensor  # [..., A] logits, -inf at illegal entries
    legal: Tensor  # [..., A] 1 or 0
    top: Tensor  # [..., 1]
    p: Tensor  # [..., A]


class Moments(NamedTuple):
    """What log_prob and entropy need of one policy; ``[..., 1]`` where a number a row."""

    depth: Tensor  # [..., A] top - z
    mean: Tensor  # [..., 1] sum of p depth; NaN in NaN rows
    rest: Tensor  # [..., 1] probability of what is less probable than the largest
    largest: Tensor  # [..., 1] probability
    total: Tensor  # [..., 1] -log of it
    sure: Tensor  # scalar bool: some row has an entry of p > SURE


class Pair(NamedTuple):
    """The old and the new policy of each row; A, B and r as in ``_tf_divergence``."""

    p: Tensor  # [..., A] old
    pt: Tensor  # [..., A] p t
    growth: Tensor  # [..., A] p expm1(t); q - p where KL is large
    r: Tensor  # [..., 1]
    total: Tensor  # [..., 1] B
    kl: Tensor  # [..., 1]
    large: Tensor  # [..., 1] bool: KL > 1


def side(x: Tensor, legal: Tensor) -> Side:
    """Softmax over the legal entries."""
    z = tf.where(legal, x, tf.constant(-math.inf, x.dtype))
    top = tf.reduce_max(z, -1, keepdims=True)
    return Side(z, tf.cast(legal, x.dtype), top, tf.nn.softmax(z))


def exact(s: Side) -> Tensor:
    """``p`` ``[..., A]`` with what rounding lost of the exponent put back."""
    return tf.math.multiply_no_nan(1 + rounding_error(s.z, s.top, s.z - s.top), s.p)


def empty_rows(s: Side, legal: Tensor) -> Tensor:
    """Rows ``[..., 1]`` without a legal action: looked for where one has nothing above -inf."""
    low = tf.equal(s.top, -math.inf)
    return tf.cond(
        tf.reduce_any(low),
        lambda: tf.logical_not(tf.reduce_any(legal, -1, keepdims=True)),
        lambda: low,
    )


def moments(s: Side) -> tuple[Moments, Tensor]:
    """Moments of a policy, and its probabilities with the tails of deep rows corrected."""
    depth, largest = s.top - s.z, tf.reduce_max(s.p, -1, keepdims=True)
    p_depth = tf.math.multiply_no_nan(depth, s.p)
    sure = tf.logical_not(tf.reduce_all(largest <= SURE))
    p, mean, largest, rest, total = tf.cond(
        sure,
        lambda: _of_sure_rows(s, depth, p_depth),
        lambda: (s.p, _sum(p_depth), largest, 1 - largest, -tf.math.log(largest)),
    )
    total = tf.where(tf.math.is_nan(mean), mean, total)
    return Moments(depth, mean, rest, largest, total, sure), p


def _of_sure_rows(s: Side, depth: Tensor, p_depth: Tensor) -> tuple[Tensor, ...]:
    """With every digit of ``rest`` and of ``total`` where one entry has most of p."""
    no_nan, zero = tf.math.multiply_no_nan, tf.zeros([], s.p.dtype)
    rest = _sum(tf.math.xdivy(p_depth, depth))

    def corrected() -> tuple[Tensor, ...]:
        p = exact(s)
        return p, no_nan(depth, p), _sum(tf.where(tf.equal(depth, zero), zero, p))

    deep = tf.reduce_any(tf.logical_and(rest > 0, rest < DEEP))
    p, p_depth, rest = tf.cond(deep, corrected, lambda: (s.p, p_depth, rest))
    largest = tf.reduce_max(p, -1, keepdims=True)
    total = tf.where(largest > SURE, -tf.math.log1p(-rest), -tf.math.log(largest))
    return p, _sum(p_depth), largest, rest, total


def pair(old: Side, new: Side, m: Moments, alike: Tensor) -> Pair:
    """KL(old, new) a row.

    Args:
        old, new: The policies.
        m: Of the new policy.
        alike: Scalar bool: the masks are equal, row by row and entry by entry.
    """
    no_nan = tf.math.multiply_no_nan

    def general() -> Pair:
        # Computed here, or it would be for every batch.
        before = old._replace(top=tf.reduce_max(old.z, -1, keepdims=True))
        p, q = exact(before), exact(new)
        zero, infinity = tf.zeros([], p.dtype), tf.constant(math.inf, p.dtype)
        at_k = tf.where(tf.equal(before.z, before.top), new.z, -infinity)
        at_k = tf.reduce_max(at_k, -1, keepdims=True)
        at_k = tf.where(tf.math.is_finite(at_k), at_k, new.top)
        d = _difference(before, new, at_k)
        mu = _sum(no_nan(tf.where(tf.abs(d) < SERIES_BELOW, d, zero), p))
        t = d - mu
        pt = no_nan(t, p)
        r = _sum(pt)
        largest = tf.reduce_max(p, -1, keepdims=True)
        below = (new.top - at_k) - mu
        apart = (m.total + tf.math.log(largest)) + below - r
        large = tf.logical_not(apart <= 1)
        scale = (largest / m.largest) * tf.exp(tf.where(large, zero, below))
        near = tf.abs(t) < SERIES_BELOW
        far = q * scale - p
        forbidden = tf.logical_and(tf.equal(new.z, -math.inf), before.z > -math.inf)
        far_terms = tf.where(forbidden, infinity, far - pt)
        near_terms = no_nan(remainder(t), pt)
        terms = tf.where(near, near_terms, far_terms)
        growth = tf.where(near, pt + near_terms, far)
        growth = tf.where(large, _direct(before, new, m, p, q, largest), growth)
        excess = _sum(terms)
        kl = tf.where(large, apart, _close(excess, tf.where(large, zero, r)))
        kl = tf.where(tf.logical_or(tf.math.is_inf(r), tf.math.is_inf(excess)), infinity, kl)
        kl = tf.where(tf.math.is_nan(largest + m.total), tf.constant(math.nan, p.dtype), kl)
        return Pair(p, pt, growth, r, _sum(growth), kl, large)

    d = no_nan(new.z - old.z, old.legal)
    mu = _sum(d * old.p)
    t = d - mu
    size = tf.maximum(tf.reduce_max(t, -1, keepdims=True), -tf.reduce_min(t, -1, keepdims=True))
    pt = t * old.p
    near = tf.reduce_all(size < NEAR)
    terms = tf.cond(near, lambda: remainder(t, near=True), lambda: remainder(t)) * pt
    r, excess = _sum(pt), _sum(terms)
    # 1 - p of the new policy, which is not far from that of the old one where |t| < 1.
    least = tf.maximum(
        OFFSET * m.rest * mu * mu, TAIL * tf.cast(tf.shape(t)[-1], t.dtype) * size * size
    )
    near = tf.reduce_all(tf.logical_and(size < SERIES_BELOW, excess >= least))

    def ordinary() -> Pair:
        kl = _close(excess, r)
        return Pair(old.p, pt, pt + terms, r, r + excess, kl, tf.zeros_like(kl, tf.bool))

    return tf.cond(tf.logical_not(tf.logical_and(near, alike)), general, ordinary)


def to_new(r: Pair, g: Tensor) -> list[tuple[Tensor, Tensor]]:
    """``g (new - old)``, for g that is 0 in rows where the KL is +inf.

    Returns:
        Pairs of an array ``[..., A]`` and its factor ``[..., 1]``, to be added up.
    """
    scale = tf.math.multiply_no_nan(1 / (1 + r.total), g)
    shift = tf.math.multiply_no_nan(-r.total, scale)
    scale = tf.where(r.large, g, scale)
    return [(r.growth, scale), (r.p, tf.where(r.large, tf.zeros([], g.dtype), shift))]


def to_old(r: Pair, g: Tensor) -> Tensor:
    """``g`` times the gradient of the KL to the old logits, ``-p_old (t - r)`` ``[..., A]``."""
    no_nan = tf.math.multiply_no_nan
    return no_nan(r.p, no_nan(r.r, g)) - no_nan(r.pt, g)


def _direct(old: Side, new: Side, m: Moments, p: Tensor, q: Tensor, largest: Tensor) -> Tensor:
    """``q - p`` ``[..., A]``: where both are nearly 1, what is left to the others of each."""
    is_top = tf.equal(old.z, old.top)
    rest = _sum(tf.where(is_top, tf.zeros([], p.dtype), p))
    sure = tf.logical_and(largest > 0.5, m.largest > 0.5)
    both = tf.logical_and(tf.logical_and(is_top, tf.equal(new.z, new.top)), sure)
    return tf.where(both, rest - m.rest, q - p)


def _close(excess: Tensor, r: Tensor) -> Tensor:
    """``log1p(exp(-r) (excess - (expm1(r) - r)))``; never negative."""
    return tf.math.log1p(tf.exp(-r) * tf.maximum(excess - excess_of_mean(r), 0))


def _sum(array: Tensor) -> Tensor:
    return tf.reduce_sum(array, -1, keepdims=True)


def _difference(old: Side, new: Side, at_k: Tensor) -> Tensor:
    """``(z - z_k) - (z_old - top_old)``, rounded once; k is the largest entry of the old policy."""
    arrays = new.z, old.z, at_k, old.top
    z, z_old, at_k, top = (tf.cast(x, tf.float64) for x in arrays)
    u, u_old = z - at_k, z_old - top
    lost = rounding_error(z, at_k, u) - rounding_error(z_old, top, u_old)
    return tf.cast((u - u_old) + lost, new.z.dtype)
