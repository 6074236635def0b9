"""Every row of the contract, on every backend and on the specification itself.

The tests are named after the rows: ``pytest -k entropy_forced_row``. What a row says and checks is
in ``maskcore/conformance/rows``; which rows a backend may leave out is in ``contract_support``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
from contract_support import NOT_CLAIMED, SPEC, require, require_everywhere

from maskcore.conformance import ROWS, Row, load


def _test_of(row: Row) -> Callable[..., None]:
    def test(backend: ModuleType, record_property: Callable[[str, object], None]) -> None:
        record_property("hypothesis examples", require_everywhere(row, backend))

    test.__name__ = test.__qualname__ = f"test_{row.name}"
    test.__doc__ = row.title
    return test


for _row in ROWS.values():
    if _row.group != "fault":  # those are in test_faults_numbers.py
        globals()[f"test_{_row.name}"] = _test_of(_row)


@pytest.mark.parametrize("name", [row for row in ROWS if row not in SPEC])
def test_specification(name: str) -> None:
    """The specification keeps the contract that it states."""
    require(ROWS[name], load("maskcore.spec"), "spec")


def test_every_kind_of_row_has_a_test_for_each_quantity() -> None:
    quantities = (
        "masked_softmax",
        "masked_log_softmax",
        "log_prob",
        "entropy",
        "kl_divergence",
        "mode",
        "sample",
        "gradients",
    )
    table = {f"test_{q}_{kind}_row" for q in quantities for kind in ("ordinary", "forced", "empty")}
    assert table <= set(globals())


def test_what_is_not_claimed_names_rows() -> None:
    for listed in NOT_CLAIMED.values():
        assert set(listed) <= set(ROWS)
