"""``make accuracy``: errors against 60-digit arithmetic, ours and other libraries'; writes a page.

Every library gets the same float32 rows. ``--quick`` takes a tenth of them and writes nothing. The
exit status is 1 where one of our bounds does not hold.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.accuracy_candidates import CANDIDATES, OURS, Values, load
from benchmarks.accuracy_rows import SIZES, Exact, Rows, check_with_mpmath, exact

PAGE = Path(__file__).parent.parent / "docs" / "accuracy.md"
EPS = float(np.finfo(np.float32).eps)
# Probabilities under the smallest normal float may be flushed to 0, and log p is about -100 there.
FLUSHED = 100 * float(np.finfo(np.float32).tiny)


@dataclasses.dataclass(frozen=True)
class Quantity:
    """What is measured, in which unit, and what the contract allows."""

    name: str
    unit: str
    bound: float
    error: Callable[[Values, Exact, Rows], np.ndarray]


def _absolute(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """abs(found - expected) in float64, without what flushing to 0 takes; +inf where not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.abs(found.astype(np.float64) - expected)
    off = np.maximum(0, off - FLUSHED * expected.shape[-1])
    return np.where(np.isfinite(off), off, np.inf)


def _log(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return _absolute(found, expected) / np.maximum(1, np.abs(expected)) / EPS


def _gradient(found: np.ndarray, expected: np.ndarray, *others: np.ndarray) -> np.ndarray:
    """The row's worst entry, in eps of the row's largest exact entry."""
    with np.errstate(invalid="ignore"):
        size = np.nanmax([np.nanmax(np.abs(g), -1) for g in (expected, *others)], axis=0)
    legal = ~np.isnan(expected)
    off = _absolute(np.where(legal, found, 0), np.where(legal, expected, 0)).max(-1)
    # 1e-45 is the smallest float32: an exact gradient below it is 0.
    return np.where(off > 0, off / np.maximum(size, 1e-45), 0) / EPS


def _log_softmax(found: Values, e: Exact, rows: Rows) -> np.ndarray:
    expected = np.where(rows.mask, e.log_softmax, 0)
    return _log(np.where(rows.mask, found["log_softmax"], 0), expected).max(-1)


def _entropy(found: Values, e: Exact, rows: Rows) -> np.ndarray:
    off = np.abs(found["entropy"].astype(np.float64) - e.entropy)
    off = np.maximum(0, off - FLUSHED * rows.p.shape[-1])
    off = np.where(np.isfinite(off), off, np.inf)
    return np.where(off > 0, off / np.maximum(e.entropy, 1e-300), 0) / EPS


def _kl(found: Values, e: Exact, rows: Rows) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        off = np.abs(found["kl"].astype(np.float64) - e.kl) / np.maximum(e.kl, 1e-300)
    off = np.where(np.isfinite(off), off, np.inf)
    return np.where(e.kl >= 1e-12, off, np.nan)


QUANTITIES = (
    Quantity(
        "log_prob", "eps max(1, abs(value))", 4, lambda f, e, r: _log(f["log_prob"], e.log_prob)
    ),
    Quantity("masked_log_softmax", "eps max(1, abs(value))", 4, _log_softmax),
    Quantity("entropy", "eps, relative", 16, _entropy),
    Quantity("kl_divergence", "relative", 1e-5, _kl),
    Quantity(
        "d log_prob",
        "eps, largest entry",
        8,
        lambda f, e, r: _gradient(f["d_log_prob"], e.d_log_prob),
    ),
    Quantity(
        "d entropy", "eps, largest entry", 8, lambda f, e, r: _gradient(f["d_entropy"], e.d_entropy)
    ),
    Quantity(
        "d KL / d p",
        "eps, largest entry",
        8,
        lambda f, e, r: _gradient(f["d_kl_p"], e.d_kl_p, e.d_kl_q),
    ),
    Quantity(
        "d KL / d q", "eps, largest entry", 8, lambda f, e, r: _gradient(f["d_kl_q"], e.d_kl_q)
    ),
)
NEEDS = {
    "log_prob": "log_prob",
    "masked_log_softmax": "log_softmax",
    "entropy": "entropy",
    "kl_divergence": "kl",
    "d log_prob": "d_log_prob",
    "d entropy": "d_entropy",
    "d KL / d p": "d_kl_p",
    "d KL / d q": "d_kl_q",
}
Results = dict[str, dict[str, np.ndarray]]  # library -> quantity -> error of each row
DECADES = ((1e-12, 1e-9), (1e-9, 1e-6), (1e-6, 1e-3), (1e-3, 1), (1, np.inf))


def measure(
    batches: list[tuple[Rows, Exact]], compute: Callable[[Rows], Values]
) -> dict[str, np.ndarray]:
    """The error of each row in each quantity, and the KL itself."""
    errors: dict[str, list[np.ndarray]] = {}
    for rows, expected in batches:
        found = compute(rows)
        for quantity in QUANTITIES:
            if NEEDS[quantity.name] in found:
                error = quantity.error(found, expected, rows)
                errors.setdefault(quantity.name, []).append(error)
        errors.setdefault("kl", []).append(found["kl"].astype(np.float64))
        errors.setdefault("kl of equals", []).append(found["kl_equal"].astype(np.float64))
    return {name: np.concatenate(parts) for name, parts in errors.items()}


def worst_and_median(error: np.ndarray) -> str:
    error = error[~np.isnan(error)]
    return f"{_short(error.max())} / {_short(np.median(error))}" if error.size else "none"


def _short(value: float) -> str:
    return "inf" if np.isinf(value) else "0" if value == 0 else f"{value:.2g}"


def table(results: Results) -> list[str]:
    """Quantity by library: worst and median error over all rows."""
    lines = ["| quantity (unit) | bound | " + " | ".join(results) + " |"]
    lines.append("|---" * (len(results) + 2) + "|")
    for quantity in QUANTITIES:
        cells = [
            worst_and_median(errors[quantity.name]) if quantity.name in errors else "-"
            for errors in results.values()
        ]
        name = f"{quantity.name} ({quantity.unit})"
        lines.append(f"| {name} | {quantity.bound:g} | {' | '.join(cells)} |")
    return lines


def kl_table(results: Results, kl: np.ndarray, pair: np.ndarray) -> list[str]:
    """The KL by its size: worst and median relative error, and the share that came out < 0."""
    lines = ["| KL | rows | " + " | ".join(results) + " |", "|---" * (len(results) + 2) + "|"]
    parts = [(f"{low:g} to {high:g}", (kl >= low) & (kl < high)) for low, high in DECADES]
    parts += [(f"{name} pairs", (pair == name) & (kl >= 1e-12)) for name in np.unique(pair)]
    for name, rows in parts:
        cells: list[str] = []
        for errors in results.values():
            negative = float((errors["kl"][rows] < 0).mean()) if rows.any() else 0.0
            cells.append(worst_and_median(errors["kl_divergence"][rows]))
            if negative:
                cells[-1] += f" ({negative:.1%} < 0)"
        lines.append(f"| {name} | {rows.sum():,} | {' | '.join(cells)} |")
    cells = [f"{(errors['kl of equals'] != 0).mean():.1%}" for errors in results.values()]
    lines.append(f"| equal inputs: not exactly 0 | {len(kl):,} | {' | '.join(cells)} |")
    return lines


def smallest_row(batches: list[tuple[Rows, Exact]], beyond: np.ndarray) -> str:
    """The row with the fewest legal actions among those beyond a bound, as code."""
    start, best = 0, ""
    fewest = sys.maxsize
    for rows, _ in batches:
        for i in np.flatnonzero(beyond[start : start + len(rows.p)]):
            m = rows.mask[i]
            if m.sum() < fewest:
                fewest = int(m.sum())
                action = int(m[: rows.actions[i]].sum())
                parts = [np.array2string(x[i, m], separator=", ") for x in (rows.p, rows.q)]
                best = f"p = {parts[0]}; q = {parts[1]}; action {action}"
        start += len(rows.p)
    return best


def broken_bounds(results: Results, batches: list[tuple[Rows, Exact]] | None = None) -> list[str]:
    """Our own quantities beyond their bound; with ``batches``, each with a row that shows it."""
    broken: list[str] = []
    for name in results:
        if name not in OURS:
            continue
        errors = results[name]
        for quantity in QUANTITIES:
            beyond = errors.get(quantity.name, np.zeros(1)) > quantity.bound
            if beyond.any():
                worst = f"{np.nanmax(errors[quantity.name]):.3g} > {quantity.bound:g}"
                broken.append(f"{name}: {quantity.name} {worst} ({beyond.sum()} rows)")
                if batches is not None:
                    broken[-1] += f"\n    {smallest_row(batches, beyond)}"
        if (errors["kl"] < 0).any():
            broken.append(f"{name}: a KL is negative")
        if (errors["kl of equals"] != 0).any():
            broken.append(f"{name}: a KL of equal inputs is not 0")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows; write nothing")
    parser.add_argument("--only", action="append", metavar="NAME", help="this library only")
    parser.add_argument("--rows", action="store_true", help="show a row for each broken bound")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # peers' own, on inputs they overflow on
    rng = np.random.default_rng(options.seed)
    start = time.time()
    batches: list[tuple[Rows, Exact]] = []
    difference = 0.0
    for actions, count in SIZES.items():
        rows = Rows.draw(count // 10 if options.quick else count, actions, rng)
        batches.append((rows, exact(rows)))
        if actions <= 64:
            difference = max(difference, check_with_mpmath(*batches[-1], sample=50))
    total = sum(len(rows.p) for rows, _ in batches)
    print(
        f"{total:,} rows, exact in {time.time() - start:.0f} s; mpmath differs by {difference:.1g}"
    )
    if difference > 1e-14:  # float64 holds the values that are compared
        raise RuntimeError(f"decimal and mpmath disagree: {difference}")
    results: Results = {}
    missing: list[str] = []
    for name in options.only or CANDIDATES:
        start = time.time()
        try:
            compute = load(name)
        except ImportError as error:
            missing.append(f"Not measured: {name} ({error}).")
            print(missing[-1])
            continue
        results[name] = measure(batches, compute)
        print(f"{name}: {time.time() - start:.0f} s", flush=True)
    kl = np.concatenate([e.kl for _, e in batches])
    pair = np.concatenate([rows.pair for rows, _ in batches])
    first, second = table(results), kl_table(results, kl, pair)
    print("\n".join([*first, "", *second]))
    broken = broken_bounds(results)
    shown = broken_bounds(results, batches) if options.rows else broken
    print("\n".join(shown) or "Every bound of ours holds.")
    if not options.quick and not options.only:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(_page(total, first, second, missing, broken))
        print(f"wrote {PAGE.relative_to(PAGE.parent.parent)}")
    return 1 if broken else 0


def _page(
    total: int, first: list[str], second: list[str], missing: list[str], broken: list[str]
) -> str:
    packages = ("numpy", "torch", "tensorflow-cpu", "ray", "sb3-contrib", "mpmath")
    versions: list[str] = []
    for package in packages:
        try:
            versions.append(f"{package} {version(package)}")
        except ImportError:
            continue
    lines = [
        "# Accuracy",
        "",
        f"Written by `make accuracy`: {total:,} float32 rows, the same for every library, against",
        "60-digit arithmetic on the same inputs. Logits of scale 1e-6 to 1e4, near-deterministic",
        "rows, offsets up to 1e4, 2 to 4,096 actions with half of them legal; pairs of policies",
        "1e-6 to 1e-1 apart, independent ones, and near ones with all logits shifted by up to 1.",
        "Each cell is worst / median error. eps is float32's, 1.19e-7.",
        "",
        *first,
        "",
        "## The KL by its size",
        "",
        "Relative errors; the true KL of PPO's first epochs is 1e-9 to 1e-5. In brackets: how many",
        "came out negative.",
        "",
        *second,
        "",
        *([f"**Bounds that do not hold:** {'; '.join(broken)}.", ""] if broken else []),
        *missing,
        f"Versions: {', '.join(versions)}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
