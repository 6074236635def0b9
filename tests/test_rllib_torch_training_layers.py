"""Layers and losses that exist for training only, and the report on what they train. Torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rllib_support
import torch
from rllib_support import masked, old_stack, policy_of, sampled, weights_of, worker_of
from torch import nn

import maskcore
from maskcore import MaskError
from rllib_integration import SplitHeads, gradient_report, mask_trace
from rllib_integration.torch_model import MaskedTorchModel

pytestmark = rllib_support.RLLIB_MARKS


class PredictsPosition(MaskedTorchModel):
    """A head that guesses the position from the features; only a loss uses it."""

    calls = 0

    def build_training_layers(self) -> None:
        self.position_head = nn.Linear(self.feature_size, 5)

    def position_logits(self) -> torch.Tensor:
        type(self).calls += 1
        return self.position_head(self.features())


def position_loss(model: Any, batch: Any) -> Any:
    """Cross-entropy of the guess; the one-hot position follows the 6 columns of the mask."""
    target = batch["obs"][:, 6:].argmax(-1)
    return nn.functional.cross_entropy(model.position_logits(), target)


def with_head(**training: Any) -> Any:
    return masked(
        model={"custom_model": PredictsPosition}, loss_terms={"position": position_loss}, **training
    )


def test_a_training_only_layer_trains_and_everything_shows_it() -> None:
    """FAULTS C19 too: the auxiliary loss is in the metrics."""
    worker = worker_of(with_head(lr=0.02))
    policy, batch = worker.get_policy(), sampled(worker)
    before = weights_of(policy)["position_head.weight"]
    history = [
        policy.learn_on_batch(batch.copy())["learner_stats"]["loss_terms/position"]
        for _ in range(60)
    ]
    assert history[-1] < history[0] / 2
    assert np.abs(weights_of(policy)["position_head.weight"] - before).max() > 0.01
    report = gradient_report(policy, batch)
    assert report.verdict("position_head") == "trains"
    norms = report.as_dict()["variables"]["position_head.weight"]["norms"]
    assert norms["position"] > 0
    assert {norms[term] for term in ("policy", "value", "entropy", "kl")} == {0.0}


def test_with_coefficient_zero_the_report_says_no_gradient() -> None:
    worker = worker_of(with_head(loss_coeffs={"position": 0.0}))
    policy, batch = worker.get_policy(), sampled(worker)
    before = weights_of(policy)
    report = gradient_report(policy, batch)
    assert report.verdict("position_head") == "no gradient from any term"
    assert report.verdict("_hidden_layers") == "trains"
    policy.learn_on_batch(batch)
    for name in ("position_head.weight", "position_head.bias"):
        np.testing.assert_array_equal(weights_of(policy)[name], before[name])


def test_a_training_only_layer_is_not_evaluated_at_rollout() -> None:
    worker = worker_of(with_head())
    PredictsPosition.calls = 0
    batch = sampled(worker)
    assert PredictsPosition.calls == 0
    worker.get_policy().learn_on_batch(batch)
    assert PredictsPosition.calls == 1


def test_a_training_only_layer_is_saved_and_restored() -> None:
    worker = worker_of(with_head())
    policy, batch = worker.get_policy(), sampled(worker)
    policy.learn_on_batch(batch)
    other = worker_of(with_head()).get_policy()
    other.set_state(policy.get_state())
    for name, weight in weights_of(policy).items():
        np.testing.assert_array_equal(weights_of(other)[name], weight)
    stepped = [p.learn_on_batch(batch.copy())["learner_stats"] for p in (policy, other)]
    assert stepped[0]["total_loss"] == stepped[1]["total_loss"]
    for name, weight in weights_of(policy).items():  # The optimizer's state as well.
        np.testing.assert_array_equal(weights_of(other)[name], weight)


class OwnLoss(PredictsPosition):
    """The same loss through RLlib's hook on the model."""

    def custom_loss(self, policy_loss: Any, loss_inputs: Any) -> Any:
        self.last_own = 3.0 * position_loss(self, loss_inputs)
        return [loss + self.last_own for loss in policy_loss]

    def metrics(self) -> dict[str, Any]:
        return {"own": self.last_own.item()}


