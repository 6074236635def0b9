"""Whether the code being traced is for XLA, for which the step is written in another way.

Plain TensorFlow pays for every operation on an array; XLA for every sum over a row.
"""

from __future__ import annotations

from tensorflow.python.ops import control_flow_util  # pyright: ignore

from backends._tf_api import tf


def for_xla() -> bool:
    """Whether the code being traced is for XLA."""
    # tf.cond itself asks this question; there is no public way to.
    ask = getattr(control_flow_util, "GraphOrParentsInXlaContext", None)
    return bool(ask is not None and ask(tf.compat.v1.get_default_graph()))
