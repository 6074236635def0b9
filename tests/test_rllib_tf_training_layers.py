"""Layers and losses that exist for training only, and the report on what they train. TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rllib_tf_support
import tensorflow as tf
from ray.rllib.models.tf.fcnet import FullyConnectedNetwork
from ray.rllib.models.tf.tf_modelv2 import TFModelV2
from ray.rllib.policy.sample_batch import SampleBatch
from rllib_support import masked, policy_of, sampled, worker_of
from rllib_tf_support import FRAMEWORKS, A, config_of, weights_of

import maskcore
from maskcore import MaskError
from rllib_integration import gradient_report, mask_trace
from rllib_integration.tf_model import MaskedTFModel

pytestmark = rllib_tf_support.TF_MARKS

layers = tf.keras.layers
in_graph_and_eager = pytest.mark.parametrize("name", ["tf", "tf2"])


class PredictsPosition(MaskedTFModel):
    """A head that guesses the position from the features; only a loss uses it."""

    calls = 0

    def build_training_layers(self) -> None:
        self.position_head = layers.Dense(5, name="position_head")
        self.position_head.build((None, self.feature_size))

    def position_logits(self) -> Any:
        type(self).calls += 1
        return self.position_head(self.features())


def position_loss(model: Any, batch: Any) -> Any:
    """Cross-entropy of the guess; the one-hot position follows the columns of the mask."""
    losses = tf.nn.softmax_cross_entropy_with_logits(
        labels=tf.cast(batch["obs"][:, A:], tf.float32), logits=model.position_logits()
    )
    return tf.reduce_mean(losses)


def with_head(name: str, **training: Any) -> Any:
    return masked(
        config_of(name),
        model={"custom_model": PredictsPosition},
        loss_terms={"position": position_loss},
        **training,
    )


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_training_only_layer_trains_and_everything_shows_it(name: str) -> None:
    """FAULTS C1, C2, C19 too: the auxiliary loss falls by half and is in the metrics."""
    worker = worker_of(with_head(name, lr=0.02))
    policy, batch = worker.get_policy(), sampled(worker)
    before = head_weights(policy)
    history = [
        float(policy.learn_on_batch(batch.copy())["learner_stats"]["loss_terms/position"])
        for _ in range(60)
    ]
    assert history[-1] < history[0] / 2
    assert np.abs(head_weights(policy)[0] - before[0]).max() > 0.01
    report = gradient_report(policy, batch)
    assert report.verdict("position_head") == "trains"
    # The model's layers, and none of the policy's own numbers.
    assert {v.name for v in report.variables} == set(policy.model.variables(as_dict=True))
    assert len(policy.created_variables) >= len(report.variables) == 8 + 2
    kernel = next(v for v in report.variables if "position_head" in v.name)
    assert kernel.norms["position"] > 0
    assert {kernel.norms[term] for term in ("policy", "value", "entropy", "kl")} == {0.0}
    assert kernel.shape == (16, 5)


def head_weights(policy: Any) -> list[Any]:
    return [w for name, w in weights_of(policy).items() if "position_head" in name]


@in_graph_and_eager
def test_with_coefficient_zero_the_report_says_no_gradient(name: str) -> None:
    worker = worker_of(with_head(name, loss_coeffs={"position": 0.0}))
    policy, batch = worker.get_policy(), sampled(worker)
    before = head_weights(policy)
    report = gradient_report(policy, batch)
    assert report.terms["position"] == 0.0
    assert report.verdict("position_head") == "no gradient from any term"
    assert report.verdict("network") == "trains"
    policy.learn_on_batch(batch)
    for weight, old in zip(head_weights(policy), before, strict=True):
        np.testing.assert_array_equal(weight, old)


def test_a_training_only_layer_is_not_evaluated_at_rollout() -> None:
    worker = worker_of(with_head("tf2"))
    PredictsPosition.calls = 0
    batch = sampled(worker)
    assert PredictsPosition.calls == 0
    worker.get_policy().learn_on_batch(batch)
    assert PredictsPosition.calls == 1


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_model_and_the_optimizers_state_are_saved_and_restored(name: str) -> None:
    """Ray 2.60 restores no optimizer on tf2: it is not built before the first update."""
    worker = worker_of(with_head(name))
    policy, batch = worker.get_policy(), sampled(worker)
    for _ in range(3):
        policy.learn_on_batch(batch.copy())
    other = worker_of(with_head(name)).get_policy()
    other.set_state(policy.get_state())
    for variable, weight in weights_of(policy).items():
        np.testing.assert_array_equal(weights_of(other)[variable], weight)
    stepped = [p.learn_on_batch(batch.copy())["learner_stats"] for p in (policy, other)]
    assert stepped[0]["total_loss"] == stepped[1]["total_loss"]
    for variable, weight in weights_of(policy).items():
        np.testing.assert_allclose(weights_of(other)[variable], weight, rtol=1e-6, atol=1e-7)


class OwnLoss(PredictsPosition):
    """The same loss through RLlib's hook on the model."""

    hook_calls = 0

    def custom_loss(self, policy_loss: Any, loss_inputs: Any) -> Any:
        type(self).hook_calls += 1
        self.last_own = 3.0 * position_loss(self, loss_inputs)
        return [loss + self.last_own for loss in policy_loss]

    def metrics(self) -> dict[str, Any]:
        return {"own": self.last_own}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_models_own_custom_loss_is_in_the_loss_and_in_the_metrics(name: str) -> None:
    """FAULTS C1, C19."""
    worker = worker_of(masked(config_of(name), model={"custom_model": OwnLoss}))
    policy, batch = worker.get_policy(), sampled(worker)
    report = gradient_report(policy, batch)
    assert report.verdict("position_head") == "trains"
    assert report.terms["custom_loss"] == 1.0
    before = head_weights(policy)[0]
    OwnLoss.hook_calls = 0
    results = [policy.learn_on_batch(batch.copy()) for _ in range(3)]
    calls = {"tf": 0, "tf2": 3, "tf2 traced": 1}  # Of the Python function: a graph keeps it.
    assert OwnLoss.hook_calls == calls[name]
    own = results[0]["model"]["own"]
    assert own > 1.0
    stats = results[0]["learner_stats"]
    assert stats["custom_loss"] == pytest.approx(own, rel=1e-5)
    parts = stats["policy_loss"] + stats["vf_loss"] + own
    assert stats["total_loss"] == pytest.approx(parts, rel=1e-4)
    assert np.abs(head_weights(policy)[0] - before).max() > 0


