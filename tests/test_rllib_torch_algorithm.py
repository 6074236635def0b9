"""MaskedPPO on Torch as a whole: workers, metrics, checkpoints in another process, Tune."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rllib_support
from ray.rllib.policy.policy import Policy
from rllib_support import (
    SMALL,
    MaskedChainEnv,
    algorithm_of,
    learner_stats,
    masked,
    old_stack,
    ray_session,
    weights_of,
)
from test_rllib_torch_training_layers import OwnLoss, PredictsPosition, position_loss

from rllib_integration import with_action_masking
from rllib_integration.demo.training import CountEpisodes

__all__ = ["ray_session"]  # A fixture, imported for the tests below.

pytestmark = [*rllib_support.RLLIB_MARKS, pytest.mark.usefixtures("ray_session")]


def test_training_on_two_workers_takes_no_illegal_action_and_learns() -> None:
    config = masked(
        old_stack().env_runners(num_env_runners=2, rollout_fragment_length=64),
        model={"fcnet_hiddens": [32]},
        train_batch_size=1024,
        minibatch_size=64,
        num_epochs=10,
        lr=5e-3,
    ).callbacks(CountEpisodes)
    with algorithm_of(config) as algorithm:
        results = [algorithm.train() for _ in range(4)]
    for result in results:
        assert result["env_runners"]["custom_metrics"]["illegal_max"] == 0.0
        stats = learner_stats(result)
        assert np.isfinite(stats["kl"])
        assert np.isfinite(stats["max_kl"])
        assert stats["max_kl"] >= stats["kl"] >= 0.0
        assert stats["rows_illegal_action"] == 0.0
    assert results[-1]["env_runners"]["custom_metrics"]["success_mean"] > 0.9


def test_everything_that_is_in_the_loss_is_in_the_result() -> None:
    """FAULTS C19: on Torch, RLlib's aggregation over minibatches keeps it too."""
    config = masked(
        model={"custom_model": OwnLoss},
        loss_terms={"position": position_loss},
        loss_coeffs={"position": [[0, 1.0], [64, 0.5]]},
        loss_stats={"steps": lambda policy, batch: float(len(batch["obs"]))},
        grad_stats={"entries": lambda policy, gradients: float(len(gradients))},
    )
    with algorithm_of(config) as algorithm:
        first, second = learner_stats(algorithm.train()), algorithm.train()
    own = second["info"]["learner"]["default_policy"]["model"]["own"]
    second = learner_stats(second)
    assert first["loss_terms/position"] > 0
    assert second["loss_terms/position"] < first["loss_terms/position"]
    assert first["loss_coeffs/position"] == 1.0
    assert second["loss_coeffs/position"] == 0.5
    assert second["custom_loss"] == pytest.approx(own, rel=1e-4)
    assert second["steps"] == 32
    assert second["entries"] > 4


def broken_loss(policy: Any, model: Any, dist_class: Any, batch: Any) -> Any:
    raise RuntimeError("the user's own loss")


def test_a_replaced_loss_that_raises_raises() -> None:
    """FAULTS C18."""
    with pytest.raises(RuntimeError, match="the user's own loss"):
        masked(policy_loss=broken_loss).build_algo()


def test_a_loss_replaced_on_the_policy_class_is_the_one_the_algorithm_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULTS C18: the algorithm builds the very class that the user changes."""
    from rllib_integration.torch_policy import MaskedPPOTorchPolicy

    with algorithm_of(masked()) as algorithm:
        assert type(algorithm.get_policy()) is MaskedPPOTorchPolicy

        def loss(self: Any, model: Any, dist_class: Any, train_batch: Any) -> Any:
            raise RuntimeError("on the class")

        monkeypatch.setattr(MaskedPPOTorchPolicy, "loss", loss)
        with pytest.raises(ValueError, match="on the class"):
            algorithm.train()


IN_ANOTHER_PROCESS = """
import sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {tests!r})
import numpy as np, ray
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