def test_the_models_own_custom_loss_is_in_the_loss_and_in_the_metrics() -> None:
    """FAULTS C1, C19."""
    worker = worker_of(masked(model={"custom_model": OwnLoss}))
    policy, batch = worker.get_policy(), sampled(worker)
    report = gradient_report(policy, batch)
    assert report.verdict("position_head") == "trains"
    assert report.terms["custom_loss"] == 1.0
    before = weights_of(policy)["position_head.weight"]
    OwnLoss.calls = 0
    result = policy.learn_on_batch(batch)
    assert OwnLoss.calls == 1
    assert result["learner_stats"]["custom_loss"] == pytest.approx(result["model"]["own"], rel=1e-5)
    assert np.abs(weights_of(policy)["position_head.weight"] - before).max() > 0


def test_several_gpus_each_report_their_share() -> None:
    """RLlib splits the batch over copies of the model; here over two pretended GPUs."""
    config = masked(
        model={"custom_model": OwnLoss},
        loss_terms={"position": position_loss},
        grad_stats={"entries": lambda policy, gradients: float(len(gradients))},
    )
    worker = worker_of(config.resources(num_gpus=2, _fake_gpus=True))
    policy, batch = worker.get_policy(), sampled(worker)
    assert len(policy.model_gpu_towers) == 2
    before = weights_of(policy)
    policy.load_batch_into_buffer(batch)
    result = policy.learn_on_loaded_batch()
    for tower in ("tower_0", "tower_1"):
        stats = result[tower]["learner_stats"]
        assert stats["custom_loss"] == pytest.approx(3 * stats["loss_terms/position"], rel=1e-4)
        assert stats["entries"] == len(before)
        assert np.isfinite(stats["kl"])
    assert any((before[n] != w).any() for n, w in weights_of(policy).items())


def test_the_report_adds_up_to_the_gradient_of_the_loss() -> None:
    worker = worker_of(with_head(entropy_coeff=0.01))
    policy, batch = worker.get_policy(), sampled(worker)
    for parameter in policy.model.parameters():
        parameter.grad = None
    report = gradient_report(policy, batch)
    assert all(parameter.grad is None for parameter in policy.model.parameters())
    value_only = [v for v in report.variables if "_value_branch" in v.name]
    assert value_only
    loss = policy.loss(policy.model, policy.dist_class, policy.prepared(batch))
    loss.backward()
    named = dict(policy.model.named_parameters())
    for variable in value_only:  # Reached by one term alone: its norm is that of the whole.
        gradient = named[variable.name].grad
        assert variable.norms["value"] == pytest.approx(gradient.norm().item(), rel=1e-4)
        assert sum(variable.norms.values()) == variable.norms["value"]


class OddLayers(MaskedTorchModel):
    """A frozen layer, and one that Torch cannot see."""

    def build_training_layers(self) -> None:
        self.frozen = nn.Linear(self.feature_size, 2)
        self.frozen.requires_grad_(False)
        self.hidden = [nn.Linear(self.feature_size, 2)]


def test_the_report_names_what_is_frozen_and_what_is_not_registered() -> None:
    config = masked(
        model={"custom_model": OddLayers},
        loss_terms={
            "odd": lambda model, batch: (
                model.frozen(model.features()) + model.hidden[0](model.features())
            ).mean()
        },
    )
    worker = worker_of(config)
    policy, batch = worker.get_policy(), sampled(worker)
    report = gradient_report(policy, batch)
    assert report.verdict("frozen") == "frozen"
    assert report.verdict("hidden.0") == "not registered"
    before = weights_of(policy)["frozen.weight"]
    policy.learn_on_batch(batch)
    np.testing.assert_array_equal(weights_of(policy)["frozen.weight"], before)
    table = str(report)
    assert "frozen.weight" in table
    assert table.splitlines()[0].split()[:3] == ["variable", "shape", "policy"]
    with pytest.raises(MaskError, match="verdicts"):
        report.verdict("weight")


