"""The masked TorchModelV2 and its distribution, as RLlib calls them."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import rllib_support
import torch
from gymnasium import spaces
from ray.rllib.models.torch.complex_input_net import ComplexInputNetwork
from ray.rllib.models.torch.fcnet import FullyConnectedNetwork
from ray.rllib.models.torch.torch_modelv2 import TorchModelV2
from ray.rllib.models.torch.visionnet import VisionNetwork
from ray.rllib.policy.sample_batch import SampleBatch
from rllib_support import (
    SMALL,
    MaskedChainEnv,
    illegal_steps,
    masked,
    old_stack,
    policy_of,
    sampled,
    worker_of,
)
from torch import nn

import maskcore
from maskcore import MaskError
from rllib_integration import with_action_masking
from rllib_integration.torch_distribution import (
    split_inputs,
)
from rllib_integration.torch_model import MaskedTorchModel

pytestmark = rllib_support.RLLIB_MARKS

NETWORKS = {
    "vector": FullyConnectedNetwork,
    "image": VisionNetwork,
    "nested": ComplexInputNetwork,
}


def flat_observations(policy: Any, rows: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Random observations with random masks, flattened as RLlib does."""
    space = policy.observation_space.original_space
    space.seed(seed)
    preprocessor = policy_preprocessor(policy)
    observations = [space.sample() for _ in range(rows)]
    for observation in observations:
        observation["action_mask"][0] = 1
    return np.stack([preprocessor.transform(observation) for observation in observations])


def policy_preprocessor(policy: Any) -> Any:
    from ray.rllib.models.preprocessors import get_preprocessor

    space = policy.observation_space.original_space
    return get_preprocessor(space)(space)


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_network_inside_is_the_one_rllib_chooses_for_the_observation(kind: str) -> None:
    worker = worker_of(masked(old_stack(observation=kind)))
    policy = worker.get_policy()
    assert type(policy.model) is MaskedTorchModel
    assert type(policy.model.network) is NETWORKS[kind]
    assert all(name.startswith("network.") for name in policy.model.state_dict())
    by_name = policy.model.variables(as_dict=True)
    assert len(by_name) == len(policy.model.variables()) == len(set(map(id, by_name.values())))
    assert len(policy.model.trainable_variables(as_dict=True)) == len(by_name)
    batch = sampled(worker)
    assert batch[SampleBatch.ACTION_DIST_INPUTS].shape == (64, 2 * 6)
    stats = policy.learn_on_batch(batch)["learner_stats"]
    assert np.isfinite(stats["kl"])
    assert all(np.isfinite(p).all() for p in policy.get_weights().values())


@pytest.mark.parametrize("kind", NETWORKS)
def test_no_sampled_action_is_illegal(kind: str) -> None:
    worker = worker_of(masked(old_stack(observation=kind)))
    batch = sampled(worker)
    assert illegal_steps(batch) == 0
    _, mask = split_inputs(torch.from_numpy(batch[SampleBatch.ACTION_DIST_INPUTS]))
    assert mask.sum(-1).tolist() == [2] * 64


class CardsEnv(gym.Env[Any, Any]):
    """FAULTS C10: {mask, observations: {Discrete(5), Box(10, 10)}}, and a Tuple inside."""

    def __init__(self, config: Any = None) -> None:
        board = spaces.Box(-1.0, 1.0, (10, 10), np.float32)
        inside = spaces.Dict({"cards": spaces.Discrete(5), "board": board})
        self.action_space = spaces.Discrete(4)
        self.observation_space = spaces.Dict(
            {
                "action_mask": spaces.Box(0, 1, (4,), np.float32),
                "observations": spaces.Tuple([inside, spaces.MultiBinary(3)]),
            }
        )
        self.observation_space.seed(0)
        self._mask = np.zeros(4, np.float32)

    def _observe(self) -> Any:
        self._mask = np.zeros(4, np.float32)
        self._mask[self.np_random.integers(4)] = 1
        return {**self.observation_space.sample(), "action_mask": self._mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: int) -> Any:
        legal = bool(self._mask[action])
        return self._observe(), float(legal), not legal, False, {"illegal": not legal}


