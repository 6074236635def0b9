"""The TensorFlow backend as RLlib runs it, compiled by ``tf.function``, with the backend's face.

Eager TensorFlow takes a tenth of a second for what the conformance kit asks of one example; in a
graph it is one call. One graph a combination of ranks, with the sizes of the axes left open.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from backends import tf_backend

FUNCTIONS = (
    "masked_softmax",
    "masked_log_softmax",
    "log_prob",
    "entropy",
    "kl_divergence",
    "cross_entropy",
    "mode",
    "sample",
    "evaluate_actions",
)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` in graphs, one for each combination of the arguments' ranks and dtypes."""
    graphs: dict[Any, Callable[..., Any]] = {}

    def key_of(value: Any) -> Any:
        return (value.dtype, len(value.shape)) if isinstance(value, tf.Tensor) else type(value)

    def call(*args: Any, **kwargs: Any) -> Any:
        names = tuple(sorted(kwargs))
        key = (tuple(map(key_of, args)), names, tuple(key_of(kwargs[name]) for name in names))
        if key not in graphs:
            graphs[key] = tf.function(function, reduce_retracing=True, autograph=False)
        return graphs[key](*args, **kwargs)

    call.__signature__ = inspect.signature(function)
    return call


def graph_mode() -> Any:
    """An object with the backend's names whose functions are graphs."""
    face = types.SimpleNamespace(**{name: getattr(tf_backend, name) for name in dir(tf_backend)})
    for name in FUNCTIONS:
        setattr(face, name, compiled(getattr(tf_backend, name)))
    return face