def test_a_checkpoint_gives_the_same_actions_in_another_process(tmp_path: Path) -> None:
    """FAULTS C8: Algorithm.from_checkpoint and Policy.from_checkpoint; 1,000 observations."""
    config = masked(
        old_stack(observation="nested"),
        model={"custom_model": PredictsPosition},
        loss_terms={"position": position_loss},
    )
    rng = np.random.default_rng(0)
    masks = rng.random((1000, 6)) < 0.4
    masks[:, 0] |= ~masks.any(-1)
    paths = {
        "tests": str(Path(__file__).parent),
        "observations": str(tmp_path / "observations.npy"),
        "actions": str(tmp_path / "actions.npy"),
        "checkpoint": str(tmp_path / "algorithm"),
        "policy": str(tmp_path / "policy"),
    }
    with algorithm_of(config) as algorithm:
        algorithm.train()
        policy = algorithm.get_policy()
        size = policy.observation_space.shape[0] - 6
        rest = rng.normal(size=(1000, size)).astype(np.float32)
        observations = np.concatenate([masks.astype(np.float32), rest], -1)
        np.save(paths["observations"], observations)
        expected = policy.compute_actions(observations, explore=False)[0]
        algorithm.save(paths["checkpoint"])
        policy.export_checkpoint(paths["policy"])
    assert masks[np.arange(1000), expected].all()
    assert len(np.unique(expected)) > 1
    code = textwrap.dedent(IN_ANOTHER_PROCESS).format(**paths)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    np.testing.assert_array_equal(np.load(paths["actions"]), expected)


def test_a_policy_checkpoint_keeps_the_coefficients_and_the_dict_space(tmp_path: Path) -> None:
    with algorithm_of(masked()) as algorithm:
        policy = algorithm.get_policy()
        policy.kl_coeff = 0.77
        policy.export_checkpoint(str(tmp_path / "policy"))
        weights = weights_of(policy)
    restored = Policy.from_checkpoint(str(tmp_path / "policy"))
    assert type(restored) is type(policy)
    assert restored.kl_coeff == 0.77
    assert sorted(restored.observation_space.original_space.spaces) == [
        "action_mask",
        "observations",
    ]
    for name, weight in weights_of(restored).items():
        np.testing.assert_array_equal(weight, weights[name])


def test_the_algorithm_infers_from_the_environments_own_observations() -> None:
    """FAULTS C9, through the algorithm: its preprocessors, one observation or several."""
    with algorithm_of(masked()) as algorithm:
        algorithm.train()
        policy = algorithm.get_policy()
        env = MaskedChainEnv(SMALL)
        observation, _ = env.reset()
        expected = int(policy.compute_single_action(observation, explore=False)[0])
        assert algorithm.compute_single_action(observation, explore=False) == expected
        # An OrderedDict is flattened as it comes by Ray 2.60 (FAULTS B8).
        other_order = OrderedDict(reversed(observation.items()))
        assert algorithm.compute_single_action(other_order, explore=False) == expected
        several = algorithm.compute_actions({"a": observation, "b": other_order}, explore=False)
        assert several == {"a": expected, "b": expected}
    assert observation["action_mask"][expected] == 1


def test_two_policies_with_keys_of_their_own_train_side_by_side() -> None:
    """Settings of a policy's own: another key for the mask, and no mask at all."""
    from ray.rllib.env.multi_agent_env import make_multi_agent
    from ray.rllib.policy.policy import PolicySpec

    pair = make_multi_agent(MaskedChainEnv)
    config = with_action_masking(
        old_stack(pair, num_agents=2).multi_agent(
            policies={
                "masked": PolicySpec(),
                "open": PolicySpec(
                    config={
                        "action_masking": {
                            "mask_key": "action_mask",
                            "obs_key": "observations",
                            "no_masking": True,
                            "empty_masks": "error",
                        }
                    }
                ),
            },
            policy_mapping_fn=lambda agent, episode, **_: "open" if agent else "masked",
        )
    )
    with algorithm_of(config) as algorithm:
        result = algorithm.train()
        assert algorithm.get_policy("masked").model.no_masking is False
        assert algorithm.get_policy("open").model.no_masking is True
    for name in ("masked", "open"):
        stats = result["info"]["learner"][name]["learner_stats"]
        assert np.isfinite(stats["kl"])
