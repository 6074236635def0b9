"""Train masked, naive and unmasked; print progress and a table, write demo.png, judge it all."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Nothing is reported, TensorFlow is not needed, and two cores are not shared by 16 threads. Set
# before Ray is imported, and by the demo alone: whoever imports this module may want TensorFlow.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RLLIB_TEST_NO_TF_IMPORT": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OMP_NUM_THREADS": "1",
}
ITERATIONS = 30


def main() -> int:
    """Returns the exit status: 0 where the demo shows what it has to."""
    arguments = _arguments()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _silence()
    started = time.monotonic()
    from rllib_integration.demo.training import NAIVE_OVER_SEEDS, RUNS, Run, train_run

    print(
        "PPO on a chain of 16 positions: 64 actions, 4 of them legal in each position, 1 right.\n"
        f"Three runs of {arguments.iterations * 2048:,} steps each, same seed:\n"
        + "\n".join(f"  {name:9s} {what}" for name, what in RUNS.items()),
        flush=True,
    )

    def show(run: Run) -> None:
        done = len(run.steps)
        if done == 1 or done % 5 == 0 or done == arguments.iterations:
            print(
                f"  {run.name:9s} {run.steps[-1]:7,d} steps  success {run.success[-1]:5.2f}  "
                f"KL {run.kl[-1]:9.5f}  illegal {run.illegal[-1]:5d}  {run.seconds:5.0f} s",
                flush=True,
            )

    runs: list[Run] = []
    with _local_ray():
        for name in RUNS:
            print(f"\n{name}: {RUNS[name]}", flush=True)
            runs.append(
                train_run(name, iterations=arguments.iterations, seed=arguments.seed, progress=show)
            )
    print(f"\n{_table(runs)}\n\nWhat naive ends in is luck: {NAIVE_OVER_SEEDS}.", flush=True)
    if arguments.picture:
        from rllib_integration.demo.picture import draw

        draw(runs, arguments.picture)
        print(f"\npicture: {arguments.picture}")
    faults = _faults({run.name: run for run in runs})
    for fault in faults:
        print(f"FAILED: {fault}")
    print(f"{'failed' if faults else 'ok'} in {time.monotonic() - started:.0f} s")
    return 1 if faults else 0


def _table(runs: list[Any]) -> str:
    rows = [
        f"{'run':10s}{'success':>9s}{'mean KL':>11s}{'largest KL':>12s}{'illegal':>9s}{'s':>6s}"
    ]
    rows += [
        f"{run.name:10s}{run.final_success:9.3f}{run.mean_kl:11.5f}{run.largest_kl:12.5f}"
        f"{sum(run.illegal):9d}{run.seconds:6.0f}"
        for run in runs
    ]
    return "\n".join(rows)


def _faults(runs: dict[str, Any]) -> list[str]:
    masked, unmasked = runs["masked"], runs["unmasked"]
    checks = [
        (masked.final_success >= 0.95, f"masked success {masked.final_success:.3f} < 0.95"),
        (unmasked.final_success <= 0.05, f"unmasked success {unmasked.final_success:.3f} > 0.05"),
        (sum(masked.illegal) == 0, f"masked took {sum(masked.illegal)} illegal actions"),
        (masked.all_kl_finite, f"masked KL is not finite throughout: {masked.kl}"),
    ]
    return [what for holds, what in checks if not holds]


@contextlib.contextmanager
def _local_ray() -> Iterator[None]:
    """A small Ray on this machine, gone again however the block ends."""
    import ray

    def stop(signum: int, _frame: object) -> None:
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGTERM, stop)
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=100 * 1024**2,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    _silence()  # ray.init sets its loggers' levels anew.
    try:
        yield
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, before)


def _silence() -> None:
    """Deprecations of the stack this demo is about; errors are still shown."""
    import ray  # noqa: F401  # Importing it sets its loggers' levels.

    warnings.simplefilter("ignore")
    for name in ("ray", "ray.rllib", "ray.tune"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rllib_integration.demo", description=__doc__)
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, default=Path("demo.png"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