def test_nested_observations_train_without_illegal_actions() -> None:
    worker = worker_of(masked(old_stack(CardsEnv)))
    batch = sampled(worker)
    assert batch["rewards"].min() == 1.0
    stats = worker.get_policy().learn_on_batch(batch)["learner_stats"]
    assert stats["kl"] == 0.0  # One legal action a row: both policies are the same one-hot.


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_mask_never_reaches_the_value_function_or_the_logits(kind: str) -> None:
    """FAULTS C17."""
    policy = policy_of(masked(old_stack(observation=kind)))
    flat = flat_observations(policy, 8)
    other = flat.copy()
    other[:, :6] = 1.0 - other[:, :6]  # "action_mask" sorts first: its columns lead.
    outputs, values = [], []
    for observations in (flat, other):
        out, _ = policy.model({"obs": torch.from_numpy(observations)})
        outputs.append(out)
        values.append(policy.model.value_function())
    assert torch.equal(values[0], values[1])
    assert torch.equal(outputs[0][:, :6], outputs[1][:, :6])
    assert torch.equal(outputs[0][:, 6:], 1 - outputs[1][:, 6:])


def test_a_forward_pass_leaves_the_batch_as_it_was_and_can_be_repeated() -> None:
    """FAULTS C7: RLlib's own masked RLModule pops the mask from the batch it is given."""
    worker = worker_of(masked(model={"use_lstm": True}))
    policy = worker.get_policy()
    batch = sampled(worker)
    before = {k: copy.deepcopy(v) for k, v in dict(batch).items()}
    lazy = policy._lazy_tensor_dict(batch.copy())
    seq_lens = torch.ones(64, dtype=torch.int32)
    state = [torch.zeros(64, 256)] * 2
    first, _ = policy.model(lazy, state, seq_lens)
    second, _ = policy.model(lazy, state, seq_lens)
    assert torch.equal(first, second)
    assert set(lazy) == set(before)
    np.testing.assert_array_equal(dict.__getitem__(lazy, "obs"), before["obs"])
    nested = {"action_mask": torch.ones(2, 6), "observations": torch.zeros(2, 5)}
    given = {"obs": dict(nested)}
    policy.model.forward(given, [torch.zeros(2, 256)] * 2, torch.ones(2, dtype=torch.int32))
    assert set(given) == {"obs"}
    assert {k: v.tolist() for k, v in given["obs"].items()} == {
        k: v.tolist() for k, v in nested.items()
    }


def test_no_masking_puts_ones_where_the_mask_would_be() -> None:
    policy = policy_of(with_action_masking(old_stack(), no_masking=True))
    flat = flat_observations(policy, 8)
    flat[:, :6] = 0.0
    out, _ = policy.model({"obs": torch.from_numpy(flat)})
    assert torch.equal(out[:, 6:], torch.ones(8, 6))


def test_inference_takes_raw_flattened_batched_and_single_observations() -> None:
    """FAULTS C9: the same masked argmax, whatever form the observation comes in."""
    policy = policy_of(masked(old_stack(observation="nested")))
    with torch.no_grad():  # Logits far apart, so that equal actions mean something.
        for parameter in policy.model.parameters():
            parameter.mul_(5.0)
    env = MaskedChainEnv({**SMALL, "observation": "nested"})
    raw = []
    for position in range(4):
        env.reset()
        env._position = position
        raw.append(env._observation())
    preprocessor = policy_preprocessor(policy)
    flat = np.stack([preprocessor.transform(observation) for observation in raw])
    expected, _, extra = policy.compute_actions(flat, explore=False)
    logits, mask = np.split(extra[SampleBatch.ACTION_DIST_INPUTS], 2, -1)
    np.testing.assert_array_equal(mask, [observation["action_mask"] for observation in raw])
    np.testing.assert_array_equal(expected, maskcore.mode(logits, mask))
    single_flat = [policy.compute_single_action(row, explore=False)[0] for row in flat]
    single_raw = [policy.compute_single_action(row, explore=False)[0] for row in raw]
    listed, _, _ = policy.compute_actions(raw, explore=False)
    batched = {
        "action_mask": np.stack([row["action_mask"] for row in raw]),
        "observations": {
            "position": np.arange(4),
            "parts": (np.stack([row["observations"]["parts"][0] for row in raw]), np.arange(4)),
        },
    }
    batched_raw, _, _ = policy.compute_actions(batched, explore=False)
    from_dict, _, _ = policy.compute_actions_from_input_dict({"obs": batched}, explore=False)
    for actions in (single_flat, single_raw, listed, batched_raw, from_dict):
        np.testing.assert_array_equal(actions, expected)
    with pytest.raises(MaskError, match=r"no key 'action_mask'. Found \['observations'\]"):
        policy.compute_single_action({"observations": raw[0]["observations"]})


