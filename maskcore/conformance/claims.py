"""What a module claims, so that it is tested on that and fails on nothing else.

A library of its own may declare that kinds of input are outside of what it is for (``LEAVES_OUT``)
and that it claims ordinary rounding and no accuracy bound (``SLACK``). Generated cases are then
brought inside; the rows that are about such an input alone keep it, and fail or are in
``NOT_CLAIMED`` by their name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np

from maskcore.conformance.case import Case

__all__ = ["LEAVABLE", "narrow"]

LEAVABLE = {
    "empty rows": "rows without a legal action",
    "legal -inf": "legal logits of -inf",
    "junk": "NaN, infinities and huge numbers under the mask",
    "extremes": "legal logits beyond 30, where float32 probabilities underflow",
    "different masks": "divergences between policies with different masks",
    "illegal actions": "the log_prob of an illegal action",
}

# Rows that are about an input keep it.
_ABOUT = {
    "empty rows": ("empty_row",),
    "legal -inf": ("legal_minus_infinity", "legal_nan"),
    "junk": ("under_the_mask",),
    "extremes": ("kl_infinite",),
    "different masks": ("kl_infinite",),
    "illegal actions": ("illegal_action",),
}


def narrow(case: Case, leaves_out: Collection[str], row: str) -> Case:
    """The case with the inputs that a module leaves out replaced by ordinary ones."""
    out = {name for name in leaves_out if not any(part in row for part in _ABOUT[name])}
    for name in sorted(out):
        case = _REPLACE[name](case)
    return case


def _fill_empty(case: Case) -> Case:
    """The first action becomes legal, with the logit 0 where it held junk."""
    parts: dict[str, np.ndarray] = {}
    for logits, mask in (("logits", "mask"), ("q_logits", "q_mask")):
        legal, z = np.array(getattr(case, mask)), np.array(getattr(case, logits))
        empty = ~legal.any(-1)
        legal[..., 0] |= empty
        if empty.any():
            first = z[..., 0]
            z[..., 0] = np.where(np.isfinite(first) & (np.abs(first) < 1e37), first, 0)
        parts |= {logits: z, mask: legal}
    return dataclasses.replace(case, **parts)


def _finite(case: Case) -> Case:
    p = np.where(np.isneginf(case.logits), -5, case.logits).astype(case.logits.dtype)
    q = np.where(np.isneginf(case.q_logits), -5, case.q_logits).astype(case.q_logits.dtype)
    return dataclasses.replace(case, logits=p, q_logits=q)


def _clean(case: Case) -> Case:
    """Illegal entries 0; where shapes differ, whatever cannot be a legal logit."""
    found: list[np.ndarray] = []
    for logits, mask in ((case.logits, case.mask), (case.q_logits, case.q_mask)):
        junk = ~mask if mask.shape == logits.shape else ~np.isfinite(logits)
        found.append(np.where(junk, 0, logits).astype(logits.dtype))
    return dataclasses.replace(case, logits=found[0], q_logits=found[1])


def _clip(case: Case) -> Case:
    p, q = (
        np.where(np.isfinite(x), np.clip(x, -30, 30), x).astype(x.dtype)
        for x in (case.logits, case.q_logits)
    )
    return dataclasses.replace(case, logits=p, q_logits=q)


def _equal_masks(case: Case) -> Case:
    return dataclasses.replace(case, q_mask=case.mask)


def _legal_actions(case: Case) -> Case:
    taken = np.take_along_axis(case.legal, case.actions[..., None], -1)[..., 0]
    actions = np.where(taken, case.actions, case.legal.argmax(-1))
    return dataclasses.replace(case, actions=actions)


_REPLACE = {
    "empty rows": _fill_empty,
    "legal -inf": _finite,
    "junk": _clean,
    "extremes": _clip,
    "different masks": _equal_masks,
    "illegal actions": _legal_actions,
}
