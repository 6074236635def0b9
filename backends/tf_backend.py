"""The contract of ``maskcore.spec`` for TensorFlow: eager, ``tf.function``, XLA and TF1 graphs.

``logits`` and ``mask`` are ``[..., A]`` and broadcast over the batch axes, ``actions`` are integer
``[...]``, reductions are ``[...]``. ``True`` is legal. Results are in nats and in the dtype of
``logits``; float16 and bfloat16 accumulate in float32. Batch sizes may be unknown.

====================== ========================== ======================== =====================
quantity               ordinary row               forced row               empty row
====================== ========================== ======================== =====================
``masked_softmax``     illegal 0, legal sum to 1  one-hot                  all 0
``masked_log_softmax`` illegal -inf               0 at the legal action    all -inf
``log_prob(a)``        -inf where a is illegal    0 at the legal action    0: no choice was made
``entropy``            in [0, log(number legal)]  0                        0
``kl_divergence``      >= 0, 0 for equal inputs   as ordinary              0 where p is empty
``mode``               legal argmax, lowest index the legal action         0
``sample``             never an illegal action    the legal action         0
every gradient         0 at illegal entries       0                        0
====================== ========================== ======================== =====================

Where values can be looked at (eager tensors, NumPy arguments) a bad mask, an action out of range
and a draw from NaN logits raise ``MaskError``. Inside a graph nonzero is legal, an action out of
range counts as illegal, and a draw from NaN logits is a legal action.

Gradients are closed forms, and higher derivatives work. ``tf`` alone is imported, never Keras.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from backends import _tf_quantities as quantities
from backends import _tf_sampling as sampling
from backends._tf_api import Tensor, outside_autograph, tf
from backends._tf_distribution import MaskedCategorical
from backends._tf_inputs import (
    TensorLike,
    all_same,
    as_actions,
    as_policy,
    one_batch,
    same_pair,
)
from backends._tf_step import step

__all__ = [
    "NAME",
    "ActionEvaluation",
    "MaskedCategorical",
    "asarray",
    "cross_entropy",
    "entropy",
    "evaluate_actions",
    "kl_divergence",
    "log_prob",
    "masked_log_softmax",
    "masked_softmax",
    "mode",
    "sample",
    "to_numpy",
    "vjp",
]

NAME = "tf"


class ActionEvaluation(NamedTuple):
    """What a policy-gradient step needs of a batch of actions, each ``[...]`` in nats."""

    log_prob: Tensor
    entropy: Tensor
    kl_divergence: Tensor | None


@outside_autograph
def masked_softmax(logits: TensorLike, mask: TensorLike) -> Tensor:
    """Probabilities of the policy restricted to the legal actions.

    Args:
        logits: ``[..., A]`` unnormalised log-probabilities.
        mask: ``[..., A]``, True is legal.

    Returns:
        ``[..., A]``; exactly 0 at illegal entries, all 0 in an empty row.

    Raises:
        MaskError: For a mask that is not exactly 0/1 or does not fit the logits.

    >>> masked_softmax([0.0, 0.0, 9.0], [1, 1, 0]).numpy()
    array([0.5, 0.5, 0. ], dtype=float32)
    """
    policy = as_policy(logits, mask)
    return tf.cast(quantities.softmax(policy), policy.dtype)


@outside_autograph
def masked_log_softmax(logits: TensorLike, mask: TensorLike) -> Tensor:
    """Log-probabilities in nats, -inf at illegal entries; arguments as ``masked_softmax``.

    >>> masked_log_softmax([0.0, 0.0, 9.0], [1, 1, 0]).numpy().round(4)
    array([-0.6931, -0.6931,    -inf], dtype=float32)
    """
    policy = as_policy(logits, mask)
    return tf.cast(quantities.log_softmax(policy), policy.dtype)


@outside_autograph
def log_prob(logits: TensorLike, mask: TensorLike, actions: TensorLike) -> Tensor:
    """Log-probability, in nats, of the actions taken.

    Args:
        logits: ``[..., A]``.
        mask: ``[..., A]``, True is legal.
        actions: ``[...]`` integers in ``[0, A)``.

    Returns:
        ``[...]``; -inf where the action is illegal (with gradient 0), 0 in an empty row.

    Raises:
        MaskError: For a bad mask, or actions that are not integers in ``[0, A)``.

    >>> round(float(log_prob([1.0, 5.0, 3.0], [1, 0, 1], 2)), 6)
    -0.126928
    """
    policy = as_policy(logits, mask)
    actions, policy = one_batch(as_actions(policy, actions), policy)
    return tf.cast(quantities.log_prob(policy, actions), policy.dtype)


@outside_autograph
def entropy(logits: TensorLike, mask: TensorLike) -> Tensor:
    """Entropy ``-sum p log p`` in nats (Shannon 1948); arguments as ``masked_softmax``.

    Returns:
        ``[...]``, to full relative accuracy in near-deterministic rows too.

    >>> float(entropy([2.0, -20.0], [1, 1]))  # doctest: +ELLIPSIS
    6.41577...e-09
    """
    policy = as_policy(logits, mask)
    return tf.cast(quantities.entropy(policy), policy.dtype)


@outside_autograph
def kl_divergence(
    p_logits: TensorLike, q_logits: TensorLike, *, p_mask: TensorLike, q_mask: TensorLike
) -> Tensor:
    """Kullback-Leibler divergence ``KL(p | q) = sum p (log p - log q)`` in nats.

    Args:
        p_logits, q_logits: ``[..., A]``.
        p_mask, q_mask: ``[..., A]``, True is legal.

    Returns:
        ``[...]``, >= 0 and 0 for equal inputs; +inf (with gradient 0) exactly where p gives mass
        to an action that q forbids, decided on the masks and on -inf logits; 0 where p is empty.

    Raises:
        MaskError: For a mask that is not exactly 0/1 or does not fit its logits.

    >>> mask = [True, True, True]
    >>> float(kl_divergence([1.0, 2.0, 3.0], [1.0001, 1.9999, 3.0], p_mask=mask, q_mask=mask))
    ... # doctest: +ELLIPSIS
    1.554...e-09
    """
    p = as_policy(p_logits, p_mask, logits_name="p_logits", mask_name="p_mask")
    q = as_policy(q_logits, q_mask, logits_name="q_logits", mask_name="q_mask")
    dtype = same_pair(p, q)
    return tf.cast(quantities.kl_divergence(p, q), dtype)


@outside_autograph
def cross_entropy(
    p_logits: TensorLike, q_logits: TensorLike, *, p_mask: TensorLike, q_mask: TensorLike
) -> Tensor:
    """Cross-entropy ``-sum p log q`` in nats; arguments, raises and +inf as ``kl_divergence``.

    >>> round(float(cross_entropy([0.0, 0.0], [0.0, 0.0], p_mask=[1, 1], q_mask=[1, 1])), 6)
    0.693147
    """
    p = as_policy(p_logits, p_mask, logits_name="p_logits", mask_name="p_mask")
    q = as_policy(q_logits, q_mask, logits_name="q_logits", mask_name="q_mask")
    dtype = same_pair(p, q)
    return tf.cast(quantities.cross_entropy(p, q), dtype)


@outside_autograph
def mode(logits: TensorLike, mask: TensorLike) -> Tensor:
    """The most probable legal action ``[...]`` int64, the lowest index on a tie; 0 in an empty row.

    In a row that holds a legal NaN it is the first such entry: a legal index in any case.

    >>> int(mode([1.0, 9.0, 1.0], [1, 0, 1]))
    0
    """
    return sampling.mode(as_policy(logits, mask))


@outside_autograph
def sample(logits: TensorLike, mask: TensorLike, *, seed: Tensor | int | None = None) -> Tensor:
    """Draw one action a row from the masked policy; ``[...]`` int64, 0 in an empty row.

    Args:
        logits, mask: As ``masked_softmax``.
        seed: None or an int: an operation seed, as ``tf.random.uniform`` takes it; a shape ``[2]``
            integer tensor: a stateless draw, the same for the same seed.

    Raises:
        MaskError: For a bad mask, and for a row without a distribution (a legal NaN or +inf, or
            nothing but -inf) where values can be looked at. In a graph such a row gives a legal
            action.

    >>> int(sample([1.0, 9.0, 1.0], [0, 0, 1]))
    2
    """
    return sampling.sample(as_policy(logits, mask), seed)


@outside_autograph
def evaluate_actions(
    logits: TensorLike,
    mask: TensorLike,
    actions: TensorLike,
    *,
    old_logits: TensorLike | None = None,
    old_mask: TensorLike | None = None,
) -> ActionEvaluation:
    """log_prob, entropy and KL(old, new) in one pass, with one closed-form gradient.

    Args:
        logits, mask: ``[..., A]``, the policy that is being updated.
        actions: ``[...]`` integers in ``[0, A)``.
        old_logits: ``[..., A]``, the policy that acted; None leaves the KL out.
        old_mask: ``[..., A]``; None means ``mask``.

    Returns:
        ``ActionEvaluation``, each field ``[...]``; ``kl_divergence`` is None without old_logits.
        Where a graph leaves sizes open, every field has the batch shape of all arguments together.

    Raises:
        MaskError: As ``log_prob`` and ``kl_divergence``.

    >>> evaluation = evaluate_actions([0.0, 0.0, 9.0], [1, 1, 0], 1, old_logits=[0.0, 0.0, 0.0])
    >>> [round(float(value), 4) for value in evaluation]
    [-0.6931, 0.6931, 0.0]
    """
    new = as_policy(logits, mask)
    a = as_actions(new, actions)
    if old_logits is None:
        if _known_to_differ(new.x.shape[:-1], new.legal.shape[:-1], a.shape):
            return ActionEvaluation(log_prob(logits, mask, a), entropy(logits, mask), None)
        a, new = one_batch(a, new)
        first, second = (tf.cast(value, new.dtype) for value in step(new, a, None))
        return ActionEvaluation(first, second, None)
    one_mask = old_mask is None
    old_mask = mask if one_mask else old_mask
    old = as_policy(old_logits, old_mask, logits_name="old_logits", mask_name="old_mask")
    if one_mask:
        old = old._replace(legal=new.legal, empty=new.empty)
    dtype = same_pair(old, new)
    batches = (x.shape[:-1] for x in (new.x, new.legal, old.x, old.legal))
    if new.x.dtype != old.x.dtype or _known_to_differ(*batches, a.shape):
        kl = tf.cast(quantities.kl_divergence(old, new), dtype)
        return ActionEvaluation(log_prob(logits, mask, a), entropy(logits, mask), kl)
    a, new, old = one_batch(a, new, old)
    values = zip(step(new, a, old), (new.dtype, new.dtype, dtype), strict=True)
    return ActionEvaluation(*(tf.cast(value, to) for value, to in values))


def _known_to_differ(*batches: Tensor) -> bool:
    return all(x.is_fully_defined() for x in batches) and not all_same(*batches)


# --- hooks of the conformance kit ---------------------------------------------------------


def asarray(array: NDArray[Any]) -> Tensor:
    """A NumPy array as a tensor of the same dtype.

    >>> asarray(np.zeros(2)).dtype.name
    'float64'
    """
    return tf.convert_to_tensor(np.asarray(array))


def to_numpy(tensor: Tensor) -> NDArray[Any]:
    """An eager tensor as a NumPy array of the same dtype.

    >>> to_numpy(asarray(np.zeros(2)))
    array([0., 0.])
    """
    return np.asarray(tensor.numpy())


def vjp(
    fn: Callable[..., Tensor], *arrays: TensorLike, cotangent: TensorLike
) -> tuple[Tensor, ...]:
    """Gradients of ``sum(fn(*arrays) * cotangent)`` to each of ``arrays``, 0 where unconnected.

    >>> vjp(lambda z: log_prob(z, [1, 1, 0], 0), [0.0, 0.0, 9.0], cotangent=1.0)[0].numpy()
    array([ 0.5, -0.5,  0. ], dtype=float32)
    """
    tensors = [tf.convert_to_tensor(array) for array in arrays]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        value = fn(*tensors)
    return tuple(
        tape.gradient(
            value,
            tensors,
            output_gradients=tf.cast(cotangent, value.dtype),
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
    )
