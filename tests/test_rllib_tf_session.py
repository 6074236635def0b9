"""A session that prepares its runs gives what the session itself gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rllib_tf_support
import tensorflow as tf
from rllib_support import masked, sampled, worker_of
from rllib_tf_support import config_of

from rllib_integration.tf_session import PreparedSession

pytestmark = rllib_tf_support.TF_MARKS

tf1 = tf.compat.v1


def test_values_operations_and_nesting_are_those_of_the_session() -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float32, (None,))
        rate = tf1.placeholder_with_default(3, ())
        total = tf1.get_variable("total", initializer=0.0)
        session.run(tf1.global_variables_initializer())
        add = tf1.assign_add(total, tf.reduce_sum(x)).op
        fetches: Any = [add, {"b": x * 2, "a": (tf.reduce_max(x), tf.cast(rate, tf.int64))}]
        prepared = PreparedSession(session)
        for feed in ({x: [1.0, 2.0]}, {x: np.arange(3), rate: 5}, {x: [4], rate: np.int8(1)}):
            expected, found = session.run(fetches, feed), prepared.run(fetches, feed)
            assert tf.nest.map_structure(type, found) == tf.nest.map_structure(type, expected)
            tf.nest.map_structure(
                np.testing.assert_array_equal, tf.nest.flatten(found), tf.nest.flatten(expected)
            )
            assert found[0] is None
        assert session.run(total) == 2 * (3 + 3 + 4)  # Each operation ran once a run.
        assert len(prepared._prepared) == 2  # The second and third run are of one kind.
        assert prepared.graph is session.graph


def test_what_cannot_be_prepared_is_left_to_the_session() -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        total = tf1.get_variable("total", initializer=2.0)
        session.run(tf1.global_variables_initializer())
        prepared = PreparedSession(session)
        assert prepared.run(total) == 2.0  # A variable, and a tensor by its name.
        assert prepared.run("total/Read/ReadVariableOp:0") == 2.0
        metadata = tf1.RunMetadata()
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        prepared.run(total, options=options, run_metadata=metadata)
        assert metadata.step_stats.dev_stats
        with pytest.raises(TypeError):
            prepared.run(object())


def test_a_policy_prepares_each_kind_of_run_once() -> None:
    worker = worker_of(masked(config_of("tf")))
    policy, batch = worker.get_policy(), sampled(worker)
    policy.learn_on_batch(batch.copy())
    prepared = policy.get_session()._prepared
    kinds = len(prepared)
    assert kinds >= 2  # Of a step of the rollout, and of an update.
    sampled(worker)
    policy.learn_on_batch(batch.copy())
    assert len(policy.get_session()._prepared) == kinds
