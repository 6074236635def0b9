"""The examples as a person runs them, from the command line; on Torch see test_rllib_examples."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import rllib_support

pytestmark = rllib_support.RLLIB_MARKS

ROOT = Path(__file__).parent.parent


def run(example: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run from another folder, with the packages on the path as an install puts them there."""
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{example}.py"), *options],
        cwd=ROOT / "examples",
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_masked_ppo_runs_on_tf2() -> None:
    done = run("masked_ppo", "--framework", "tf2", "--iterations", "4")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "  3  return" in done.stdout
    assert "<- chosen" in done.stdout


def test_training_only_layer_runs_on_torch() -> None:
    done = run("training_only_layer", "--iterations", "4")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("trains\n") > 10
    assert "no gradient from any term" in done.stdout


def test_an_example_that_did_not_learn_says_so_and_fails() -> None:
    done = run("custom_loss", "--iterations", "1")
    assert done.returncode != 0
    assert "expected at least 0.9" in done.stderr


@pytest.mark.parametrize("example", sorted(p.stem for p in (ROOT / "examples").glob("*.py")))
def test_every_example_has_the_same_options(example: str) -> None:
    done = run(example, "--help")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "--framework {torch,tf,tf2}" in done.stdout
    assert "--iterations" in done.stdout
