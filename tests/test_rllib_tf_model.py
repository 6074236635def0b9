"""The masked TFModelV2 and its distribution, as RLlib calls them, in graph and eager."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rllib_support
import rllib_tf_support
import tensorflow as tf
from gymnasium import spaces
from ray.rllib.models.preprocessors import get_preprocessor
from ray.rllib.models.tf.complex_input_net import ComplexInputNetwork
from ray.rllib.models.tf.fcnet import FullyConnectedNetwork
from ray.rllib.models.tf.tf_modelv2 import TFModelV2
from ray.rllib.models.tf.visionnet import VisionNetwork
from ray.rllib.policy.sample_batch import SampleBatch
from rllib_support import (
    SMALL,
    MaskedChainEnv,
    illegal_steps,
    masked,
    policy_of,
    sampled,
    worker_of,
)
from rllib_tf_support import A, change_weights, config_of, evaluate

import maskcore
import rllib_integration
from maskcore import MaskError
from rllib_integration import with_action_masking
from rllib_integration.tf_model import MaskedTFModel

pytestmark = rllib_tf_support.TF_MARKS

tf1 = tf.compat.v1
in_graph_and_eager = pytest.mark.parametrize("name", ["tf", "tf2"])
NETWORKS = {"vector": FullyConnectedNetwork, "image": VisionNetwork, "nested": ComplexInputNetwork}


def flat_observations(policy: Any, rows: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Random observations with random masks, flattened as RLlib does."""
    space = policy.observation_space.original_space
    space.seed(seed)
    preprocessor = get_preprocessor(space)(space)
    observations = [space.sample() for _ in range(rows)]
    for observation in observations:
        observation["action_mask"][0] = 1
    return np.stack([preprocessor.transform(observation) for observation in observations])


@pytest.mark.parametrize(
    ("name", "kind"), [("tf", "nested"), *(("tf2", kind) for kind in NETWORKS)]
)
def test_the_mask_never_reaches_the_value_function_or_the_logits(name: str, kind: str) -> None:
    """FAULTS C17, in the network that RLlib chooses for the observation without the mask."""
    policy = policy_of(masked(config_of(name, observation=kind)))
    assert type(policy.model) is MaskedTFModel
    assert type(policy.model.network) is NETWORKS[kind]
    flat = flat_observations(policy, 8)
    other = flat.copy()
    other[:, :A] = 1.0 - other[:, :A]  # "action_mask" sorts first: its columns lead.

    def both() -> Any:
        results = []
        for observations in (flat, other):
            out, _ = policy.model({"obs": tf.constant(observations)})
            results += [out, policy.model.value_function()]
        return results

    first, value, second, other_value = evaluate(policy, both)
    np.testing.assert_array_equal(value, other_value)
    np.testing.assert_array_equal(first[:, :A], second[:, :A])
    np.testing.assert_array_equal(first[:, A:], flat[:, :A])
    np.testing.assert_array_equal(second[:, A:], other[:, :A])


class CardsEnv(rllib_support.MaskedChainEnv):
    """FAULTS C10: {mask, observations: {Discrete(5), Box(10, 10)}}, and a Tuple inside."""

    def _space(self) -> Any:
        board = spaces.Box(-1.0, 1.0, (10, 10), np.float32)
        inside = spaces.Dict({"cards": spaces.Discrete(5), "board": board})
        self._inside = spaces.Tuple([inside, spaces.MultiBinary(3)])
        self._inside.seed(0)
        return self._inside

    def _observation(self) -> Any:
        return {**super()._observation(), "observations": self._inside.sample()}


@in_graph_and_eager
def test_nested_observations_train_without_illegal_actions(name: str) -> None:
    worker = worker_of(masked(config_of(name, CardsEnv)))
    batch = sampled(worker)
    assert illegal_steps(batch) == 0
    policy = worker.get_policy()
    assert np.abs(policy.log_ratios(batch)).max() < 1e-6
    assert np.isfinite(policy.learn_on_batch(batch)["learner_stats"]["kl"])


@in_graph_and_eager
def test_inference_takes_raw_flattened_batched_and_single_observations(name: str) -> None:
    """FAULTS C9: the same masked argmax, whatever form the observation comes in."""
    policy = policy_of(masked(config_of(name, observation="nested")))
    change_weights(policy, lambda _, w: 5 * w)  # Far apart, so that equal actions mean something.
    env = MaskedChainEnv({**SMALL, "observation": "nested"})
    raw = []
    for position in range(4):
        env.reset()
        env._position = position
        raw.append(env._observation())
    space = policy.observation_space.original_space
    preprocessor = get_preprocessor(space)(space)
    flat = np.stack([preprocessor.transform(observation) for observation in raw])
    expected, _, extra = policy.compute_actions(flat, explore=False)
    logits, mask = np.split(extra[SampleBatch.ACTION_DIST_INPUTS], 2, -1)
    np.testing.assert_array_equal(mask, [observation["action_mask"] for observation in raw])
    np.testing.assert_array_equal(expected, maskcore.mode(logits, mask))
    assert len(set(expected.tolist())) > 1
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
    flat[1, :A] = [0.447, -0.447, 0, 0, 0, 0]
    with pytest.raises(MaskError, match="observation filter"):
        policy.compute_actions(flat)
    likelihoods = policy.compute_log_likelihoods(expected, flat[[0, 0, 2, 3]])
    assert np.isfinite(np.asarray(likelihoods)[[0, 2, 3]]).all()


