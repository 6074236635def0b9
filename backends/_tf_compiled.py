"""The PPO step under XLA: values and gradient of log_prob, entropy and KL(old, new).

XLA fuses what is done to an entry into one loop, but a sum over a row ends the loop: its terms are
written out and read again. So there are few sums here, and many operations on an entry. With
``k``, ``j`` the largest entries of the old and the new policy and ``p``, ``q`` the two::

    t = (z - z_old) - (z_j - z_old_k) - log(total / total_old) = log q - log p
    A = sum p (expm1(t) - t)                    every term >= 0
    B = sum p expm1(t) = sum q - p              0 but for the rounding of the constant in t
    KL = log1p(B) - (B - A) = A - B^2 / 2
    dKL/dq = q - p = (p expm1(t) - p B) / (1 + B)
    dKL/dp = -p (t - (B - A))

The differences and the constant keep what rounding loses of them: t is exact to its last digits.

Where this does not hold for a row (NaN, logits of -inf in the KL, masks that differ, a KL below
what B leaves of it) the whole batch takes the plain closed forms of ``_tf_quantities``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from backends import _tf_quantities as quantities
from backends._series import SERIES_BELOW
from backends._tf_api import Tensor, tf
from backends._tf_divergence import remainder
from backends._tf_inputs import NEG_INF, Policy
from backends._tf_rows import FLOOR, rounding_error, rounding_error_if_finite

WIDE = 512
"""Rows of so many actions, or of an unknown number, get what rounding has left of a mean."""

Backward = Callable[..., Tensor]


class Side(NamedTuple):
    """One policy a row; ``[..., 1]`` where a number a row. NaN in NaN rows, e = 0 in empty ones."""

    z: Tensor  # [..., A] masked logits
    top: Tensor  # [..., 1]
    e: Tensor  # [..., A] exp(z - top)
    others: Tensor  # [..., 1] sum of e without one of the largest
    total: Tensor  # [..., 1] 1 + others
    log_total: Tensor  # [..., 1]


class Pair(NamedTuple):
    """The old and the new policy of each row."""

    old: Side
    pt: Tensor  # [..., A] p t, times old.total
    growth: Tensor  # [..., A] p expm1(t), times old.total
    a: Tensor  # [..., 1]
    b: Tensor  # [..., 1]
    kl: Tensor  # [..., 1]
    special: Tensor  # scalar bool: some row needs the plain form


def forward(
    new: Policy, actions: Tensor, old: Policy | None
) -> tuple[tuple[Tensor, ...], tuple[Backward, ...]]:
    """The values ``[..., 1]``, and the backward passes from cotangents to the logits of each."""
    s = side(new)
    zero = tf.zeros([], s.z.dtype)
    mean = _sum(s.e * depth(s)) / s.total
    if (s.z.shape[-1] or WIDE) >= WIDE:
        mean += _sum(s.e * (depth(s) - mean)) / s.total
    num_actions = tf.shape(s.z)[-1]
    inside = tf.logical_and(actions >= 0, actions < tf.cast(num_actions, actions.dtype))
    index = tf.cast(tf.where(inside, actions, 0), tf.int32)

    def at(array: Tensor) -> Tensor:
        return tf.gather(array, index[..., None], axis=-1, batch_dims=index.shape.rank)

    legal = tf.logical_and(at(new.legal), inside[..., None])
    counts = tf.logical_or(legal, tf.math.is_nan(s.total))
    log_prob = tf.where(counts, (at(s.z) - s.top) - s.log_total, tf.constant(NEG_INF, zero.dtype))
    values = tf.where(new.empty, zero, log_prob), s.log_total + mean

    def gradient(gl: Tensor, gh: Tensor) -> Tensor:
        taken = tf.one_hot(index, num_actions, True, False, dtype=tf.bool)
        gl = tf.where(counts, gl, zero) / s.total
        others = tf.where(s.e < 1, s.total - s.e, s.others)
        return tf.where(taken, others, -s.e) * gl + s.e * (depth(s) - mean) * (gh / s.total)

    def alone(gl: Tensor, gh: Tensor) -> Tensor:
        return tf.where(new.legal, gradient(gl, gh), zero)

    if old is None:
        return values, (alone,)

    both = pair(new, old, s, side(old))

    def in_general() -> tuple[Tensor, ...]:
        found = quantities.log_prob(new, actions), quantities.entropy(new)
        kl = quantities.kl_divergence(old, new)
        return tuple(x[..., None] for x in (*found, kl))

    def gradient_in_general(which: int, gs: tuple[Tensor, ...]) -> Tensor:
        return quantities.step_gradient(new, old, actions, gs)[which]

    def to_new(*gs: Tensor) -> Tensor:
        def ordinary() -> Tensor:
            gl, gh, gk = gs
            scale = (gk / (1 + both.b)) / both.old.total
            return gradient(gl, gh) + (both.growth - both.old.e * both.b) * scale

        return tf.cond(both.special, lambda: gradient_in_general(0, gs), ordinary)

    def to_old(*gs: Tensor) -> Tensor:
        def ordinary() -> Tensor:
            return (both.old.e * (both.b - both.a) - both.pt) * (gs[2] / both.old.total)

        return tf.cond(both.special, lambda: gradient_in_general(1, gs), ordinary)

    values = tf.cond(both.special, in_general, lambda: (*values, both.kl))
    return values, (to_new, to_old)


def depth(s: Side) -> Tensor:
    """``|z - top|`` ``[..., A]``, finite: its product with e is 0 where e is."""
    return tf.minimum(s.top - s.z, -FLOOR)


def side(policy: Policy) -> Side:
    """Shift, exponentiate and sum the rows."""
    z = policy.masked()
    zero, one = tf.zeros([], z.dtype), tf.ones([], z.dtype)
    top = tf.where(policy.empty, zero, tf.reduce_max(z, -1, keepdims=True))
    tau = z - top
    lost = tf.where(tau > FLOOR, rounding_error_if_finite(z, top, tau), zero)
    e = tf.exp(tau) * (one + lost)
    rest, all_of_it = _sum(tf.where(e < one, e, zero)), _sum(e)
    # A sum of 1 and many small terms would lose these; with ties it is 2 at least.
    others = tf.where(all_of_it < 2, rest, all_of_it - one)
    return Side(z, top, e, others, one + others, tf.math.log1p(others))


def pair(new: Policy, old: Policy, s: Side, s_old: Side) -> Pair:
    """KL(old, new) a row, and what its gradient needs."""
    zero, infinity = tf.zeros([], s.z.dtype), tf.constant(math.inf, s.z.dtype)
    d, c = new.x - old.x, s.top - s_old.top
    c_lost = rounding_error(s.top, s_old.top, c) + (s.log_total - s_old.log_total)
    t = (d - c) + (rounding_error_if_finite(new.x, old.x, d) - c_lost)
    # Divided by 1: XLA repeats what is cheap in every loop that uses it, but not a division.
    t = tf.where(new.legal, t, zero) / (s.total / s.total)
    pt = s_old.e * t
    near = tf.abs(t) < SERIES_BELOW
    near_terms, far = remainder(t) * pt, s.e * (s_old.total / s.total) - s_old.e
    terms = tf.where(near, near_terms, far - pt)
    growth = tf.where(near, pt + near_terms, far)
    a, b = tf.reduce_sum(terms, -1, keepdims=True) / s_old.total, _sum(growth) / s_old.total
    fits = tf.logical_and(a < infinity, b * b <= tf.minimum(a / 16, 1e-8))
    special = tf.logical_not(tf.reduce_all(fits))
    if old.legal is not new.legal:
        special = tf.logical_or(special, tf.reduce_any(tf.not_equal(old.legal, new.legal)))
    return Pair(s_old, pt, growth, a, b, a - b * b / 2, special)


def _sum(array: Tensor) -> Tensor:
    """As a product with ones: where the terms are cheap, they become a part of its loop.

    Accelerators round the factors of a product to 8 or 10 bits, so only where there is none.
    """
    if any(device.device_type != "CPU" for device in tf.config.list_physical_devices()):
        return tf.reduce_sum(array, -1, keepdims=True)
    shape = tf.shape(array)
    ones = tf.ones([shape[-1], 1], array.dtype)
    sums = tf.linalg.matmul(tf.reshape(array, [-1, shape[-1]]), ones)
    return tf.reshape(sums, tf.concat([shape[:-1], [1]], 0))
