"""The kit as tests: ``pytest --pyargs maskcore.conformance --backend torch``."""

from __future__ import annotations

import pytest

from maskcore.conformance import ROWS, Adapter, Row, check_row, load


@pytest.fixture(scope="session", name="adapter")
def _adapter(request: pytest.FixtureRequest) -> Adapter:  # pyright: ignore[reportUnusedFunction]
    return load(str(request.config.getoption("--backend")))


@pytest.mark.parametrize("row", ROWS.values(), ids=[row.name for row in ROWS.values()])
def test_row(row: Row, adapter: Adapter, request: pytest.FixtureRequest) -> None:
    """A row holds; rows that the module does not claim are skipped with the reason."""
    result = check_row(row, adapter, examples=request.config.getoption("--examples"))
    if result.verdict == "not claimed":
        pytest.skip(result.reason)
    if result.verdict == "fails":
        pytest.fail(f"{row.title}\n\n{result.reason}", pytrace=False)
