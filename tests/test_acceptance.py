"""Acceptance runs can fail: each kind of fault is seen, and a bad cell does not end the rest."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from benchmarks import draws
from benchmarks.acceptance import Cell, run_cell, table
from benchmarks.acceptance_cell import Finding, faults, read_result

GOOD = Finding(success=0.97, largest_kl=0.3, log_ratio=1e-6, iterations=9)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"success": 0.94}, "success 0.940"),
        ({"illegal": 1}, "1 illegal"),
        ({"largest_kl": math.inf}, "KL inf"),
        ({"largest_kl": math.nan}, "KL nan"),
        ({"log_ratio": 0.01}, "log ratio"),
        ({"log_ratio": math.nan}, "log ratio"),
        ({"dropped": 0.25}, "rows"),
    ],
)
def test_each_fault_fails_its_cell(change: dict[str, Any], said: str) -> None:
    assert faults(GOOD) == []
    found = faults(dataclasses.replace(GOOD, **change))
    assert len(found) == 1
    assert said in found[0]


def result(**stats: float) -> dict[str, Any]:
    learner = {"kl": 0.01, "max_kl": 0.2, "total_loss": 1.0, "rows_empty_mask": 0.0, **stats}
    return {
        "env_runners": {"custom_metrics": {"success": [1.0, 0.0], "illegal": [0.0, 1.0]}},
        "info": {"learner": {"default_policy": {"learner_stats": learner}}},
    }


def test_a_training_result_is_added_up() -> None:
    finding = Finding()
    read_result(result(), finding)
    read_result(result(max_kl=0.1, rows_masks_differ=0.5), finding)
    assert finding == Finding(0.5, illegal=2, largest_kl=0.2, dropped=0.5, iterations=2)


@pytest.mark.parametrize("name", ["kl", "max_kl", "total_loss"])
def test_a_number_that_is_not_finite_stays_seen(name: str) -> None:
    finding = Finding()
    read_result(result(**{name: math.inf}), finding)
    read_result(result(), finding)
    assert math.isnan(finding.largest_kl)


def test_a_cell_that_cannot_run_or_takes_too_long_is_reported() -> None:
    broken = run_cell(Cell("torch", "no such network", "local"))
    slow = run_cell(Cell("torch", "vision", "local"), limit=0.2)
    assert "no such network" in broken.faults[0]
    assert slow.faults == ["not done after 0 s"]
    lines = table([Cell("tf", "LSTM", "local", GOOD), broken, slow])
    assert sum("**fails**" in line for line in lines) == 2
    assert sum(line.startswith("- fails: torch") for line in lines) == 2
    assert "All 1 hold." in table([Cell("tf", "LSTM", "local", GOOD)])


@pytest.mark.parametrize("pattern", draws.PATTERNS)
@pytest.mark.parametrize("dtype", draws.DTYPES)
def test_rows_to_draw_from_have_a_legal_action_and_a_distribution(pattern: str, dtype: str) -> None:
    logits, mask = draws.make_rows(np.random.default_rng(0), pattern, dtype, 40, 200)
    assert str(logits.dtype) == dtype
    assert mask.any(-1).all()
    assert not mask.all()
    legal = np.where(mask, logits.astype(np.float64), -np.inf)
    assert np.isfinite(legal.max(-1)).all()
    assert np.isnan(logits[~mask].astype(np.float64)).any()
    if pattern == "down to 1e-30":
        assert (np.isfinite(legal) & (legal - legal.max(-1, keepdims=True) < -68)).any()


def test_an_illegal_draw_is_counted() -> None:
    mask = np.array([[True, False], [True, True], [False, True]])
    wrong = np.array([[0, 1, 1], [1, 1, 0], [2, 0, 1], [0, -1, 1]])
    calls = iter(wrong)
    assert draws.count_illegal(lambda: next(calls), mask, 4) == 0 + 2 + 1 + 1


@pytest.mark.parametrize("sampler", draws.SAMPLERS)
def test_every_sampler_draws_legal_actions(sampler: str) -> None:
    logits, mask = draws.make_rows(np.random.default_rng(0), "one end", "float16", 64, 500)
    assert draws.count_illegal(draws.SAMPLERS[sampler](logits, mask), mask, 3) == 0
