"""``python -m maskcore.conformance MODULE``: the contract, row by row, on any module."""

from __future__ import annotations

import argparse
import sys

from maskcore.conformance.adapter import load
from maskcore.conformance.registry import ROWS
from maskcore.conformance.report import table
from maskcore.conformance.runner import run


def main(arguments: list[str] | None = None) -> int:
    """Run the rows; 0 where all claimed rows hold, 1 where one fails, 2 without a module."""
    parser = argparse.ArgumentParser(prog="python -m maskcore.conformance", description=__doc__)
    parser.add_argument("module", help="package.module, package.module:object, torch, tf or numpy")
    parser.add_argument("--examples", type=int, default=100, help="inputs a row (default 100)")
    parser.add_argument("--row", action="append", metavar="NAME", help="this row only; repeatable")
    parser.add_argument("--list", action="store_true", help="list the rows and stop")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(f"{row.name}: {row.title}" for row in ROWS.values()))
        return 0
    sys.path.insert(0, "")  # as `python -c` does: modules of the current folder can be tested
    try:
        adapter = load(options.module)
        results = run(adapter, examples=options.examples, only=options.row)
    except (ImportError, AttributeError, KeyError) as error:
        print(f"{options.module}: {error}", file=sys.stderr)
        return 2
    print(table(results, adapter.name))
    return 1 if any(result.verdict == "fails" for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
