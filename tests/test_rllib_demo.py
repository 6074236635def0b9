"""The demo's environment, its verdict, its picture, and that it leaves no process behind."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import rllib_support
import torch
from gymnasium.utils.env_checker import check_env

from rllib_integration.demo import __main__ as demo
from rllib_integration.demo.naive import NaiveMaskedModel
from rllib_integration.demo.training import FINAL_ITERATIONS, RUNS, Run, run_config
from rllib_integration.envs import MaskedChainEnv

pytestmark = rllib_support.RLLIB_MARKS


@pytest.mark.parametrize("kind", ["vector", "image", "nested"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_environment_keeps_gymnasiums_contract(kind: str) -> None:
    check_env(MaskedChainEnv({"observation": kind}), skip_render_check=True)


def test_the_environment_is_the_chain_it_says() -> None:
    env = MaskedChainEnv()
    assert isinstance(env.action_space, gym.spaces.Discrete)
    assert env.action_space.n == 64
    observation, _ = env.reset()
    masks, total = [], 0.0
    for position in range(16):
        mask = observation["action_mask"]
        masks.append(tuple(mask))
        assert mask.sum() == 4
        wrong = next(a for a in np.flatnonzero(mask) if a != env.right[position])
        observation, reward, done, _, info = env.step(int(wrong))
        assert (reward, done, info["position"], info["illegal"]) == (0.0, False, position, False)
        observation, reward, done, _, info = env.step(int(env.right[position]))
        total += reward
    assert done
    assert info["success"]
    assert total == pytest.approx(1.0)
    assert len(set(masks)) == 16
    observation, _ = env.reset()
    illegal = int(np.flatnonzero(observation["action_mask"] == 0)[0])
    _, reward, done, _, info = env.step(illegal)
    assert (reward, done, info["illegal"], info["success"]) == (0.0, True, True, False)


def test_the_environment_never_hands_out_the_same_mask_array_twice() -> None:
    env = MaskedChainEnv()
    first, _ = env.reset()
    first["action_mask"][:] = 0
    second, _ = env.reset()
    assert second["action_mask"].sum() == 4


def run_of(name: str, **values: Any) -> Run:
    good = {
        "steps": [2048, 4096],
        "success": [0.0, 1.0 if name == "masked" else 0.0],
        "kl": [0.01, 0.002],
        "illegal": [0, 0],
        "episodes": [0, 100],
    }
    return Run(name, **{**good, **values})


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({}, None),
        ({"masked": {"success": [0.0, 0.9]}}, "masked success 0.900 < 0.95"),
        ({"masked": {"illegal": [0, 1]}}, "1 illegal actions"),
        ({"masked": {"kl": [0.01, math.inf]}}, "not finite"),
        ({"masked": {"kl": [math.nan, 0.01]}}, "not finite"),
        ({"masked": {"kl": []}}, "not finite"),
        ({"unmasked": {"success": [0.0, 0.06]}}, "unmasked success 0.060 > 0.05"),
        ({"naive": {"success": [0.0, 1.0], "kl": [2.0, 9.0]}}, None),
    ],
)
def test_the_verdict_fails_where_the_demo_does_not_show_what_it_has_to(
    changed: dict[str, Any], fault: str | None
) -> None:
    runs = {name: run_of(name, **changed.get(name, {})) for name in RUNS}
    faults = demo._faults(runs)
    assert [fault in text for text in faults] == ([] if fault is None else [True])


def test_the_final_success_is_over_the_episodes_of_the_last_iterations() -> None:
    assert FINAL_ITERATIONS == 3
    run = run_of("masked", success=[0.0, 1.0, 0.5, 1.0], episodes=[9, 10, 20, 10])
    assert run.final_success == pytest.approx(30 / 40)
    assert run_of("masked", success=[], episodes=[]).final_success == 0.0


def test_the_table_and_the_picture_hold_the_three_runs(tmp_path: Path) -> None:
    from rllib_integration.demo.picture import draw

    runs = [run_of(name) for name in RUNS]
    table = demo._table(runs)
    assert [line.split()[0] for line in table.splitlines()] == ["run", *RUNS]
    draw(runs, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_the_naive_run_is_wrong_before_anything_is_learned() -> None:
    """What the demo shows, on one batch: the ratio of the naive policy is not 1, ours is.

    The mean that RLlib logs of a batch overflows on the naive model's sentinel.
    """
    naive = rllib_support.worker_of(run_config("naive", seed=0))
    batch = rllib_support.sampled(naive)
    policy = naive.get_policy()
    assert isinstance(policy.model, NaiveMaskedModel)
    policy.model.train()
    lazy = policy._lazy_tensor_dict(batch)
    with torch.no_grad():
        inputs, _ = policy.model(lazy)
        log_prob = policy.dist_class(inputs, policy.model).logp(lazy["actions"])
    assert (log_prob - lazy["action_logp"]).mean().item() == pytest.approx(-math.log(16), abs=0.1)
    masked = rllib_support.worker_of(run_config("masked", seed=0))
    ratios = masked.get_policy().log_ratios(rllib_support.sampled(masked))
    assert np.abs(ratios).max() < 1e-6


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path, end: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rllib_integration.demo", "--picture", str(tmp_path / "x.png")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # So that its processes can be told from those of other tests.
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("  masked") and "steps" in line:
            break
    assert _alive(process.pid) > 1  # Ray's processes are there, or this test shows nothing.
    process.send_signal(end)
    process.stdout.close()
    assert process.wait(60) != 0
    deadline = time.monotonic() + 30
    while _alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert _alive(process.pid) == 0
    assert not (tmp_path / "x.png").exists()


def _alive(leader: int) -> int:
    """Processes in the session that ``leader`` started, or whose ancestor it is; no zombies."""
    parents, sessions = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
                sessions[int(entry.name)] = int(fields[3])
    known = {pid for pid, session in sessions.items() if session == leader} | {leader}
    while more := {pid for pid, parent in parents.items() if parent in known} - known:
        known |= more
    return sum(pid in parents for pid in known - {os.getpid()})
