"""A layer that exists only for training, on Torch or TensorFlow.

    python examples/training_only_layer.py
    python examples/training_only_layer.py --framework tf2

The layer guesses the position from the policy's features, so that the features have to hold it.
Nothing but a loss term uses it: it is not evaluated when the policy acts. It is built in
``build_training_layers``, before the optimizer is, and needs no ``register_variables``. The
gradient report says whether it trains, with the term and with the term's coefficient set to 0.
"""

from __future__ import annotations

import argparse
from typing import Any

from rllib_integration import gradient_report, with_action_masking
from rllib_integration.keras_setup import setup_keras

LENGTH, ACTIONS = 8, 16


def torch_parts() -> tuple[type, Any]:
    """The model and its loss term, Torch."""
    import torch

    from rllib_integration.torch_model import MaskedTorchModel

    class WithGuess(MaskedTorchModel):
        def build_training_layers(self) -> None:
            self.guess = torch.nn.Linear(self.feature_size, LENGTH + 1)

    def guess_loss(model: Any, batch: Any) -> Any:
        position = batch["obs"][:, ACTIONS:].argmax(-1)  # After the mask's columns: a one-hot.
        return torch.nn.functional.cross_entropy(model.guess(model.features()), position)

    return WithGuess, guess_loss


def tf_parts() -> tuple[type, Any]:
    """The model and its loss term, TensorFlow (static graph and eager)."""
    setup_keras()
    import tensorflow as tf

    from rllib_integration.tf_model import MaskedTFModel

    class WithGuess(MaskedTFModel):
        def build_training_layers(self) -> None:
            self.guess = tf.keras.layers.Dense(LENGTH + 1)
            self.guess.build((None, self.feature_size))

    def guess_loss(model: Any, batch: Any) -> Any:
        position = tf.argmax(batch["obs"][:, ACTIONS:], axis=-1)
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=position, logits=model.guess(model.features())
            )
        )

    return WithGuess, guess_loss


def build(framework: str, coefficient: float) -> Any:
    """The algorithm, with the term at this coefficient (a schedule would do as well)."""
    model, loss = torch_parts() if framework == "torch" else tf_parts()
    from ray.rllib.algorithms.ppo import PPOConfig

    from rllib_integration.envs import MaskedChainEnv

    config = with_action_masking(
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
        .environment(MaskedChainEnv, env_config={"length": LENGTH, "num_actions": ACTIONS})
        .framework(framework)
        .env_runners(num_env_runners=0)
        .training(
            train_batch_size=512,
            minibatch_size=128,
            num_epochs=6,
            lr=3e-3,
            model={"custom_model": model, "fcnet_hiddens": [32]},
        )
        .debugging(seed=0)
    )
    config.training(loss_terms={"guess": loss}, loss_coeffs={"guess": coefficient})
    return config.build_algo()


def run(framework: str = "torch", iterations: int = 6) -> dict[str, Any]:
    """Train with the term and without it; returns what was found."""
    found: dict[str, Any] = {"losses": []}
    for name, coefficient in (("trained", 0.5), ("left out", 0.0)):
        algorithm = build(framework, coefficient)
        try:
            for _ in range(iterations if coefficient else 1):
                result = algorithm.train()
                stats = result["info"]["learner"]["default_policy"]["learner_stats"]
                if coefficient:
                    found["losses"].append(float(stats["loss_terms/guess"]))
            policy = algorithm.get_policy()
            batch = algorithm.env_runner.sample().policy_batches["default_policy"]
            report = gradient_report(policy, batch)
            found[name] = report.verdict("guess")
            print(f"\n{framework}, coefficient {coefficient}:\n{report}", flush=True)
        finally:
            algorithm.stop()
    print("\nloss of the guess, an iteration:", [round(loss, 3) for loss in found["losses"]])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", default="torch", choices=("torch", "tf", "tf2"))
    parser.add_argument("--iterations", type=int, default=6)
    arguments = parser.parse_args()
    import ray

    ray.init(num_cpus=1, include_dashboard=False)
    try:
        found = run(arguments.framework, arguments.iterations)
    finally:
        ray.shutdown()
    if found["losses"][-1] > found["losses"][0] / 2:
        raise SystemExit(f"the auxiliary loss did not fall by half: {found['losses']}")
    if (found["trained"], found["left out"]) != ("trains", "no gradient from any term"):
        raise SystemExit(f"the gradient report says {found}")


if __name__ == "__main__":
    main()
