"""TensorFlow distributions as modules that the kit can run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf


class TFPeer:
    """asarray, to_numpy and vjp; the quantities are the subclass's."""

    REFUSES_WITH = (ValueError, tf.errors.InvalidArgumentError)

    def __init__(
        self,
        name: str,
        make: Callable[[Any, Any], Any],
        *,
        package: str,
        not_claimed: Mapping[str, str],
        leaves_out: frozenset[str],
        slack: float = 1e-3,
    ) -> None:
        self.NAME = name
        self.PACKAGE = package
        self.NOT_CLAIMED = not_claimed
        self.LEAVES_OUT = leaves_out
        self.SLACK = slack
        self._make = make

    @staticmethod
    def asarray(array: np.ndarray) -> Any:
        return tf.constant(array)

    @staticmethod
    def to_numpy(tensor: Any) -> np.ndarray:
        found = tensor.numpy()
        return found.astype(np.float32) if tensor.dtype == tf.bfloat16 else found

    @staticmethod
    def vjp(fn: Callable[..., Any], *arrays: Any, cotangent: Any) -> tuple[Any, ...]:
        with tf.GradientTape() as tape:
            for array in arrays:
                tape.watch(array)
            result = fn(*arrays)
        return tuple(
            tape.gradient(
                result,
                arrays,
                output_gradients=cotangent,
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
        )
