"""Masked PPO in RLlib, start to end, on Torch or TensorFlow.

    python examples/masked_ppo.py
    python examples/masked_ppo.py --framework tf2

The environment is a row of doors: in each room a few of many doors can be opened, and one of those
leads on. The environment says which can be opened, under the key "action_mask"; that is all that
masking asks of it.
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rllib_integration import mask_trace, with_action_masking

# RLlib after rllib_integration, which prepares TensorFlow for it where TensorFlow is used.
from rllib_integration.keras_setup import setup_keras

ROOMS, DOORS, OPEN = 6, 20, 3


class Rooms(gym.Env[dict[str, Any], int]):
    """Open the right door in each room; a door that cannot be opened ends the episode."""

    def __init__(self, config: Any = None) -> None:
        rng = np.random.default_rng(0)
        self.doors = np.array([rng.choice(DOORS, OPEN, replace=False) for _ in range(ROOMS)])
        self.action_space = spaces.Discrete(DOORS)
        self.observation_space = spaces.Dict(
            {
                "observations": spaces.Box(0.0, 1.0, (ROOMS + 1,), np.float32),
                "action_mask": spaces.MultiBinary(DOORS),
            }
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.room = self.steps = 0
        return self.observe(), {}

    def step(self, action: int) -> Any:
        if action not in self.doors[self.room]:
            return self.observe(), -1.0, True, False, {}
        self.steps += 1
        right = action == self.doors[self.room][0]
        self.room += int(right)
        done = self.room == ROOMS
        return self.observe(), float(right) / ROOMS, done, self.steps >= 3 * ROOMS, {}

    def observe(self) -> dict[str, Any]:
        mask = np.zeros(DOORS, np.int8)
        mask[self.doors[min(self.room, ROOMS - 1)]] = 1
        return {"observations": np.eye(ROOMS + 1, dtype=np.float32)[self.room], "action_mask": mask}


def train(framework: str = "torch", iterations: int = 12) -> float:
    """Train; returns the last iteration's mean episode return (1.0: every room is passed)."""
    if framework != "torch":
        setup_keras()
    from ray.rllib.algorithms.ppo import PPOConfig

    config = with_action_masking(
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
        .environment(Rooms)
        .framework(framework)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=8)
        .training(
            train_batch_size=1024,
            minibatch_size=128,
            num_epochs=6,
            lr=2e-3,
            model={"fcnet_hiddens": [64]},
        )
        .debugging(seed=0)
    )
    algorithm = config.build_algo()
    try:
        reward = float("nan")
        for iteration in range(iterations):
            result = algorithm.train()
            reward = result["env_runners"]["episode_reward_mean"]
            stats = result["info"]["learner"]["default_policy"]["learner_stats"]
            print(f"{iteration:3d}  return {reward:6.3f}  KL {stats['kl']:.5f}", flush=True)
        observation, _ = Rooms().reset()
        print(mask_trace(algorithm.get_policy(), [observation]))
    finally:
        algorithm.stop()
    return reward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", default="torch", choices=("torch", "tf", "tf2"))
    parser.add_argument("--iterations", type=int, default=12)
    arguments = parser.parse_args()
    import ray

    ray.init(num_cpus=1, include_dashboard=False)
    try:
        reward = train(arguments.framework, arguments.iterations)
    finally:
        ray.shutdown()
    if reward < 0.9:
        raise SystemExit(f"the mean return is {reward:.3f}, expected at least 0.9")


if __name__ == "__main__":
    main()
