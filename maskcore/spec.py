"""The specification: a masked categorical policy in plain NumPy, row by row.

It is the oracle that every backend is tested against, so it shares no formula with them: each row
drops its illegal entries, applies the textbook formula to what is left in float64, and puts the
result back. It is meant to be read and to be right, not to be fast; for speed use
``backends.get_backend("numpy")``.

Shapes: ``logits`` and ``mask`` are ``[..., A]`` and broadcast over the batch axes, ``actions`` are
integers ``[...]``, reductions are ``[...]``. ``True`` is legal. Results are in nats and in the
dtype of ``logits`` (float64 where these are not floating point); pass float64 logits to get every
digit of the float64 computation.

A row is *ordinary* (two legal actions or more), *forced* (one), or *empty* (none):

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

What is under the mask is never read. A legal NaN or +inf, and a row whose legal logits are all
-inf, make their own row NaN and no other. ``kl_divergence`` is +inf, with gradient 0, exactly
where p gives mass to what q forbids.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from maskcore.masks import BoolArray, MaskError, as_bool, check_actions, check_shapes, is_floating

__all__ = [
    "cross_entropy",
    "cross_entropy_grad",
    "entropy",
    "entropy_grad",
    "kl_divergence",
    "kl_divergence_grad",
    "log_prob",
    "log_prob_grad",
    "masked_log_softmax",
    "masked_softmax",
    "mode",
    "sample",
]

Array = NDArray[Any]
Row = NDArray[np.float64]


# --- the textbook formulas, on the legal entries of one row ---------------------------------


def _softmax(z: Row) -> Row:
    with np.errstate(invalid="ignore"):  # inf - inf: the row is NaN, as it has to be
        e = np.exp(z - z.max())
        return e / e.sum()


def _log_softmax(z: Row) -> Row:
    with np.errstate(invalid="ignore"):
        shifted = z - z.max()
        return shifted - np.log(np.exp(shifted).sum())


def _times_log(p: Row, log: Row) -> Row:
    """``p * log`` with the limit 0 where p is exactly 0 and the logarithm -inf."""
    terms = np.zeros_like(p)
    np.multiply(p, log, out=terms, where=~(np.isneginf(log) & (p == 0)))
    return terms


def _entropy(z: Row) -> float:
    return float(0.0 - _times_log(_softmax(z), _log_softmax(z)).sum())


# --- the contract -------------------------------------------------------------------------


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
    return _entrywise(logits, mask, _softmax, illegal=0.0)


def masked_log_softmax(logits: ArrayLike, mask: ArrayLike) -> Array:
    """Log-probabilities in nats, -inf at illegal entries; arguments as ``masked_softmax``.

    >>> masked_log_softmax([0.0, 0.0, 9.0], [1, 1, 0])
    array([-0.69314718, -0.69314718,        -inf])
    """
    return _entrywise(logits, mask, _log_softmax, illegal=-np.inf)


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
    z, m, a, dtype = _prepare_actions(logits, mask, actions)

    def row(z: Row, m: BoolArray, a: int) -> float:
        if not m.any():
            return 0.0
        log_p = _log_softmax(z[m])
        if np.isnan(log_p).any():
            return np.nan
        return float(log_p[np.flatnonzero(m) == a][0]) if m[a] else -np.inf

    return _over_rows(row, z, m, a, out=np.empty(a.shape)).astype(dtype)[()]


def entropy(logits: ArrayLike, mask: ArrayLike) -> Array:
    """Entropy ``-sum p log p`` in nats (Shannon 1948); arguments as ``masked_softmax``.

    Returns:
        ``[...]`` in ``[0, log(number legal)]``; 0 in forced and empty rows.

    >>> float(entropy([0.0, 0.0, 9.0], [1, 1, 0]).round(6))
    0.693147
    """
    z, m, dtype = _prepare(logits, mask)

    def row(z: Row, m: BoolArray) -> float:
        return _entropy(z[m]) if m.any() else 0.0

    return _over_rows(row, z, m, out=np.empty(z.shape[:-1])).astype(dtype)[()]


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

    >>> kl_divergence([0.0, 0.0], [0.0, 0.0], p_mask=[1, 1], q_mask=[1, 0])
    np.float64(inf)
    """
    return _divergence(p_logits, q_logits, p_mask, q_mask, _kl_row)


