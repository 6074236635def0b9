"""Shrinks a failing case to one row, few actions and simple numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskcore.conformance.case import Case

__all__ = ["reduce_case"]

Array = NDArray[Any]
_SIMPLE = (0.0, 1.0, -1.0, 2.0)


def reduce_case(case: Case, fails: Callable[[Case], bool], *, tries: int = 2000) -> Case:
    """The smallest case that still fails, by greedy removal.

    Args:
        case: One that fails.
        fails: Whether a case fails; must be deterministic.
        tries: How many smaller cases to look at, at most.
    """
    progress = True
    while progress and tries > 0:
        progress = False
        for smaller in _smaller(case):
            tries -= 1
            if fails(smaller):
                case, progress = smaller, True
                break
            if tries <= 0:
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    yield from _one_row(case)
    yield from _fewer_actions(case)
    yield from _simpler_weights(case)
    yield from _simpler_values(case)


def _one_row(case: Case) -> Iterator[Case]:
    shapes = {x.shape[:-1] for x in (case.logits, case.mask, case.q_logits, case.q_mask)}
    if len(shapes) > 1 or case.logits.ndim != 2 or len(case.logits) == 1:
        return
    for i in range(len(case.logits)):
        yield Case(**{f.name: getattr(case, f.name)[i : i + 1] for f in dataclasses.fields(case)})


def _fewer_actions(case: Case) -> Iterator[Case]:
    A = case.shape[-1]
    for drop in range(A - 1, -1, -1) if A > 1 else ():
        if (case.actions == drop).any():
            continue
        keep = np.arange(A) != drop
        parts = {
            f.name: getattr(case, f.name)[..., keep]
            for f in dataclasses.fields(case)
            if f.name not in ("actions", "cotangent")
        }
        actions = case.actions - (case.actions > drop)
        yield dataclasses.replace(case, actions=actions, **parts)


def _simpler_weights(case: Case) -> Iterator[Case]:
    if (case.cotangent != 1).any():
        yield dataclasses.replace(case, cotangent=np.ones_like(case.cotangent))
    if (case.entry_cotangent != 1).any():
        yield dataclasses.replace(case, entry_cotangent=np.ones_like(case.entry_cotangent))
    if (case.actions != 0).any():
        yield dataclasses.replace(case, actions=np.zeros_like(case.actions))


def _simpler_values(case: Case) -> Iterator[Case]:
    for name in ("logits", "q_logits"):
        array: Array = getattr(case, name)
        indices: list[tuple[int, ...]] = list(np.ndindex(*array.shape))
        for index in indices:
            for value in _simpler(array[index].item()):
                changed = np.array(array)
                changed[index] = value
                if changed[index] != array[index]:  # 0.46 is 0.46 again after float32
                    yield dataclasses.replace(case, **{name: changed})
    for name in ("mask", "q_mask"):
        array = getattr(case, name)
        illegal: list[list[int]] = np.argwhere(~array).tolist()
        for index in illegal:
            changed = np.array(array)
            changed[tuple(index)] = True
            yield dataclasses.replace(case, **{name: changed})


def _simpler(value: float) -> Iterator[float]:
    """Numbers simpler than ``value``, simplest first; never in a circle."""
    for simple in _SIMPLE:
        if value == simple:
            return
        yield simple
    if np.isfinite(value) and value != round(value, 0):
        yield round(value, 0)
        if value != round(value, 2):
            yield round(value, 2)
