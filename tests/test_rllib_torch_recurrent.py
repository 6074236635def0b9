"""LSTM and attention under the mask: the mask is outermost, padding is not in the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rllib_support
import torch
from ray.rllib.models.torch.attention_net import AttentionWrapper
from ray.rllib.models.torch.modules import RelativeMultiHeadAttention
from ray.rllib.models.torch.recurrent_net import LSTMWrapper
from ray.rllib.policy.sample_batch import SampleBatch
from rllib_support import illegal_steps, masked, old_stack, policy_of, sampled, worker_of

from maskcore import MaskError
from rllib_integration.torch_attention import WindowedAttention, attend_within_window

pytestmark = rllib_support.RLLIB_MARKS

A = 6
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


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("kind", ["vector", "nested"])
def test_use_lstm_and_use_attention_give_masked_outputs(name: str, kind: str) -> None:
    """FAULTS C4."""
    model, wrapper = RECURRENT[name]
    worker = worker_of(masked(old_stack(observation=kind), model=model))
    policy = worker.get_policy()
    assert isinstance(policy.model.network, wrapper)
    batch = sampled(worker)
    assert illegal_steps(batch) == 0
    assert batch["action_dist_inputs"].shape == (64, 2 * A)
    ratios = policy.log_ratios(batch.copy())
    assert len(ratios) == 64
    assert np.abs(ratios).max() < 1e-5
    stats = policy.learn_on_batch(batch)["learner_stats"]
    assert np.isfinite(stats["kl"])
    assert stats["rows_empty_mask"] == 0  # Padding is no fault.


@pytest.mark.parametrize(
    "setting", ["attention_use_n_prev_actions", "attention_use_n_prev_rewards"]
)
def test_attention_over_previous_actions_is_refused(setting: str) -> None:
    with pytest.raises(MaskError, match=f"{setting}=2"):
        policy_of(masked(model={**ATTENTION, setting: 2}))


def test_rllib_shows_an_acting_attention_model_older_actions_than_a_learning_one() -> None:
    """Ray 2.60: why they are refused. Its agent collector is one step behind at inference."""
    config = old_stack(length=9).training(model={**ATTENTION, "attention_use_n_prev_actions": 2})
    worker = worker_of(config)
    model = worker.get_policy().model
    acting: list[Any] = []
    forward = model.forward

    def spy(input_dict: Any, *args: Any) -> Any:
        acting.append(np.array(input_dict["prev_actions"]))
        return forward(input_dict, *args)

    model.forward = spy
    while (batch := sampled(worker))["t"].max() < 3:  # Unmasked: most episodes end at once.
        acting.clear()
    row = int(np.flatnonzero(batch["t"] == 3)[0])
    rows = [seen[0].tolist() for seen in acting if len(seen) == 1]
    learning = batch["prev_actions"][row].tolist()
    actions = batch["actions"][row - 3 : row].tolist()
    assert learning == actions[1:]
    assert [0, 0] in rows
    assert actions[:2] in rows


def test_rllibs_own_attention_is_another_function_when_it_learns() -> None:
    """Ray 2.60: why ours has a window. Without it the ratios are not 1 before any update."""
    worker = worker_of(masked(model=ATTENTION))
    policy, batch = worker.get_policy(), sampled(worker)
    assert np.abs(policy.log_ratios(batch.copy())).max() < 1e-5
    for layer in policy.model.modules():
        if type(layer) is WindowedAttention:
            layer.__class__ = RelativeMultiHeadAttention
    assert np.abs(policy.log_ratios(batch.copy())).max() > 1e-4


def test_an_attention_window_is_the_same_function_step_by_step_and_at_once() -> None:
    torch.manual_seed(0)
    layer = RelativeMultiHeadAttention(6, 6, 2, 3, input_layernorm=True)
    attend_within_window(layer)
    assert type(layer) is WindowedAttention
    memory, steps = torch.randn(2, 4, 6), torch.randn(2, 7, 6)
    everything = torch.cat([memory, steps], dim=1)
    at_once = layer(steps, memory=memory)
    one_by_one = [layer(steps[:, t : t + 1], memory=everything[:, t : t + 4]) for t in range(7)]
    torch.testing.assert_close(at_once, torch.cat(one_by_one, dim=1))


def test_an_lstm_set_after_masking_is_still_inside_the_mask() -> None:
    config = masked().training(model=LSTM)
    assert isinstance(policy_of(config).model.network, LSTMWrapper)


def sequences(policy: Any, lengths: list[int], max_seq_len: int) -> Any:
    """A batch of sequences of these lengths, zero-padded to ``max_seq_len`` as RLlib does."""
    rows = sum(lengths)
    rng = np.random.default_rng(0)
    mask = np.zeros((rows, A), np.float32)
    mask[:, :2] = 1
    observations = rng.normal(size=(rows, 5)).astype(np.float32)
    inputs = np.concatenate([rng.normal(size=(rows, A)).astype(np.float32), mask], -1)
    attention = policy.config["model"]["use_attention"]
    memory = (policy.config["model"]["attention_memory_training"],) if attention else ()
    states = [
        rng.normal(size=(len(lengths), *memory, *s.shape)).astype(np.float32)
        for s in policy.get_initial_state()
    ]
    batch = SampleBatch(
        {
            "obs": np.concatenate([mask, observations], -1),
            "actions": rng.integers(0, 2, rows),
            "action_dist_inputs": inputs,
            "action_logp": rng.normal(-0.7, 0.1, rows).astype(np.float32),
            "advantages": rng.normal(size=rows).astype(np.float32),
            "value_targets": rng.normal(size=rows).astype(np.float32),
            **{f"state_in_{i}": state for i, state in enumerate(states)},
            "seq_lens": np.array(lengths, np.int32),
        },
        _max_seq_len=max(lengths),
    )
    _pad(batch, lengths, max_seq_len)
    return batch


def _pad(batch: Any, lengths: list[int], length: int) -> None:
    """Zero-pad each sequence to ``length`` rows, in place."""
    starts = np.cumsum([0, *lengths])
    for key in (
        "obs",
        "actions",
        "action_dist_inputs",
        "action_logp",
        "advantages",
        "value_targets",
    ):
        column = batch[key]
        padded = np.zeros((len(lengths) * length, *column.shape[1:]), column.dtype)
        for i, n in enumerate(lengths):
            padded[i * length : i * length + n] = column[starts[i] : starts[i] + n]
        batch[key] = padded
    batch.zero_padded = True


@pytest.mark.parametrize("model", [LSTM, ATTENTION])
@pytest.mark.parametrize("lengths", [[3], [2, 5], [3, 2]])
def test_padding_is_excluded_and_the_gradient_equals_the_unpadded_one(
    model: dict[str, Any], lengths: list[int]
) -> None:
    """FAULTS C11: T=20 with lengths 3, [2, 5], [3, 2]."""
    policy = policy_of(masked(model={**model, "max_seq_len": 20}))

    def gradient(batches: list[Any]) -> tuple[float, dict[str, Any]]:
        """Mean over all rows of all batches: each batch's mean weighted by its rows."""
        policy.model.zero_grad()
        total = 0.0
        for batch in batches:
            weight = batch["seq_lens"].sum() / sum(lengths)
            loss = weight * policy.loss(
                policy.model, policy.dist_class, policy._lazy_tensor_dict(batch)
            )
            loss.backward()
            total += loss.item()
        return total, {
            n: p.grad.numpy().copy()
            for n, p in policy.model.named_parameters()
            if p.grad is not None
        }

    padded = sequences(policy, lengths, 20)
    whole = sequences(policy, lengths, max(lengths))
    starts = np.cumsum([0, *lengths])
    singles = []
    for i, n in enumerate(lengths):  # Each sequence alone, with no padding at all.
        rows = slice(i * max(lengths), i * max(lengths) + n)
        single = SampleBatch(
            {
                k: v[i : i + 1] if k.startswith(("state_in", "seq_lens")) else v[rows]
                for k, v in whole.items()
            }
        )
        single.zero_padded = True
        singles.append(single)
    assert starts[-1] == sum(len(s["actions"]) for s in singles)
    loss, found = gradient([padded])
    expected_loss, expected = gradient(singles)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert found.keys() == expected.keys()
    for name in expected:
        assert np.isfinite(found[name]).all()
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-3, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("model", [LSTM, ATTENTION])
def test_what_stands_in_padded_rows_changes_nothing(model: dict[str, Any]) -> None:
    policy = policy_of(masked(model={**model, "max_seq_len": 20}))
    policy.model.train()
    losses = []
    for fill in (0.0, 7.0):
        batch = sequences(policy, [3, 2], 20)
        padding = np.ones(40, bool)
        padding[[0, 1, 2, 20, 21]] = False
        for key in ("obs", "advantages", "value_targets", "action_logp"):
            batch[key][padding] = fill
        loss = policy.loss(policy.model, policy.dist_class, policy._lazy_tensor_dict(batch))
        losses.append(loss.item())
        counts = policy.stats_fn(batch)
        assert counts["rows_empty_mask"] == 0
    assert losses[0] == losses[1]


def test_the_state_is_carried_through_inference() -> None:
    policy = policy_of(masked(model=LSTM))
    observation = np.ones(A + 5, np.float32)
    state = policy.get_initial_state()
    _, after, _ = policy.compute_single_action(observation, state, explore=False)
    assert len(after) == 2
    assert not torch.equal(torch.as_tensor(after[0]), torch.as_tensor(state[0]))