def test_a_forward_pass_leaves_the_batch_as_it_was_and_can_be_repeated() -> None:
    """FAULTS C7: RLlib's own masked RLModule pops the mask from the batch it is given."""
    policy = policy_of(masked(config_of("tf2"), model={"use_lstm": True, "lstm_cell_size": 4}))
    flat = flat_observations(policy, 3)
    batch = SampleBatch({"obs": tf.constant(flat)})
    state, lengths = [tf.zeros((3, 4))] * 2, tf.ones(3, tf.int32)
    first, _ = policy.model(batch, state, lengths)
    second, _ = policy.model(batch, state, lengths)
    np.testing.assert_array_equal(first, second)
    assert set(batch) == {"obs"}
    nested = {"action_mask": tf.ones((2, A)), "observations": tf.zeros((2, 5))}
    given = {"obs": dict(nested)}
    policy.model.forward(given, [tf.zeros((2, 4))] * 2, tf.ones(2, tf.int32))
    assert set(given) == {"obs"}
    assert all(given["obs"][key] is value for key, value in nested.items())


def test_no_masking_puts_ones_where_the_mask_would_be() -> None:
    policy = policy_of(with_action_masking(config_of("tf2"), no_masking=True))
    flat = flat_observations(policy, 8)
    flat[:, :A] = 0.0
    out, _ = policy.model({"obs": tf.constant(flat)})
    np.testing.assert_array_equal(out[:, A:], np.ones((8, A)))


@pytest.mark.parametrize("model", [{}, {"use_lstm": True}], ids=["stock", "lstm outside"])
def test_a_model_whose_mask_no_distribution_would_read_is_an_error(model: Any) -> None:
    """FAULTS C4: Ray 2.60 wraps a custom model in its LSTM, which asks it for features."""
    rllib_integration.register()
    custom = {"custom_model": "maskcore_tf_model", **model}
    if model:
        custom["custom_action_dist"] = "maskcore_tf_masked_categorical"
    with pytest.raises(MaskError, match=r"Expected 12, logits and mask.*with_action_masking"):
        policy_of(config_of("tf2").training(model=custom))


def test_registered_by_name_the_model_masks_a_stock_policy() -> None:
    rllib_integration.register()
    config = config_of("tf2").training(
        model={
            "custom_model": "maskcore_tf_model",
            "custom_action_dist": "maskcore_tf_masked_categorical",
        }
    )
    worker = worker_of(config)
    assert illegal_steps(sampled(worker)) == 0


class OwnNetwork(TFModelV2):
    """A user's model: sees the observation alone and returns A logits."""

    def __init__(
        self,
        obs_space: Any,
        action_space: Any,
        num_outputs: int,
        model_config: Any,
        name: str,
        hidden: int = 8,
    ) -> None:
        super().__init__(obs_space, action_space, num_outputs, model_config, name)
        inputs = tf.keras.layers.Input((obs_space.shape[0],))
        body = tf.keras.layers.Dense(hidden, activation="tanh", name="body")(inputs)
        logits = tf.keras.layers.Dense(num_outputs, name="own_logits")(body)
        value = tf.keras.layers.Dense(1, name="own_value")(body)
        self.base_model = tf.keras.Model(inputs, [logits, value])

    def forward(self, input_dict: Any, state: Any, seq_lens: Any) -> Any:
        logits, self._value = self.base_model(input_dict["obs_flat"])
        return logits, state

    def value_function(self) -> Any:
        return tf.reshape(self._value, [-1])

    def metrics(self) -> dict[str, Any]:
        return {"own_metric": tf.constant(7.0)}


@in_graph_and_eager
def test_a_users_own_network_goes_inside_the_mask(name: str) -> None:
    model = {"custom_model": OwnNetwork, "custom_model_config": {"hidden": 9}}
    worker = worker_of(masked(config_of(name), model=model))
    policy, batch = worker.get_policy(), sampled(worker)
    assert isinstance(policy.model.network, OwnNetwork)
    assert illegal_steps(batch) == 0
    assert policy.learn_on_batch(batch)["model"] == {"own_metric": 7.0}
    assert policy.model.feature_size == 9


def test_a_network_that_returns_something_else_than_a_logits_is_named() -> None:
    class TooMany(OwnNetwork):
        def forward(self, input_dict: Any, state: Any, seq_lens: Any) -> Any:
            logits, state = super().forward(input_dict, state, seq_lens)
            return tf.concat([logits, logits], -1), state

    with pytest.raises(MaskError, match=r"TooMany returned \(32, 12\). Expected \[B, 6\]"):
        policy_of(masked(config_of("tf2"), model={"custom_model": TooMany}))
    with pytest.raises(MaskError, match="int is not a TFModelV2"):
        policy_of(masked(config_of("tf2"), model={"custom_model": int}))


@pytest.mark.parametrize(
    ("name", "kind", "model", "size"),
    [
        ("tf", "vector", {}, 16),
        ("tf2", "vector", {}, 16),
        ("tf2", "image", {}, 256),
        ("tf2", "nested", {}, 48),
        ("tf2", "vector", {"use_lstm": True, "lstm_cell_size": 12}, 12),
        ("tf2", "vector", {"use_attention": True, "attention_dim": 10}, 10),
    ],
)
def test_features_are_what_the_logits_layer_is_given(
    name: str, kind: str, model: dict[str, Any], size: int
) -> None:
    policy = policy_of(masked(config_of(name, observation=kind), model=model))
    assert policy.model.feature_size == size
    flat = flat_observations(policy, 2)
    if not model:

        def features() -> Any:
            policy.model({"obs": tf.constant(flat)})
            return policy.model.features()

        assert evaluate(policy, features).shape == (2, size)
