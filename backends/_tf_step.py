"""The PPO step as one differentiable function, its gradient in closed form.

The values are from ``_tf_fused``, under XLA from ``_tf_compiled``.

``tf.custom_gradient`` twice: the backward pass is a function of its own, whose derivative is that
of the plain closed form (``_tf_quantities.step_gradient``), so second and higher derivatives work.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from backends import _tf_compiled as compiled
from backends import _tf_fused as fused
from backends._tf_api import Tensor, tf
from backends._tf_branch import for_xla
from backends._tf_inputs import NEG_INF, Policy
from backends._tf_quantities import step_gradient

Backward = Callable[..., Tensor]
Term = tuple[Tensor, Tensor]


def step(new: Policy, actions: Tensor, old: Policy | None) -> tuple[Tensor, ...]:
    """log_prob, entropy and, given old, KL(old, new): ``[...]`` each; all of one shape."""

    @tf.custom_gradient
    def function(*xs: Tensor) -> tuple[tuple[Tensor, ...], Callable[..., list[Tensor]]]:
        values, backwards = _forward(new, actions, old, xs)

        def grad(*gs: Tensor) -> list[Tensor]:
            args = *xs, *(g[..., None] for g in gs)
            return [
                _gradient(new, actions, old, backward, which, args)
                for which, backward in enumerate(backwards)
            ]

        return values, grad

    return function(new.x) if old is None else function(new.x, old.x)


def _gradient(
    new: Policy,
    actions: Tensor,
    old: Policy | None,
    backward: Backward,
    which: int,
    args: tuple[Tensor, ...],
) -> Tensor:
    """The gradient to the new (0) or old (1) logits, each on its own so that it can be pruned."""
    n = 1 if old is None else 2

    @tf.custom_gradient
    def function(*args: Tensor) -> tuple[Tensor, Callable[..., list[Tensor]]]:
        def second(v: Tensor) -> list[Tensor]:
            with tf.GradientTape() as tape:
                tape.watch(args)
                before = None if old is None else old.at(args[1])
                gradient = step_gradient(new.at(args[0]), before, actions, args[n:])[which]
            none = tf.UnconnectedGradients.ZERO
            return tape.gradient(gradient, args, output_gradients=v, unconnected_gradients=none)

        return backward(*args[n:]), second

    return function(*args)


def _forward(
    new: Policy, actions: Tensor, old: Policy | None, xs: tuple[Tensor, ...]
) -> tuple[tuple[Tensor, ...], tuple[Backward, ...]]:
    """The values, and the backward passes from cotangents ``[..., 1]`` to each of ``xs``."""
    if for_xla():
        before = None if old is None else old.at(xs[1])
        values, backwards = compiled.forward(new.at(xs[0]), actions, before)
        return _squeezed(*values), backwards
    zero = tf.zeros([], xs[0].dtype)
    s = fused.side(xs[0], new.legal)
    empty = fused.empty_rows(s, new.legal)
    if old is not None and old.legal is new.legal:
        old = old._replace(empty=empty)
    new = new._replace(empty=empty)
    s_old = None if old is None else fused.side(xs[1], old.legal)
    m, p = fused.moments(s)
    taken = Taken(new, actions, p, m)
    log_prob, entropy = taken.log_prob(), tf.where(new.empty, zero, m.total + m.mean)

    def gradient(gl: Tensor, gh: Tensor, terms: list[Term]) -> Tensor:
        gl = tf.where(taken.counts, gl, zero)
        weight = -gh * m.mean
        no_nan = tf.math.multiply_no_nan
        array = no_nan(m.depth * gh + (weight - gl), p)
        for term, factor in terms:
            array += no_nan(term, factor)

        def exact() -> Tensor:
            at_taken = no_nan(taken.at(m.depth) * gh + weight, taken.at(p)) + gl * taken.others()
            for term, factor in terms:
                at_taken += no_nan(taken.at(term), factor)
            return at_taken

        return taken.put(array, tf.cond(m.sure, exact, lambda: taken.at(array) + gl))

    if old is None or s_old is None:

        def alone(gl: Tensor, gh: Tensor) -> Tensor:
            return _finished(gradient(gl, gh, []), new, tf.math.is_nan(m.total))

        return _squeezed(log_prob, entropy), (alone,)

    alike = tf.constant(True)
    if old.legal is not new.legal:
        alike = tf.reduce_all(tf.equal(old.legal, new.legal))
    both = fused.pair(s_old, s, m, alike)
    good = tf.math.is_finite(tf.reduce_sum(s_old.p, -1, keepdims=True))
    forbidden = tf.logical_and(new.empty, good)
    kl = tf.where(forbidden, tf.constant(math.inf, zero.dtype), both.kl)
    kl = tf.where(old.empty, zero, kl)
    dead = tf.logical_or(old.empty, tf.equal(kl, math.inf))

    def to_new(gl: Tensor, gh: Tensor, gk: Tensor) -> Tensor:
        bad = tf.math.is_nan(tf.math.multiply_no_nan(kl, gk) + m.total)
        terms = fused.to_new(both, tf.where(dead, zero, gk))
        return _finished(gradient(gl, gh, terms), new, bad)

    def to_old(gl: Tensor, gh: Tensor, gk: Tensor) -> Tensor:
        bad = tf.math.is_nan(tf.math.multiply_no_nan(kl, gk))
        return _finished(fused.to_old(both, tf.where(dead, zero, gk)), old, bad)

    return _squeezed(log_prob, entropy, kl), (to_new, to_old)


class Taken:
    """The actions taken: gathering what is at them, and the log_prob part of the gradient there."""

    def __init__(self, policy: Policy, actions: Tensor, p: Tensor, m: fused.Moments) -> None:
        self._shape = tf.shape(p)
        num_actions = self._shape[-1]
        inside = tf.logical_and(actions >= 0, actions < tf.cast(num_actions, actions.dtype))
        index = tf.cast(tf.where(inside, actions, 0), tf.int32)
        self._flat = tf.reshape(index, [-1]) + num_actions * tf.range(tf.size(index))
        self._p, self._m, self._empty = p, m, policy.empty
        legal = tf.logical_and(self.at(policy.legal), inside[..., None])
        self.counts = tf.logical_or(legal, tf.math.is_nan(m.total))
        """``[..., 1]`` bool: False where log_prob is -inf because the action is illegal."""

    def at(self, array: Tensor) -> Tensor:
        """``[..., A]`` at the actions, ``[..., 1]``."""
        values = tf.gather(tf.reshape(array, [-1]), self._flat)
        return tf.reshape(values, tf.concat([self._shape[:-1], [1]], 0))

    def put(self, array: Tensor, values: Tensor) -> Tensor:
        """``[..., A]`` with ``values`` ``[..., 1]`` at the actions."""
        flat = tf.reshape(array, [-1])
        flat = tf.tensor_scatter_nd_update(flat, self._flat[:, None], tf.reshape(values, [-1]))
        return tf.reshape(flat, self._shape)

    def log_prob(self) -> Tensor:
        """``[..., 1]``."""
        value = -self.at(self._m.depth) - self._m.total
        value = tf.where(self.counts, value, tf.constant(NEG_INF, value.dtype))
        return tf.where(self._empty, tf.zeros([], value.dtype), value)

    def others(self) -> Tensor:
        """``1 - p`` of the actions ``[..., 1]``, to full relative accuracy where p is nearly 1."""
        dominant = tf.logical_and(tf.equal(self.at(self._m.depth), 0), self._m.largest > 0.5)
        return tf.where(dominant, self._m.rest, 1 - self.at(self._p))


def _finished(gradient: Tensor, policy: Policy, bad: Tensor) -> Tensor:
    """NaN at the legal entries of bad rows ``[..., 1]``, 0 in empty rows."""
    zero, nan = tf.zeros([], gradient.dtype), tf.constant(math.nan, gradient.dtype)
    return tf.cond(
        tf.reduce_any(tf.logical_or(bad, policy.empty)),
        lambda: tf.where(policy.legal, tf.where(bad, nan, gradient), zero),
        lambda: gradient,
    )


def _squeezed(*values: Tensor) -> tuple[Tensor, ...]:
    return tuple(tf.squeeze(value, -1) for value in values)