class StockCustomLoss(FullyConnectedNetwork):
    calls = 0

    def custom_loss(self, policy_loss: Any, loss_inputs: Any) -> Any:
        StockCustomLoss.calls += 1
        return policy_loss


def test_ray_2_60_never_calls_custom_loss_on_tf2() -> None:
    """FAULTS C1; and for a model of the user's own inside the mask we do."""
    own = {"custom_model": StockCustomLoss}
    for config, calls in ((config_of("tf2").training(model=own), 0), (masked(config_of("tf2")), 1)):
        config.training(model=own)
        worker = worker_of(config)
        batch = sampled(worker)
        StockCustomLoss.calls = 0
        worker.get_policy().learn_on_batch(batch)
        assert StockCustomLoss.calls == calls


class OddLayers(MaskedTFModel):
    """Frozen, shared, registered, hidden and weightless layers."""

    def build_training_layers(self) -> None:
        size = self.feature_size
        self.frozen = layers.Dense(2, name="frozen")
        self.frozen.build((None, size))
        self.frozen.trainable = False
        self.twice = layers.Dense(2, name="twice")
        self.twice.build((None, size))
        self.also = {"again": [self.twice]}
        registered = layers.Dense(2, name="registered")
        registered(tf.zeros((1, size)))
        self.get_registered = lambda: registered
        self.register_variables(registered.trainable_variables)
        hidden = layers.Dense(2, name="hidden")
        hidden(tf.zeros((1, size)))
        self.get_hidden = lambda: hidden  # No attribute leads to it.
        self.dropout = layers.Dropout(0.5)


def odd_loss(model: Any, batch: Any) -> Any:
    features = model.features()
    used = (model.frozen, model.twice, model.get_registered(), model.get_hidden())
    return tf.add_n([tf.reduce_mean(layer(features)) for layer in used])


@in_graph_and_eager
def test_every_layer_trains_except_frozen_and_hidden_ones_which_the_report_names(name: str) -> None:
    """FAULTS C2: register_variables adds, and everything else still trains."""
    config = masked(
        config_of(name), model={"custom_model": OddLayers}, loss_terms={"odd": odd_loss}
    )
    worker = worker_of(config)
    policy, batch = worker.get_policy(), sampled(worker)
    names = list(policy.model.variables(as_dict=True))
    assert len([n for n in names if "twice" in n]) == 2  # Kernel and bias, once each.
    report = gradient_report(policy, batch)
    assert report.verdict("frozen") == "frozen"
    assert report.verdict("registered") == "trains"
    assert report.verdict("hidden") == "not registered"
    assert report.verdict("twice") == "trains"
    assert report.verdict("network") == "trains"
    before = weights_of(policy)
    policy.learn_on_batch(batch)
    for variable, weight in weights_of(policy).items():
        moved = np.abs(weight - before[variable]).max() > 0
        assert moved != ("frozen" in variable), variable
    table = str(report)
    assert table.splitlines()[0].split()[:3] == ["variable", "shape", "policy"]
    assert "not registered" in table


