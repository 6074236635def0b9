"""A pytest plugin of one option, for ``pytest --pyargs maskcore.conformance --backend NAME``.

pytest reads no conftest of a package named with ``--pyargs`` before it parses the command line, so
the option has to come from an entry point. It is added only where the kit is asked for: in every
other run of pytest nothing happens, and nothing else of maskcore is imported.
"""

from __future__ import annotations

from typing import Any


def pytest_load_initial_conftests(parser: Any, args: list[str]) -> None:
    """Add the options where an argument names the kit."""
    if not any("maskcore.conformance" in str(arg) for arg in args):
        return
    group = parser.getgroup("maskcore", "the conformance kit of maskcore")
    group.addoption(
        "--backend",
        default="numpy",
        help="what to test: torch, tf, numpy, package.module or package.module:object",
    )
    group.addoption(
        "--examples", type=int, default=100, help="inputs for each contract row (default 100)"
    )
