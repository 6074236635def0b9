"""A TensorFlow session that resolves what it is asked to run once, not each time.

RLlib's static-graph policies hand ``session.run`` the same 20 fetches and the same feeds in each
step of a rollout and for each minibatch, and TensorFlow looks all of them up again: for a small
network that takes as long as running it. ``Session`` can prepare a run (``tf.keras`` used that for
its functions); this keeps one prepared run for each set of fetches and feeds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tree

from rllib_integration.keras_setup import setup_keras

setup_keras()

import tensorflow as tf  # noqa: E402
from tensorflow.core.protobuf.config_pb2 import CallableOptions  # noqa: E402

__all__ = ["PreparedSession"]


class PreparedSession:
    """Stands in for ``session``; everything but ``run`` is the session's own.

    >>> with tf.compat.v1.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     x = tf.compat.v1.placeholder(tf.float32, (2,))
    ...     prepared = PreparedSession(session)
    ...     prepared.run({"double": 2 * x}, {x: [1.0, 2.0]})
    {'double': array([2., 4.], dtype=float32)}
    """

    def __init__(self, session: Any) -> None:
        self.session = session
        self._prepared: dict[tuple[int, ...], _PreparedRun] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def run(
        self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
    ) -> Any:
        """As ``session.run``."""
        leaves = tree.flatten(fetches)
        feeds, values = list(feed_dict or {}), list((feed_dict or {}).values())
        plain = all(isinstance(leaf, (tf.Tensor, tf.Operation)) for leaf in leaves) and all(
            isinstance(feed, tf.Tensor) for feed in feeds
        )
        if not plain or options is not None or run_metadata is not None:
            return self.session.run(fetches, feed_dict, options, run_metadata)
        key = (*map(id, leaves), -1, *map(id, feeds))
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepared[key] = _PreparedRun(self.session, leaves, feeds)
        return tree.unflatten_as(fetches, prepared(values))


class _PreparedRun:
    """One set of fetches and feeds. Keeps them alive, so that their ids stay theirs."""

    def __init__(self, session: Any, leaves: list[Any], feeds: list[Any]) -> None:
        self._leaves, self._feeds = leaves, feeds
        self._dtypes = [feed.dtype.as_numpy_dtype for feed in feeds]
        options = CallableOptions()
        options.feed.extend(feed.name for feed in feeds)
        for leaf in leaves:
            (options.target if isinstance(leaf, tf.Operation) else options.fetch).append(leaf.name)
        self._is_operation = [isinstance(leaf, tf.Operation) for leaf in leaves]
        self._call = session._make_callable_from_options(options)

    def __call__(self, values: list[Any]) -> list[Any]:
        """The value of every leaf, None for operations, as ``session.run`` has it."""
        arrays = map(np.asarray, values, self._dtypes)
        fetched = iter(self._call(*arrays))
        return [None if operation else next(fetched) for operation in self._is_operation]