def test_ray_2_60_freezes_what_was_not_registered_and_trains_what_was_frozen() -> None:
    """FAULTS C2: RLlib's own answers, which ours replace."""
    policy = policy_of(masked(config_of("tf2")))
    theirs = FullyConnectedNetwork(
        policy.model.where.network_space, policy.action_space, A, policy.model.model_config, "x"
    )
    theirs.base_model.get_layer("fc_1").trainable = False
    assert len(theirs.trainable_variables()) == len(theirs.variables()) == 8
    extra = layers.Dense(1)
    theirs.register_variables(extra.variables)  # Not built: nothing.
    assert len(theirs.trainable_variables()) == 8
    extra.build((None, 3))
    theirs.register_variables(extra.variables)
    assert len(theirs.trainable_variables()) == 2
    policy.model.register_variables(extra)
    assert len(policy.model.trainable_variables()) == 8 + 2


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda model: setattr(model, "head", layers.Dense(3)),
            r"attribute 'head' of the model\) is not built yet.*layer\.build\(\(None, n\)\)",
        ),
        (
            lambda model: setattr(model, "heads", [layers.Activation("relu"), layers.Dense(3)]),
            "attribute 'heads_1'",
        ),
        (lambda model: model.register_variables(layers.Dense(3).variables), "an empty list"),
        (lambda model: model.register_variables(layers.Dense(3)), "is not built yet"),
        (lambda model: model.register_variables([3]), "given a int"),
    ],
    ids=["attribute", "in a list", "registered variables", "registered layer", "no variable"],
)
def test_a_layer_that_is_not_built_is_an_error_that_says_how(build: Any, message: str) -> None:
    class Unbuilt(MaskedTFModel):
        def build_training_layers(self) -> None:
            build(self)

    with pytest.raises(MaskError, match=message):
        policy_of(masked(config_of("tf2"), model={"custom_model": Unbuilt}))


class OwnLayers(FullyConnectedNetwork):
    """A network of the user's own, registering and building as RLlib's models do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.extra = layers.Dense(1, name="extra")
        self.extra.build((None, 5))
        self.register_variables(self.extra.variables)

    def build_training_layers(self) -> None:
        self.later = layers.Dense(1, name="later")
        self.later.build((None, 5))


def test_the_network_inside_may_register_and_declare_layers_of_its_own() -> None:
    def extra_loss(model: Any, batch: Any) -> Any:
        seen = batch["obs"][:, A:]
        return tf.reduce_mean(model.network.extra(seen) ** 2 + model.network.later(seen) ** 2)

    config = masked(
        config_of("tf2"), model={"custom_model": OwnLayers}, loss_terms={"extra": extra_loss}
    )
    worker = worker_of(config)
    report = gradient_report(worker.get_policy(), sampled(worker))
    assert {v.verdict for v in report.variables} == {"trains"}
    assert len(report.variables) == 8 + 2 + 2


@in_graph_and_eager
def test_the_report_adds_up_changes_nothing_and_works_under_an_lstm(name: str) -> None:
    model = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5}
    worker = worker_of(masked(config_of(name), model=model, entropy_coeff=0.01))
    policy, batch = worker.get_policy(), sampled(worker)
    columns = {k: np.array(v, copy=True) for k, v in batch.items()}
    before = weights_of(policy)
    report = gradient_report(policy, batch)
    again = gradient_report(policy, batch)
    assert report.as_dict()["terms"] == again.as_dict()["terms"]
    assert report.verdict("lstm") == "trains"
    for key, column in columns.items():
        np.testing.assert_array_equal(batch[key], column)
    for variable, weight in weights_of(policy).items():
        np.testing.assert_array_equal(weight, before[variable])
    gradients, _ = policy.compute_gradients(batch.copy())
    # Reached by one term alone: the norm is that of the whole gradient.
    alone = [v for v in report.variables if ".values." in v.name]
    assert [sum(n > 0 for n in v.norms.values()) for v in alone] == [1, 1]
    sizes = [np.linalg.norm(g) for g in gradients if g is not None and g.shape in ((4, 1), (1,))]
    np.testing.assert_allclose([v.norms["value"] for v in alone], sizes, rtol=1e-3)


@pytest.mark.parametrize("name", ["tf2"])
def test_a_mask_trace_shows_what_was_made_of_the_first_rows(name: str) -> None:
    worker = worker_of(masked(config_of(name)))
    batch = sampled(worker)
    trace = mask_trace(worker.get_policy(), batch[SampleBatch.OBS], rows=3)
    np.testing.assert_array_equal(trace.mask, batch["obs"][:3, :A] != 0)
    expected = maskcore.masked_softmax(trace.logits, trace.mask)
    np.testing.assert_allclose(trace.probs, expected, rtol=1e-5)
    assert trace.mask[np.arange(3), trace.actions].all()


def test_a_model_of_tfmodelv2_alone_is_what_the_mixin_is_for() -> None:
    from rllib_integration.tf_variables import AllVariables

    class Mixed(AllVariables, TFModelV2):
        pass

    policy = policy_of(masked(config_of("tf2")))
    model = Mixed(policy.observation_space, policy.action_space, 1, {}, "x")
    model.module = layers.Dense(1)
    model.module.build((None, 2))
    assert len(model.trainable_variables()) == 2
