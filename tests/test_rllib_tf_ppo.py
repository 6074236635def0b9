"""MaskedPPO on TensorFlow, graph, eager and traced: what is in the loss, what is left out of it."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import rllib_tf_support
import tensorflow as tf
from ray.rllib.algorithms.ppo.ppo_tf_policy import PPOTF1Policy, PPOTF2Policy
from ray.rllib.policy.sample_batch import SampleBatch
from rllib_support import illegal_steps, masked, reduced, sampled, worker_of
from rllib_tf_support import (
    FRAMEWORKS,
    A,
    config_of,
    gradients_of,
    moved,
    set_logits_bias,
    weights_of,
)

from maskcore import MaskError
from rllib_integration import with_action_masking
from rllib_integration.tf_eager_policy import MaskedPPOTF2Policy
from rllib_integration.tf_graph_policy import MaskedPPOTF1Policy

pytestmark = rllib_tf_support.TF_MARKS

on_every_framework = pytest.mark.parametrize("name", FRAMEWORKS)
in_graph_and_eager = pytest.mark.parametrize("name", ["tf", "tf2"])
in_graph_and_traced = pytest.mark.parametrize("name", ["tf", "tf2 traced"])


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in ("tf", "tf2 traced") for kind in ("vector", "image", "nested")]
    + [("tf2", "vector")],
)
def test_before_any_update_every_ratio_is_one_and_no_action_illegal(name: str, kind: str) -> None:
    worker = worker_of(masked(config_of(name, observation=kind)))
    policy, batch = worker.get_policy(), sampled(worker)
    assert illegal_steps(batch) == 0
    assert batch[SampleBatch.ACTION_DIST_INPUTS].shape == (64, 2 * A)
    ratios = policy.log_ratios(batch)
    assert ratios.shape == (64,)
    assert np.abs(ratios).max() < 1e-6
    stats = policy.learn_on_batch(batch)["learner_stats"]
    assert 0.0 <= stats["kl"] < 1e-12
    assert np.isfinite(stats["total_loss"])


@in_graph_and_eager
def test_the_loss_is_rllibs_where_every_row_is_ordinary(name: str) -> None:
    worker = worker_of(masked(config_of(name), entropy_coeff=0.01))
    policy, batch = moved(worker.get_policy()), sampled(worker)
    moved(policy, seed=4)
    stats, gradients = gradients_of(policy, batch)
    if name == "tf":
        session = policy.get_session()
        with session.graph.as_default():
            loss = PPOTF1Policy.loss(
                policy, policy.model, policy.dist_class, SampleBatch(policy._loss_input_dict)
            )
            theirs = tf.gradients(loss, policy.model.trainable_variables())
            loss, theirs = session.run((loss, theirs), policy.feed_of(batch))
    else:
        with tf.GradientTape() as tape:
            loss = PPOTF2Policy.loss(
                policy, policy.model, policy.dist_class, policy.prepared(batch)
            )
        theirs = tape.gradient(loss, policy.model.trainable_variables())
    assert stats["kl"] > 1e-4
    assert stats["total_loss"] == pytest.approx(float(loss), rel=1e-5)
    for ours, other in zip(gradients, theirs, strict=True):
        np.testing.assert_allclose(ours, np.asarray(other), rtol=1e-3, atol=1e-6)


def tampered(batch: Any) -> tuple[Any, Any]:
    """A batch with one row of each fault, and the batch without those rows."""
    batch = batch.copy()
    rows = np.arange(len(batch["obs"]))
    batch["obs"][1, :A] = 0  # An empty mask.
    batch["obs"][4, :A] = 1
    batch["obs"][4, batch["actions"][4]] = 0  # Illegal under the row's own mask.
    batch["action_dist_inputs"][7, A:] = 1  # The stored mask allows what the row's forbids.
    batch["action_dist_inputs"][9, A:] = 0  # No action was legal when the row was sampled.
    batch["action_logp"][[4, 7]] = -np.inf  # As of an action that was illegal when it was taken.
    keep = np.isin(rows, [1, 4, 7, 9], invert=True)
    rest = SampleBatch({k: v[keep] for k, v in batch.items() if isinstance(v, np.ndarray)})
    return batch, rest


@on_every_framework
def test_faulty_rows_are_dropped_counted_and_named_once(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """FAULTS A18, C20, C21: loss and gradient are those of the batch without the rows."""
    worker = worker_of(masked(config_of(name), kl_target=10.0))
    policy = worker.get_policy()
    batch, rest = tampered(sampled(worker))
    moved(policy)
    stats, gradients = gradients_of(policy, batch)
    expected_stats, expected = gradients_of(policy, rest)
    for ours, other in zip(gradients, expected, strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, other, rtol=1e-4, atol=1e-6)
    names = ("total_loss", "kl", "max_kl", "entropy", "policy_loss", "vf_loss", "vf_explained_var")
    for stat in names:
        assert stats[stat] == pytest.approx(expected_stats[stat], rel=1e-4), stat
    assert stats["kl"] > 1e-4
    with caplog.at_level(logging.WARNING):
        results = [policy.learn_on_batch(batch.copy())["learner_stats"] for _ in range(2)]
    assert results[0]["rows_empty_mask"] == 2
    assert results[0]["rows_illegal_action"] == 1
    assert results[0]["rows_masks_differ"] == 1
    assert results[0]["rows_nonfinite_logits"] == 0
    assert policy.row_report.totals["illegal_action"] == 2  # Two passes over the batch.
    ours = [r for r in caplog.records if r.name == "rllib_integration.loss_terms"]
    assert len(ours) == 1
    for text in ("of 64 rows", "2 x empty mask", "1 x illegal action", "1 x masks differ"):
        assert text in ours[0].getMessage()
    assert not [r for r in caplog.records if "KL divergence is non-finite" in r.getMessage()]
    policy.update_kl(results[0]["kl"])  # Finite: halved. RLlib's own is infinite here, and raises.
    assert policy.kl_coeff_val == 0.1


@in_graph_and_eager
def test_a_batch_without_a_valid_row_moves_nothing(name: str) -> None:
    worker = worker_of(masked(config_of(name)))
    policy, batch = worker.get_policy(), sampled(worker)
    batch["obs"] = batch["obs"].copy()
    batch["obs"][:, :A] = 0
    before = weights_of(policy)
    stats = reduced(policy.learn_on_batch(batch))
    assert stats["total_loss"] == 0.0
    assert np.isnan(stats["kl"])
    for variable, weight in weights_of(policy).items():
        np.testing.assert_array_equal(weight, before[variable])
    policy.update_kl(stats["kl"])
    assert policy.kl_coeff_val == 0.2


@pytest.mark.parametrize("name", ["tf"])
def test_logits_that_are_not_finite_are_named_and_stay_loud(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_of(masked(config_of(name)))
    policy, batch = worker.get_policy(), sampled(worker)
    set_logits_bias(policy, np.nan)
    with caplog.at_level(logging.WARNING, logger="rllib_integration.loss_terms"):
        stats = policy.learn_on_batch(batch.copy())["learner_stats"]
    assert np.isnan(stats["total_loss"])
    assert stats["rows_nonfinite_logits"] == 64
    assert "64 x non-finite logits from the network" in caplog.records[0].getMessage()


@pytest.mark.parametrize("name", ["tf"])
def test_a_kl_coefficient_of_zero_keeps_an_infinite_kl_out(name: str) -> None:
    """FAULTS A2: 0 times infinity. A network may put -inf on a legal action itself."""
    worker = worker_of(masked(config_of(name), kl_coeff=0.0))
    policy, batch = worker.get_policy(), sampled(worker)
    bias = np.zeros(A)
    bias[int(batch["actions"][0])] = -np.inf
    set_logits_bias(policy, bias)
    stats, gradients = gradients_of(policy, batch)
    assert np.isfinite(stats["total_loss"])
    assert stats["rows_nonfinite_logits"] > 0
    assert all(np.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("name", ["tf2"])
def test_without_a_critic_or_a_kl_the_loss_is_the_surrogate_and_the_entropy(name: str) -> None:
    config = masked(config_of(name), use_critic=False, use_gae=False, use_kl_loss=False)
    worker = worker_of(config.env_runners(batch_mode="complete_episodes"))
    policy, batch = worker.get_policy(), sampled(worker)
    stats, _ = gradients_of(policy, batch)
    assert set(policy._parts) == {"policy", "entropy"}
    assert stats["kl"] == 0.0
    assert stats["total_loss"] == pytest.approx(stats["policy_loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("name", "kind"), [("tf", MaskedPPOTF1Policy), ("tf2 traced", MaskedPPOTF2Policy)]
)
def test_policies_are_built_from_a_batch_of_empty_masks_in_silence(
    name: str, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """FAULTS B7, and the false alarm: Ray 2.60 warns of the KL while it traces the loss."""
    with caplog.at_level(logging.WARNING):
        worker = worker_of(masked(config_of(name)))
        policy = worker.get_policy()
        assert isinstance(policy, kind)
        policy.learn_on_batch(sampled(worker))
    said = [r.getMessage() for r in caplog.records if not r.name.startswith("ray._common")]
    assert not [text for text in said if "KL" in text or "mask" in text]


def test_ray_2_60_warns_of_an_infinite_kl_that_is_none(caplog: pytest.LogCaptureFixture) -> None:
    worker = worker_of(config_of("tf2 traced"))
    with caplog.at_level(logging.WARNING, logger="ray.rllib.utils.tf_utils"):
        stats = worker.get_policy().learn_on_batch(sampled(worker))["learner_stats"]
    assert np.isfinite(stats["kl"])
    assert [r for r in caplog.records if "KL divergence is non-finite" in r.getMessage()]


# --- masks as they come from the environment -------------------------------------------------


class BrokenMaskEnv(rllib_tf_support.MaskedChainEnv):
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


@in_graph_and_traced
def test_an_empty_mask_from_the_environment_is_an_error_or_a_row_to_drop(name: str) -> None:
    """FAULTS B6, C16."""
    config = config_of(name, BrokenMaskEnv, broken_mask=[0] * A)
    with pytest.raises(MaskError, match=r"from environment .*BrokenMaskEnv.*, agent 0, step 2"):
        sampled(worker_of(masked(config)))
    worker = worker_of(
        with_action_masking(config_of(name, BrokenMaskEnv, broken_mask=[0] * A), empty_masks="drop")
    )
    stats = worker.get_policy().learn_on_batch(sampled(worker))["learner_stats"]
    assert stats["rows_empty_mask"] > 0
    assert np.isfinite(stats["kl"])


# --- loss terms, a replaced loss, statistics ------------------------------------------------


def weight_decay(model: Any, batch: Any) -> Any:
    return tf.add_n([tf.reduce_sum(v**2) for v in model.trainable_variables()])


@in_graph_and_traced
def test_a_loss_term_is_in_the_loss_with_its_coefficient_and_in_the_metrics(name: str) -> None:
    plain = worker_of(masked(config_of(name))).get_policy()
    worker = worker_of(
        masked(
            config_of(name),
            loss_terms={"decay": weight_decay},
            loss_coeffs={"decay": [[0, 0.5], [100, 0.0]]},
        )
    )
    policy, batch = worker.get_policy(), sampled(worker)
    weights = weights_of(policy)
    rllib_tf_support.change_weights(plain, lambda variable, _: weights[variable])
    stats, gradients = gradients_of(plain, batch)
    total_stats, total_gradients = gradients_of(policy, batch)
    decay = sum((w**2).sum() for w in weights.values())
    assert total_stats["loss_terms/decay"] == pytest.approx(decay, rel=1e-5)
    assert total_stats["loss_coeffs/decay"] == 0.5
    assert total_stats["total_loss"] == pytest.approx(stats["total_loss"] + decay / 2, rel=1e-5)
    for ours, theirs, weight in zip(total_gradients, gradients, weights.values(), strict=True):
        np.testing.assert_allclose(ours, theirs + weight, rtol=1e-4, atol=1e-6)
    for timestep, coefficient in ((25, 0.375), (100, 0.0), (1000, 0.0)):
        policy.on_global_var_update({"timestep": timestep})
        stats = policy.learn_on_batch(batch.copy())["learner_stats"]
        assert stats["loss_coeffs/decay"] == coefficient


@in_graph_and_eager
def test_a_term_that_no_variable_can_change_is_named_with_the_variables(name: str) -> None:
    """FAULTS C3: "No variables provided"."""
    constant = {"rewards": lambda model, batch: tf.reduce_mean(batch["advantages"])}
    with pytest.raises(MaskError, match=r"'rewards'.* none of the 8 .*fc_out.*tf.stop_gradient"):
        worker_of(masked(config_of(name), loss_terms=constant))


@in_graph_and_eager
@pytest.mark.parametrize(
    ("term", "message"),
    [
        (lambda model, batch: batch["advantages"], r"returned shape \((32|None),\)"),
        (lambda model, batch: None, "returned NoneType"),
    ],
)
def test_a_term_that_is_no_scalar_is_an_error_at_build(name: str, term: Any, message: str) -> None:
    with pytest.raises(MaskError, match=message):
        worker_of(masked(config_of(name), loss_terms={"a": term}))


def own_loss(policy: Any, model: Any, dist_class: Any, batch: Any) -> Any:
    inputs, _ = model(batch)
    log_prob = dist_class(inputs, model).logp(batch["actions"])
    loss = -tf.reduce_mean(log_prob * batch["advantages"])
    # RLlib drops the columns that a loss does not read.
    stored = tf.reduce_mean(batch["action_logp"])
    return loss, {"own_log_prob": tf.reduce_mean(log_prob), "stored_log_prob": stored}


@on_every_framework
def test_the_policy_loss_can_be_replaced_and_is_the_one_that_runs(name: str) -> None:
    """FAULTS C18, and statistics under names of their own."""
    seen: list[set[str]] = []

    def largest(policy: Any, gradients: Any) -> Any:
        seen.append(set(gradients))
        return tf.reduce_max(tf.stack([tf.reduce_max(tf.abs(g)) for g in gradients.values()]))

    config = masked(
        config_of(name),
        policy_loss=own_loss,
        loss_stats={"mean_advantage": lambda policy, batch: tf.reduce_mean(batch["advantages"])},
        grad_stats={"largest_gradient": largest},
    )
    worker = worker_of(config)
    policy, batch = worker.get_policy(), sampled(worker)
    stats = reduced(policy.learn_on_batch(batch.copy()))
    log_prob, advantages = batch["action_logp"], batch["advantages"]
    assert stats["own_log_prob"] == pytest.approx(log_prob.mean(), rel=1e-4)
    assert stats["total_loss"] == pytest.approx(-(log_prob * advantages).mean(), rel=1e-3)
    assert stats["mean_advantage"] == pytest.approx(advantages.mean(), rel=1e-4)
    assert np.isnan(stats["kl"])  # RLlib asks for it after each iteration; it was not measured.
    assert not {"max_kl", "entropy", "vf_explained_var", "rows_empty_mask"} & set(stats)
    assert stats["largest_gradient"] > 0
    assert stats["stored_log_prob"] == pytest.approx(stats["own_log_prob"], rel=1e-4)
    reached = {n for n in policy.model.trainable_variables(as_dict=True) if "value" not in n}
    assert seen[-1] == reached


def test_gradients_are_clipped_as_configured_which_ray_2_60_does_not_on_tensorflow() -> None:
    sizes = {}
    for masking in (True, False):
        config = config_of("tf2").training(grad_clip=1e-3)
        worker = worker_of(masked(config) if masking else config)
        gradients, _ = worker.get_policy().compute_gradients(sampled(worker))
        sizes[masking] = np.sqrt(sum((g**2).sum() for g in gradients))
    assert sizes[True] == pytest.approx(1e-3, rel=1e-4)
    assert sizes[False] > 1e-2
