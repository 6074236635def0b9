"""Interleaved timing: every candidate once a round, ratios of medians within one process.

A machine's speed drifts; two candidates that take turns drift together. Times are CPU time of a
process that is kept to one thread, so that what else the machine does does not count.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping

__all__ = ["Timing", "interleaved", "ratio"]


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds a call, one number a round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def interleaved(
    candidates: Mapping[str, Callable[[], object]], *, budget: float = 1.0, rounds: int = 15
) -> dict[str, Timing]:
    """Time each candidate ``rounds`` times, in turn.

    Args:
        candidates: Name to a function without arguments.
        budget: About how many seconds each candidate gets in all.
        rounds: How many times each is measured; the median of these is what counts.
    """
    repeats: dict[str, int] = {}
    for name, step in candidates.items():
        step()  # compile, allocate, fill caches
        step()
        start = time.process_time()
        step()
        once = max(time.process_time() - start, 1e-6)
        repeats[name] = max(1, round(budget / rounds / once))
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, step in candidates.items():
            start = time.process_time()
            for _ in range(repeats[name]):
                step()
            seconds[name].append((time.process_time() - start) / repeats[name])
    return {name: Timing(tuple(times)) for name, times in seconds.items()}


def ratio(ours: Timing, theirs: Timing) -> tuple[float, float, float]:
    """How many times faster we are: median of the rounds' ratios, and their quartiles."""
    ratios = sorted(b / a for a, b in zip(ours.seconds, theirs.seconds, strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, low, high
