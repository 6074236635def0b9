"""Fixtures and settings that every test shares."""

from __future__ import annotations

import importlib.util
import os
import re
from types import ModuleType

# RLlib on TensorFlow needs tf-keras, chosen before TensorFlow is first imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import pytest
from hypothesis import HealthCheck, settings

from backends import get_backend

BACKENDS = ("numpy", "torch", "tf")

_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=30, **_common)
settings.register_profile("ci", max_examples=500, derandomize=True, **_common)
settings.register_profile("acceptance", max_examples=20_000, **_common)
settings.load_profile(os.environ.get("MASKCORE_PROFILE", "dev"))


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to run without a framework where CI asks for all of them."""
    if os.environ.get("MASKCORE_REQUIRE_ALL"):
        for package in ("torch", "tensorflow", "tf_keras", "ray"):
            if importlib.util.find_spec(package) is None:
                raise pytest.UsageError(f"{package} is not installed: its tests would be missing.")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> ModuleType:
    """Each backend module in turn."""
    return get_backend(request.param)


# --- how many Hypothesis examples ran, counted over all workers ------------------------------

_EXAMPLES = "hypothesis examples"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Put the number of examples on the report, which travels between xdist's processes."""
    if call.when == "teardown":
        found = re.findall(r"(\d+) passing examples", getattr(item, "hypothesis_statistics", ""))
        if found:
            item.user_properties.append((_EXAMPLES, sum(map(int, found))))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the total under the tests."""
    reports = [r for reports in terminalreporter.stats.values() for r in reports]
    properties = [
        value
        for report in reports
        if getattr(report, "when", None) == "teardown"
        for key, value in report.user_properties
        if key == _EXAMPLES
    ]
    terminalreporter.write_line(
        f"{sum(properties)} Hypothesis examples in {len(properties)} property tests "
        f"(profile {os.environ.get('MASKCORE_PROFILE', 'dev')})"
    )