def cross_entropy(
    p_logits: ArrayLike, q_logits: ArrayLike, *, p_mask: ArrayLike, q_mask: ArrayLike
) -> Array:
    """Cross-entropy ``-sum p log q`` in nats: entropy(p) + KL(p | q); arguments as there.

    >>> float(cross_entropy([0.0, 0.0], [0.0, 0.0], p_mask=[1, 1], q_mask=[1, 1]).round(6))
    0.693147
    """
    return _divergence(p_logits, q_logits, p_mask, q_mask, _cross_entropy_row)


def mode(logits: ArrayLike, mask: ArrayLike) -> Array:
    """The most probable legal action ``[...]``, the lowest index on a tie; 0 in an empty row.

    In a row that holds a legal NaN it is the first such entry: a legal index in any case.

    >>> int(mode([1.0, 9.0, 1.0], [1, 0, 1]))
    0
    """
    z, m, _ = _prepare(logits, mask)

    def row(z: Row, m: BoolArray) -> int:
        return int(np.flatnonzero(m)[np.argmax(z[m])]) if m.any() else 0

    return _over_rows(row, z, m, out=np.empty(z.shape[:-1], np.int64))[()]


def sample(logits: ArrayLike, mask: ArrayLike, rng: np.random.Generator) -> Array:
    """Draw one action a row from the masked policy; ``[...]`` integers, 0 in an empty row.

    Raises:
        MaskError: For a bad mask, and for a row without a distribution (a legal NaN or +inf, or
            nothing but -inf).

    >>> int(sample([1.0, 9.0, 1.0], [0, 0, 1], np.random.default_rng(0)))
    2
    """
    z, m, _ = _prepare(logits, mask)

    def row(z: Row, m: BoolArray) -> int:
        if not m.any():
            return 0
        p = _softmax(z[m])
        if np.isnan(p).any():
            raise MaskError(
                f"logits of a row have no distribution: legal entries {z[m][:4]}. Expected finite "
                "numbers (or -inf beside finite ones). The network that made them has diverged."
            )
        return int(rng.choice(np.flatnonzero(m), p=p))

    return _over_rows(row, z, m, out=np.empty(z.shape[:-1], np.int64))[()]


# --- the gradients, in closed form ------------------------------------------------------------


def log_prob_grad(logits: ArrayLike, mask: ArrayLike, actions: ArrayLike) -> Array:
    """``d log_prob(a) / d z_b = 1[a = b] - p_b``, ``[..., A]``; 0 for an illegal action.

    >>> log_prob_grad([0.0, 0.0, 9.0], [1, 1, 0], 0)
    array([ 0.5, -0.5,  0. ])
    """
    z, m, a, dtype = _prepare_actions(logits, mask, actions)

    def row(z: Row, m: BoolArray, a: int) -> Row:
        legal = np.flatnonzero(m)
        p = _softmax(z[m])
        return (legal == a) - p if m[a] or np.isnan(p).any() else np.zeros(len(legal))

    return _grad_over_rows(row, z, m, a).astype(dtype)


def entropy_grad(logits: ArrayLike, mask: ArrayLike) -> Array:
    """``d H / d z_b = -p_b (log p_b + H)``, ``[..., A]``.

    >>> entropy_grad([0.0, 0.0, 9.0], [1, 1, 0])
    array([0., 0., 0.])
    """
    z, m, dtype = _prepare(logits, mask)

    def row(z: Row, m: BoolArray) -> Row:
        return 0.0 - _times_log(_softmax(z[m]), _log_softmax(z[m]) + _entropy(z[m]))

    return _grad_over_rows(row, z, m).astype(dtype)


