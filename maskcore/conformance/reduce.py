"""Shrinks a failing case to one row, few actions and simple numbers.

A row of the contract is about some cases and not about others, so no step leaves what the case it
started from was: kinds of row, loud or not, legal action or not, equal masks, equal policies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskcore.conformance.case import Case, loud_rows

__all__ = ["reduce_case"]

Array = NDArray[Any]
_ARRAYS = [f.name for f in dataclasses.fields(Case) if f.name != "turn"]
_SIMPLE = (0.0, 1.0, -1.0, 2.0)


def reduce_case(case: Case, fails: Callable[[Case], bool], *, tries: int = 2000) -> Case:
    """The smallest case that still fails, by greedy removal.

    Args:
        case: One that fails.
        fails: Whether a case fails; must be deterministic.
        tries: How many smaller cases to look at, at most.
    """
    traits = _traits(case)
    progress = True
    while progress and tries > 0:
        progress = False
        for smaller in _smaller(case):
            if not _traits(smaller) <= traits:
                continue
            tries -= 1
            if fails(smaller):
                case, progress = smaller, True
                break
            if tries <= 0:
                break
    return case


def _traits(case: Case) -> set[tuple[str, object]]:
    """What a case is like; a smaller one may have less of it and nothing else."""
    found: set[tuple[str, object]] = set()
    for name, logits, mask in (
        ("first", case.logits, case.mask),
        ("second", case.q_logits, case.q_mask),
    ):
        found |= {(f"{name} kind", int(n)) for n in np.minimum(mask.sum(-1), 2).reshape(-1)}
        logits, mask = np.broadcast_arrays(logits, mask)
        found |= {(f"{name} loud", True) for x in loud_rows(logits, mask).reshape(-1) if x}
    legal = np.take_along_axis(case.legal, case.actions[..., None], -1)
    found |= {("legal action", bool(x)) for x in legal.reshape(-1)}
    if not np.array_equal(case.mask, case.q_mask):
        found.add(("masks differ", True))
    if not _equal_policies(case):
        found.add(("policies differ", True))
    return found


def _equal_policies(case: Case) -> bool:
    return np.array_equal(case.mask, case.q_mask) and np.array_equal(
        case.legal * np.nan_to_num(case.wide), case.legal * np.nan_to_num(case.q_wide)
    )


def _smaller(case: Case) -> Iterator[Case]:
    yield from _one_row(case)
    yield from _fewer_actions(case)
    yield from _simpler_weights(case)
    yield from _simpler_values(case)
    yield from _fewer_illegal(case)


def _one_row(case: Case) -> Iterator[Case]:
    shapes = {x.shape[:-1] for x in (case.logits, case.mask, case.q_logits, case.q_mask)}
    if len(shapes) > 1 or case.logits.ndim != 2 or len(case.logits) == 1:
        return
    for i in range(len(case.logits)):
        parts = {name: getattr(case, name)[i : i + 1] for name in _ARRAYS}
        yield dataclasses.replace(case, **parts)


def _fewer_actions(case: Case) -> Iterator[Case]:
    A = case.shape[-1]
    for drop in range(A - 1, -1, -1) if A > 1 else ():
        if (case.actions == drop).any():
            continue
        keep = np.arange(A) != drop
        parts = {
            name: getattr(case, name)[..., keep]
            for name in _ARRAYS
            if name not in ("actions", "cotangent")
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
    same_shape = case.logits.shape == case.q_logits.shape
    for names in (("logits", "q_logits"), ("logits",), ("q_logits",)):
        if len(names) == 2 and not same_shape:
            continue
        first: Array = getattr(case, names[0])
        indices: list[tuple[int, ...]] = list(np.ndindex(*first.shape))
        for index in indices:
            for value in _simpler(first[index].item()):
                changed = {name: np.array(getattr(case, name)) for name in names}
                for array in changed.values():
                    array[index] = value
                # 0.46 is 0.46 again after float32
                if changed[names[0]][index] != first[index]:
                    yield dataclasses.replace(case, **changed)


def _fewer_illegal(case: Case) -> Iterator[Case]:
    for names in (("mask", "q_mask"), ("mask",), ("q_mask",)):
        if len(names) == 2 and case.mask.shape != case.q_mask.shape:
            continue
        illegal: list[list[int]] = np.argwhere(~getattr(case, names[0])).tolist()
        for index in illegal:
            changed = {name: np.array(getattr(case, name)) for name in names}
            for array in changed.values():
                array[tuple(index)] = True
            yield dataclasses.replace(case, **changed)


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
