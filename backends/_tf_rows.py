"""One policy a row, relative to its largest logit, with every digit that float32 can hold.

For masked logits ``z`` (-inf at illegal entries) and ``top = max z``::

    tau = z - top                       <= 0, exactly 0 at the largest entry
    e   = exp(tau),  rest = sum of e over tau < 0,  total = rest + number of tau = 0
    log_total = log(total), as log1p(rest) where one entry dominates

``tau`` is rounded: at tau = -40 by up to 2e-6, which exp would turn into a relative error of 16
epsilon. ``lost`` is what the rounding lost, exactly (Knuth's TwoSum, TAOCP vol. 2, 4.2.2), and is
put back into ``e``.

Nothing here is NaN in an empty row. A legal NaN or +inf, and a row of nothing but -inf, make
``total`` NaN and with it whatever is divided by it: the row stays loud. (XLA's maximum ignores NaN;
the sum does not.)
"""

from __future__ import annotations

from typing import NamedTuple

from backends._tf_api import Tensor, tf

FLOOR = -1000.0
"""Lower bound of the exponents: exp of it is exactly 0 in float32 and float64."""


class Rows(NamedTuple):
    """What the formulas need of one policy; ``[..., 1]`` where a number a row."""

    top: Tensor  # [..., 1]
    shifted: Tensor  # [..., A] z - top, down to -inf
    tau: Tensor  # [..., A] the same, bounded below by FLOOR
    lost: Tensor  # [..., A] the rounding error of shifted
    e: Tensor  # [..., A] exp(tau), 0 at illegal entries
    total: Tensor  # [..., 1]
    rest: Tensor  # [..., 1]
    log_total: Tensor  # [..., 1]


def rows(z: Tensor, empty: Tensor) -> Rows:
    """Shift, exponentiate and sum the rows of masked logits ``[..., A]``."""
    zero, one = tf.zeros([], z.dtype), tf.ones([], z.dtype)
    top = tf.where(empty, zero, tf.stop_gradient(tf.reduce_max(z, -1, keepdims=True)))
    shifted = z - top
    lost = tf.stop_gradient(rounding_error(z, top, shifted))
    floor = tf.constant(FLOOR, z.dtype)
    tau = tf.where(shifted < floor, floor, shifted)
    e = tf.exp(tau) * (one + lost)
    largest = tf.equal(tau, zero)
    ties = tf.reduce_sum(tf.where(largest, e, zero), -1, keepdims=True)
    rest = tf.reduce_sum(tf.where(largest, zero, e), -1, keepdims=True)
    total = tf.where(empty, one, ties + rest)  # a sum of 1 and many small terms would lose these
    log_total = tf.where(total < 2 * one, tf.math.log1p(rest), tf.math.log(total))
    return Rows(top, shifted, tau, lost, e, total, rest, log_total)


def rounding_error(a: Tensor, b: Tensor, difference: Tensor) -> Tensor:
    """``(a - b) - difference`` exactly, for ``difference = a - b`` as rounded; 0 for infinities."""
    lost = rounding_error_if_finite(a, b, difference)
    return tf.where(tf.math.is_finite(lost), lost, tf.zeros([], a.dtype))


def rounding_error_if_finite(a: Tensor, b: Tensor, difference: Tensor) -> Tensor:
    """The same of finite numbers; NaN for infinities."""
    virtual = difference + b
    return (a - virtual) - (b + (difference - virtual))


def mean_depth(r: Rows, p: Tensor) -> Tensor:
    """``sum p |tau|`` ``[..., 1]``: the entropy without ``log_total``, every term >= 0."""
    return -tf.reduce_sum(p * r.tau, -1, keepdims=True)