def kl_divergence_grad(
    p_logits: ArrayLike, q_logits: ArrayLike, *, p_mask: ArrayLike, q_mask: ArrayLike
) -> tuple[Array, Array]:
    """Gradients of KL(p | q) to both logits: ``p_b (log p_b - log q_b - KL)`` and ``q_b - p_b``.

    Returns:
        Two arrays ``[..., A]``; both 0 in a row whose KL is +inf, so that a ``where`` downstream
        stays finite.

    >>> dp, dq = kl_divergence_grad([0.0, 0.0], [0.0, 0.0], p_mask=[1, 1], q_mask=[1, 1])
    >>> dq
    array([0., 0.])
    """
    return _divergence_grad(p_logits, q_logits, p_mask, q_mask, _kl_row, weight=1.0)


def cross_entropy_grad(
    p_logits: ArrayLike, q_logits: ArrayLike, *, p_mask: ArrayLike, q_mask: ArrayLike
) -> tuple[Array, Array]:
    """Gradients of the cross-entropy C: ``-p_b (log q_b + C)`` and ``q_b - p_b``.

    >>> dp, dq = cross_entropy_grad([0.0, 0.0], [0.0, 0.0], p_mask=[1, 1], q_mask=[1, 1])
    >>> dp
    array([0., 0.])
    """
    return _divergence_grad(p_logits, q_logits, p_mask, q_mask, _cross_entropy_row, weight=0.0)


# --- rows of two distributions ------------------------------------------------------------


def _pair(zp: Row, zq: Row, mp: BoolArray, mq: BoolArray) -> tuple[Row, Row, Row, bool]:
    """p, log p and log q on p's legal entries, and whether p gives mass to what q forbids."""
    p, log_p = _softmax(zp[mp]), _log_softmax(zp[mp])
    log_q = np.full(zp.shape, -np.inf)
    if mq.any():
        log_q[mq] = _log_softmax(zq[mq])
        if np.isnan(log_q).any():
            log_p = np.full_like(log_p, np.nan)
    return p, log_p, log_q[mp], bool((~np.isneginf(zp[mp]) & np.isneginf(log_q[mp])).any())


def _kl_row(zp: Row, zq: Row, mp: BoolArray, mq: BoolArray) -> float:
    p, log_p, log_q, forbidden = _pair(zp, zq, mp, mq)
    if np.isnan(log_p).any() or forbidden:
        return np.nan if np.isnan(log_p).any() else np.inf
    # The sum is >= 0 (Gibbs); what float64 leaves below 0 is rounding, a few 1e-16.
    return max(0.0, float((_times_log(p, log_p) - _times_log(p, log_q)).sum()))


def _cross_entropy_row(zp: Row, zq: Row, mp: BoolArray, mq: BoolArray) -> float:
    p, log_p, log_q, forbidden = _pair(zp, zq, mp, mq)
    if np.isnan(log_p).any() or forbidden:
        return np.nan if np.isnan(log_p).any() else np.inf
    return float(0.0 - _times_log(p, log_q).sum())


def _divergence(
    p_logits: ArrayLike,
    q_logits: ArrayLike,
    p_mask: ArrayLike,
    q_mask: ArrayLike,
    value: Callable[[Row, Row, BoolArray, BoolArray], float],
) -> Array:
    zp, zq, mp, mq, dtype = _prepare_pair(p_logits, q_logits, p_mask, q_mask)

    def row(zp: Row, zq: Row, mp: BoolArray, mq: BoolArray) -> float:
        return value(zp, zq, mp, mq) if mp.any() else 0.0

    return _over_rows(row, zp, zq, mp, mq, out=np.empty(zp.shape[:-1])).astype(dtype)[()]


def _divergence_grad(
    p_logits: ArrayLike,
    q_logits: ArrayLike,
    p_mask: ArrayLike,
    q_mask: ArrayLike,
    value: Callable[[Row, Row, BoolArray, BoolArray], float],
    *,
    weight: float,
) -> tuple[Array, Array]:
    """Gradients of ``sum p (weight log p - log q)``."""
    zp, zq, mp, mq, dtype = _prepare_pair(p_logits, q_logits, p_mask, q_mask)

    def row(zp: Row, zq: Row, mp: BoolArray, mq: BoolArray) -> Array:
        both = np.zeros((2, *zp.shape))
        if not mp.any() or np.isposinf(total := value(zp, zq, mp, mq)):
            return both
        p, log_p, log_q, _ = _pair(zp, zq, mp, mq)
        with np.errstate(invalid="ignore"):
            both[0, mp] = _times_log(p, np.where(p > 0, weight * log_p - log_q - total, total))
        if mq.any():
            both[1, mq] = _softmax(zq[mq])
        both[1, mp] -= p
        if np.isnan(total):
            both[0, mp], both[1, mq] = np.nan, np.nan
        both[0, ~mp], both[1, ~mq] = 0.0, 0.0
        return both

    out = np.empty((*zp.shape[:-1], 2, zp.shape[-1]))
    out = _over_rows(row, zp, zq, mp, mq, out=out)
    return out[..., 0, :].astype(dtype), out[..., 1, :].astype(dtype)