def test_the_report_works_under_an_lstm() -> None:
    worker = worker_of(masked(model={"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5}))
    batch = sampled(worker)
    columns = {k: np.array(v, copy=True) for k, v in batch.items()}
    report = gradient_report(worker.get_policy(), batch)
    assert report.verdict("network.lstm") == "trains"
    for key, column in columns.items():
        np.testing.assert_array_equal(batch[key], column)


def test_other_policies_are_refused() -> None:
    with pytest.raises(MaskError, match="PPOTorchPolicy"):
        gradient_report(policy_of(old_stack()), None)


def test_a_layer_without_a_size_is_an_error_that_says_how_to_build_it() -> None:
    class Lazy(MaskedTorchModel):
        def build_training_layers(self) -> None:
            self.head = nn.LazyLinear(3)

    with pytest.raises(MaskError, match=r"layer 'head' is not built.*self\.feature_size"):
        policy_of(masked(model={"custom_model": Lazy}))


def test_a_term_that_reaches_no_variable_is_an_error_that_names_them() -> None:
    """FAULTS C3."""
    config = masked(loss_terms={"constant": lambda model, batch: batch["rewards"].mean()})
    worker = worker_of(config)
    with pytest.raises(ValueError, match=r"'constant'\] depends on no variable.*_hidden_layers"):
        worker.get_policy().learn_on_batch(sampled(worker))


# --- split heads, the mask trace -------------------------------------------------------------


class ThreeHeads(MaskedTorchModel):
    heads = SplitHeads(context=2, structure=5, mask=6)

    def build_training_layers(self) -> None:
        self.extra = nn.Linear(self.feature_size, self.heads.size)

    def extra_output(self) -> torch.Tensor:
        return self.extra(self.features())


def test_the_parts_of_an_output_reach_their_losses_by_name() -> None:
    shapes: dict[str, tuple[int, ...]] = {}

    def structure(part: Any, batch: Any) -> Any:
        shapes["structure"] = tuple(part.shape)
        return nn.functional.cross_entropy(part, batch["obs"][:, 6:].argmax(-1))

    def mask(part: Any, batch: Any) -> Any:
        shapes["mask"] = tuple(part.shape)
        return nn.functional.binary_cross_entropy_with_logits(part, batch["obs"][:, :6])

    terms = ThreeHeads.heads.loss_terms(
        lambda model: model.extra_output(), {"structure": structure, "mask": mask}
    )
    worker = worker_of(masked(model={"custom_model": ThreeHeads}, loss_terms=terms))
    stats = worker.get_policy().learn_on_batch(sampled(worker))["learner_stats"]
    assert shapes == {"structure": (64, 5), "mask": (64, 6)}
    assert stats["loss_terms/structure"] > 0
    assert stats["loss_terms/mask"] > 0


def test_a_wrong_total_or_name_of_the_parts_is_a_clear_error() -> None:
    heads = SplitHeads(a=2, b=3)
    with pytest.raises(MaskError, match=r"shape \(4, 6\). Expected \[..., 5\] .* a=2 \+ b=3"):
        heads.split(np.zeros((4, 6)))
    with pytest.raises(MaskError, match=r"losses are given for \['c'\]"):
        heads.loss_terms(lambda model: model, {"c": lambda part, batch: part})
    with pytest.raises(MaskError, match=r"sizes are \{'a': 0\}"):
        SplitHeads(a=0)


def test_a_mask_trace_shows_logits_mask_probabilities_and_the_choice() -> None:
    worker = worker_of(masked())
    batch = sampled(worker)
    trace = mask_trace(worker.get_policy(), batch["obs"], rows=5)
    np.testing.assert_array_equal(trace.mask, batch["obs"][:5, :6] != 0)
    np.testing.assert_allclose(trace.logits, batch["action_dist_inputs"][:5, :6], atol=1e-6)
    np.testing.assert_array_equal(trace.probs, maskcore.masked_softmax(trace.logits, trace.mask))
    np.testing.assert_array_equal(trace.actions, maskcore.mode(trace.logits, trace.mask))
    assert str(trace).count("<- chosen") == 5
