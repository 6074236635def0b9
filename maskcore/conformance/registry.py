"""What a contract row is, and how one fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis.strategies import SearchStrategy

from maskcore.conformance.case import Case

if TYPE_CHECKING:
    from maskcore.conformance.adapter import Adapter

__all__ = ["ROWS", "Broken", "NotClaimed", "Row", "row"]


class Broken(AssertionError):  # noqa: N818 - what a row is, not what went wrong in the kit
    """A module does not do what the row says."""


class NotClaimed(Exception):  # noqa: N818 - a verdict, not an error
    """A module does not offer what the row is about."""


@dataclass(frozen=True)
class Row:
    """One row of the contract.

    Attributes:
        name: The function's name; tests are named after it.
        title: What has to hold, in one line.
        group: ``"value"``, ``"gradient"``, ``"mask"``, ``"dtype"``, ``"accuracy"`` or ``"fault"``.
        needs: What a module must have for the row to apply: function names, ``"grad NAME"`` for
            the gradient of one, ``"dtype NAME"`` for a dtype of logits.
        cases: The strategy for its inputs; None for a row with inputs of its own.
        check: Raises ``Broken`` where the row does not hold.
    """

    name: str
    title: str
    group: str
    needs: tuple[str, ...]
    cases: SearchStrategy[Case] | None
    check: Callable[..., None]

    def not_claimed_by(self, adapter: Adapter) -> str | None:
        """Why the row does not apply to this module, or None where it does."""
        declared = adapter.not_claimed(self.name)
        if declared is not None:
            return declared
        for need in self.needs:
            reason = adapter.lacks(need)
            if reason is not None:
                return reason
        return None


ROWS: dict[str, Row] = {}


def row(
    *, group: str, needs: tuple[str, ...], cases: SearchStrategy[Case] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function ``(adapter, case)``, or ``(adapter)`` without ``cases``, as a row."""

    def register(check: Callable[..., None]) -> Callable[..., None]:
        name = check.__name__
        title = (check.__doc__ or "").strip().split("\n")[0]
        if name in ROWS or not title:
            raise RuntimeError(f"row {name!r} is registered twice or has no title.")
        ROWS[name] = Row(name, title, group, needs, cases, check)
        return check

    return register


def describe(value: Any) -> str:
    """A number as it is compared, short."""
    return repr(value.item() if hasattr(value, "item") else value)
