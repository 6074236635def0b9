"""A traced function whose graph is looked up by shapes gives what the function itself gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rllib_tf_support
import tensorflow as tf
from ray.rllib.policy.eager_tf_policy import _convert_eager_inputs
from ray.rllib.policy.sample_batch import SampleBatch
from rllib_support import masked, sampled, worker_of
from rllib_tf_support import config_of, weights_of

from rllib_integration.tf_eager_policy import MaskedPPOTF2Policy
from rllib_integration.tf_function import PreparedFunction

pytestmark = rllib_tf_support.TF_MARKS


def function_of(traces: list[int]) -> Any:
    scale = tf.Variable(2.0)

    def function(batch: Any, states: Any, nothing: Any, explore: Any, step: Any) -> Any:
        traces.append(1)
        assert nothing is None
        offset = tf.where(explore, tf.cast(step, tf.float32), 0.0)
        total = scale * batch["b"] - batch["a"] + offset
        return {"total": total, "states": [2 * state for state in states]}

    return _convert_eager_inputs(tf.function(function, autograph=False, reduce_retracing=True))


def arguments(rows: int, *, explore: bool = True, step: Any = 3) -> Any:
    rng = np.random.default_rng(rows)
    columns = {"b": rng.normal(size=rows), "a": rng.normal(size=rows), "infos": [{}] * rows}
    batch = SampleBatch({k: np.float32(v) if k != "infos" else v for k, v in columns.items()})
    return batch, [tf.ones((rows, 2))], None, explore, step


def test_it_gives_what_the_function_gives_for_every_shape_and_value() -> None:
    traces: list[int] = []
    function = function_of(traces)
    prepared = PreparedFunction(function_of([]))
    step = tf.Variable(4)  # As RLlib's: two variables, in place of numbers, when it samples.
    cases = [(3, True, 3), (3, False, 3), (3, True, 7), (5, True, 1), (5, True, step)]
    for rows, explore, value in cases * 3:
        step.assign_add(1)
        args = arguments(rows, explore=explore, step=value)
        expected, found = function(*args), prepared(*args)
        tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
    assert len(prepared._prepared) == 3
    assert all(prepared._prepared.values())


def test_a_prepared_graph_reads_variables_as_they_are_now() -> None:
    variable = tf.Variable(1.0)
    traced = tf.function(lambda batch, _ray_trace_ctx=None: variable * batch["a"], autograph=False)
    prepared = PreparedFunction(_convert_eager_inputs(traced))
    batch = SampleBatch({"a": np.ones(2, np.float32)})
    for value in (1.0, 2.0, 3.0):
        variable.assign(value)
        np.testing.assert_array_equal(prepared(batch), [value, value])


def test_what_is_not_plain_goes_the_usual_way() -> None:
    seen: list[Any] = []
    prepared = PreparedFunction(lambda *args: seen.append(args))
    nested = SampleBatch({"a": {"x": np.ones(2), "y": np.ones(2)}})
    prepared(nested)
    prepared({"a": np.ones(2)})
    with tf.Graph().as_default():
        prepared(SampleBatch({"a": np.ones(2)}))
    assert len(seen) == 3
    assert not prepared._prepared


@pytest.mark.parametrize("model", [{}, {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5}])
def test_a_policy_learns_the_same_with_it(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = masked(config_of("tf2 traced"), model=model)
    prepared, plain = worker_of(config), worker_of(config)
    policy, other = prepared.get_policy(), plain.get_policy()
    other.set_state(policy.get_state())
    batch = sampled(prepared)
    found = [policy.learn_on_batch(batch.copy())["learner_stats"] for _ in range(3)]
    for helper in (policy._learn_on_batch_helper, policy._compute_actions_helper):
        assert any(helper._prepared.values())  # Sampling took it too, not only the update.
    monkeypatch.setattr(MaskedPPOTF2Policy, "__setattr__", object.__setattr__)
    for stats in found:
        usual = other.learn_on_batch(batch.copy())["learner_stats"]
        assert stats.keys() == usual.keys()
        np.testing.assert_allclose(list(stats.values()), list(usual.values()), rtol=1e-5)
    assert not isinstance(other._learn_on_batch_helper, PreparedFunction)
    expected = weights_of(other)
    for name, weight in weights_of(policy).items():
        np.testing.assert_allclose(weight, expected[name], rtol=1e-5, atol=1e-7)


def test_columns_that_the_loss_does_not_read_are_left_out_and_the_batch_kept() -> None:
    read: list[set[str]] = []

    def loss(model: Any, batch: Any) -> Any:
        read.append(set(batch.keys()))
        return tf.reduce_mean(model.value_function() * batch["rewards"])

    worker = worker_of(masked(config_of("tf2 traced"), loss_terms={"rewards": loss}))
    batch = sampled(worker)
    columns = set(batch.keys())
    worker.get_policy().learn_on_batch(batch)
    assert {"rewards", "obs", "actions", "advantages", "action_dist_inputs"} <= read[-1]
    assert not {"t", "eps_id", "new_obs", "vf_preds", "terminateds"} & read[-1]
    assert columns <= set(batch.keys())
