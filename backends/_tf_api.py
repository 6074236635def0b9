"""TensorFlow for the other files, untyped: it ships no type information that pyright can check.

Only ``tensorflow`` is imported, never ``keras``, so both Keras versions work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import tensorflow as _tensorflow  # pyright: ignore

__all__ = ["Tensor", "outside_autograph", "tf"]

tf: Any = _tensorflow
Tensor: TypeAlias = Any
"""A ``tf.Tensor``, eager or symbolic."""

F = TypeVar("F", bound=Callable[..., Any])


def outside_autograph(function: F) -> F:
    """Keep AutoGraph from rewriting ``function`` and what it calls; there is nothing to rewrite.

    Tracing is several times faster without it, and errors point into the code as it is written.
    """
    return tf.autograph.experimental.do_not_convert(function)
