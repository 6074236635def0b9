"""TensorFlow for the other files, untyped: it ships no type information that pyright can check.

Only ``tensorflow`` is imported, never ``keras``, so both Keras versions work.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import tensorflow as _tensorflow  # pyright: ignore

__all__ = ["Tensor", "tf"]

tf: Any = _tensorflow
Tensor: TypeAlias = Any
"""A ``tf.Tensor``, eager or symbolic."""
