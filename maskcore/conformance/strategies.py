"""Hypothesis strategies for batches of masked rows: all kinds of row, ordinary and extreme numbers.

A batch is one draw of bytes, decoded by NumPy: twenty times faster than a draw for each float, and
all-zero bytes decode to the simplest batch (logits 0, everything legal), so it shrinks well. Each
row has a *flavour* of its own (``FLAVOURS``), and illegal entries hold junk (``JUNK``) as often as
numbers that could pass for logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from numpy.typing import NDArray

from maskcore.conformance.case import Case

__all__ = ["EXTREMES", "FLAVOURS", "JUNK", "KINDS", "SHIFTS", "broadcast_cases", "cases"]

Array = NDArray[Any]
Kind = Literal["ordinary", "forced", "empty"]
Relation = Literal["equal", "near", "independent"]

KINDS: tuple[Kind, ...] = ("ordinary", "forced", "empty")

EXTREMES = (0.0, 1.0, 1e8, -1e8, 1e30, -1e30, 1e-30, -1e-30, 1e-6, 88.0, -88.0, 104.0, -104.0, 1e4)

SHIFTS = (0.0, 0.0, 0.0, 0.0, 0.0, 0.65458, -31.2384, 4504.1206)

JUNK = (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e6)

# Flavour -> scale and offset of its numbers; the ones without are made of their own below.
_SCALED = {
    "plain": (1.0, 0.0),
    "wide": (30.0, 0.0),
    "huge": (1e4, 0.0),
    "small": (1e-3, 0.0),
    "tiny": (1e-6, 0.0),
    "offset": (1.0, 1e4),
}
FLAVOURS = (*_SCALED, "extreme", "equal", "minus_inf", "deterministic")
_SCALE = np.array([scale for scale, _ in _SCALED.values()] + [1.0] * 4)
_OFFSET = np.array([offset for _, offset in _SCALED.values()] + [0.0] * 4)
_EXTREME, _EQUAL, _MINUS_INF, _DETERMINISTIC = range(len(_SCALED), len(FLAVOURS))

_COTANGENTS = np.array([1.0, -1.0, 2.0, 0.5, 0.0, -3.0])
_NEARNESS = 10.0 ** -np.arange(1, 8)
_JUNK = np.array(JUNK)
_EXTREMES = np.array(EXTREMES)

_HEADER, _ENTRY = 8, 10  # bytes a row and an entry


@st.composite
def cases(
    draw: DrawFn,
    *,
    kinds: Sequence[Kind] = KINDS,
    relations: Sequence[Relation] = ("independent", "near", "equal"),
    actions: Literal["any", "legal", "illegal"] = "any",
    loud: bool = False,
    dtypes: Sequence[str] = ("float32", "float64"),
    flavours: Sequence[str] = FLAVOURS,
    max_rows: int = 4,
    max_actions: int = 7,
) -> Case:
    """Batches ``[B, A]`` of rows.

    Args:
        kinds: The kinds of row to draw, each row its own.
        relations: How the second policy relates to the first, each row its own: ``"equal"`` in
            logits and mask, ``"near"`` (1e-1 to 1e-7 apart, equal masks; some moved by a constant,
            which changes no policy), or ``"independent"`` (an equal, larger or unrelated mask).
        actions: Any index, a legal one (where there is one), or an illegal one (likewise).
        loud: Whether about half the rows hold a legal NaN or +inf, or nothing legal but -inf.
        dtypes: Names of dtypes, one drawn for the batch.
        flavours: Names out of ``FLAVOURS``.
        max_rows, max_actions: Largest B and A.
    """
    lowest = 2 if tuple(kinds) == ("ordinary",) or actions == "illegal" else 1
    B = draw(st.integers(1, max_rows))
    A = draw(st.integers(lowest, max_actions))
    dtype = draw(st.sampled_from(list(dtypes)))
    n = B * (_HEADER + A * _ENTRY)
    data = np.frombuffer(draw(st.binary(min_size=n, max_size=n)), np.uint8)
    header = data[: B * _HEADER].reshape(B, _HEADER)
    body = data[B * _HEADER :].reshape(B, A, _ENTRY)

    names = np.array([FLAVOURS.index(name) for name in flavours])
    p = _values(body[..., 0:2], names[header[:, 0] % len(names)], header[:, 3] % A)
    q = _values(body[..., 2:4], names[header[:, 4] % len(names)], header[:, 3] // 16 % A)
    mask = _mask(body[..., 4], header[:, 1], header[:, 3] % A, kinds)

    relation = np.array([_RELATIONS.index(r) for r in relations])[header[:, 2] % len(relations)]
    q_mask = np.array(mask)
    independent = relation == 2
    q_mask[independent] |= (body[independent, :, 5] & 1) == 1
    unrelated = independent & (header[:, 6] % 3 == 2)
    q_mask[unrelated] = (body[unrelated, :, 5] & 2) == 0
    same = independent & (header[:, 6] % 3 == 0)
    q_mask[same] = mask[same]
    _give_mass(p, mask)
    near = p + _plain(body[..., 2:4]) * _NEARNESS[header[:, 4] % len(_NEARNESS), None]
    near += np.array(SHIFTS)[header[:, 4] // 16 % len(SHIFTS), None]
    q = np.where((relation == 0)[:, None], p, np.where((relation == 1)[:, None], near, q))
    _give_mass(q, q_mask)
    if loud:
        _make_loud(p, mask, header[:, 7], header[:, 3])
        _make_loud(q, q_mask, header[:, 7] // 4, header[:, 5])

    return _case(p, mask, _actions(header[:, 5], mask, actions), q, q_mask, header, body, dtype)


@st.composite
def broadcast_cases(draw: DrawFn, *, dtypes: Sequence[str] = ("float32",)) -> Case:
    """Cases whose logits and masks have different batch axes that broadcast."""
    base = draw(cases(max_rows=6, dtypes=dtypes, relations=("independent", "near")))
    shape = (2, 3, base.logits.shape[-1])
    # What was under the mask becomes legal in part; differences of 3e38 have no float32.
    logits = [
        np.where(np.isfinite(x) & (np.abs(x) > 1e37), 0, x) for x in (base.logits, base.q_logits)
    ]
    parts = (logits[0], base.mask, logits[1], base.q_mask)
    grown = [np.resize(x, shape) for x in parts]
    cuts = [_CUTS[draw(st.integers(0, len(_CUTS) - 1))] for _ in grown]
    p, mask, q, q_mask = (np.array(x[cut]) for x, cut in zip(grown, cuts, strict=True))
    batch = np.broadcast_shapes(p.shape[:-1], mask.shape[:-1])
    entries = np.resize(base.entry_cotangent, (*batch, shape[-1]))
    return Case(
        p,
        mask,
        np.resize(base.actions, batch),
        q,
        q_mask,
        np.resize(base.cotangent, batch),
        entries,
        base.turn,
    )


_RELATIONS: tuple[Relation, ...] = ("equal", "near", "independent")
_ALL = slice(None)
_CUTS: tuple[Any, ...] = (
    (_ALL, _ALL),
    (slice(0, 1), _ALL),
    (_ALL, slice(0, 1)),
    (0, _ALL),
    (0, slice(0, 1)),
    (0, 0),
)


def _plain(code: Array) -> Array:
    """Two bytes -> a number: 0 first, then small integers for a quarter, fractions in (-10, 10)."""
    high, low = code[..., 0], code[..., 1].astype(np.int64)
    integer = np.where(low & 1, low % 16 // 2 + 1, -(low % 16 // 2))
    # By 3277 and not by 3276.8: those would be multiples of 2**-14, whose differences are exact.
    fraction = (high.astype(np.float64) * 256 + low) / 3277 - 10
    return np.where(high < 64, integer, fraction) + 0.0


def _values(code: Array, flavour: Array, position: Array) -> Array:
    """Logits ``[B, A]``, each row in its flavour."""
    flavour = flavour[:, None]
    low = code[..., 1]
    plain = _plain(code)
    values = plain * _SCALE[flavour] + _OFFSET[flavour]
    values = np.where(flavour == _EXTREME, _EXTREMES[low % len(_EXTREMES)], values)
    values = np.where(flavour == _EQUAL, values[:, :1], values)
    values = np.where((flavour == _MINUS_INF) & (low % 4 == 3), -np.inf, values)
    chosen = np.equal(np.indices(code.shape[:2])[1], position[:, None])
    # One entry 5 to 85 ahead of the others, and seldom at 0: their difference is rounded.
    behind = 5 + 7 * np.abs(plain[:, -1:]) + np.abs(plain)
    sure = plain[:, :1] - np.where(chosen, 0.0, behind)
    return np.where(flavour == _DETERMINISTIC, sure, values)


def _mask(bits: Array, kind_byte: Array, position: Array, kinds: Sequence[Kind]) -> Array:
    mask = np.equal(bits & 1, 0)
    B, A = mask.shape
    kind = np.array([KINDS.index(k) for k in kinds])[kind_byte % len(kinds)]
    chosen = np.equal(np.indices(mask.shape)[1], position[:, None])
    mask |= chosen
    mask[np.arange(B), (position + 1) % A] |= mask.sum(-1) == 1
    mask[kind == 1] = chosen[kind == 1]
    mask[kind == 2] = False
    return mask


def _give_mass(logits: Array, mask: Array) -> None:
    """Where everything legal is -inf, make the first legal logit 0: such rows are loud."""
    without = mask.any(-1) & (~mask | np.isneginf(logits)).all(-1)
    logits[without, mask[without].argmax(-1)] = 0.0


def _make_loud(logits: Array, mask: Array, byte: Array, position: Array) -> None:
    for i in np.flatnonzero((byte & 1 == 1) & mask.any(-1)):
        legal = np.flatnonzero(mask[i])
        what = byte[i] // 2 % 4
        if what == 3:
            logits[i, legal] = -np.inf
        else:
            logits[i, legal[position[i] % len(legal)]] = np.nan if what < 2 else np.inf


def _actions(byte: Array, mask: Array, which: str) -> NDArray[np.int64]:
    A = mask.shape[1]
    wanted = np.ones_like(mask) if which == "any" else mask if which == "legal" else ~mask
    wanted = wanted | ~wanted.any(-1, keepdims=True)
    rank = byte.astype(np.int64) % wanted.sum(-1)
    order = np.argsort(~wanted, axis=-1, kind="stable")  # wanted indices first, in order
    return order[np.arange(len(byte)), rank % A].astype(np.int64)


def _case(
    p: Array,
    mask: Array,
    actions: NDArray[np.int64],
    q: Array,
    q_mask: Array,
    header: Array,
    body: Array,
    dtype: str,
) -> Case:
    junk = body[..., 6:8].astype(np.int64)
    worse = _JUNK[junk % len(_JUNK)]
    p = np.where(~mask & (junk[..., 0] >= 128), worse[..., 0], p)
    q = np.where(~q_mask & (junk[..., 1] >= 128), worse[..., 1], q)
    if dtype == "float16":  # keep finite numbers finite
        p, q = (np.where(np.isfinite(x), np.clip(x, -6e4, 6e4), x) for x in (p, q))
    return Case(
        logits=p.astype(dtype),
        mask=mask,
        actions=actions,
        q_logits=q.astype(dtype),
        q_mask=q_mask,
        cotangent=_COTANGENTS[header[:, 5] % len(_COTANGENTS)],
        entry_cotangent=_COTANGENTS[body[..., 8] % len(_COTANGENTS)],
        turn=int(header[0, 6]),
    )
