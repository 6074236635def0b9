"""What a policy's loss is made of, by name: terms, their coefficients and schedules, dropped rows.

Neutral between frameworks: values pass through as whatever tensors the policy computes with.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from maskcore import MaskError

__all__ = [
    "ROW_FAULTS",
    "Coefficient",
    "LossTerms",
    "RowReport",
    "explain_row_faults",
    "refuse_constant_term",
]

logger = logging.getLogger(__name__)

# Why a row of a batch is not ordinary -> what that means and what to do. The first three are
# dropped from the loss; non-finite logits stay in it, so that a divergence is not hidden.
ROW_FAULTS = {
    "empty_mask": (
        "empty mask: no action was legal when the row was sampled or is now. Dropped from the "
        "loss. Padding is not counted here, so the environment sent it"
    ),
    "illegal_action": (
        "illegal action in the batch: the action taken is illegal under the row's own mask. "
        "Dropped from the loss. Is the mask of another step (frame skip, a mask array that the "
        "environment writes into), or were actions replaced after sampling?"
    ),
    "masks_differ": (
        "masks differ: the mask the row was sampled with allows what its mask now forbids, so "
        "KL(old, new) is infinite. Dropped from the loss. Does the model compute the mask, or was "
        "the stored distribution of another policy?"
    ),
    "nonfinite_logits": (
        "non-finite logits from the network at legal actions: the network has diverged (learning "
        "rate, reward scale, an observation with NaN). Kept in the loss"
    ),
}


class Coefficient:
    """A number, or a schedule ``[[timestep, value], ...]``, linear between its points.

    >>> Coefficient([[0, 1.0], [100, 0.0]])(25)
    0.75
    >>> Coefficient(0.5)(10**9)
    0.5
    """

    def __init__(self, value: float | Sequence[Sequence[float]], *, name: str = "coefficient"):
        points = [(0, value)] if isinstance(value, (int, float)) else value
        try:
            self._points = [(float(step), float(point)) for step, point in points]
        except (TypeError, ValueError) as error:
            raise MaskError(
                f"{name} is {value!r}. Expected a number or a schedule [[timestep, value], ...]."
            ) from error
        steps = [step for step, _ in self._points]
        if not steps or steps != sorted(steps) or not all(map(math.isfinite, steps)):
            raise MaskError(
                f"{name} has the timesteps {steps}. Expected at least one, in rising order."
            )

    def __call__(self, timestep: float) -> float:
        """The value at ``timestep``; before the first point and after the last, theirs."""
        previous = self._points[0]
        for step, value in self._points:
            if timestep < step:
                start, first = previous
                if step == start or timestep <= start:
                    return first
                return first + (value - first) * (timestep - start) / (step - start)
            previous = (step, value)
        return previous[1]


class LossTerms:
    """The ``loss_terms`` of a config with their coefficients at the current timestep.

    Args:
        terms: ``{name: fn(model, batch) -> scalar}``.
        coeffs: ``{name: number or schedule}``; 1.0 for a term that is not named.

    Raises:
        MaskError: For a coefficient without a term, or a term that cannot be called.
    """

    def __init__(self, terms: Mapping[str, Callable[..., Any]], coeffs: Mapping[str, Any]) -> None:
        unknown = sorted(set(coeffs) - set(terms))
        if unknown:
            raise MaskError(
                f"loss_coeffs names {unknown}, found loss_terms {sorted(terms)}. Expected a "
                "coefficient only for a term that exists."
            )
        for name, term in terms.items():
            if not callable(term):
                raise MaskError(
                    f"loss_terms[{name!r}] is a {type(term).__name__}. Expected a function "
                    "fn(model, batch) -> scalar."
                )
            if name in RESERVED_TERMS:
                raise MaskError(
                    f"loss_terms has the name {name!r}, which is a part of the loss already "
                    f"({sorted(RESERVED_TERMS)}). Expected another name."
                )
        self.terms = dict(terms)
        self._schedules = {
            name: Coefficient(coeffs.get(name, 1.0), name=f"loss_coeffs[{name!r}]")
            for name in terms
        }
        self.coeffs = {name: schedule(0) for name, schedule in self._schedules.items()}

    def update(self, timestep: float) -> dict[str, float]:
        """Move the coefficients to ``timestep``; returns those that changed."""
        now = {name: schedule(timestep) for name, schedule in self._schedules.items()}
        changed = {name: value for name, value in now.items() if value != self.coeffs[name]}
        self.coeffs = now
        return changed

    def values(self, model: Any, batch: Any) -> dict[str, Any]:
        """Every term evaluated once, in the order of the config.

        Raises:
            MaskError: For a term that returns something with more than one number in it.
        """
        values = {name: term(model, batch) for name, term in self.terms.items()}
        for name, value in values.items():
            shape = getattr(value, "shape", None)
            if shape is None or math.prod(tuple(n if n is not None else -1 for n in shape)) != 1:
                found = type(value).__name__ if shape is None else f"shape {tuple(shape)}"
                raise MaskError(
                    f"loss_terms[{name!r}] returned {found}. Expected a scalar tensor: take the "
                    "mean over the batch."
                )
        return values


RESERVED_TERMS = frozenset({"policy", "value", "entropy", "kl", "custom_loss", "policy_loss"})


def refuse_constant_term(name: str, variables: Sequence[str]) -> NoReturn:
    """Raise for a term that would add a constant to the loss and train nothing.

    Raises:
        MaskError: Always, naming the term and the variables that it does not reach.
    """
    shown = ", ".join(variables[:8]) + (", ..." if len(variables) > 8 else "")
    raise MaskError(
        f"loss_terms[{name!r}] depends on no variable of the model: none of {shown} gets a "
        "gradient from it. Compute it from the model's layers without detaching them or leaving "
        "the framework (NumPy, .item()); where a batch has nothing for it, multiply by zero."
    )


def explain_row_faults(counts: Mapping[str, float], rows: float) -> str:
    """One sentence a kind of fault found in ``rows`` rows, with its count."""
    found = [f"{int(counts[k])} x {text}" for k, text in ROW_FAULTS.items() if counts.get(k, 0)]
    return f"of {int(rows)} rows in the batch: " + "; ".join(found) + "." if found else ""


class RowReport:
    """Reports each kind of row fault once a policy, and keeps the totals."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self.totals: dict[str, int] = dict.fromkeys(ROW_FAULTS, 0)

    def add(self, counts: Mapping[str, float], rows: float) -> None:
        """Count; log what has not been logged yet."""
        new = {k: n for k, n in counts.items() if n and k in ROW_FAULTS and not self.totals[k]}
        for fault in ROW_FAULTS:
            self.totals[fault] += int(counts.get(fault, 0))
        if new:
            logger.warning(
                "%s: %s This is said once; the counts are in the learner's statistics.",
                self._policy,
                explain_row_faults(new, rows),
            )
