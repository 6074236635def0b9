"""Work that only rare rows need: skipped where no row needs it, unless XLA compiles the code.

Plain TensorFlow pays for every operation on an array, so a branch is worth its few microseconds.
XLA fuses the operations into loops that run anyway; a branch would only cut the loops apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tensorflow.python.ops import control_flow_util  # pyright: ignore

from backends._tf_api import Tensor, tf

T = TypeVar("T")


def unless_ordinary(special: Tensor, general: Callable[[], T], ordinary: Callable[[], T]) -> T:
    """``general()`` if the scalar ``special`` is True or the code is compiled, else ``ordinary()``.

    Both have to agree where ``special`` is False.
    """
    if compiled():
        return general()
    return tf.cond(special, general, ordinary)


def compiled() -> bool:
    """Whether the code being traced is for XLA."""
    # tf.cond itself asks this question; there is no public way to.
    ask = getattr(control_flow_util, "GraphOrParentsInXlaContext", None)
    return bool(ask is not None and ask(tf.compat.v1.get_default_graph()))
