"""LSTM and attention under the mask on TensorFlow: the mask outermost, padding not in the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rllib_tf_support
import tensorflow as tf
from ray.rllib.models.tf.attention_net import AttentionWrapper
from ray.rllib.models.tf.layers import RelativeMultiHeadAttention
from ray.rllib.models.tf.recurrent_net import LSTMWrapper
from ray.rllib.models.tf.tf_modelv2 import TFModelV2
from ray.rllib.policy.sample_batch import SampleBatch
from rllib_support import illegal_steps, masked, policy_of, sampled, worker_of
from rllib_tf_support import A, config_of, gradients_of

from rllib_integration.tf_attention import WindowedAttention, attend_within_window

pytestmark = rllib_tf_support.TF_MARKS

LSTM = {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 5}
ATTENTION = {
    "use_attention": True,
    "attention_dim": 8,
    "attention_head_dim": 4,
    "attention_memory_inference": 5,
    "attention_memory_training": 5,
    "max_seq_len": 5,
}
RECURRENT = {
    "lstm": (LSTM, LSTMWrapper),
    "lstm with previous action and reward": (
        {**LSTM, "lstm_use_prev_action": True, "lstm_use_prev_reward": True},
        LSTMWrapper,
    ),
    "attention": (ATTENTION, AttentionWrapper),
}
in_graph_and_eager = pytest.mark.parametrize("name", ["tf", "tf2"])


@pytest.mark.parametrize(
    ("name", "kind", "network"),
    [
        ("tf", "vector", "lstm with previous action and reward"),
        ("tf", "nested", "lstm"),
        ("tf", "vector", "attention"),
        ("tf2", "vector", "lstm with previous action and reward"),
        ("tf2", "nested", "attention"),
        ("tf2 traced", "vector", "lstm"),
        ("tf2 traced", "vector", "attention"),
    ],
)
def test_use_lstm_and_use_attention_give_masked_outputs(name: str, kind: str, network: str) -> None:
    """FAULTS C4."""
    model, wrapper = RECURRENT[network]
    worker = worker_of(masked(config_of(name, observation=kind), model=model))
    policy = worker.get_policy()
    assert isinstance(policy.model.network, wrapper)
    batch = sampled(worker)
    assert illegal_steps(batch) == 0
    assert batch["action_dist_inputs"].shape == (64, 2 * A)
    ratios = policy.log_ratios(batch)
    assert len(ratios) == 64
    assert np.abs(ratios).max() < 1e-5
    stats = policy.learn_on_batch(batch)["learner_stats"]
    assert np.isfinite(stats["kl"])
    assert stats["rows_empty_mask"] == 0  # Padding is no fault.


def test_rllibs_own_attention_is_another_function_when_it_learns() -> None:
    """Ray 2.60: why ours has a window. Without it the ratios are not 1 before any update."""
    worker = worker_of(masked(config_of("tf2"), model=ATTENTION))
    policy, batch = worker.get_policy(), sampled(worker)
    assert np.abs(policy.log_ratios(batch)).max() < 1e-5
    for layer in policy.model.network.gtrxl.trxl_model.submodules:
        if type(layer) is WindowedAttention:
            layer.__class__ = RelativeMultiHeadAttention
    assert np.abs(policy.log_ratios(batch)).max() > 1e-4


def test_an_attention_window_is_the_same_function_step_by_step_and_at_once() -> None:
    layer = RelativeMultiHeadAttention(6, 2, 3, input_layernorm=True)
    memory, steps = tf.random.normal((2, 4, 6)), tf.random.normal((2, 7, 6))
    layer(steps, memory=memory)
    network = TFModelV2.__new__(TFModelV2)
    network.module = tf.Module()
    network.module.layer = layer
    attend_within_window(network)
    assert type(layer) is WindowedAttention
    everything = tf.concat([memory, steps], axis=1)
    at_once = layer(steps, memory=memory)
    one_by_one = [layer(steps[:, t : t + 1], memory=everything[:, t : t + 4]) for t in range(7)]
    np.testing.assert_allclose(at_once, tf.concat(one_by_one, axis=1), rtol=1e-4, atol=1e-5)


def test_ray_2_60_loses_attention_variables_of_equal_names_and_ours_finds_each() -> None:
    model = policy_of(masked(config_of("tf2"), model=ATTENTION)).model
    theirs = {v.ref() for v in TFModelV2.variables(model.network)}
    ours = {v.ref() for v in model.variables()}
    keras = {v.ref() for v in model.network.gtrxl.trxl_model.variables}
    assert len(keras - theirs) > 0
    assert keras <= ours
    assert len(model.variables()) == len(ours) == len(model.variables(as_dict=True))


def sequences(policy: Any, lengths: list[int], length: int) -> Any:
    """A batch of sequences of these lengths, each zero-padded to ``length`` rows."""
    rows = sum(lengths)
    rng = np.random.default_rng(0)
    mask = np.zeros((rows, A), np.float32)
    mask[:, :2] = 1
    observations = rng.normal(size=(rows, 5)).astype(np.float32)
    columns = {
        "obs": np.concatenate([mask, observations], -1),
        "actions": rng.integers(0, 2, rows),
        "action_dist_inputs": np.concatenate(
            [rng.normal(size=(rows, A)).astype(np.float32), mask], -1
        ),
        "action_logp": rng.normal(-0.7, 0.1, rows).astype(np.float32),
        "advantages": rng.normal(size=rows).astype(np.float32),
        "value_targets": rng.normal(size=rows).astype(np.float32),
    }
    for key, fed in getattr(policy, "_loss_input_dict", {}).items():
        if key not in columns and not key.startswith(("state_in", "seq_lens")):
            columns[key] = np.zeros((rows, *fed.shape[1:]), fed.dtype.as_numpy_dtype)
    starts = np.cumsum([0, *lengths])
    for key, column in columns.items():
        padded = np.zeros((len(lengths) * length, *column.shape[1:]), column.dtype)
        for i, n in enumerate(lengths):
            padded[i * length : i * length + n] = column[starts[i] : starts[i] + n]
        columns[key] = padded
    memory = (5,) if policy.config["model"]["use_attention"] else ()
    states = [
        rng.normal(size=(len(lengths), *memory, *np.shape(s))).astype(np.float32)
        for s in policy.get_initial_state()
    ]
    columns.update({f"state_in_{i}": state for i, state in enumerate(states)})
    return SampleBatch(
        {**columns, "seq_lens": np.array(lengths, np.int32)}, _zero_padded=True, _max_seq_len=length
    )


def one_sequence(batch: Any, i: int, length: int) -> Any:
    """Sequence ``i`` of a batch padded to ``length``, without its padding."""
    rows = slice(i * length, i * length + int(batch["seq_lens"][i]))
    return SampleBatch(
        {
            k: v[i : i + 1] if k.startswith(("state_in", "seq_lens")) else v[rows]
            for k, v in batch.items()
        },
        _zero_padded=True,
        _max_seq_len=int(batch["seq_lens"][i]),
    )


@in_graph_and_eager
@pytest.mark.parametrize("model", [LSTM, ATTENTION], ids=["lstm", "attention"])
def test_padding_is_excluded_and_the_gradient_equals_the_unpadded_one(
    name: str, model: dict[str, Any]
) -> None:
    """FAULTS C11: T=20 with lengths 3, [2, 5], [3, 2]; what stands in the padding is no matter."""
    policy = policy_of(masked(config_of(name), model={**model, "max_seq_len": 20}))
    for lengths in ([3], [2, 5], [3, 2]):
        batch = sequences(policy, lengths, 20)
        stats, found = gradients_of(policy, batch)
        dirty = batch.copy()
        padding = ~(np.arange(20) < np.array(lengths)[:, None]).reshape(-1)
        for key in ("obs", "advantages", "value_targets", "action_logp"):
            dirty[key][padding] = 7.0
        dirty_stats, _ = gradients_of(policy, dirty)
        assert stats["rows_empty_mask"] == dirty_stats["rows_empty_mask"] == 0
        assert dirty_stats["total_loss"] == pytest.approx(stats["total_loss"], rel=1e-6)
        total, expected = 0.0, [np.zeros_like(g) for g in found]
        for i, n in enumerate(lengths):  # Each sequence alone, weighted by its rows.
            one_stats, one = gradients_of(policy, one_sequence(batch, i, 20))
            total += n / sum(lengths) * one_stats["total_loss"]
            expected = [e + n / sum(lengths) * g for e, g in zip(expected, one, strict=True)]
        assert stats["total_loss"] == pytest.approx(total, rel=1e-5)
        for ours, other in zip(found, expected, strict=True):
            assert np.isfinite(ours).all()
            np.testing.assert_allclose(ours, other, rtol=1e-3, atol=1e-6)


def test_ray_2_60_cannot_learn_from_a_minibatch_of_short_sequences() -> None:
    policy = policy_of(masked(config_of("tf2"), model=LSTM))
    wrapper = LSTMWrapper(
        policy.model.where.network_space, policy.action_space, A, policy.model.model_config, "x"
    )
    with pytest.raises(tf.errors.OutOfRangeError):
        wrapper.forward_rnn(tf.zeros((2, 5, 5)), [tf.zeros((2, 8))] * 2, tf.constant([3, 2]))


@in_graph_and_eager
def test_the_state_is_carried_through_inference(name: str) -> None:
    """On tf2 Ray 2.60's compute_actions names every state "state_in_{i}" and loses it."""
    policy = policy_of(masked(config_of(name), model=LSTM))
    observations = np.ones((2, A + 5), np.float32)
    states = [np.stack([s, s + 1]) for s in policy.get_initial_state()]
    _, after, extra = policy.compute_actions(observations, state_batches=states, explore=False)
    assert len(after) == 2
    assert after[0].shape == (2, 8)
    logits = extra["action_dist_inputs"]
    assert np.abs(logits[0] - logits[1]).max() > 1e-4  # The same observation, another state.
    _, single, _ = policy.compute_single_action(
        observations[0], [s[0] for s in states], explore=False
    )
    np.testing.assert_allclose(single[0], after[0][0], rtol=1e-5)
