"""``make peers``: the contract on every library that is installed; writes docs/peers.md."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent.parent / "docs" / "peers.md"
OURS = ("backends.torch_backend", "backends.tf_backend", "backends.numpy_backend")
PEERS = ("torch_sentinel", "sb3_contrib", "torchrl", "rllib_torch", "rllib_tf", "tfp")
MARKS = {"holds": "holds", "fails": "**fails**", "not claimed": "-"}


def run_one(module: str, examples: int) -> dict[str, Any]:
    """Run the kit on one module in this process."""
    from maskcore.conformance import load, run

    adapter = load(module)
    package = getattr(adapter.module, "PACKAGE", None)
    return {
        "name": adapter.name,
        "version": f"{package} {version(package)}" if package else "",
        "leaves_out": sorted(adapter.leaves_out),
        "slack": adapter.slack,
        "rows": {
            result.row.name: (result.verdict, result.row.title, result.reason)
            for result in run(adapter, examples=examples)
        },
    }


def run_apart(module: str, examples: int) -> dict[str, Any] | str:
    """Run one in a process of its own; why it could not be run, where it could not."""
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", "--one", module, "--examples", str(examples)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no output"])[-1]
    return json.loads(done.stdout.splitlines()[-1])


def page(found: list[dict[str, Any]], missing: dict[str, str], examples: int) -> str:
    """The page in Markdown."""
    lines = [
        "# The contract on other libraries",
        "",
        f"Written by `make peers`: {examples} inputs a row. A library is tested on what it says it",
        "does. Inputs that it is not for are replaced by ordinary ones, rounding of 1e-3 is",
        "allowed where the contract asks for a few eps, and a row that it does not claim is marked",
        "-, with the reason below. Errors in digits are in [accuracy.md](accuracy.md).",
        "",
        "| row | " + " | ".join(one["name"] for one in found) + " |",
        "|---" * (len(found) + 1) + "|",
    ]
    for row, (_, title, _) in found[0]["rows"].items():
        marks = " | ".join(MARKS[one["rows"][row][0]] for one in found)
        lines.append(f"| `{row}`: {title.replace('|', '/')} | {marks} |")
    totals: list[str] = []
    for one in found:
        verdicts = [verdict for verdict, _, _ in one["rows"].values()]
        totals.append(
            f"{verdicts.count('holds')} of {len(verdicts) - verdicts.count('not claimed')}"
        )
    lines += ["| **rows that hold, of those claimed** | " + " | ".join(totals) + " |", ""]
    lines += [f"Not run: {name} ({why})." for name, why in missing.items()]
    for one in found:
        lines += ["", *_details(one)]
    return "\n".join(lines) + "\n"


def _details(one: dict[str, Any]) -> list[str]:
    lines = [f"## {one['name']}" + (f" ({one['version']})" if one["version"] else ""), ""]
    if one["leaves_out"]:
        lines += [f"Not tested with: {', '.join(one['leaves_out'])}, but for rows about these.", ""]
    reasons: dict[str, list[str]] = {}
    for row, (verdict, _, reason) in one["rows"].items():
        if verdict == "not claimed":
            reasons.setdefault(reason, []).append(f"`{row}`")
    lines += [f"- not claimed, {reason}: {', '.join(rows)}" for reason, rows in reasons.items()]
    for row, (verdict, title, reason) in one["rows"].items():
        if verdict == "fails":
            summary = f"<details><summary><code>{row}</code>: {title}</summary>"
            lines += ["", summary, "", "```python", reason, "```", "", "</details>"]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--examples", type=int, default=200, help="inputs a row (default 200)")
    parser.add_argument("--quick", action="store_true", help="20 inputs a row; write nothing")
    parser.add_argument("--one", metavar="MODULE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        result = run_one(options.one, options.examples)
        print(json.dumps(result))
        return 0
    examples = 20 if options.quick else options.examples
    found: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    for module in (*OURS, *(f"benchmarks.peers.{peer}:PEER" for peer in PEERS)):
        print(module, end=": ", flush=True)
        result = run_apart(module, examples)
        if isinstance(result, str):
            missing[module.split(".")[-1].removesuffix(":PEER")] = result
            print(f"not run ({result})")
            continue
        if not result["version"]:
            result["version"] = "maskcore " + importlib.import_module("maskcore").__version__
        found.append(result)
        verdicts = [verdict for verdict, _, _ in result["rows"].values()]
        print(", ".join(f"{verdicts.count(v)} {v}" for v in MARKS))
    if not options.quick:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(found, missing, examples))
        print(f"wrote {PAGE.relative_to(PAGE.parent.parent)}")
    ours = [r for r in found if r["name"] in ("torch", "tf", "numpy")]
    broken = [r["name"] for r in ours if any(v == "fails" for v, _, _ in r["rows"].values())]
    if len(ours) < len(OURS) or broken:
        print(f"our own backends do not hold every row: {broken or missing}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
