"""``make acceptance``: what works, trained and measured; writes docs/support.md.

Every framework with every kind of network, sampling locally and on two env runners: trained to
success, with no illegal action, every KL finite, and every ratio 1 before the first update. Then
10^8 draws from every backend (``benchmarks.draws``). Each cell is a process of its own with a time
limit, so that one that fails is reported and the rest still runs. Cells can be chosen:
``--framework tf2 --network LSTM --place local``. Exit status 1 where anything fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks import draws
from benchmarks.acceptance_cell import (
    FRAMEWORKS,
    LOG_RATIO,
    NETWORKS,
    PLACES,
    SUCCESS,
    Finding,
    faults,
)

__all__ = ["Cell", "run_cell", "table"]

PAGE = Path(__file__).parent.parent / "docs" / "support.md"
PACKAGES = ("ray", "torch", "tensorflow-cpu", "tf-keras", "gymnasium", "numpy")
TIME_LIMIT = 420.0
HEAD = (
    "| framework | network | sampling | | success | illegal | largest KL | worst abs log ratio "
    "| iterations |",
    "|---|---|---|---|---|---|---|---|---|",
)


@dataclasses.dataclass
class Cell:
    """One row of the table: what was asked, and what came out (None: it did not finish)."""

    framework: str
    network: str
    place: str
    finding: Finding | None = None
    error: str = ""

    @property
    def faults(self) -> list[str]:
        return [self.error] if self.finding is None else faults(self.finding)

    def row(self) -> str:
        verdict = "**fails**" if self.faults else "yes"
        head = f"| {self.framework} | {self.network} | {self.place} | {verdict} "
        if self.finding is None:
            return head + "| - " * 5 + "|"
        found = self.finding
        return (
            f"{head}| {found.success:.3f} | {found.illegal} | {found.largest_kl:.3g} "
            f"| {found.log_ratio:.1e} | {found.iterations} |"
        )


def run_cell(cell: Cell, *, limit: float = TIME_LIMIT) -> Cell:
    """Fill a cell in a process of its own; never raises for what goes wrong in there."""
    command = [sys.executable, "-m", "benchmarks.acceptance_cell"]
    process = subprocess.Popen(
        [*command, cell.framework, cell.network, cell.place],
        cwd=PAGE.parent.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # It stops its Ray on that.
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        cell.error = f"not done after {limit:.0f} s"
        return cell
    lines = out.strip().splitlines()
    try:
        cell.finding = Finding(**json.loads(lines[-1]))
    except (IndexError, ValueError, TypeError):
        last = (err.strip().splitlines() or ["no output"])[-1]
        cell.error = f"exit status {process.returncode}: {last}"
    return cell


def table(cells: list[Cell]) -> list[str]:
    """The table's lines, and what fails below it."""
    failed = [cell for cell in cells if cell.faults]
    lines = [*HEAD, *(cell.row() for cell in cells), ""]
    lines += [
        f"- fails: {cell.framework}, {cell.network}, {cell.place}: {'; '.join(cell.faults)}"
        for cell in failed
    ]
    return lines if failed else [*lines, f"All {len(cells)} hold."]


def page(cells: list[Cell], counts: list[draws.Count]) -> str:
    lines = [
        "# What is supported",
        "",
        "Written by `make acceptance`. RLlib's old API stack (ModelV2), PPO through",
        "`with_action_masking`, on the embedded chain of 6 positions with 16 actions, 4 of them",
        "legal in each; an illegal action ends the episode. A row holds where training reached",
        f"success {SUCCESS} in two iterations in a row (the last one's is shown), no action was",
        "illegal in all of training, every KL(old, new) was finite (the largest of a row is shown,",
        "in nats), no row was left out of the loss, and new and stored log-probabilities were the",
        f"same before the first update and after the last (worst difference, at most {LOG_RATIO:g}",
        "in float32, where the network is evaluated at another batch size).",
        "",
        f"Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in PACKAGES)
        + f"; {os.cpu_count()} cores.",
        "",
        *table(cells),
        "",
        "## Draws",
        "",
        *draws.table(counts),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.acceptance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--framework", choices=FRAMEWORKS, nargs="+", default=list(FRAMEWORKS))
    parser.add_argument("--network", choices=NETWORKS, nargs="+", default=list(NETWORKS))
    parser.add_argument("--place", choices=PLACES, nargs="+", default=list(PLACES))
    parser.add_argument("--limit", type=float, default=TIME_LIMIT, help="seconds a cell")
    parser.add_argument("--no-draws", action="store_true", help="the table alone; writes no page")
    arguments = parser.parse_args()
    chosen = itertools.product(arguments.framework, arguments.network, arguments.place)
    whole = len(FRAMEWORKS) * len(NETWORKS) * len(PLACES)
    print("\n".join(HEAD), flush=True)
    cells: list[Cell] = []
    for names in chosen:
        cells.append(run_cell(Cell(*names), limit=arguments.limit))
        print(cells[-1].row(), flush=True)
        for fault in cells[-1].faults:
            print(f"  FAILS: {fault}", flush=True)
    print("\n" + "\n".join(table(cells)[len(cells) + len(HEAD) + 1 :]), flush=True)
    counts: list[draws.Count] = []
    if len(cells) == whole and not arguments.no_draws:
        for sampler in draws.SAMPLERS:  # the page after each: what is measured is not lost
            counts += draws.run(samplers=[sampler])
            PAGE.write_text(page(cells, counts))
        print("\n" + "\n".join(draws.table(counts)), flush=True)
        print(f"\nwrote docs/{PAGE.name}")
    return 1 if any(cell.faults for cell in cells) or any(c.illegal for c in counts) else 0


if __name__ == "__main__":
    sys.exit(main())