def test_a_mask_that_is_not_zeros_and_ones_is_refused_at_inference() -> None:
    policy = policy_of(masked())
    flat = flat_observations(policy, 2)
    flat[1, :6] = [0.447, -0.447, 0, 0, 0, 0]
    with pytest.raises(MaskError, match="observation filter"):
        policy.compute_actions(flat)


def test_a_model_whose_mask_no_distribution_would_read_is_an_error_at_build() -> None:
    config = old_stack().training(model={"custom_model": MaskedTorchModel})
    with pytest.raises(MaskError, match=r"asked for 6 outputs for 6 actions. Expected 12"):
        policy_of(config)


def test_a_stock_policy_would_put_the_lstm_outside_the_mask_and_is_refused() -> None:
    """FAULTS C4: Ray 2.60 wraps a custom model in its LSTM, which asks it for features."""
    config = old_stack().training(
        model={
            "custom_model": MaskedTorchModel,
            "custom_action_dist": "maskcore_torch_masked_categorical",
            "use_lstm": True,
        }
    )
    import rllib_integration

    rllib_integration.register()
    with pytest.raises(MaskError, match="with_action_masking"):
        policy_of(config)


class OwnNetwork(TorchModelV2, nn.Module):
    """A user's model: sees the observation alone and returns A logits."""

    def __init__(
        self, obs_space: Any, action_space: Any, num_outputs: int, *args: Any, hidden: int = 8
    ) -> None:
        nn.Module.__init__(self)
        TorchModelV2.__init__(self, obs_space, action_space, num_outputs, *args)
        self.body = nn.Linear(obs_space.shape[0], hidden)
        self._logits = nn.Linear(hidden, num_outputs)
        self.value = nn.Linear(hidden, 1)
        self._last: Any = None

    def forward(self, input_dict: Any, state: Any, seq_lens: Any) -> Any:
        self._last = torch.tanh(self.body(input_dict["obs_flat"]))
        return self._logits(self._last), state

    def value_function(self) -> Any:
        return self.value(self._last)[:, 0]

    def metrics(self) -> dict[str, Any]:
        return {"own_metric": 7.0}


def test_a_users_own_network_goes_inside_the_mask() -> None:
    config = masked(model={"custom_model": OwnNetwork, "custom_model_config": {"hidden": 9}})
    worker = worker_of(config)
    policy = worker.get_policy()
    assert type(policy.model.network) is OwnNetwork
    assert policy.model.network.body.weight.shape == (9, 5)
    batch = sampled(worker)
    assert illegal_steps(batch) == 0
    assert policy.learn_on_batch(batch)["model"] == {"own_metric": 7.0}
    assert policy.model.features().shape == (64, 9)


def test_a_network_that_returns_something_else_than_a_logits_is_named() -> None:
    class TooMany(OwnNetwork):
        def forward(self, input_dict: Any, state: Any, seq_lens: Any) -> Any:
            logits, state = super().forward(input_dict, state, seq_lens)
            return torch.cat([logits, logits], -1), state

    with pytest.raises(MaskError, match=r"TooMany returned \(32, 12\). Expected \[B, 6\]"):
        policy_of(masked(model={"custom_model": TooMany}))


@pytest.mark.parametrize(
    ("kind", "model", "size"),
    [
        ("vector", {}, 16),
        ("image", {}, 256),
        ("nested", {}, 48),
        ("vector", {"use_lstm": True, "lstm_cell_size": 12}, 12),
        ("vector", {"use_attention": True, "attention_dim": 10}, 10),
    ],
)
def test_features_are_what_the_logits_layer_is_given(
    kind: str, model: dict[str, Any], size: int
) -> None:
    worker = worker_of(masked(old_stack(observation=kind), model=model))
    policy = worker.get_policy()
    assert policy.model.feature_size == size
    policy.learn_on_batch(sampled(worker))
    assert policy.model.features().shape[-1] == size
    assert policy.model.features().requires_grad
