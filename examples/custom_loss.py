"""The whole policy loss replaced by one's own, on Torch or TensorFlow.

    python examples/custom_loss.py
    python examples/custom_loss.py --framework tf2

``policy_loss`` is called in place of PPO's loss: here a clipped surrogate with a regulariser that
keeps the logits small, and no KL term. ``loss_stats`` and ``grad_stats`` report what one wants to
watch under names of one's own. The mask needs no attention: it comes with the distribution.
"""

from __future__ import annotations

import argparse
from typing import Any

from rllib_integration import with_action_masking
from rllib_integration.keras_setup import setup_keras

CLIP, LOGIT_COST = 0.2, 1e-3


def torch_loss(policy: Any, model: Any, dist_class: Any, batch: Any) -> Any:
    """Clipped surrogate + value loss + the mean square of the logits; and two statistics."""
    import torch

    inputs, _ = model(batch)
    distribution = dist_class(inputs, model)
    ratio = torch.exp(distribution.logp(batch["actions"]) - batch["action_logp"])
    clipped = torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
    surrogate = torch.min(ratio * batch["advantages"], clipped * batch["advantages"]).mean()
    value_loss = ((model.value_function() - batch["value_targets"]) ** 2).mean()
    logit_cost = (distribution.logits**2).mean()
    loss = -surrogate + value_loss + LOGIT_COST * logit_cost
    return loss, {"own_surrogate": surrogate, "logit_cost": logit_cost}


def tf_loss(policy: Any, model: Any, dist_class: Any, batch: Any) -> Any:
    """The same in TensorFlow."""
    import tensorflow as tf

    inputs, _ = model(batch)
    distribution = dist_class(inputs, model)
    ratio = tf.exp(distribution.logp(batch["actions"]) - batch["action_logp"])
    clipped = tf.clip_by_value(ratio, 1 - CLIP, 1 + CLIP)
    surrogate = tf.reduce_mean(
        tf.minimum(ratio * batch["advantages"], clipped * batch["advantages"])
    )
    value_loss = tf.reduce_mean((model.value_function() - batch["value_targets"]) ** 2)
    logit_cost = tf.reduce_mean(distribution.logits**2)
    loss = -surrogate + value_loss + LOGIT_COST * logit_cost
    return loss, {"own_surrogate": surrogate, "logit_cost": logit_cost}


def torch_mean_reward(policy: Any, batch: Any) -> Any:
    return batch["rewards"].mean()


def tf_mean_reward(policy: Any, batch: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_mean(batch["rewards"])


def torch_largest_gradient(policy: Any, gradients: dict[str, Any]) -> Any:
    import torch

    return torch.stack([gradient.abs().max() for gradient in gradients.values()]).max()


def tf_largest_gradient(policy: Any, gradients: dict[str, Any]) -> Any:
    import tensorflow as tf

    return tf.reduce_max([tf.reduce_max(tf.abs(gradient)) for gradient in gradients.values()])


def train(framework: str = "torch", iterations: int = 10) -> dict[str, float]:
    """Train with the loss above; returns the last iteration's statistics and return."""
    if framework != "torch":
        setup_keras()
    from ray.rllib.algorithms.ppo import PPOConfig

    from rllib_integration.envs import MaskedChainEnv

    if framework == "torch":
        loss, mean_reward, largest_gradient = torch_loss, torch_mean_reward, torch_largest_gradient
    else:
        loss, mean_reward, largest_gradient = tf_loss, tf_mean_reward, tf_largest_gradient
    config = with_action_masking(
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
        .environment(MaskedChainEnv, env_config={"length": 6, "num_actions": 16, "num_legal": 3})
        .framework(framework)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=8)
        .training(
            train_batch_size=1024,
            minibatch_size=128,
            num_epochs=6,
            lr=3e-3,
            model={"fcnet_hiddens": [32]},
        )
        .debugging(seed=0)
    )
    config.training(
        policy_loss=loss,
        loss_stats={"mean_reward": mean_reward},
        grad_stats={"largest_gradient": largest_gradient},
    )
    algorithm = config.build_algo()
    found: dict[str, float] = {}
    try:
        for iteration in range(iterations):
            result = algorithm.train()
            stats = result["info"]["learner"]["default_policy"]["learner_stats"]
            names = ("own_surrogate", "logit_cost", "mean_reward", "largest_gradient")
            found = {name: float(stats[name]) for name in names}
            found["return"] = float(result["env_runners"]["episode_reward_mean"])
            shown = "  ".join(f"{name} {value:.4f}" for name, value in found.items())
            print(f"{iteration:3d}  {shown}", flush=True)
    finally:
        algorithm.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", default="torch", choices=("torch", "tf", "tf2"))
    parser.add_argument("--iterations", type=int, default=10)
    arguments = parser.parse_args()
    import ray

    ray.init(num_cpus=1, include_dashboard=False)
    try:
        found = train(arguments.framework, arguments.iterations)
    finally:
        ray.shutdown()
    if found["return"] < 0.9:
        raise SystemExit(f"the mean return is {found['return']:.3f}, expected at least 0.9")


if __name__ == "__main__":
    main()
