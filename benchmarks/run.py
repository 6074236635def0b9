"""``make bench``: how many times faster than each peer, and how much memory; writes a page.

Ratios only: each is the median over rounds in which every candidate took its turn, in one process
of one thread. ``--quick`` measures less and writes nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf  # before RLlib, which turns eager execution off where it is the first
import torch
import torchrl.modules  # noqa: F401  (turns the validation of torch.distributions off; see main)

from benchmarks import torch_candidates as candidates
from benchmarks.memory import peak_buffers
from benchmarks.timing import interleaved, ratio

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
PACKAGES = ("torch", "tensorflow-cpu", "ray", "sb3-contrib", "torchrl", "tensorflow-probability")


@dataclasses.dataclass(frozen=True)
class Target:
    """What a ratio has to reach at least, and what would be better still."""

    must: float
    aim: float


# (what, peer, shape) -> target.
TARGETS = {
    ("eager", "sb3-contrib", (128, 8)): Target(1.5, 2),
    ("eager", "sb3-contrib", (128, 64)): Target(2, 3),
    ("eager", "sb3-contrib", (4096, 64)): Target(4, 7),
    ("eager", "sb3-contrib", (4096, 1024)): Target(4, 7),
    ("eager", "RLlib", (128, 8)): Target(1.3, 1.7),
    ("eager", "RLlib", (128, 64)): Target(1.7, 2.5),
    ("eager", "RLlib", (4096, 64)): Target(3.5, 6),
    ("eager", "RLlib", (4096, 1024)): Target(3.5, 6),
    ("compiled", "sb3-contrib", (4096, 64)): Target(11, 20),
    ("compiled", "sb3-contrib", (4096, 1024)): Target(12, 30),
    ("compiled", "sb3-contrib", (512, 16384)): Target(12, 30),
    ("sample", "sb3-contrib", (32, 64)): Target(4, 5),
    ("sample", "sb3-contrib", (4096, 64)): Target(9, 11),
    ("sample", "sb3-contrib", (256, 16384)): Target(8, 11),
    ("mode", "sb3-contrib", (4096, 1024)): Target(8, 11),
    ("tf.function", "RLlib", (4096, 64)): Target(1.5, 2.4),
    ("tf.function", "RLlib", (4096, 1024)): Target(1.5, 2.4),
    ("XLA", "RLlib", (4096, 64)): Target(3, 5),
    ("XLA", "RLlib", (4096, 1024)): Target(3, 5),
}
STEP_SHAPES = ((128, 8), (128, 64), (4096, 64), (4096, 1024), (512, 16384))
DRAW_SHAPES = ((32, 64), (4096, 64), (256, 16384))
TF_SHAPES = ((4096, 64), (4096, 1024))


def torch_steps(batch: candidates.Batch) -> dict[str, Callable[..., candidates.Quantities]]:
    """Every Torch candidate for one minibatch."""
    legal = batch.mask.sum(-1).max()
    sparse = batch.mask.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :legal]
    steps = {
        "maskcore": candidates.ours,
        "maskcore, compiled": candidates.ours_compiled,
        "sb3-contrib": candidates.sb3_contrib(validate=True),
        "sb3-contrib, no validation": candidates.sb3_contrib(validate=False),
        "RLlib": candidates.rllib,
        "torch.distributions": candidates.torch_sentinel,
        "TorchRL": candidates.torchrl_dense,
        "an empty autograd step": candidates.empty_step,
    }
    if bool((batch.mask.sum(-1) == legal).all()):  # its indices have no padding
        steps["TorchRL, sparse"] = candidates.torchrl_sparse(sparse)
    return steps


class Report:
    """Collects lines for the terminal and for the page."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.missed: list[str] = []

    def say(self, line: str = "") -> None:
        print(line, flush=True)
        self.lines.append(line)

    def row(self, what: str, shape: tuple[int, int], timings: dict, names: list[str]) -> None:
        """One line: our ratio against each peer, quartiles behind it, the target met or not."""
        ours = next(iter(timings))
        cells = []
        for peer in names:
            middle, low, high = ratio(timings[ours], timings[peer])
            mark = self._verdict(what, peer, shape, middle)
            cells.append(f"{middle:.2f} ({low:.2f}-{high:.2f}){mark}")
        self.say(f"| {what} | {shape[0]} x {shape[1]} | " + " | ".join(cells) + " |")

    def _verdict(self, what: str, peer: str, shape: tuple[int, int], value: float) -> str:
        target = TARGETS.get((what, peer, shape))
        if target is None:
            return ""
        if value >= target.aim:
            return " **aim**"
        if value >= target.must:
            return " must"
        self.missed.append(f"{what} {shape} against {peer}: {value:.2f}, must be {target.must}")
        return f" BELOW {target.must}"


