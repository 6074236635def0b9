"""Each quantity with its closed-form gradient, on masked logits (``_tf_inputs.Policy``).

``tf.custom_gradient`` gives the closed form instead of TensorFlow's own derivative of each
operation: 0 times infinity never appears, and the backward pass reads what the forward pass made.
The closed forms are made of differentiable operations on the logits, so higher derivatives work.

Functions return float32 or float64; the public face casts to the caller's dtype.
"""

from __future__ import annotations

from collections.abc import Callable

from backends import _tf_divergence as divergence
from backends._tf_api import Tensor, tf
from backends._tf_inputs import NEG_INF, Policy, all_same
from backends._tf_rows import Rows, mean_depth, rows


def softmax(policy: Policy) -> Tensor:
    """``[..., A]``; gradient ``p (g - sum p g)``."""

    @tf.custom_gradient
    def function(z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        r = rows(z, policy.empty)
        p = r.e / r.total
        zero = tf.zeros([], z.dtype)

        def grad(g: Tensor) -> Tensor:
            g = tf.where(policy.legal, g, zero)
            return p * (g - tf.reduce_sum(p * g, -1, keepdims=True))

        return tf.where(policy.legal, p, zero), grad

    return function(policy.masked())


def log_softmax(policy: Policy) -> Tensor:
    """``[..., A]``; gradient ``g - p sum g``."""

    @tf.custom_gradient
    def function(z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        r = rows(z, policy.empty)
        p = r.e / r.total

        def grad(g: Tensor) -> Tensor:
            g = tf.where(policy.legal, g, tf.zeros([], z.dtype))
            return g - p * tf.reduce_sum(g, -1, keepdims=True)

        value = r.shifted - r.log_total
        return tf.where(policy.legal, value, tf.constant(NEG_INF, z.dtype)), grad

    return function(policy.masked())


def log_prob(policy: Policy, actions: Tensor) -> Tensor:
    """``[...]``; gradient ``1[a = b] - p_b``."""

    @tf.custom_gradient
    def function(z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        r = rows(z, policy.empty)
        value, grad = _log_prob(z, policy, r, r.e / r.total, actions)
        return tf.squeeze(value, -1), lambda g: grad(g[..., None])

    return function(policy.masked())


def entropy(policy: Policy) -> Tensor:
    """``[...]``; gradient ``-p (log p + H)``, which is ``-p (tau + sum p |tau|)``."""

    @tf.custom_gradient
    def function(z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        r = rows(z, policy.empty)
        p = r.e / r.total
        depth = mean_depth(r, p)

        def grad(g: Tensor) -> Tensor:
            return g[..., None] * -p * (r.tau + depth)

        return tf.squeeze(r.log_total + depth, -1), grad

    return function(policy.masked())


def kl_divergence(p: Policy, q: Policy) -> Tensor:
    """``[...]``; gradients as in ``_tf_divergence``."""

    @tf.custom_gradient
    def function(zp: Tensor, zq: Tensor) -> tuple[Tensor, Callable[..., tuple[Tensor, Tensor]]]:
        rp, rq = rows(zp, p.empty), rows(zq, q.empty)
        both = divergence.pair(zp, zq, p.empty, rp, rq)

        def grad(g: Tensor) -> tuple[Tensor, Tensor]:
            g = g[..., None]
            return g * divergence.to_p(both), g * divergence.to_q(both, rq)

        return tf.squeeze(both.kl, -1), grad

    return function(*_same_rows(p.masked(), q.masked()))


def cross_entropy(p: Policy, q: Policy) -> Tensor:
    """``[...]``; gradients ``-p (log q + C)`` and ``q - p``."""

    @tf.custom_gradient
    def function(zp: Tensor, zq: Tensor) -> tuple[Tensor, Callable[..., tuple[Tensor, Tensor]]]:
        rp, rq = rows(zp, p.empty), rows(zq, q.empty)
        both = divergence.pair(zp, zq, p.empty, rp, rq)
        value, to_p = divergence.cross(p.empty, both, rq)

        def grad(g: Tensor) -> tuple[Tensor, Tensor]:
            g = g[..., None]
            return g * to_p, g * divergence.to_q(both, rq)

        return tf.squeeze(value, -1), grad

    return function(*_same_rows(p.masked(), q.masked()))


def step_gradient(
    new: Policy, old: Policy | None, actions: Tensor, cotangents: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """The gradient of log_prob, entropy and KL(old, new) together, to the new logits and the old.

    Args:
        new, old: The policies; without old there are two cotangents and one gradient.
        actions: ``[...]``.
        cotangents: ``[..., 1]`` each.
    """
    z = new.masked()
    r = rows(z, new.empty)
    p = r.e / r.total
    gradient = _log_prob(z, new, r, p, actions)[1](cotangents[0])
    gradient -= cotangents[1] * p * (r.tau + mean_depth(r, p))
    if old is None:
        return (_legal_only(gradient, new),)
    z_old = old.masked()
    r_old = rows(z_old, old.empty)
    both = divergence.pair(z_old, z, old.empty, r_old, r)
    no_nan = tf.math.multiply_no_nan  # a row that the caller drops stays out
    weight, to_old, to_new = cotangents[2], divergence.to_p(both), divergence.to_q(both, r)
    return _legal_only(gradient + no_nan(to_new, weight), new), _legal_only(
        no_nan(to_old, weight), old
    )


def _legal_only(gradient: Tensor, policy: Policy) -> Tensor:
    return tf.where(policy.legal, gradient, tf.zeros([], gradient.dtype))


def _log_prob(
    z: Tensor, policy: Policy, r: Rows, p: Tensor, actions: Tensor
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """log_prob ``[..., 1]`` and its gradient, for actions in or out of range."""
    zero, num_actions = tf.zeros([], z.dtype), tf.shape(z)[-1]
    inside = tf.logical_and(actions >= 0, actions < tf.cast(num_actions, actions.dtype))
    index = tf.where(inside, actions, 0)[..., None]
    axes = index.shape.rank - 1

    def at(array: Tensor) -> Tensor:
        return tf.gather(array, index, axis=-1, batch_dims=axes)

    legal = tf.logical_and(at(policy.legal), inside[..., None])
    value = (at(z) - r.top) - r.log_total
    value = tf.where(tf.logical_or(legal, tf.math.is_nan(r.total)), value, NEG_INF)
    value = tf.where(policy.empty, zero, value)

    def grad(g: Tensor) -> Tensor:
        p_a = at(p)
        dominant = tf.logical_and(tf.equal(at(r.tau), zero), r.total < 2)
        others = tf.where(dominant, r.rest / r.total, 1 - p_a)
        taken = tf.one_hot(tf.squeeze(index, -1), num_actions, True, False, dtype=tf.bool)
        g = tf.where(tf.logical_or(legal, tf.math.is_nan(r.total)), g, zero)
        return g * tf.where(taken, others, -p)

    return value, grad


def _same_rows(zp: Tensor, zq: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one shape: a gradient has the shape of its input."""
    if zp.dtype != zq.dtype:
        zp, zq = tf.cast(zp, tf.float64), tf.cast(zq, tf.float64)
    if zp is zq or all_same(zp.shape, zq.shape):
        return zp, zq
    shape = tf.broadcast_dynamic_shape(tf.shape(zp), tf.shape(zq))
    return tf.broadcast_to(zp, shape), tf.broadcast_to(zq, shape)
