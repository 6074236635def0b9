"""Which rows of the contract a backend may leave out, and why; what it takes to pass a row."""

from __future__ import annotations

import functools
import importlib.util
from types import ModuleType
from typing import Any

import pytest

from maskcore.conformance import Adapter, Result, Row, check_row

# Rows that do not apply, by backend. A row that is left out without being listed here fails.
NUMPY = {
    "masked_softmax_gradient": "NumPy has closed forms of reductions alone",
    "masked_log_softmax_gradient": "as above",
    "evaluate_actions_gradient": "as above; its parts are tested",
}
SPEC = {
    **NUMPY,
    "entropy_accuracy": "textbook formulas in float64: measured in test_spec",
    "kl_divergence_accuracy": "as above",
    "log_prob_gradient_accuracy": "as above",
    "entropy_gradient_accuracy": "as above",
    "kl_divergence_gradient_accuracy": "as above",
    "evaluate_actions_equals_its_parts": "not a function of the specification",
    "evaluate_actions_defaults": "as above",
    "masked_categorical_equals_functions": "as above",
}
if importlib.util.find_spec("ml_dtypes") is None:
    for name in ("bfloat16_accumulates_in_float32", "fault_a11_bfloat16_entropy_of_many"):
        NUMPY[name] = SPEC[name] = "NumPy has bfloat16 only with ml_dtypes"
NOT_CLAIMED: dict[str, dict[str, str]] = {"numpy": NUMPY, "torch": {}, "tf": {}, "spec": SPEC}


# Rows about what is refused need values to be looked at, which a graph cannot do.
EAGER_GROUPS = ("mask", "fault")
EAGER_EXAMPLES = 10


def require_everywhere(row: Row, backend: ModuleType) -> int:
    """Require a row of a backend in each of its modes; returns how many examples ran.

    TensorFlow runs every row eagerly, and in graphs with as many examples as the profile says.
    """
    if backend.NAME != "tf":
        return require(row, Adapter(backend), backend.NAME).examples
    if row.group in EAGER_GROUPS:
        return require(row, Adapter(backend), "tf").examples
    eager = require(row, Adapter(backend), "tf", examples=EAGER_EXAMPLES)
    graphs = Adapter(_graph_mode(), source="backends.tf_backend")
    return eager.examples + require(row, graphs, "tf").examples


@functools.cache
def _graph_mode() -> Any:
    from tf_graph_mode import graph_mode  # here, so that other backends' tests load no TensorFlow

    return graph_mode()


def require(row: Row, adapter: Adapter, name: str, *, examples: int | None = None) -> Result:
    """The row's result; fails the test unless it holds or is listed as not claimed."""
    result = check_row(row, adapter, examples=examples)
    listed = NOT_CLAIMED[name].get(row.name)
    if result.verdict == "not claimed":
        assert listed is not None, f"{row.name} is not tested on {name}: {result.reason}"
    elif result.verdict == "fails":
        pytest.fail(f"{row.title}\n\n{result.reason}", pytrace=False)
    else:
        assert listed is None, f"{row.name} holds on {name} and is listed as not claimed: {listed}"
    return result