# --- plumbing: broadcasting, dtypes, rows -------------------------------------------------


def _prepare(logits: ArrayLike, mask: ArrayLike) -> tuple[Row, BoolArray, np.dtype[Any]]:
    z, m = np.asarray(logits), as_bool(mask)
    shape = (*check_shapes(z.shape, m.shape), z.shape[-1])
    dtype = z.dtype if is_floating(z.dtype) else np.dtype(np.float64)
    return np.broadcast_to(z.astype(np.float64), shape), np.broadcast_to(m, shape), dtype


def _prepare_actions(
    logits: ArrayLike, mask: ArrayLike, actions: ArrayLike
) -> tuple[Row, BoolArray, NDArray[np.int64], np.dtype[Any]]:
    z, m, dtype = _prepare(logits, mask)
    a = check_actions(actions, num_actions=z.shape[-1])
    try:
        batch = np.broadcast_shapes(z.shape[:-1], a.shape)
    except ValueError:
        raise MaskError(
            f"actions have shape {a.shape}, logits and mask {z.shape}. Expected one action a row, "
            f"shape {z.shape[:-1]} (actions have no action axis)."
        ) from None
    wide = (*batch, z.shape[-1])
    return np.broadcast_to(z, wide), np.broadcast_to(m, wide), np.broadcast_to(a, batch), dtype


def _prepare_pair(
    p_logits: ArrayLike, q_logits: ArrayLike, p_mask: ArrayLike, q_mask: ArrayLike
) -> tuple[Row, Row, BoolArray, BoolArray, np.dtype[Any]]:
    zp, mp, p_dtype = _prepare(p_logits, p_mask)
    zq, mq, q_dtype = _prepare(q_logits, q_mask)
    shape = (*check_shapes(zp.shape, zq.shape, name="q_logits"), zp.shape[-1])
    zp, zq = np.broadcast_to(zp, shape), np.broadcast_to(zq, shape)
    mp, mq = np.broadcast_to(mp, shape), np.broadcast_to(mq, shape)
    return zp, zq, mp, mq, np.promote_types(p_dtype, q_dtype)


def _over_rows(function: Callable[..., Any], *arrays: Array, out: Array) -> Array:
    def by_row(array: Array) -> Array:
        return np.reshape(array, (math.prod(np.shape(array)[:axes]), *np.shape(array)[axes:]))

    axes = arrays[0].ndim - 1
    rows, flat = by_row(out), [by_row(array) for array in arrays]
    for index, row in enumerate(zip(*flat, strict=True)):
        rows[index] = function(*row)
    return np.reshape(rows, np.shape(out))


def _entrywise(
    logits: ArrayLike, mask: ArrayLike, function: Callable[[Row], Row], *, illegal: float
) -> Array:
    z, m, dtype = _prepare(logits, mask)

    def row(z: Row, m: BoolArray) -> Row:
        result = np.full(z.shape, illegal)
        if m.any():
            result[m] = function(z[m])
        return result

    return _over_rows(row, z, m, out=np.empty(z.shape)).astype(dtype)


def _grad_over_rows(function: Callable[..., Row], z: Row, m: BoolArray, *rest: Array) -> Array:
    def row(z: Row, m: BoolArray, *rest: Any) -> Row:
        result = np.zeros(z.shape)
        if m.any():
            result[m] = function(z, m, *rest)
        return result

    return _over_rows(row, z, m, *rest, out=np.empty(z.shape))
