"""10^8 draws from every backend, none of them illegal. Part of ``make acceptance``.

float16, bfloat16 and float32; 2 to 50,000 actions; rows with one legal action, rows whose legal
actions have probabilities down to 1e-30, rows that are legal at one end only; and under the mask
whatever has misled a sampler before: NaN, infinities, the largest number of the dtype.
``python -m benchmarks.draws --scale 0.01`` draws fewer.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import ml_dtypes
import numpy as np

from backends import get_backend

__all__ = ["DRAWS", "SAMPLERS", "Count", "count_illegal", "make_rows", "run", "table"]

# Actions -> draws of a sampler, over all dtypes and patterns: 25 million, 4 samplers, 10^8.
DRAWS = {2: 8e6, 7: 6.04e6, 64: 6e6, 500: 4e6, 4_096: 1e6, 50_000: 6e4}
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
PATTERNS = ("one legal", "down to 1e-30", "one end", "spread")
TINY = -69.0  # exp(-69) = 1e-30, and a float16.

Array = np.ndarray[Any, Any]


@dataclasses.dataclass
class Count:
    """Draws of one sampler in one dtype, and how many of them were illegal."""

    sampler: str
    dtype: str
    draws: int = 0
    illegal: int = 0


def make_rows(
    rng: np.random.Generator, pattern: str, dtype: str, rows: int, actions: int
) -> tuple[Array, Array]:
    """Logits ``[rows, actions]`` in ``dtype`` and a bool mask with a legal action in each row."""
    shape = (rows, actions)
    sure = rng.integers(actions, size=rows)
    mask = rng.random(shape) < 0.5
    logits = rng.normal(0.0, 8.0, shape)
    if pattern == "one legal":
        sure[: rows // 4], sure[rows // 4 : rows // 2] = 0, actions - 1
        mask[:] = False
    elif pattern == "down to 1e-30":  # One at 0, the others far below it.
        logits[:] = TINY * rng.random(shape)
        logits[:, ::2] = TINY
    elif pattern == "one end":  # The first or the last few, with a long illegal rest.
        few = max(1, actions // 50)
        mask[:] = False
        mask[: rows // 2, :few] = True
        mask[rows // 2 :, -few:] = True
        sure = np.where(np.arange(rows) < rows // 2, few - 1, actions - few)
        logits[:] = TINY * rng.random(shape)
    mask[np.arange(rows), sure] = True
    logits[np.arange(rows), sure] = 0.0
    largest = float(ml_dtypes.finfo(DTYPES[dtype]).max)
    worst = np.array([largest, np.inf, np.nan, -np.inf, 0.0])
    logits = np.where(mask, logits, worst[rng.integers(len(worst), size=shape)])
    return logits.astype(DTYPES[dtype]), mask


def numpy_sampler(logits: Array, mask: Array) -> Callable[[], Array]:
    backend, rng = get_backend("numpy"), np.random.default_rng(1)
    return lambda: backend.sample(logits, mask, rng)


def torch_sampler(logits: Array, mask: Array) -> Callable[[], Array]:
    backend = get_backend("torch")
    z, legal = backend.asarray(logits), backend.asarray(mask)
    return lambda: backend.to_numpy(backend.sample(z, legal))


def tf_sampler(logits: Array, mask: Array) -> Callable[[], Array]:
    backend = get_backend("tf")
    z, legal = backend.asarray(logits), backend.asarray(mask)
    return lambda: backend.to_numpy(backend.sample(z, legal))


def tf_function_sampler(logits: Array, mask: Array) -> Callable[[], Array]:
    """Inside a graph, where nothing can be raised."""
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")  # Each shape and dtype is a graph of its own, on purpose.
    backend = get_backend("tf")
    z, legal = backend.asarray(logits), backend.asarray(mask)
    draw = tf.function(backend.sample)
    return lambda: backend.to_numpy(draw(z, legal))


SAMPLERS = {
    "numpy": numpy_sampler,
    "torch": torch_sampler,
    "tf": tf_sampler,
    "tf.function": tf_function_sampler,
}


def count_illegal(draw: Callable[[], Array], mask: Array, times: int) -> int:
    """How many of ``times`` draws a row were no legal action, or no action at all."""
    illegal = 0
    rows = np.arange(len(mask))
    for _ in range(times):
        actions = draw()
        in_range = (actions >= 0) & (actions < mask.shape[1])
        illegal += int((~(in_range & mask[rows, np.where(in_range, actions, 0)])).sum())
    return illegal


def run(*, scale: float = 1.0, samplers: Iterable[str] = tuple(SAMPLERS)) -> list[Count]:
    """Draw, and print a line for each sampler and dtype."""
    counts: list[Count] = []
    for sampler, dtype in itertools.product(samplers, DTYPES):
        rng = np.random.default_rng(0)
        count = Count(sampler, dtype)
        for actions, pattern in itertools.product(DRAWS, PATTERNS):
            wanted = scale * DRAWS[actions] / len(DTYPES) / len(PATTERNS)
            rows = int(min(max(1_000_000 // actions, 16), 32_768, max(wanted, 4)))
            logits, mask = make_rows(rng, pattern, dtype, rows, actions)
            times = max(1, round(wanted / rows))
            count.illegal += count_illegal(SAMPLERS[sampler](logits, mask), mask, times)
            count.draws += rows * times
        counts.append(count)
        print(f"{sampler:12s} {dtype:9s} {count.draws:11,d} draws, {count.illegal} illegal")
        sys.stdout.flush()
    return counts


def table(counts: list[Count]) -> list[str]:
    """Lines of Markdown: the draws of every backend and dtype, and the total."""
    lines = ["| backend | dtype | draws | illegal |", "|---|---|---|---|"]
    lines += [f"| {c.sampler} | {c.dtype} | {c.draws:,} | {c.illegal} |" for c in counts]
    illegal = sum(c.illegal for c in counts)
    total = sum(c.draws for c in counts)
    sizes = ", ".join(f"{actions:,}" for actions in DRAWS)
    return [
        *lines,
        "",
        f"{total:,} draws, {illegal} illegal. {sizes} actions; rows with one legal, with",
        "legal probabilities down to 1e-30, legal at one end only, and half legal at random;",
        "NaN, infinities and the largest number of the dtype under the mask.",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.draws", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="times 10^8 draws")
    parser.add_argument("--sampler", choices=SAMPLERS, nargs="+", default=list(SAMPLERS))
    arguments = parser.parse_args()
    counts = run(scale=arguments.scale, samplers=arguments.sampler)
    print("\n".join(table(counts)[-4:]))
    return 1 if any(count.illegal for count in counts) else 0


if __name__ == "__main__":
    sys.exit(main())
