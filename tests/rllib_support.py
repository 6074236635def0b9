"""What the tests of the RLlib integration share: configs, policies, batches without an algorithm.

A ``RolloutWorker`` of Ray 2.60 samples and learns in this process without a running Ray, which
makes most of these tests take a fraction of a second. Import this module before anything of Ray.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rllib_integration.keras_setup import import_tensorflow_first

with warnings.catch_warnings():  # What Ray imports raises deprecation warnings of its own.
    warnings.simplefilter("ignore")
    import_tensorflow_first()  # Or Ray would switch eager execution off for all other tests.
    import ray
    import ray.rllib.algorithms.ppo

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.evaluation.rollout_worker import RolloutWorker
from ray.rllib.utils.metrics.learner_info import LearnerInfoBuilder

from rllib_integration import MaskedPPOConfig, with_action_masking
from rllib_integration.envs import MaskedChainEnv

# Tests that build algorithms share one Ray, hence one process under pytest-xdist. Warnings of Ray's
# own code are not this project's; those of ours stay errors.
RLLIB_MARKS = [
    pytest.mark.rllib,
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SMALL = {"length": 4, "num_actions": 6, "num_legal": 2}


def old_stack(env: Any = MaskedChainEnv, framework: str = "torch", **env_config: Any) -> PPOConfig:
    """A small plain PPO on the old API stack: 64 steps a batch, 2 epochs of 32."""
    return (
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
        .environment(env, env_config={**SMALL, **env_config})
        .framework(framework)
        .env_runners(num_env_runners=0, rollout_fragment_length=64)
        .training(
            train_batch_size=64,
            minibatch_size=32,
            num_epochs=2,
            lr=1e-3,
            model={"fcnet_hiddens": [16]},
        )
        .debugging(seed=0)
    )


def masked(
    config: PPOConfig | None = None, *, model: dict[str, Any] | None = None, **training: Any
) -> MaskedPPOConfig:
    """``old_stack()`` under the mask; ``model`` and ``training`` are set on top."""
    result: Any = with_action_masking(config or old_stack())
    if model:
        result.training(model=model)
    return result.training(**training)


def worker_of(config: PPOConfig) -> RolloutWorker:
    """A local worker with its policy, no algorithm and no Ray around it."""
    config = config.copy(copy_frozen=False)
    config.validate()
    env: Any = config.env
    return RolloutWorker(
        env_creator=lambda context: env(dict(context)),
        default_policy_class=config.algo_class.get_default_policy_class(config),
        config=config,
    )


def policy_of(config: PPOConfig) -> Any:
    """The policy of ``worker_of(config)``."""
    return worker_of(config).get_policy()


@contextmanager
def algorithm_of(config: PPOConfig) -> Iterator[Any]:
    """The algorithm of ``config``, stopped at the end; needs the ``ray_session`` fixture."""
    algorithm = config.build_algo()
    try:
        yield algorithm
    finally:
        algorithm.stop()


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One small local Ray for all tests of a process; its workers find the tests' own classes."""
    here = str(Path(__file__).parent)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            num_cpus=3,
            include_dashboard=False,
            object_store_memory=100 * 1024**2,
            log_to_driver=False,
            ignore_reinit_error=True,
            runtime_env={"env_vars": {"PYTHONPATH": path}},
        )
    yield
    ray.shutdown()


def learner_stats(result: dict[str, Any]) -> dict[str, Any]:
    """The statistics of the one policy in a training result."""
    return result["info"]["learner"]["default_policy"]["learner_stats"]


def reduced(result: dict[str, Any]) -> dict[str, Any]:
    """The statistics of one ``learn_on_batch`` as RLlib reduces those of all minibatches.

    It takes the largest of what is named ``max_...`` with a warning, here an error, for NaN alone.
    """
    builder = LearnerInfoBuilder()
    builder.add_learn_on_batch_results(result)
    return builder.finalize()["default_policy"]["learner_stats"]


def sampled(worker: RolloutWorker) -> Any:
    """One postprocessed batch of the worker's one policy."""
    return worker.sample().policy_batches["default_policy"]


def illegal_steps(batch: Any) -> int:
    """How many steps of ``MaskedChainEnv`` were illegal: only those end it without a reward."""
    return int((batch["terminateds"] & (batch["rewards"] == 0)).sum())


def weights_of(policy: Any) -> dict[str, Any]:
    """Copies of the weights: Ray 2.60's ``get_weights`` on Torch returns views of live memory."""
    return {name: weight.copy() for name, weight in policy.get_weights().items()}
