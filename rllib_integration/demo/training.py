"""Training the three runs of the demo, and what is measured of each."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

from ray.rllib.algorithms.callbacks import DefaultCallbacks
from ray.rllib.algorithms.ppo import PPOConfig

from rllib_integration.config import with_action_masking
from rllib_integration.demo.naive import NaiveMaskedModel
from rllib_integration.envs import MaskedChainEnv

__all__ = ["RUNS", "Run", "train_run"]

# Name -> what it is, in the words of the picture.
RUNS = {
    "masked": "mask in sampling and in the update",
    "naive": "mask in sampling only, forgotten in the update",
    "unmasked": "no mask; an illegal action ends the episode",
}
# What the naive run ends in is luck; measured at seeds 0 to 7, Ray 2.60, torch 2.13. Masked ended
# at 100% and unmasked at 0% at every seed tried.
NAIVE_OVER_SEEDS = "over 8 seeds: 0% four times, 100% four times"
FINAL_ITERATIONS = 3


@dataclasses.dataclass
class Run:
    """What one run did, an entry an iteration.

    Attributes:
        name: One of ``RUNS``.
        steps: Environment steps sampled so far.
        success: Share of the iteration's episodes that reached the end of the chain.
        kl: KL(old, new) in nats as PPO measured it, mean over the iteration's minibatches.
        illegal: Illegal actions in the iteration.
        episodes: Episodes that ended in the iteration.
        seconds: Wall-clock time of the whole run, building included.
    """

    name: str
    steps: list[int] = dataclasses.field(default_factory=list)
    success: list[float] = dataclasses.field(default_factory=list)
    kl: list[float] = dataclasses.field(default_factory=list)
    illegal: list[int] = dataclasses.field(default_factory=list)
    episodes: list[int] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    @property
    def final_success(self) -> float:
        """Success over the episodes of the last iterations."""
        episodes = self.episodes[-FINAL_ITERATIONS:]
        successes = [
            rate * n for rate, n in zip(self.success[-FINAL_ITERATIONS:], episodes, strict=True)
        ]
        return sum(successes) / max(sum(episodes), 1)

    @property
    def mean_kl(self) -> float:
        return sum(self.kl) / max(len(self.kl), 1)

    @property
    def largest_kl(self) -> float:
        """NaN counts as largest."""
        return math.nan if any(map(math.isnan, self.kl)) else max(self.kl, default=math.nan)

    @property
    def all_kl_finite(self) -> bool:
        return bool(self.kl) and all(map(math.isfinite, self.kl))


class CountEpisodes(DefaultCallbacks):
    """Hand the environment's own account of an episode to RLlib's metrics."""

    def on_episode_end(self, *, episode: Any, **_: Any) -> None:
        info = episode.last_info_for()
        episode.custom_metrics["success"] = float(info["success"])
        episode.custom_metrics["illegal"] = float(info["illegal"])


def run_config(name: str, *, seed: int) -> PPOConfig:
    """The same PPO for the three runs; they differ in the mask alone."""
    config = (
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
        .environment(MaskedChainEnv)
        .framework("torch")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=16)
        .training(
            lr=1e-3,
            train_batch_size=2048,
            minibatch_size=256,
            num_epochs=8,
            model={"fcnet_hiddens": [64, 64]},
        )
        .callbacks(CountEpisodes)
        .reporting(metrics_num_episodes_for_smoothing=1, keep_per_episode_custom_metrics=True)
        .debugging(seed=seed)
    )
    if name == "naive":
        return config.training(model={"custom_model": NaiveMaskedModel})
    return with_action_masking(config, no_masking=name == "unmasked")


def train_run(
    name: str, *, iterations: int, seed: int, progress: Callable[[Run], None] = lambda run: None
) -> Run:
    """Train one run; Ray has to be initialised.

    Args:
        name: One of ``RUNS``.
        iterations: PPO iterations of 2,048 environment steps.
        seed: The same for the three runs.
        progress: Called after each iteration with what there is so far.
    """
    run = Run(name)
    start = time.monotonic()
    algorithm = run_config(name, seed=seed).build_algo()
    try:
        for _ in range(iterations):
            result = algorithm.train()
            metrics = result["env_runners"]["custom_metrics"]
            successes = metrics.get("success", [])
            run.steps.append(int(result["num_env_steps_sampled"]))
            run.episodes.append(len(successes))
            run.success.append(sum(successes) / max(len(successes), 1))
            run.illegal.append(int(sum(metrics.get("illegal", []))))
            run.kl.append(float(result["info"]["learner"]["default_policy"]["learner_stats"]["kl"]))
            run.seconds = time.monotonic() - start
            progress(run)
    finally:
        algorithm.stop()
    return run
