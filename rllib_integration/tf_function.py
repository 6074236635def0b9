"""A traced function of RLlib's that finds the graph for its arguments once, not in each call.

RLlib 2.60 hands every column of a batch to a ``tf.function``, which compares the types of all of
them with those of the graphs it has: for a small network a third of the time of a call. Here the
graph is looked up by the arguments' shapes and given the tensors. Whatever is not plain (nested
observations, a first call, a graph whose inputs stand in another order) goes the usual way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from rllib_integration.keras_setup import setup_keras

setup_keras()

import tensorflow as tf  # noqa: E402
from ray.rllib.policy.sample_batch import SampleBatch  # noqa: E402

__all__ = ["PreparedFunction"]


class PreparedFunction:
    """Stands in for what ``eager_tf_policy._convert_eager_inputs`` made of a ``tf.function``."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._prepared: dict[Hashable, Callable[[list[Any]], Any] | None] = {}

    def __call__(self, *args: Any) -> Any:
        """As ``function(*args)``: tensors for the arrays in ``args``, then the graph."""
        flat = _flat(args) if tf.executing_eagerly() else None
        if flat is None:
            return self._function(*args)
        structure, leaves = flat
        leaves = [x if tf.is_tensor(x) else tf.convert_to_tensor(x) for x in leaves]
        key = (structure, *map(_kind, leaves))
        if key not in self._prepared:
            result = self._function(*args)
            self._prepared[key] = _prepare(self._function.__wrapped__, structure, leaves)
            return result
        prepared = self._prepared[key]
        return self._function(*args) if prepared is None else prepared(_inputs(leaves))


def _flat(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]] | None:
    """What the arguments look like, and what is in them, in TensorFlow's order; None: not plain."""
    structure: list[Any] = []
    leaves: list[Any] = []
    for arg in args:
        if isinstance(arg, SampleBatch):
            names = sorted(key for key in dict.keys(arg) if key != SampleBatch.INFOS)
            structure.append(tuple(names))
            leaves += [dict.__getitem__(arg, name) for name in names]
        elif isinstance(arg, list):
            structure.append(len(arg))
            leaves += arg
        elif arg is None:
            structure.append(None)
        else:
            structure.append("leaf")
            leaves.append(arg)
    return (tuple(structure), leaves) if all(isinstance(x, _PLAIN) for x in leaves) else None


# RLlib's timestep and its switch for exploration are variables.
_PLAIN = (np.ndarray, np.generic, bool, int, tf.Tensor, tf.Variable)


def _kind(leaf: Any) -> Hashable:
    """What two tensors have in common that are fit for one graph; a variable is one of a kind."""
    if isinstance(leaf, tf.Variable):
        return id(leaf)
    return (leaf.dtype.as_datatype_enum, *leaf.shape.as_list())


def _inputs(leaves: list[Any]) -> list[Any]:
    return [leaf.handle if isinstance(leaf, tf.Variable) else leaf for leaf in leaves]


def _prepare(
    traced: Any, structure: tuple[Any, ...], leaves: list[Any]
) -> Callable[[list[Any]], Any] | None:
    """The graph that ``traced`` uses for such leaves; None where they are not its inputs."""
    rest = iter(leaves)
    args: list[Any] = []
    for part in structure:
        if isinstance(part, tuple):
            args.append({name: next(rest) for name in part})
        elif isinstance(part, int):
            args.append([next(rest) for _ in range(part)])
        else:
            args.append(None if part is None else next(rest))
    graph = traced.get_concrete_function(*args)
    kind = graph.function_type
    defaults = [None] * (len(kind.parameters) - len(args))  # RLlib's own `_ray_trace_ctx`.
    inputs = kind.unpack_inputs(kind.bind(*args, *defaults))
    expected = _inputs(leaves)
    if len(inputs) != len(expected) or any(map(_is_not, inputs, expected)):
        return None
    captured = graph.captured_inputs
    kept = [leaf for leaf in leaves if isinstance(leaf, tf.Variable)]  # So that ids stay theirs.
    return lambda given, kept=kept: graph._call_flat(given, captured)


def _is_not(first: Any, second: Any) -> bool:
    return first is not second
