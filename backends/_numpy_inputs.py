"""Reading the arguments of the NumPy backend: everything becomes rows ``[N, A]``.

float32 is worked on as float32, float16 and bfloat16 become float32, the rest float64. Rows are
handled in blocks that stay in cache; a block's logits are copied once, with -inf in place of what
is under the mask, and the formulas write into that copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from maskcore.masks import MaskError, as_bool, check_actions, check_shapes, is_floating

Array = NDArray[Any]
BoolArray = NDArray[np.bool_]
Shape = tuple[int, ...]
Names = tuple[str, str]

BLOCK = 1 << 16
"""Entries of a block: a few float32 buffers of it fit a second-level cache."""


class Policy(NamedTuple):
    """Logits and mask as the caller gave them, one row a policy."""

    logits: Array  # [N, A]
    legal: BoolArray  # [N, A]
    batch: Shape  # what N stands for
    dtype: np.dtype[Any]  # of results


def as_policy(
    logits: ArrayLike,
    mask: ArrayLike,
    *,
    batch: Shape | None = None,
    names: Names = ("logits", "mask"),
) -> Policy:
    """Read logits and mask, broadcast to each other and, if given, on to ``batch``."""
    x, legal = _real(logits, names[0]), as_bool(mask, name=names[1])
    own = check_shapes(x.shape, legal.shape, name=names[1])
    shape = (*(own if batch is None else batch), x.shape[-1])
    dtype = x.dtype if is_floating(x.dtype) else np.dtype(np.float64)
    return Policy(_rows(x, shape), _rows(legal, shape), shape[:-1], dtype)


def as_actions(
    logits: ArrayLike, mask: ArrayLike, actions: ArrayLike
) -> tuple[Policy, NDArray[np.int64]]:
    """A policy, and actions ``[N]``, one a row."""
    x, legal = _real(logits, "logits"), as_bool(mask)
    own = check_shapes(x.shape, legal.shape)
    a = check_actions(actions, num_actions=x.shape[-1])
    try:
        batch = np.broadcast_shapes(own, a.shape)
    except ValueError:
        raise MaskError(
            f"actions have shape {a.shape}, logits {x.shape} and mask {legal.shape}. Expected one "
            f"action a row, shape {own} (actions have no action axis)."
        ) from None
    return as_policy(x, legal, batch=batch), np.broadcast_to(a, batch).reshape(-1)


def as_pair(
    p_logits: ArrayLike,
    q_logits: ArrayLike,
    p_mask: ArrayLike,
    q_mask: ArrayLike,
    *,
    names: tuple[tuple[str, str], tuple[str, str]] = (
        ("p_logits", "p_mask"),
        ("q_logits", "q_mask"),
    ),
) -> tuple[Policy, Policy, np.dtype[Any]]:
    """Two policies of the same rows, and the dtype of a result over both."""
    (zp, mp), (zq, mq) = (
        (_real(z, name[0]), as_bool(m, name=name[1]))
        for z, m, name in ((p_logits, p_mask, names[0]), (q_logits, q_mask, names[1]))
    )
    p_batch = check_shapes(zp.shape, mp.shape, name=names[0][1])
    q_batch = check_shapes(zq.shape, mq.shape, name=names[1][1])
    batch = check_shapes((*p_batch, zp.shape[-1]), (*q_batch, zq.shape[-1]), name=names[1][0])
    p, q = as_policy(zp, mp, batch=batch), as_policy(zq, mq, batch=batch)
    return p, q, p.dtype if p.dtype == q.dtype else np.promote_types(p.dtype, q.dtype)


def blocks(policy: Policy) -> Iterator[slice]:
    """Slices over the rows, about ``BLOCK`` entries each."""
    n, num_actions = policy.logits.shape
    step = max(1, BLOCK // num_actions)
    for start in range(0, n, step):
        yield slice(start, min(n, start + step))


def masked(policy: Policy, at: slice, *, wide: bool = False) -> tuple[Array, BoolArray]:
    """A fresh block of logits, -inf at illegal entries, in float32 or float64; and its mask."""
    x, legal = policy.logits[at], policy.legal[at]
    z = np.full(x.shape, -np.inf, np.float32 if narrow(x) and not wide else np.float64)
    np.copyto(z, x, where=legal, casting="unsafe")
    return z, legal


def narrow(logits: Array) -> bool:
    """Whether these are floats of at most 32 bits."""
    return is_floating(logits.dtype) and logits.dtype.itemsize <= 4


def output(policy: Policy, dtype: Any = None, *, entries: bool = False) -> Array:
    """An empty result over the rows, or over the entries."""
    shape = policy.logits.shape if entries else policy.logits.shape[:1]
    return np.empty(shape, policy.dtype if dtype is None else dtype)


def shaped(out: Array, policy: Policy) -> Array:
    """The result in the caller's batch shape; a scalar where there are no batch axes."""
    return out.reshape(policy.batch + out.shape[1:])[()]


def _real(logits: ArrayLike, name: str) -> Array:
    try:
        x: Array = np.asarray(logits)
    except ValueError as error:
        raise MaskError(f"{name} are ragged ({error}). Expected one array [..., A].") from error
    if is_floating(x.dtype) or np.issubdtype(x.dtype, np.integer) or x.dtype == np.bool_:
        return x
    raise MaskError(f"{name} have dtype {x.dtype}, shape {x.shape}. Expected real numbers.")


def _rows(array: Array, shape: Shape) -> Array:
    wide = array if array.shape == shape else np.broadcast_to(array, shape)
    return wide if len(shape) == 2 else wide.reshape(math.prod(shape[:-1]), shape[-1])
