"""MaskedPPO on TensorFlow as a whole: workers, metrics, checkpoints in another process."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rllib_support
from rllib_support import (
    SMALL,
    MaskedChainEnv,
    algorithm_of,
    learner_stats,
    masked,
    ray_session,
)
from rllib_tf_support import A, change_weights, config_of
from test_rllib_tf_training_layers import OwnLoss, PredictsPosition, position_loss

from rllib_integration.demo.training import CountEpisodes
from rllib_integration.tf_eager_policy import MaskedPPOTF2Policy
from rllib_integration.tf_graph_policy import MaskedPPOTF1Policy

__all__ = ["ray_session"]  # A fixture, imported for the tests below.

pytestmark = [*rllib_support.RLLIB_MARKS, pytest.mark.usefixtures("ray_session")]

in_graph_and_traced = pytest.mark.parametrize("name", ["tf", "tf2 traced"])
POLICIES = {"tf": MaskedPPOTF1Policy, "tf2 traced": MaskedPPOTF2Policy}


@in_graph_and_traced
def test_training_on_a_worker_takes_no_illegal_action_and_learns(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In a worker's process TensorFlow has v2 behaviour off: Ray imports it first there."""
    config = masked(
        config_of(name).env_runners(num_env_runners=1, rollout_fragment_length=64),
        model={"fcnet_hiddens": [32]},
        train_batch_size=512,
        minibatch_size=64,
        num_epochs=10,
        lr=5e-3,
    ).callbacks(CountEpisodes)
    with caplog.at_level(logging.WARNING), algorithm_of(config) as algorithm:
        results = [algorithm.train() for _ in range(5)]
    assert not [r for r in caplog.records if "KL divergence is non-finite" in r.getMessage()]
    for result in results:
        assert result["env_runners"]["custom_metrics"]["illegal_max"] == 0.0
        stats = learner_stats(result)
        assert np.isfinite(stats["kl"])
        assert stats["max_kl"] >= stats["kl"] >= 0.0
        assert stats["rows_illegal_action"] == 0.0
    assert results[-1]["env_runners"]["custom_metrics"]["success_mean"] > 0.9


@pytest.mark.parametrize("masking", [True, False], ids=["ours", "ray 2.60"])
@in_graph_and_traced
def test_a_worker_starts_with_the_weights_that_learn(name: str, masking: bool) -> None:
    """Ray 2.60 syncs the weights after the first update only; before it no ratio is 1."""
    config = config_of(name).env_runners(num_env_runners=1, rollout_fragment_length=64)
    with algorithm_of(masked(config) if masking else config) as algorithm:
        local, remote = algorithm.env_runner_group.foreach_env_runner(
            lambda worker: [np.asarray(w) for w in _listed(worker.get_policy().get_weights())]
        )
        same = all(np.array_equal(a, b) for a, b in zip(local, remote, strict=True))
        assert same is masking
        if masking:
            (batch,) = algorithm.env_runner_group.foreach_env_runner(
                lambda worker: worker.sample(), local_env_runner=False
            )
            ratios = algorithm.get_policy().log_ratios(batch.policy_batches["default_policy"])
            assert np.abs(ratios).max() < 1e-6


def _listed(weights: Any) -> list[Any]:
    return list(weights.values()) if isinstance(weights, dict) else list(weights)


@in_graph_and_traced
def test_everything_that_is_in_the_loss_is_in_the_result(name: str) -> None:
    """FAULTS C19."""
    config = masked(
        config_of(name),
        model={"custom_model": OwnLoss},
        loss_terms={"position": position_loss},
        loss_coeffs={"position": [[0, 1.0], [64, 0.5]]},
        lr=0.02,
    )
    with algorithm_of(config) as algorithm:
        assert isinstance(algorithm.get_policy(), POLICIES[name])
        first, second = learner_stats(algorithm.train()), algorithm.train()
    own = second["info"]["learner"]["default_policy"]["model"]["own"]
    second = learner_stats(second)
    assert first["loss_terms/position"] > second["loss_terms/position"] > 0
    assert first["loss_coeffs/position"] == 1.0
    assert second["loss_coeffs/position"] == 0.5
    assert second["custom_loss"] == pytest.approx(own, rel=1e-4)


@in_graph_and_traced
def test_a_loss_replaced_on_the_policy_class_is_the_one_the_algorithm_runs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULTS C18: the algorithm builds the class that the user changes, or one derived from it."""

    def loss(*_: Any) -> Any:
        raise RuntimeError("the user's own loss")

    with pytest.raises(RuntimeError, match="the user's own loss"):
        masked(config_of(name), policy_loss=loss).build_algo()
    monkeypatch.setattr(POLICIES[name], "loss", loss)
    with pytest.raises(RuntimeError, match="the user's own loss"):
        masked(config_of(name)).build_algo()


IN_ANOTHER_PROCESS = """
import sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {tests!r})
import numpy as np, ray
{first}
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.policy.policy import Policy
observations = np.load({observations!r})
policy = Policy.from_checkpoint({policy!r})
np.save({actions!r}, policy.compute_actions(observations, explore=False)[0])
ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 * 1024**2)
algorithm = Algorithm.from_checkpoint({checkpoint!r})
again = algorithm.get_policy().compute_actions(observations, explore=False)[0]
np.testing.assert_array_equal(again, np.load({actions!r}))
algorithm.train()
algorithm.stop()
ray.shutdown()
"""


@in_graph_and_traced
def test_a_checkpoint_gives_the_same_actions_in_another_process(name: str, tmp_path: Path) -> None:
    """FAULTS C8: Algorithm.from_checkpoint and Policy.from_checkpoint; 1,000 observations."""
    config = masked(
        config_of(name, observation="nested"),
        model={"custom_model": PredictsPosition},
        loss_terms={"position": lambda model, batch: (model.position_logits() ** 2)[0, 0]},
    )
    rng = np.random.default_rng(0)
    masks = rng.random((1000, A)) < 0.4
    masks[:, 0] |= ~masks.any(-1)
    paths = {
        "first": "import rllib_support" if name == "tf2 traced" else "import rllib_integration",
        "tests": str(Path(__file__).parent),
        "observations": str(tmp_path / "observations.npy"),
        "actions": str(tmp_path / "actions.npy"),
        "checkpoint": str(tmp_path / "algorithm"),
        "policy": str(tmp_path / "policy"),
    }
    with algorithm_of(config) as algorithm:
        algorithm.train()
        policy = algorithm.get_policy()
        change_weights(policy, lambda _, w: 3 * w)
        size = policy.observation_space.shape[0] - A
        rest = rng.normal(size=(1000, size)).astype(np.float32)
        observations = np.concatenate([masks.astype(np.float32), rest], -1)
        np.save(paths["observations"], observations)
        expected = policy.compute_actions(observations, explore=False)[0]
        algorithm.save(paths["checkpoint"])
        policy.export_checkpoint(paths["policy"])
        env = MaskedChainEnv({**SMALL, "observation": "nested"})
        observation, _ = env.reset()
        single = policy.compute_single_action(observation, explore=False)[0]
        assert algorithm.compute_single_action(observation, explore=False) == single
    assert masks[np.arange(1000), expected].all()
    assert len(np.unique(expected)) > 1
    code = textwrap.dedent(IN_ANOTHER_PROCESS).format(**paths)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    np.testing.assert_array_equal(np.load(paths["actions"]), expected)
