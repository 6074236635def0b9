"""Runs contract rows on a module and keeps the smallest failing input of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from hypothesis import HealthCheck, Phase, given, settings

from maskcore.conformance import rows as _rows
from maskcore.conformance.adapter import Adapter
from maskcore.conformance.case import Case
from maskcore.conformance.claims import narrow
from maskcore.conformance.compare import slack
from maskcore.conformance.reduce import reduce_case
from maskcore.conformance.registry import ROWS, NotClaimed, Row
from maskcore.conformance.report import as_code

__all__ = ["Result", "check_row", "run"]

assert _rows  # importing the rows registers them

Verdict = Literal["holds", "fails", "not claimed"]


@dataclass(frozen=True)
class Result:
    """What became of one row.

    Attributes:
        row: The row.
        verdict: ``"holds"``, ``"fails"`` or ``"not claimed"``.
        reason: The failure as code, or why the row is not claimed.
        examples: How many inputs were tried.
    """

    row: Row
    verdict: Verdict
    reason: str = ""
    examples: int = 0


def run(
    adapter: Adapter,
    *,
    examples: int | None = None,
    only: Iterable[str] | None = None,
    report: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Check a module against every row.

    Args:
        adapter: The module, wrapped.
        examples: Inputs a row; the active Hypothesis profile decides where it is None.
        only: Names of rows; all of them where it is None.
        report: Called with each result as it comes.
    """
    chosen = set(ROWS) if only is None else set(only)
    unknown = chosen - set(ROWS)
    if unknown:
        raise KeyError(f"rows {sorted(unknown)} are not known; there are {sorted(ROWS)}")
    results: list[Result] = []
    for name, row in ROWS.items():
        if name in chosen:
            results.append(check_row(row, adapter, examples=examples))
            if report is not None:
                report(results[-1])
    return results


def check_row(row: Row, adapter: Adapter, *, examples: int | None = None) -> Result:
    """Run one row; see ``run``."""
    reason = row.not_claimed_by(adapter)
    if reason is not None:
        return Result(row, "not claimed", reason)
    with slack(adapter.slack):
        if row.cases is None:
            return _check_fixed(row, adapter)
        return _search(row, adapter, examples)


def _check_fixed(row: Row, adapter: Adapter) -> Result:
    try:
        row.check(adapter)
    except NotClaimed as error:
        return Result(row, "not claimed", str(error))
    except Exception as error:
        return Result(row, "fails", as_code(adapter, _message(error)), 1)
    return Result(row, "holds", examples=1)


def _search(row: Row, adapter: Adapter, examples: int | None) -> Result:
    tried = 0
    failing: Case | None = None
    unclaimed: NotClaimed | None = None
    assert row.cases is not None

    def check(case: Case) -> None:
        nonlocal tried, failing, unclaimed
        tried += 1
        case = narrow(case, adapter.leaves_out, row.name)
        try:
            row.check(adapter, case)
        except NotClaimed as error:
            unclaimed = error
            raise
        except Exception:
            failing = case
            raise

    # Its own name, so that Hypothesis derives a seed (and keeps examples) for each row.
    check.__name__ = check.__qualname__ = row.name
    active = settings.default or settings()
    chosen = settings(
        active,
        max_examples=examples or active.max_examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # reduce_case shrinks, and names what it found as code
        suppress_health_check=[HealthCheck.too_slow],
        report_multiple_bugs=False,
    )
    try:
        chosen(given(case=row.cases)(check))()
    except Exception:
        if unclaimed is not None:
            return Result(row, "not claimed", str(unclaimed), tried)
        if failing is None:
            raise
    if failing is None:
        return Result(row, "holds", examples=tried)
    return Result(row, "fails", _explain(row, adapter, failing), tried)


def _explain(row: Row, adapter: Adapter, case: Case) -> str:
    def fails(candidate: Case) -> bool:
        try:
            row.check(adapter, candidate)
        except Exception:
            return True
        return False

    smallest = reduce_case(case, fails)
    try:
        row.check(adapter, smallest)
    except Exception as error:
        return as_code(adapter, _message(error))
    return as_code(adapter, "failed once and then no more: the module is not deterministic")


def _message(error: Exception) -> str:
    if isinstance(error, AssertionError):
        return str(error)
    return f"raised {type(error).__name__}: {error}"
