"""The contract of ``maskcore.spec`` in vectorised NumPy: for serving without a framework.

``logits`` and ``mask`` are ``[..., A]`` and broadcast over the batch axes, ``actions`` are integer
``[...]``, reductions are ``[...]``. ``True`` is legal. Results are in nats and in the dtype of
``logits``. float32 stays float32 (but for two policies, whose difference needs float64), float16
and bfloat16 (of ``ml_dtypes``) accumulate in float32. The batch is worked through in blocks of rows
that stay in cache, so beyond the result only a few such blocks are allocated.

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

What is under the mask is never read. A legal NaN or +inf, and a row of nothing but -inf, make
their own row NaN and no other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from backends import _numpy_quantities as quantities
from backends._numpy_distribution import MaskedCategorical
from backends._numpy_inputs import Array, as_actions, as_pair, as_policy, shaped

__all__ = [
    "NAME",
    "ActionEvaluation",
    "MaskedCategorical",
    "asarray",
    "cross_entropy",
    "cross_entropy_grad",
    "entropy",
    "entropy_grad",
    "evaluate_actions",
    "kl_divergence",
    "kl_divergence_grad",
    "log_prob",
    "log_prob_grad",
    "masked_log_softmax",
    "masked_softmax",
    "mode",
    "sample",
    "to_numpy",
]

NAME = "numpy"


class ActionEvaluation(NamedTuple):
    """What a policy-gradient step needs of a batch of actions, each ``[...]`` in nats."""

    log_prob: Array
    entropy: Array
    kl_divergence: Array | None


def masked_softmax(logits: ArrayLike, mask: ArrayLike) -> Array:
    """Probabilities of the policy restricted to the legal actions.

    Args:
        logits: ``[..., A]`` unnormalised log-probabilities.
        mask: ``[..., A]``, True is legal.

    Returns:
        ``[..., A]``; exactly 0 at illegal entries, all 0 in an empty row.

    Raises:
        MaskError: For a mask that is not exactly 0/1 or does not fit the logits.

    >>> masked_softmax([0.0, 0.0, 9.0], [1, 1, 0])
    array([0.5, 0.5, 0. ])
    """
    policy = as_policy(logits, mask)
    return shaped(quantities.softmax(policy), policy)


def masked_log_softmax(logits: ArrayLike, mask: ArrayLike) -> Array:
    """Log-probabilities in nats, -inf at illegal entries; arguments as ``masked_softmax``.

    >>> masked_log_softmax([0.0, 0.0, 9.0], [1, 1, 0])
    array([-0.69314718, -0.69314718,        -inf])
    """
    policy = as_policy(logits, mask)
    return shaped(quantities.log_softmax(policy), policy)


def log_prob(logits: ArrayLike, mask: ArrayLike, actions: ArrayLike) -> Array:
    """Log-probability, in nats, of the actions taken.

    Args:
        logits: ``[..., A]``.
        mask: ``[..., A]``, True is legal.
        actions: ``[...]`` integers in ``[0, A)``.

    Returns:
        ``[...]``; -inf where the action is illegal, 0 in an empty row (no choice was made).

    Raises:
        MaskError: For a bad mask, or actions that are not integers in ``[0, A)``.

    >>> float(log_prob([1.0, 5.0, 3.0], [1, 0, 1], 2).round(6))
    -0.126928
    """
    policy, a = as_actions(logits, mask, actions)
    return shaped(quantities.log_prob(policy, a), policy)


def entropy(logits: ArrayLike, mask: ArrayLike) -> Array:
    """Entropy ``-sum p log p`` in nats (Shannon 1948); arguments as ``masked_softmax``.

    Returns:
        ``[...]``, to full relative accuracy in near-deterministic rows too.

    >>> f"{entropy(np.float32([2, -20]), [1, 1]):.6g}"
    '6.41578e-09'
    """
    policy = as_policy(logits, mask)
    return shaped(quantities.entropy(policy), policy)


def kl_divergence(
    p_logits: ArrayLike, q_logits: ArrayLike, *, p_mask: ArrayLike, q_mask: ArrayLike
) -> Array:
    """Kullback-Leibler divergence ``KL(p | q) = sum p (log p - log q)`` in nats.

    Args:
        p_logits, q_logits: ``[..., A]``.
        p_mask, q_mask: ``[..., A]``, True is legal.

    Returns:
        ``[...]``, >= 0 and 0 for equal inputs; +inf exactly where p gives mass to an action that
        q forbids, decided on the masks and on -inf logits; 0 where p is empty.

    Raises:
        MaskError: For a mask that is not exactly 0/1 or does not fit its logits.

    >>> p, q = np.float32([1, 2, 3]), np.float32([1.0001, 1.9999, 3])
    >>> f"{kl_divergence(p, q, p_mask=[1, 1, 1], q_mask=[1, 1, 1]):.6g}"
    '1.55465e-09'
    """
    p, q, dtype = as_pair(p_logits, q_logits, p_mask, q_mask)
    return shaped(quantities.kl_divergence(p, q, dtype), p)


def cross_entropy(
    p_logits: ArrayLike, q_logits: ArrayLike, *, p_mask: ArrayLike, q_mask: ArrayLike
) -> Array:
    """Cross-entropy ``-sum p log q`` in nats; arguments, raises and +inf as ``kl_divergence``.

    >>> float(cross_entropy([0.0, 0.0], [0.0, 0.0], p_mask=[1, 1], q_mask=[1, 1]).round(6))
    0.693147
    """
    p, q, dtype = as_pair(p_logits, q_logits, p_mask, q_mask)
    return shaped(quantities.cross_entropy(p, q, dtype), p)


def mode(logits: ArrayLike, mask: ArrayLike) -> Array:
    """The most probable legal action ``[...]``, the lowest index on a tie; 0 in an empty row.

    In a row that holds a legal NaN it is the first such entry: a legal index in any case.

    >>> int(mode([1.0, 9.0, 1.0], [1, 0, 1]))
    0
    """
    policy = as_policy(logits, mask)
    return shaped(quantities.mode(policy), policy)


def sample(logits: ArrayLike, mask: ArrayLike, rng: np.random.Generator) -> Array:
    """Draw one action a row from the masked policy; ``[...]`` integers, 0 in an empty row.

    Raises:
        MaskError: For a bad mask, and for a row without a distribution (a legal NaN or +inf, or
            nothing but -inf).

    >>> int(sample([1.0, 9.0, 1.0], [0, 0, 1], np.random.default_rng(0)))
    2
    """
    policy = as_policy(logits, mask)
    return shaped(quantities.sample(policy, rng), policy)


def evaluate_actions(
    logits: ArrayLike,
    mask: ArrayLike,
    actions: ArrayLike,
    *,
    old_logits: ArrayLike | None = None,
    old_mask: ArrayLike | None = None,
) -> ActionEvaluation:
    """log_prob, entropy and KL(old, new) in one pass over the rows.

    Args:
        logits, mask: ``[..., A]``, the policy that is being updated.
        actions: ``[...]`` integers in ``[0, A)``.
        old_logits: ``[..., A]``, the policy that acted; None leaves the KL out.
        old_mask: ``[..., A]``; None means ``mask``.

    Returns:
        ``ActionEvaluation``, each field ``[...]``; ``kl_divergence`` is None without old_logits.

    Raises:
        MaskError: As ``log_prob`` and ``kl_divergence``.

    >>> evaluation = evaluate_actions([0.0, 0.0, 9.0], [1, 1, 0], 1, old_logits=[0.0, 0.0, 0.0])
    >>> [float(np.round(value, 4)) for value in evaluation]
    [-0.6931, 0.6931, 0.0]
    """
    policy, a = as_actions(logits, mask, actions)
    own = as_policy(logits, mask).batch
    if old_logits is None:
        values = quantities.evaluate(policy, a, None, None)
        entropy_ = shaped(values[1], policy) if own == policy.batch else entropy(logits, mask)
        return ActionEvaluation(shaped(values[0], policy), entropy_, None)
    names = ("old_logits", "old_mask"), ("logits", "mask")
    old_mask = mask if old_mask is None else old_mask
    old, new, dtype = as_pair(old_logits, logits, old_mask, mask, names=names)
    if own == policy.batch == new.batch:
        values = quantities.evaluate(policy, a, old, dtype)
        return ActionEvaluation(*(shaped(value, policy) for value in values))
    kl = shaped(quantities.kl_divergence(old, new, dtype), new)
    return ActionEvaluation(log_prob(logits, mask, actions), entropy(logits, mask), kl)


# --- the gradients, in closed form ------------------------------------------------------------


def log_prob_grad(logits: ArrayLike, mask: ArrayLike, actions: ArrayLike) -> Array:
    """``d log_prob(a) / d z_b = 1[a = b] - p_b``, ``[..., A]``; 0 for an illegal action.

    >>> log_prob_grad([0.0, 0.0, 9.0], [1, 1, 0], 0)
    array([ 0.5, -0.5,  0. ])
    """
    policy, a = as_actions(logits, mask, actions)
    return shaped(quantities.log_prob_grad(policy, a), policy)


def entropy_grad(logits: ArrayLike, mask: ArrayLike) -> Array:
    """``d H / d z_b = -p_b (log p_b + H)``, ``[..., A]``.

    >>> entropy_grad([0.0, 1.0, 9.0], [1, 1, 0]).round(6) + 0.0
    array([ 0.196612, -0.196612,  0.      ])
    """
    policy = as_policy(logits, mask)
    return shaped(quantities.entropy_grad(policy), policy)


def kl_divergence_grad(
    p_logits: ArrayLike, q_logits: ArrayLike, *, p_mask: ArrayLike, q_mask: ArrayLike
) -> tuple[Array, Array]:
    """Gradients of KL(p | q) to both logits: ``p_b (log p_b - log q_b - KL)`` and ``q_b - p_b``.

    Returns:
        Two arrays ``[..., A]``; both 0 in a row whose KL is +inf.

    >>> dp, dq = kl_divergence_grad([0.0, 0.0], [0.0, 1.0], p_mask=[1, 1], q_mask=[1, 1])
    >>> dq.round(6)
    array([-0.231059,  0.231059])
    """
    p, q, dtype = as_pair(p_logits, q_logits, p_mask, q_mask)
    dp, dq = quantities.kl_divergence_grad(p, q, dtype)
    return shaped(dp, p), shaped(dq, p)


def cross_entropy_grad(
    p_logits: ArrayLike, q_logits: ArrayLike, *, p_mask: ArrayLike, q_mask: ArrayLike
) -> tuple[Array, Array]:
    """Gradients of the cross-entropy C: ``-p_b (log q_b + C)`` and ``q_b - p_b``.

    >>> dp, dq = cross_entropy_grad([0.0, 0.0], [0.0, 1.0], p_mask=[1, 1], q_mask=[1, 1])
    >>> dp
    array([ 0.25, -0.25])
    """
    p, q, dtype = as_pair(p_logits, q_logits, p_mask, q_mask)
    dp, dq = quantities.cross_entropy_grad(p, q, dtype)
    return shaped(dp, p), shaped(dq, p)


# --- hooks of the conformance kit ---------------------------------------------------------


def asarray(array: NDArray[Any]) -> Array:
    """The array itself: NumPy is this backend's own.

    >>> asarray(np.zeros(2))
    array([0., 0.])
    """
    return np.asarray(array)


def to_numpy(array: Array) -> Array:
    """The array itself.

    >>> to_numpy(np.zeros(2))
    array([0., 0.])
    """
    return np.asarray(array)
