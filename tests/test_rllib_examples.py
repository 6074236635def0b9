"""The examples run, and do what their first lines say; here on Torch."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import rllib_support
from rllib_support import ray_session

__all__ = ["ray_session"]  # A fixture, imported for the tests below.

pytestmark = [*rllib_support.RLLIB_MARKS, pytest.mark.usefixtures("ray_session")]

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_masked_ppo_learns_and_shows_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert example("masked_ppo")["train"]("torch", iterations=4) > 0.9
    assert "<- chosen" in capsys.readouterr().out


def test_training_only_layer_trains_and_with_coefficient_zero_does_not() -> None:
    found = example("training_only_layer")["run"]("torch", iterations=4)
    assert found["losses"][-1] < found["losses"][0] / 2
    assert found["trained"] == "trains"
    assert found["left out"] == "no gradient from any term"


def test_custom_loss_is_the_loss_that_learns() -> None:
    found = example("custom_loss")["train"]("torch", iterations=5)
    assert found["return"] > 0.85
    assert found["logit_cost"] > 0


def test_every_example_is_tested_here() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == [
        "custom_loss",
        "masked_ppo",
        "training_only_layer",
    ]
