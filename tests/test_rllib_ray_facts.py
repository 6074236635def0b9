"""Facts about Ray 2.60 that the integration deals with; a new Ray has to be read where one fails.

Facts that a test of a feature shows in passing are there: the order of keys, the Atari RAM
preprocessor (test_rllib_observations), the batch of zeros (test_rllib_torch_ppo), the two windows
of attention (test_rllib_torch_recurrent), Keras (test_rllib_tf_*).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import ray
import rllib_support
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.ppo_torch_policy import PPOTorchPolicy
from ray.rllib.models.torch.fcnet import FullyConnectedNetwork
from rllib_support import illegal_steps, masked, old_stack, policy_of, sampled, worker_of

import rllib_integration
from rllib_integration.torch_distribution import TorchMaskedCategorical

pytestmark = rllib_support.RLLIB_MARKS

A = 6


def test_these_are_facts_about_ray_2_60() -> None:
    assert ray.__version__.startswith("2.60.")


def test_an_observation_filter_normalises_the_mask() -> None:
    """FAULTS C6. Hence with_action_masking refuses it."""
    worker = worker_of(old_stack().env_runners(observation_filter="MeanStdFilter"))
    assert not np.isin(sampled(worker)["obs"][:, :A], [0.0, 1.0]).all()


def test_random_timesteps_draw_illegal_actions() -> None:
    """FAULTS C12. Hence with_action_masking refuses them; the model is masked here."""
    rllib_integration.register()
    config = old_stack().training(
        model={
            "custom_model": "maskcore_torch_model",
            "custom_action_dist": "maskcore_torch_masked_categorical",
        }
    )
    config.env_runners(exploration_config={"random_timesteps": 1000})
    assert illegal_steps(sampled(worker_of(config))) > 0


def test_use_lstm_asks_a_custom_model_for_features_instead_of_logits() -> None:
    """FAULTS C4. Hence the masked model builds the recurrent network itself."""
    asked: list[Any] = []

    class Custom(FullyConnectedNetwork):
        def __init__(self, obs_space: Any, action_space: Any, num_outputs: Any, *args: Any):
            asked.append(num_outputs)
            super().__init__(obs_space, action_space, num_outputs, *args)

    policy = policy_of(old_stack().training(model={"custom_model": Custom, "use_lstm": True}))
    assert asked == [None]
    assert type(policy.model).__name__ == "Custom_as_LSTMWrapper"


def test_an_lstm_with_previous_actions_fails_on_gymnasiums_own_size() -> None:
    """Hence the network is given Discrete(A) with a Python int."""
    model = {"use_lstm": True, "lstm_use_prev_action": True}
    with pytest.raises(TypeError, match="input_size should be of type int, got: int64"):
        policy_of(old_stack().training(model=model))
    assert policy_of(masked(model=model)).model.network.lstm.input_size == 16 + A


def test_the_new_stack_is_the_default_of_ppo_and_refuses_a_custom_model() -> None:
    config = PPOConfig()
    assert config.enable_rl_module_and_learner
    assert config.enable_env_runner_and_connector_v2
    with pytest.raises(ValueError, match="custom_model"):
        config.training(model={"custom_model": FullyConnectedNetwork}).validate()


def test_rllibs_own_loss_lets_a_mask_mismatch_into_the_kl_coefficient() -> None:
    """FAULTS C20. Hence the rows are dropped: an infinite KL raises the coefficient forever."""
    worker = worker_of(masked())
    policy, batch = worker.get_policy(), sampled(worker)
    batch["action_dist_inputs"] = batch["action_dist_inputs"].copy()
    batch["action_dist_inputs"][3, A:] = 1
    lazy = policy._lazy_tensor_dict(batch)
    PPOTorchPolicy.loss(policy, policy.model, TorchMaskedCategorical, lazy)
    assert torch.isinf(policy.model.tower_stats["mean_kl_loss"])
    policy.update_kl(float("inf"))
    assert policy.kl_coeff == pytest.approx(0.3)


def test_weights_of_a_torch_policy_are_views_of_live_memory() -> None:
    """Hence a test that compares weights before and after copies them."""
    worker = worker_of(masked())
    policy = worker.get_policy()
    before = policy.get_weights()
    policy.learn_on_batch(sampled(worker))
    for name, weight in policy.get_weights().items():
        np.testing.assert_array_equal(weight, before[name])


def test_padding_at_the_end_of_sequences_is_zeros_which_are_empty_masks() -> None:
    """FAULTS B7. Hence an empty row is a padded row: 0 in every term of the loss."""
    worker = worker_of(masked(model={"use_lstm": True, "max_seq_len": 5}))
    policy, batch = worker.get_policy(), sampled(worker)
    padded = policy.prepared(batch)
    padded.set_get_interceptor(None)
    empty = (padded["obs"][:, :A] == 0).all(-1)
    assert len(padded["obs"]) == 5 * len(padded["seq_lens"]) > 64
    assert empty.sum() == len(padded["obs"]) - padded["seq_lens"].sum()
