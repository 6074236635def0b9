"""MaskedPPO on Torch: what is in the loss, what is left out of it, and what is said about that."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import rllib_support
import torch
from ray.rllib.algorithms.ppo.ppo_torch_policy import PPOTorchPolicy
from ray.rllib.policy.sample_batch import SampleBatch
from rllib_support import (
    MaskedChainEnv,
    masked,
    old_stack,
    reduced,
    sampled,
    weights_of,
    worker_of,
)

import maskcore
from maskcore import MaskError
from rllib_integration import with_action_masking
from rllib_integration.torch_policy import MaskedPPOTorchPolicy

pytestmark = rllib_support.RLLIB_MARKS

A = 6  # Actions in rllib_support.SMALL; the mask's columns come first in the flat observation.


def gradients_of(policy: Any, batch: Any) -> tuple[float, dict[str, np.ndarray[Any, Any]]]:
    """The total loss and its gradient by variable, without an update."""
    policy.model.zero_grad()
    loss = policy.loss(policy.model, policy.dist_class, policy._lazy_tensor_dict(batch))
    loss.backward()
    return loss.item(), {n: p.grad.numpy().copy() for n, p in policy.model.named_parameters()}


def moved(policy: Any) -> Any:
    """Another policy than the one that sampled: so that KL and ratio say something."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return policy


@pytest.mark.parametrize("kind", ["vector", "image", "nested"])
def test_before_any_update_every_ratio_is_one(kind: str) -> None:
    worker = worker_of(masked(old_stack(observation=kind, num_actions=64, num_legal=4)))
    ratios = worker.get_policy().log_ratios(sampled(worker))
    assert ratios.shape == (64,)
    assert np.abs(ratios).max() < 1e-6


def test_the_loss_is_rllibs_where_every_row_is_ordinary() -> None:
    worker = worker_of(masked(entropy_coeff=0.01))
    policy, batch = moved(worker.get_policy()), sampled(worker)
    moved(policy)
    loss, gradients = gradients_of(policy, batch.copy())
    policy.model.zero_grad()
    theirs = PPOTorchPolicy.loss(
        policy, policy.model, policy.dist_class, policy._lazy_tensor_dict(batch.copy())
    )
    theirs.backward()
    assert loss == pytest.approx(theirs.item(), rel=1e-5)
    for name, parameter in policy.model.named_parameters():
        np.testing.assert_allclose(
            gradients[name], parameter.grad.numpy(), rtol=1e-3, atol=1e-6, err_msg=name
        )


def tampered(batch: Any) -> tuple[Any, Any]:
    """A batch with one row of each fault, and the batch without those rows."""
    batch = batch.copy()
    batch["obs"] = batch["obs"].copy()
    for column in (SampleBatch.ACTION_DIST_INPUTS, SampleBatch.ACTIONS):
        batch[column] = batch[column].copy()
    rows = np.arange(len(batch["obs"]))
    batch["obs"][1, :A] = 0  # An empty mask.
    action = batch["actions"][4]
    batch["obs"][4, :A] = 1
    batch["obs"][4, action] = 0  # The action taken is illegal under the row's own mask.
    batch["action_dist_inputs"][7, A:] = 1  # The stored mask allows what the row's forbids.
    batch["action_dist_inputs"][9, A:] = 0  # No action was legal when the row was sampled.
    keep = np.isin(rows, [1, 4, 7, 9], invert=True)
    rest = SampleBatch({k: v[keep] for k, v in batch.items() if isinstance(v, np.ndarray)})
    return batch, rest


