"""One policy a row, relative to its largest logit, in float32 or float64.

For masked logits ``z`` (-inf at illegal entries) and ``k``, the entry of the largest::

    e = exp(z - z_k),  rest = sum of e over the other entries,  total = 1 + rest
    log_total = log1p(rest)

``rest`` is a sum of its own, so that a nearly deterministic row keeps every digit of ``1 - p_k``.
In such rows the rounding of ``z - z_k`` matters as well: at -40 it is up to 2e-6 in float32, which
exp turns into a relative error of 16 epsilon. It is computed (Knuth's TwoSum, TAOCP vol. 2, 4.2.2)
and put back where ``rest`` is small; elsewhere entries that far down carry no weight.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from backends._numpy_inputs import Array, BoolArray

DEEP = 1e-5
"""Rows whose ``rest`` is below this get the exact exponent."""

FLOOR = -1000.0
"""Lower bound of ``z - z_k`` where it is multiplied by ``e``: exp of it is 0 in every dtype."""


class Rows(NamedTuple):
    """What the formulas need of one policy a row."""

    e: Array  # [N, A] 0 at illegal entries, 1 at k
    k: Array  # [N] the largest entry
    top: Array  # [N] its logit; 0 in rows without a distribution
    rest: Array  # [N] NaN in NaN rows
    total: Array  # [N]
    log_total: Array  # [N]
    empty: BoolArray  # [N] no legal action
    bad: BoolArray  # [N] a legal NaN or +inf, or nothing but -inf


def rows(z: Array, legal: BoolArray) -> Rows:
    """Read masked logits ``[N, A]``; ``z`` is left as it is."""
    at = np.arange(len(z))
    k = z.argmax(-1)
    top = z[at, k]
    finite = np.isfinite(top)
    empty = np.zeros(len(z), np.bool_)
    if not finite.all():
        empty = ~finite & ~legal.any(-1)
        top = np.where(finite, top, z.dtype.type(0))
    bad = ~finite & ~empty
    e = z - top[:, None]
    np.exp(e, out=e)
    e[at, k] = 0
    rest = e.sum(-1)
    deep = np.flatnonzero((rest < DEEP) & (rest > 0))
    if deep.size:
        part = e[deep]
        part += part * lost_in(z[deep], top[deep, None])
        e[deep], rest[deep] = part, part.sum(-1)
    rest[bad] = np.nan
    e[at, k] = ~empty
    return Rows(e, k, top, rest, 1 + rest, np.log1p(rest), empty, bad)


def lost_in(a: Array, b: Array) -> Array:
    """What rounding loses in ``a - b``, exactly; 0 where an infinity is involved."""
    difference = a - b
    virtual = difference + b
    lost = (a - virtual) - (b + (difference - virtual))
    lost[~np.isfinite(lost)] = 0
    return lost


def depth(z: Array, r: Rows) -> Array:
    """``z - z_k`` ``[N, A]`` bounded below by FLOOR, written over ``z``."""
    z -= r.top[:, None]
    return np.maximum(z, FLOOR, out=z)


def row_dot(a: Array, b: Array) -> Array:
    """``sum a b`` over the last axis, ``[N]``, without a temporary ``[N, A]``."""
    return np.matmul(a[:, None, :], b[:, :, None])[:, 0, 0]


def probabilities(r: Rows, legal: BoolArray) -> Array:
    """``[N, A]``, written over ``r.e``: NaN rows are NaN at legal entries and 0 at illegal ones."""
    p = np.divide(r.e, r.total[:, None], out=r.e)
    if r.bad.any():
        p[r.bad] = np.where(legal[r.bad], np.nan, 0)
    return p
