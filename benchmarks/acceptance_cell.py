"""One cell of the support table: train one kind of network on one framework, and measure it.

``python -m benchmarks.acceptance_cell tf2 lstm local`` trains it in this process; it prints what it
found as one line of JSON at the end. ``benchmarks.acceptance`` runs all of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from typing import Any

from benchmarks.local_ray import local_ray, set_environment

__all__ = ["FRAMEWORKS", "NETWORKS", "PLACES", "Finding", "faults"]

FRAMEWORKS = ("torch", "tf2", "tf")
PLACES = {"local": 0, "two env runners": 2}
SUCCESS, MAX_ITERATIONS = 0.95, 40
# float32 at two batch sizes; a mask on one side only is off by tenths.
LOG_RATIO = 1e-4

# An episode that runs out of steps is valued as if it went on, so that near 1 the last step, which
# ends the rewards, would be worth no more now than later, and some trainings never take it.
GAMMA = 0.9

# Name in the table -> (what the environment shows, RLlib's model config).
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "fully connected": ("vector", {"fcnet_hiddens": [32, 32]}),
    "vision": ("image", {"conv_filters": [[8, [6, 6], 6], [32, [7, 7], 1]]}),
    "complex, nested": ("nested", {"fcnet_hiddens": [32, 32], "post_fcnet_hiddens": [32]}),
    "LSTM": (
        "vector",
        {"fcnet_hiddens": [32], "use_lstm": True, "lstm_cell_size": 32, "max_seq_len": 6},
    ),
    "attention": (
        "vector",
        {
            "fcnet_hiddens": [32],
            "use_attention": True,
            "attention_dim": 32,
            "attention_head_dim": 16,
            "attention_num_heads": 2,
            "attention_memory_inference": 6,
            "attention_memory_training": 6,
            "max_seq_len": 6,
        },
    ),
}


@dataclasses.dataclass
class Finding:
    """What one training showed.

    Attributes:
        success: Share of the last iteration's episodes that reached the end of the chain.
        illegal: Illegal actions in all of training.
        largest_kl: Largest KL(old, new) of a row in the whole training, nats; NaN counts.
        log_ratio: Worst ``|new log-prob - stored log-prob|`` of a row before the first update, and
            again after the last.
        dropped: Rows that the loss left out, or found non-finite.
        iterations: PPO iterations it took.
        seconds: Wall-clock time, building included.
    """

    success: float = 0.0
    illegal: int = 0
    largest_kl: float = 0.0
    log_ratio: float = 0.0
    dropped: float = 0.0
    iterations: int = 0
    seconds: float = 0.0


def faults(finding: Finding) -> list[str]:
    """What is not as it has to be; empty where the cell holds."""
    checks = [
        (finding.success >= SUCCESS, f"success {finding.success:.3f} < {SUCCESS}"),
        (finding.illegal == 0, f"{finding.illegal} illegal actions"),
        (math.isfinite(finding.largest_kl), f"KL {finding.largest_kl}"),
        (finding.log_ratio <= LOG_RATIO, f"|log ratio| {finding.log_ratio:.1e} > {LOG_RATIO:.0e}"),
        (finding.dropped == 0, f"{finding.dropped:g} rows dropped or non-finite"),
    ]
    return [what for holds, what in checks if not holds]


def cell_config(framework: str, network: str, place: str) -> Any:
    """Masked PPO on a chain of 6 positions, 16 actions, 4 of them legal in each."""
    from ray.rllib.algorithms.callbacks import DefaultCallbacks
    from ray.rllib.algorithms.ppo import PPOConfig

    from rllib_integration import with_action_masking
    from rllib_integration.envs import MaskedChainEnv

    class CountEpisodes(DefaultCallbacks):
        def on_episode_end(self, *, episode: Any, **_: Any) -> None:
            info = episode.last_info_for()
            episode.custom_metrics["success"] = float(info["success"])
            episode.custom_metrics["illegal"] = float(info["illegal"])

    observation, model = NETWORKS[network]
    runners = PLACES[place]
    return with_action_masking(
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
        .environment(
            MaskedChainEnv,
            env_config={
                "length": 6,
                "num_actions": 16,
                "num_legal": 4,
                "observation": observation,
            },
        )
        .framework(framework)
        .env_runners(num_env_runners=runners, num_envs_per_env_runner=8 // max(runners, 1))
        .training(
            lr=3e-3,
            gamma=GAMMA,
            train_batch_size=768,
            minibatch_size=128,
            num_epochs=6,
            model=model,
        )
        .callbacks(CountEpisodes)
        .reporting(metrics_num_episodes_for_smoothing=1, keep_per_episode_custom_metrics=True)
        .debugging(seed=0)
    )


def train_cell(framework: str, network: str, place: str) -> Finding:
    """Train until two iterations in a row succeed, or ``MAX_ITERATIONS``; Ray has to be there."""
    finding = Finding()
    start = time.monotonic()
    algorithm = cell_config(framework, network, place).build_algo()
    try:
        finding.log_ratio = worst_log_ratio(algorithm)
        good = 0
        while finding.iterations < MAX_ITERATIONS and good < 2:
            read_result(algorithm.train(), finding)
            good = good + 1 if finding.success >= SUCCESS else 0
        finding.log_ratio = max(finding.log_ratio, worst_log_ratio(algorithm))
    finally:
        algorithm.stop()
    finding.seconds = time.monotonic() - start
    return finding


def read_result(result: dict[str, Any], finding: Finding) -> None:
    """Add one training iteration's metrics to the finding."""
    metrics = result["env_runners"]["custom_metrics"]
    stats = result["info"]["learner"]["default_policy"]["learner_stats"]
    success = metrics.get("success", [])
    finding.iterations += 1
    finding.success = sum(success) / max(len(success), 1)
    finding.illegal += int(sum(metrics.get("illegal", [])))
    # RLlib's statistics leave rows of infinite KL out; the loss that was minimised does not.
    for value in (stats["kl"], stats["max_kl"], stats["total_loss"]):
        if not math.isfinite(value):
            finding.largest_kl = math.nan
    if not math.isnan(finding.largest_kl):
        finding.largest_kl = max(finding.largest_kl, float(stats["max_kl"]))
    finding.dropped += sum(float(v) for k, v in stats.items() if k.startswith("rows_"))


def worst_log_ratio(algorithm: Any) -> float:
    """Over batches that the env runners sample now, evaluated by the policy that learns.

    RLlib chooses the first action of a batch while it samples the batch before, with the weights of
    then: so the second batch counts.
    """
    for _ in range(2):
        batches = algorithm.env_runner_group.foreach_env_runner(
            lambda worker: worker.sample(),
            local_env_runner=not algorithm.config.num_env_runners,
        )
    policy = algorithm.get_policy()
    worst = 0.0
    for batch in batches:
        ratios = policy.log_ratios(batch.policy_batches["default_policy"])
        # NaN has to come out on top.
        worst = max(worst, float(abs(ratios).max()), key=lambda x: math.inf if x != x else x)
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.acceptance_cell")
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("place", choices=PLACES)
    arguments = parser.parse_args()
    set_environment(arguments.framework)
    with local_ray(num_cpus=1 + PLACES[arguments.place]):
        finding = train_cell(arguments.framework, arguments.network, arguments.place)
    print(json.dumps(dataclasses.asdict(finding)))
    return 1 if faults(finding) else 0


if __name__ == "__main__":
    sys.exit(main())
