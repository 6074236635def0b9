"""Keras 2 for RLlib on TensorFlow: both orders of import, and what is said where it is too late."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rllib_integration.keras_setup import ENV_VAR, runtime_env

pytestmark = pytest.mark.rllib


def _run(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key != ENV_VAR}
    env.update(environ, TF_CPP_MIN_LOG_LEVEL="3")
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=env, capture_output=True, text=True
    )


_CHECK = """
from rllib_integration.keras_setup import setup_keras
setup_keras()
import tensorflow as tf
assert tf.keras.layers.Dense.__module__.startswith("tf_keras"), tf.keras.layers.Dense.__module__
assert tf.compat.v1.keras.layers.Dense.__module__.startswith("tf_keras")
"""


@pytest.mark.parametrize(
    "first",
    ["import rllib_integration", "import tensorflow, ray.rllib"],
    ids=["integration first", "tensorflow and rllib first"],
)
def test_keras_2_is_chosen_in_either_order_of_import(first: str) -> None:
    result = _run(first + _CHECK)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("first", "environ", "says"),
    [
        ("import tensorflow as tf; tf.keras.layers.Dense", {}, "before TF_USE_LEGACY_KERAS=1"),
        # ray 2.60: this import alone uses tf.keras.
        ("import ray.rllib.algorithms.ppo", {}, "used before TF_USE_LEGACY_KERAS=1"),
        ("import tensorflow", {ENV_VAR: "0"}, "TF_USE_LEGACY_KERAS is set to '0'"),
    ],
    ids=["tf.keras used", "RLlib's PPO imported", "forbidden"],
)
def test_too_late_is_one_error_that_says_what_to_do(
    first: str, environ: dict[str, str], says: str
) -> None:
    result = _run(first + _CHECK, **environ)
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("maskcore.masks.MaskError: ")
    assert says in last
    assert "runtime_env" in last
    assert "before Python starts" in last


def test_ray_2_60_fails_under_keras_3() -> None:
    """The fact that all of this is for; once a newer Ray works with Keras 3, this goes red."""
    code = """
import tensorflow as tf
tf.keras.layers.Dense
tf.compat.v1.enable_eager_execution()
tf.keras.optimizers.Adam(tf.Variable(1e-3, trainable=False))
"""
    result = _run(code)
    assert result.returncode == 1
    assert "learning_rate" in result.stderr


def test_runtime_env_extends_without_changing_the_callers() -> None:
    base = {"env_vars": {"A": "1"}, "pip": ["x"]}
    extended = runtime_env(base)
    assert extended == {"env_vars": {"A": "1", ENV_VAR: "1"}, "pip": ["x"]}
    assert base == {"env_vars": {"A": "1"}, "pip": ["x"]}
    assert runtime_env()["env_vars"] == {ENV_VAR: "1"}


@pytest.mark.xdist_group("ray")
def test_the_workers_of_a_ray_that_was_started_before_use_keras_2() -> None:
    """A worker inherits the variable from the driver, or sets it while it imports the policy."""
    code = """
import ray
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 1024**2)
from rllib_integration import MaskedPPOConfig
from rllib_integration.envs import MaskedChainEnv
config = MaskedPPOConfig().environment(MaskedChainEnv).framework("tf2")
config.env_runners(num_env_runners=1, rollout_fragment_length=16)
config.training(train_batch_size=16, minibatch_size=16, num_epochs=1)
algorithm = config.build_algo()
algorithm.train()
print(algorithm.env_runner_group.foreach_env_runner(
    lambda worker: type(worker.get_policy().model.network.base_model).__module__
))
algorithm.stop()
ray.shutdown()
"""
    result = _run(code)
    assert result.returncode == 0, result.stderr[-3000:]
    modules = result.stdout.strip().splitlines()[-1]
    assert modules.count("tf_keras.src") == 2