def bench_steps(report: Report, budget: float) -> None:
    peers = [
        "sb3-contrib",
        "sb3-contrib, no validation",
        "RLlib",
        "torch.distributions",
        "TorchRL",
        "an empty autograd step",
    ]
    _head(report, "The Torch step (half the actions legal, another random mask each row)", peers)
    for shape in STEP_SHAPES:
        batch = candidates.Batch.random(*shape)
        steps = {
            name: candidates.step(batch, quantities)
            for name, quantities in torch_steps(batch).items()
        }
        timings = interleaved(steps, budget=budget)
        compiled = timings.pop("maskcore, compiled")
        report.row("eager", shape, timings, peers)
        report.row("compiled", shape, {"maskcore, compiled": compiled, **timings}, peers)
        copy = interleaved(
            {"step": steps["maskcore"], "copy": lambda z=batch.logits: z.detach().clone()},
            budget=budget / 4,
        )
        report.say(
            f"| copies of the logits the eager step takes | {shape[0]} x {shape[1]} | "
            f"{1 / ratio(copy['step'], copy['copy'])[0]:.1f} |" + " |" * (len(peers) - 1)
        )


def bench_draws(report: Report, budget: float) -> None:
    peers = ["sb3-contrib", "TorchRL", "torch.distributions"]
    _head(report, "A draw with its log-prob, and the mode", peers)
    for shape in DRAW_SHAPES:
        batch = candidates.Batch.random(*shape)
        report.row("sample", shape, interleaved(candidates.draws(batch), budget=budget), peers)
    shape = (4096, 1024)
    modes = interleaved(candidates.modes(candidates.Batch.random(*shape)), budget=budget)
    report.row("mode", shape, modes, ["sb3-contrib"])


def bench_tf(report: Report, budget: float) -> None:
    from benchmarks import tf_candidates

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    peers = ["RLlib", "TFP"]
    _head(report, "The TensorFlow step inside tf.function", peers)
    for shape in TF_SHAPES:
        batch = tf_candidates.Batch.random(*shape)
        for what, xla in (("tf.function", False), ("XLA", True)):
            # XLA is compared with what RLlib runs, which is tf.function without XLA.
            steps = {"maskcore": tf_candidates.step(batch, tf_candidates.ours, xla=xla)}
            for name, peer in (("RLlib", tf_candidates.rllib), ("TFP", tf_candidates.tfp)):
                steps[name] = tf_candidates.step(batch, peer, xla=False)
            report.row(what, shape, interleaved(steps, budget=budget), peers)


def bench_memory(report: Report) -> None:
    shape = (512, 16384)
    names = ["maskcore", "maskcore, compiled", "sb3-contrib", "RLlib", "TorchRL"]
    report.say(f"\n## Peak memory of the step at {shape[0]} x {shape[1]}, in logits buffers\n")
    report.say("The returned gradient is 1 of them. Target: at most 2 (aim 1.3).\n")
    report.say("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    peaks = {name: peak_buffers(name, *shape) for name in names}
    report.say("| " + " | ".join(f"{peak:.2f}" for peak in peaks.values()) + " |")
    if peaks["maskcore"] > 2:
        report.missed.append(f"memory {peaks['maskcore']:.2f} logits buffers, must be <= 2")


def _head(report: Report, title: str, peers: list[str]) -> None:
    report.say(f"\n## {title}\n")
    report.say("| | shape | " + " | ".join(peers) + " |\n|---|---|" + "---|" * len(peers))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure less, write nothing")
    parser.add_argument("--only", choices=("step", "draw", "tf", "memory"), help="one part alone")
    arguments = parser.parse_args()
    budget = 0.3 if arguments.quick else 2.0
    torch.set_num_threads(1)
    torch.distributions.Distribution.set_default_validate_args(True)  # Torch's default
    report = Report()
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    report.say("# Benchmarks\n")
    report.say("Written by `make bench`. How many times faster than each peer (quartiles of the")
    report.say("rounds in brackets); interleaved in one process of one thread, medians, float32.")
    report.say(f"Python {platform.python_version()}, {versions}; {os.cpu_count()} cores.")
    parts = {
        "step": lambda: bench_steps(report, budget),
        "draw": lambda: bench_draws(report, budget),
        "tf": lambda: bench_tf(report, budget),
        "memory": lambda: bench_memory(report),
    }
    for name, part in parts.items():
        if arguments.only in (None, name):
            part()
    report.say("\n## Targets\n")
    report.say("\n".join(f"- missed: {line}" for line in report.missed) or "Every *must* is met.")
    if not arguments.quick and arguments.only is None:
        PAGE.write_text("\n".join(report.lines) + "\n")
        print(f"\nwrote {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
