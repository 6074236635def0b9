"""A small Ray on this machine for a measurement, gone again however the measurement ends."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import warnings
from collections.abc import Iterator

__all__ = ["local_ray", "set_environment"]


def set_environment(framework: str) -> None:
    """What has to be set before RLlib, Torch or TensorFlow is imported.

    Args:
        framework: As in ``config.framework(...)``; "torch" keeps TensorFlow out of the process.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    if framework == "torch":
        os.environ.setdefault("RLLIB_TEST_NO_TF_IMPORT", "1")


@contextlib.contextmanager
def local_ray(num_cpus: int = 1) -> Iterator[None]:
    """Ray with ``num_cpus``; what RLlib says about its deprecations is not shown, errors are."""
    import ray

    def stop(signum: int, _frame: object) -> None:
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGTERM, stop)
    warnings.simplefilter("ignore")
    ray.init(
        num_cpus=num_cpus,
        include_dashboard=False,
        object_store_memory=100 * 1024**2,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    for name in ("ray", "ray.rllib", "ray.tune"):  # ray.init sets their levels anew.
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, before)
