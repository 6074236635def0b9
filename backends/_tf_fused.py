"""log_prob, entropy and KL(old, new) of a PPO step in few passes over the entries.

The quantities are those of ``_tf_quantities``, which is the plain form beside this one, its test,
and the derivative of its gradient. What differs is how they are computed::

    depth = top - z                        >= 0
    p     = softmax(z)
    rest  = sum of p below the largest     log p_k = log1p(-rest): keeps every digit
    D     = z - z_old                      and what rounding loses of it
    t     = D - sum p_old D                P2 = p_old (expm1(t) - t), as in _tf_divergence
    r     = sum p_old t                    what rounding leaves of the mean of t, about 0
    KL    = log1p(exp(-r) (sum P2 - (expm1(r) - r)))
    q - p = exp(-KL - r) (p_old t + P2) + expm1(-KL - r) p_old

``multiply_no_nan`` (0 where the second factor is 0) takes the place of most masking. Nearly
deterministic rows, entries with |t| >= 1, logits of -inf and masks that differ take a second,
general look, skipped where there are none (``_tf_branch``).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from backends._series import FACTORS, SERIES_BELOW, coefficients
from backends._tf_api import Tensor, tf
from backends._tf_branch import compiled, unless_ordinary
from backends._tf_rows import rounding_error

DEEP = 1e-5
"""Rows whose ``rest`` is below this get the exact exponent."""


class Side(NamedTuple):
    """One policy a row; ``[..., 1]`` where a number a row. NaN in empty rows."""

    x: Tensor  # [..., A] logits, 0 at illegal entries
    z: Tensor  # [..., A] logits, -inf at illegal entries
    top: Tensor  # [..., 1]
    p: Tensor  # [..., A]


class Moments(NamedTuple):
    """What log_prob and entropy need of one policy; ``[..., 1]`` where a number a row."""

    depth: Tensor  # [..., A] at legal entries
    p_depth: Tensor  # [..., A]
    mean: Tensor  # [..., 1] sum of p_depth; NaN in NaN rows
    rest: Tensor  # [..., 1] probability of what is less probable than the largest
    largest: Tensor  # [..., 1] probability
    total: Tensor  # [..., 1] -log of it


class Pair(NamedTuple):
    """The old and the new policy of each row."""

    pt: Tensor  # [..., A] p_old t
    remainder: Tensor  # [..., A] P2
    r: Tensor  # [..., 1]
    kl: Tensor  # [..., 1]
    large: Tensor  # [..., 1] bool: KL > 1, where P2 means nothing


def side(x: Tensor, legal: Tensor) -> Side:
    """Softmax over the legal entries."""
    one = tf.cast(legal, x.dtype)
    x = tf.math.multiply_no_nan(x, one)
    z = x + tf.math.multiply_no_nan(tf.constant(-math.inf, x.dtype), 1 - one)  # not a slow select
    top = tf.reduce_max(z, -1, keepdims=True)
    if compiled():
        e = tf.exp(z - top)
        return Side(x, z, top, e / _sum(e))
    return Side(x, z, top, tf.nn.softmax(z))


def moments(new: Side, old: Side | None) -> tuple[Moments, Side, Side | None]:
    """Moments of the new policy, and both policies with the tails of deep rows corrected.

    A deep row of the old policy alone is left: against a new policy that is not deep its tail does
    not count.
    """
    no_nan = tf.math.multiply_no_nan
    depth = new.top - new.x
    p_depth = no_nan(depth, new.p)
    rest = _sum(tf.math.xdivy(p_depth, depth))
    zero = tf.zeros([], depth.dtype)

    def exact() -> tuple[Tensor, ...]:
        p = new.p + no_nan(rounding_error(new.x, new.top, -depth), new.p)
        changed = p, no_nan(depth, p), _sum(tf.where(tf.equal(depth, zero), zero, p))
        if old is None:
            return changed
        lost = rounding_error(old.x, old.top, old.x - old.top)
        return *changed, old.p + no_nan(lost, old.p)

    def as_is() -> tuple[Tensor, ...]:
        changed = new.p, p_depth, rest
        return changed if old is None else (*changed, old.p)

    deep = tf.reduce_any(tf.logical_and(rest > 0, rest < DEEP))
    p, p_depth, rest, *p_old = unless_ordinary(deep, exact, as_is)
    mean, largest = _sum(p_depth), tf.reduce_max(p, -1, keepdims=True)
    total = tf.where(largest > 0.5, -tf.math.log1p(-rest), -tf.math.log(largest))
    total = tf.where(tf.math.is_nan(mean), mean, total)
    before = old._replace(p=p_old[0]) if old is not None else None
    return Moments(depth, p_depth, mean, rest, largest, total), new._replace(p=p), before


def pair(old: Side, new: Side, total: Tensor, alike: Tensor) -> Pair:
    """KL(old, new) a row.

    Args:
        old, new: The policies.
        total: That of the new policy.
        alike: Scalar bool: the masks are equal, row by row and entry by entry.
    """
    no_nan = tf.math.multiply_no_nan

    def general() -> tuple[Tensor, ...]:
        d = _difference(old, new)
        mu = _sum(no_nan(d, old.p))
        t = d - mu
        pt = no_nan(t, old.p)
        apart = (total + tf.math.log(tf.reduce_max(old.p, -1, keepdims=True))) - mu
        large = tf.logical_not(apart <= 1)
        zero, infinity = tf.zeros([], mu.dtype), tf.constant(math.inf, mu.dtype)
        far = (new.p * tf.exp(tf.where(large, zero, apart)) - old.p) - pt
        r = _sum(pt)
        forbidden = tf.logical_and(tf.equal(new.z, -math.inf), old.z > -math.inf)
        far = tf.where(forbidden, infinity, far)
        terms = tf.where(tf.abs(t) < SERIES_BELOW, no_nan(_remainder(t), pt), far)
        excess = _sum(terms)
        kl = tf.where(large, apart, _close(excess, r))
        kl = tf.where(tf.logical_or(tf.math.is_inf(mu), tf.math.is_inf(excess)), infinity, kl)
        kl = tf.where(tf.math.is_nan(mu + total), tf.constant(math.nan, mu.dtype), kl)
        return pt, terms, r, kl, large

    if compiled():
        return Pair(*general())
    d = new.x - old.x
    t = (d - _sum(d * old.p)) + _rounding_error(new.x, old.x, d)
    pt = t * old.p
    terms = _remainder(t) * pt
    r, excess = _sum(pt), _sum(terms)
    near = tf.logical_and(tf.reduce_max(t) < SERIES_BELOW, tf.reduce_min(t) > -SERIES_BELOW)

    def ordinary() -> tuple[Tensor, ...]:
        kl = _close(excess, r)
        return pt, terms, r, kl, tf.zeros_like(kl, tf.bool)

    special = tf.logical_not(tf.logical_and(near, alike))
    return Pair(*unless_ordinary(special, general, ordinary))


def to_new(r: Pair, old: Side, g: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """``g (new - old)``, for g that is 0 in rows where the KL is +inf.

    Returns:
        A factor ``[..., 1]`` of ``new.p``, and pairs of an array ``[..., A]`` and its factor.
    """
    zero, no_nan, shift = tf.zeros([], g.dtype), tf.math.multiply_no_nan, -(r.kl + r.r)
    scale = tf.where(r.large, zero, no_nan(tf.exp(shift), g))
    shift = tf.where(r.large, -g, no_nan(tf.math.expm1(shift), g))
    return tf.where(r.large, g, zero), [(r.pt + r.remainder, scale), (old.p, shift)]


def to_old(r: Pair, old: Side, g: Tensor) -> Tensor:
    """``g`` times the gradient of the KL to the old logits, ``-p_old t`` ``[..., A]``."""
    no_nan = tf.math.multiply_no_nan
    return no_nan(old.p, no_nan(r.r, g)) - no_nan(r.pt, g)


def _close(excess: Tensor, r: Tensor) -> Tensor:
    """``log1p(exp(-r) (excess - (expm1(r) - r)))`` for r about 0; never negative."""
    return tf.math.log1p(tf.exp(-r) * tf.abs(excess - r * r * (0.5 + r * (1 / 6))))


def _sum(array: Tensor) -> Tensor:
    return tf.reduce_sum(array, -1, keepdims=True)


def _rounding_error(a: Tensor, b: Tensor, difference: Tensor) -> Tensor:
    """``_tf_rows.rounding_error`` of finite numbers."""
    virtual = difference + b
    return (a - virtual) - (b + (difference - virtual))


def _difference(old: Side, new: Side) -> Tensor:
    """``(z - z_old) - (top - top_old)``, rounded once."""
    if old.z.dtype == tf.float32:
        z, z_old, top, top_old = (tf.cast(x, tf.float64) for x in (new.z, old.z, new.top, old.top))
        return tf.cast((z - z_old) - (top - top_old), tf.float32)
    d, c = new.z - old.z, new.top - old.top
    lost = rounding_error(new.z, old.z, d) - rounding_error(new.top, old.top, c)
    return (d - c) + lost


def _remainder(t: Tensor) -> Tensor:
    """``(expm1(t) - t) / t`` for |t| < 1."""
    if t.dtype == tf.float32:
        scale, factors = FACTORS
        series = scale * t
        for a, b in factors:
            series *= tf.math.squared_difference(t, -a) + b
        return series
    series = tf.zeros_like(t)
    for c in reversed(coefficients(double=True)):
        series = series * t + c
    return series * t
