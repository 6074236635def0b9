"""Choosing an action: the mode, and a draw that cannot be illegal.

The draw is an inverse CDF in float64 with one uniform number a row: the first action whose
cumulative weight exceeds the uniform number *and* whose own weight is positive. The second
condition makes an illegal index impossible whatever rounding does to the cumulative sum (XLA's is
not monotone). Where no action qualifies (rounding at the upper end, or a row without a
distribution) the mode is taken, which is legal.
"""

from __future__ import annotations

from backends._tf_api import Tensor, tf
from backends._tf_inputs import NEG_INF, Policy, can_look
from backends._tf_rows import rows
from maskcore.masks import MaskError


def mode(policy: Policy) -> Tensor:
    """``[...]`` int64: the first largest legal logit, a NaN counting as largest."""
    z = policy.masked()
    nan = tf.math.is_nan(z)
    best = tf.argmax(tf.where(nan, tf.constant(NEG_INF, z.dtype), z), -1)
    first_legal = _first(tf.logical_and(policy.legal, tf.ones_like(nan)))
    nothing = tf.reduce_all(tf.logical_or(nan, tf.equal(z, NEG_INF)), -1)
    best = tf.where(nothing, first_legal, best)
    return tf.where(tf.reduce_any(nan, -1), _first(nan), best)


def sample(policy: Policy, seed: Tensor | int | None) -> Tensor:
    """``[...]`` int64: one draw a row; the mode in rows without a distribution, 0 in empty rows."""
    z = policy.masked()
    r = rows(z, policy.empty)
    _refuse_nan(z, r.total)
    weights = tf.cast(r.e, tf.float64)
    cdf = tf.cumsum(weights, -1)
    level = _uniform(tf.shape(cdf)[:-1], seed)[..., None] * cdf[..., -1:]
    hit = tf.logical_and(cdf > level, weights > 0)
    return tf.where(tf.reduce_any(hit, -1), _first(hit), mode(policy))


def _first(condition: Tensor) -> Tensor:
    return tf.argmax(tf.cast(condition, tf.uint8), -1)


def _uniform(shape: Tensor, seed: Tensor | int | None) -> Tensor:
    if seed is None or isinstance(seed, int):
        return tf.random.uniform(shape, dtype=tf.float64, seed=seed)
    return tf.random.stateless_uniform(shape, seed, dtype=tf.float64)


def _refuse_nan(z: Tensor, total: Tensor) -> None:
    if not can_look(total):
        return
    nan = tf.math.is_nan(total[..., 0]).numpy()
    if nan.any():
        found = z.numpy()[nan][0]
        raise MaskError(
            f"logits have no distribution in {int(nan.sum())} row(s); the first has the entries "
            f"{found[:4]} (illegal ones shown as -inf). Expected finite numbers (or -inf beside "
            "finite ones). The network that made them has diverged."
        )