def test_faulty_rows_are_dropped_counted_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """FAULTS A18, C20, C21: loss and gradient are those of the batch without the rows."""
    worker = worker_of(masked())
    policy = moved(worker.get_policy())
    batch, rest = tampered(sampled(worker))
    with caplog.at_level(logging.WARNING, logger="rllib_integration.loss_terms"):
        loss, gradients = gradients_of(policy, batch)
        stats = policy.stats_fn(batch)
        gradients_of(policy, batch)
    expected_loss, expected = gradients_of(policy, rest)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for name, gradient in gradients.items():
        assert np.isfinite(gradient).all()
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
    expected_stats = policy.stats_fn(rest)
    for name in ("kl", "max_kl", "entropy", "policy_loss", "vf_loss", "vf_explained_var"):
        assert stats[name] == pytest.approx(expected_stats[name], rel=1e-4), name
    assert stats["rows_empty_mask"] == 2
    assert stats["rows_illegal_action"] == 1
    assert stats["rows_masks_differ"] == 1
    assert stats["rows_nonfinite_logits"] == 0
    assert policy.row_report.totals["illegal_action"] == 2  # Two passes over the batch.
    assert len(caplog.records) == 1
    message = caplog.records[0].getMessage()
    for text in ("of 64 rows", "2 x empty mask", "1 x illegal action", "1 x masks differ"):
        assert text in message


def test_the_kl_coefficient_grows_by_valid_rows_only() -> None:
    worker = worker_of(masked(kl_target=10.0))
    policy = worker.get_policy()
    batch, _ = tampered(sampled(worker))
    stats = policy.learn_on_batch(batch)["learner_stats"]
    assert np.isfinite(stats["kl"])
    policy.update_kl(stats["kl"])
    assert policy.kl_coeff == 0.1  # Halved: RLlib's own KL is infinite here and would raise it.


def test_a_batch_without_a_valid_row_moves_nothing() -> None:
    worker = worker_of(masked())
    policy, batch = worker.get_policy(), sampled(worker)
    batch["obs"] = batch["obs"].copy()
    batch["obs"][:, :A] = 0
    before = weights_of(policy)
    stats = reduced(policy.learn_on_batch(batch))
    assert stats["total_loss"] == 0.0
    assert np.isnan(stats["kl"])
    for name, weight in weights_of(policy).items():
        np.testing.assert_array_equal(weight, before[name])
    policy.update_kl(stats["kl"])
    assert policy.kl_coeff == 0.2


