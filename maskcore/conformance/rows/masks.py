"""What is a mask, and what is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskcore.conformance.adapter import Adapter
from maskcore.conformance.case import Case
from maskcore.conformance.compare import refuses, same
from maskcore.conformance.registry import row
from maskcore.conformance.strategies import cases

MASK_DTYPES = ("bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64")
_LOGITS = np.array([[1.0, 2.0, 3.0], [0.5, -1.0, 4.0]], np.float32)


@row(group="mask", needs=("masked_softmax", "log_prob"), cases=cases(max_rows=2, max_actions=4))
def mask_dtypes(m: Adapter, c: Case) -> None:
    """A mask is bool, or numbers that are exactly 0 or 1 in any integer or float dtype."""
    expected = m.call("masked_softmax", c.logits, c.mask)
    for dtype in c.turns(MASK_DTYPES):
        found = m.call("masked_softmax", c.logits, c.mask.astype(dtype))
        same(found, expected, f"masked_softmax with a mask of {dtype}")
    expected = m.call("log_prob", c.logits, c.mask, c.actions)
    found = m.call("log_prob", c.logits, c.mask.astype(np.int8), c.actions)
    same(found, expected, "log_prob with a mask of int8")


@row(group="mask", needs=("masked_softmax", "entropy"))
def mask_as_lists(m: Adapter) -> None:
    """Nested lists are a mask too."""
    for mask in ([[1, 0, 1], [1, 1, 0]], [[True, False, True], [True, True, False]]):
        found = m.call("masked_softmax", _LOGITS, mask)
        same(found, m.call("masked_softmax", _LOGITS, np.array(mask)), "a mask of lists")


def _every(m: Adapter, logits: NDArray[Any], mask: Any, what: str) -> list[str]:
    """That each function the module has refuses ``mask``; the messages."""
    one = (logits, mask)
    actions = np.zeros(logits.shape[:-1], np.int64)
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "masked_softmax": (one, {}),
        "masked_log_softmax": (one, {}),
        "log_prob": ((*one, actions), {}),
        "entropy": (one, {}),
        "mode": (one, {}),
        "kl_divergence": ((logits, logits), {"p_mask": mask, "q_mask": mask}),
        "cross_entropy": ((logits, logits), {"p_mask": mask, "q_mask": mask}),
        "evaluate_actions": ((*one, actions), {}),
        "MaskedCategorical": (one, {}),
    }
    messages = [
        refuses(
            lambda n=name, a=args, k=kwargs: m.raw(n, *a, **k), m.refuses_with, f"{name}: {what}"
        )
        for name, (args, kwargs) in calls.items()
        if m.lacks(name) is None
    ]
    if m.lacks("sample") is None:
        what = f"sample: {what}"
        messages.append(refuses(lambda: m.sample(*one, seed=0), m.refuses_with, what))
    return messages


@row(group="mask", needs=("masked_softmax",))
def mask_of_other_values_is_refused(m: Adapter) -> None:
    """A float mask with values other than 0 and 1 is refused by every function."""
    for values in ([0.447, -0.447, 0.0], [0.5, 1.0, 1.0], [2.0, 1.0, 0.0], [np.nan, 1.0, 0.0]):
        _every(m, _LOGITS, np.array([values, values], np.float32), f"a mask of {values}")
    _every(m, _LOGITS, np.array([[2, 1, 0], [1, 1, 1]]), "an integer mask that holds 2")


@row(group="mask", needs=("masked_softmax",))
def mask_that_is_additive_is_refused(m: Adapter) -> None:
    """An additive mask (0 legal, -inf illegal) is refused: it would be read upside down."""
    mask = np.array([[0.0, -np.inf, 0.0]] * 2, np.float32)
    _every(m, _LOGITS, mask, "an additive mask")
    _every(m, _LOGITS, np.where(mask == 0, 0, -1e9).astype(np.float32), "an additive mask of -1e9")


@row(group="mask", needs=("masked_softmax",))
def mask_of_wrong_shape_is_refused(m: Adapter) -> None:
    """A mask is never reshaped, and never broadcast over the action axis."""
    for shape in ((3, 2), (2, 2), (2, 4), (2, 1), (1,), (3, 3), (6,), (2, 2, 3, 3)):
        _every(m, _LOGITS, np.ones(shape, bool), f"a mask {shape} for logits {_LOGITS.shape}")


@row(group="mask", needs=("masked_softmax",))
def logits_are_not_broadcast_over_actions(m: Adapter) -> None:
    """Logits with one entry do not stretch over a mask of many actions."""
    _every(m, np.zeros((2, 1), np.float32), np.ones((2, 3), bool), "logits (2, 1), mask (2, 3)")


@row(group="mask", needs=("log_prob",))
def actions_out_of_range_are_refused(m: Adapter) -> None:
    """An action outside [0, A) is refused where values can be looked at."""
    mask = np.ones((2, 3), bool)
    for bad in ([0, 3], [-1, 0], [10**6, 0]):
        what = f"log_prob of actions {bad} of 3"
        actions = np.array(bad)
        refuses(lambda a=actions: m.raw("log_prob", _LOGITS, mask, a), m.refuses_with, what)


@row(group="mask", needs=("log_prob",))
def actions_of_wrong_shape_are_refused(m: Adapter) -> None:
    """Actions have no action axis: [B, 1] for B rows is refused, not turned into [B, B]."""
    mask = np.ones((2, 3), bool)
    for shape in ((3,), (2, 3)):
        actions = np.zeros(shape, np.int64)
        what = f"log_prob of actions {shape} for logits (2, 3)"
        if shape == (2, 3):
            continue
        refuses(lambda a=actions: m.raw("log_prob", _LOGITS, mask, a), m.refuses_with, what)