def test_logits_that_are_not_finite_are_named_and_stay_loud(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = worker_of(masked())
    policy, batch = worker.get_policy(), sampled(worker)
    with torch.no_grad():
        policy.model.network._logits._model[0].bias[:] = float("nan")
    with caplog.at_level(logging.WARNING, logger="rllib_integration.loss_terms"):
        loss = policy.loss(policy.model, policy.dist_class, policy._lazy_tensor_dict(batch))
    assert torch.isnan(loss)
    assert "64 x non-finite logits from the network" in caplog.records[0].getMessage()
    assert policy.stats_fn(batch)["rows_nonfinite_logits"] == 64
    with pytest.raises(MaskError):
        policy.compute_actions(batch["obs"])


def test_a_kl_coefficient_of_zero_keeps_an_infinite_kl_out() -> None:
    """FAULTS A2: 0 times infinity. A network may put -inf on a legal action itself."""
    worker = worker_of(masked(kl_coeff=0.0))
    policy, batch = worker.get_policy(), sampled(worker)
    with torch.no_grad():
        policy.model.network._logits._model[0].bias[int(batch["actions"][0])] = -float("inf")
    parts = policy.loss_parts(policy.model, policy.dist_class, policy._lazy_tensor_dict(batch))
    assert parts["kl"][0] == 0.0
    assert torch.isinf(parts["kl"][1])
    loss = policy.loss(policy.model, policy.dist_class, policy._lazy_tensor_dict(batch))
    assert torch.isfinite(loss)
    stats = policy.stats_fn(batch)
    assert stats["rows_nonfinite_logits"] > 0
    assert np.isfinite(stats["kl"])  # What feeds kl_coeff: the rows with a finite KL.


def test_the_kl_is_that_of_the_stored_mask_and_the_new_one() -> None:
    """A stored mask that allows less than the row's own: no fault, and not the same mask."""
    worker = worker_of(masked())
    policy, batch = moved(worker.get_policy()), sampled(worker)
    old = batch["action_dist_inputs"] = batch["action_dist_inputs"].copy()
    old[::2, A:] = np.eye(A, dtype=np.float32)[batch["actions"][::2]]
    parts = policy.loss_parts(policy.model, policy.dist_class, policy.prepared(batch))
    with torch.no_grad():
        new = policy.model({"obs": torch.from_numpy(batch["obs"])})[0].numpy()
    expected = maskcore.kl_divergence(
        old[:, :A], new[:, :A], p_mask=old[:, A:] != 0, q_mask=new[:, A:] != 0
    )
    assert expected[::2].min() > 0.1
    assert parts["kl"][1].item() == pytest.approx(expected.mean(), rel=1e-5)
    assert policy.stats_fn(batch)["rows_masks_differ"] == 0


def test_without_a_critic_or_a_kl_the_loss_is_the_surrogate_and_the_entropy() -> None:
    config = masked(use_critic=False, use_gae=False, use_kl_loss=False)
    worker = worker_of(config.env_runners(batch_mode="complete_episodes"))
    policy = worker.get_policy()
    batch = policy._lazy_tensor_dict(sampled(worker))
    parts = policy.loss_parts(policy.model, policy.dist_class, batch)
    assert set(parts) == {"policy", "entropy"}
    policy.loss(policy.model, policy.dist_class, batch)
    assert policy.stats_fn(batch)["kl"] == 0.0


def test_policies_are_built_from_a_batch_of_empty_masks_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """FAULTS B7: Ray 2.60 runs the loss on a batch of zeros at construction."""
    seen: list[float] = []

    class Spy(MaskedPPOTorchPolicy):
        def loss(self, model: Any, dist_class: Any, train_batch: Any) -> Any:
            seen.append(train_batch["obs"].abs().sum().item())
            return super().loss(model, dist_class, train_batch)

    policy = worker_of(masked()).get_policy()
    with caplog.at_level(logging.WARNING, logger="rllib_integration.loss_terms"):
        Spy(policy.observation_space, policy.action_space, policy.config)
    assert seen == [0.0]
    assert not caplog.records


# --- masks as they come from the environment -------------------------------------------------


class BrokenMaskEnv(MaskedChainEnv):
    """Sends the mask ``broken_mask`` at its third step."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.broken_mask = np.array(config["broken_mask"], np.int8)

    def step(self, action: int) -> Any:
        observation, reward, done, truncated, info = super().step(action)
        if self._steps == 2:
            observation["action_mask"] = self.broken_mask
            done = False
        return observation, reward, done, truncated, info


def test_an_empty_mask_from_the_environment_is_an_error_that_says_where() -> None:
    """FAULTS B6."""
    worker = worker_of(masked(old_stack(BrokenMaskEnv, broken_mask=[0] * A)))
    with pytest.raises(MaskError, match=r"from environment .*BrokenMaskEnv.*, agent 0, step 2"):
        sampled(worker)


def test_empty_masks_can_be_declared_rows_to_drop() -> None:
    """FAULTS C16: agents that are not acting."""
    config = with_action_masking(old_stack(BrokenMaskEnv, broken_mask=[0] * A), empty_masks="drop")
    worker = worker_of(config)
    stats = worker.get_policy().learn_on_batch(sampled(worker))["learner_stats"]
    assert stats["rows_empty_mask"] > 0
    assert np.isfinite(stats["kl"])


# --- loss terms, a replaced loss, statistics ------------------------------------------------


def weight_decay(model: Any, batch: Any) -> Any:
    return sum((parameter**2).sum() for parameter in model.parameters())


def test_a_loss_term_is_in_the_loss_with_its_coefficient_and_in_the_metrics() -> None:
    plain = worker_of(masked())
    with_term = worker_of(masked(loss_terms={"decay": weight_decay}, loss_coeffs={"decay": 0.5}))
    policy = with_term.get_policy()
    policy.set_weights(weights_of(plain.get_policy()))
    batch = sampled(plain)
    loss, gradients = gradients_of(plain.get_policy(), batch.copy())
    total, total_gradients = gradients_of(policy, batch.copy())
    decay = weight_decay(policy.model, batch).item()
    assert total == pytest.approx(loss + 0.5 * decay, rel=1e-5)
    for name, parameter in policy.model.named_parameters():
        np.testing.assert_allclose(
            total_gradients[name],
            gradients[name] + parameter.detach().numpy(),
            rtol=1e-4,
            atol=1e-6,
        )
    stats = policy.learn_on_batch(batch)["learner_stats"]
    assert stats["loss_terms/decay"] == pytest.approx(decay, rel=1e-5)
    assert stats["loss_coeffs/decay"] == 0.5


def test_a_coefficient_follows_its_schedule() -> None:
    config = masked(
        loss_terms={"decay": weight_decay}, loss_coeffs={"decay": [[0, 1.0], [100, 0.0]]}
    )
    policy = worker_of(config).get_policy()
    for timestep, coefficient in ((25, 0.75), (100, 0.0), (1000, 0.0)):
        policy.on_global_var_update({"timestep": timestep})
        assert policy.loss_terms.coeffs["decay"] == coefficient


@pytest.mark.parametrize(
    ("terms", "coeffs", "message"),
    [
        ({"a": weight_decay}, {"b": 1.0}, r"loss_coeffs names \['b'\], found loss_terms \['a'\]"),
        ({"a": 3}, {}, "loss_terms\\['a'\\] is a int"),
        ({"kl": weight_decay}, {}, "the name 'kl'"),
        ({"a": lambda model, batch: batch["rewards"]}, {}, r"returned shape \(32,\)"),
        ({"a": lambda model, batch: None}, {}, "returned NoneType"),
        ({"a": weight_decay}, {"a": "high"}, "Expected a number or a schedule"),
        ({"a": weight_decay}, {"a": [[5, 1.0], [0, 1.0]]}, "in rising order"),
    ],
)
def test_loss_terms_that_cannot_work_are_an_error_at_build(
    terms: Any, coeffs: Any, message: str
) -> None:
    with pytest.raises(MaskError, match=message):
        worker_of(masked(loss_terms=terms, loss_coeffs=coeffs))


def own_loss(policy: Any, model: Any, dist_class: Any, batch: Any) -> Any:
    inputs, _ = model(batch)
    log_prob = dist_class(inputs, model).logp(batch["actions"])
    loss = -(log_prob * batch["advantages"]).mean()
    return loss, {"own_log_prob": log_prob.mean()}


def test_the_policy_loss_can_be_replaced_and_is_the_one_that_runs() -> None:
    worker = worker_of(masked(policy_loss=own_loss, loss_terms={"decay": weight_decay}))
    policy, batch = worker.get_policy(), sampled(worker)
    lazy = policy._lazy_tensor_dict(batch.copy())
    expected, stats = own_loss(policy, policy.model, policy.dist_class, lazy)
    total = policy.loss(policy.model, policy.dist_class, lazy)
    assert total.item() == pytest.approx(
        expected.item() + weight_decay(policy.model, None).item(), rel=1e-5
    )
    reported = reduced(policy.learn_on_batch(batch))
    assert reported["own_log_prob"] == pytest.approx(stats["own_log_prob"].item(), rel=1e-5)
    assert np.isnan(reported["kl"])  # RLlib asks for it after each iteration; it was not measured.
    assert not {"max_kl", "entropy", "vf_explained_var", "rows_empty_mask"} & set(reported)


def test_statistics_and_gradient_statistics_are_reported_under_their_own_names() -> None:
    seen: list[set[str]] = []

    def largest(policy: Any, gradients: Any) -> Any:
        seen.append(set(gradients))
        return max(float(g.abs().max()) for g in gradients.values())

    config = masked(
        loss_stats={"mean_reward": lambda policy, batch: batch["rewards"].mean()},
        grad_stats={"largest_gradient": largest},
    )
    worker = worker_of(config)
    policy, batch = worker.get_policy(), sampled(worker)
    stats = policy.learn_on_batch(batch)["learner_stats"]
    assert stats["mean_reward"] == pytest.approx(batch["rewards"].mean().item(), rel=1e-6)
    assert stats["largest_gradient"] > 0
    assert seen == [{name for name, _ in policy.model.named_parameters()}]
