"""Which rows of the contract a backend may leave out, and why; what it takes to pass a row."""

from __future__ import annotations

import importlib.util

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


def require(row: Row, adapter: Adapter, name: str) -> Result:
    """The row's result; fails the test unless it holds or is listed as not claimed."""
    result = check_row(row, adapter)
    listed = NOT_CLAIMED[name].get(row.name)
    if result.verdict == "not claimed":
        assert listed is not None, f"{row.name} is not tested on {name}: {result.reason}"
    elif result.verdict == "fails":
        pytest.fail(f"{row.title}\n\n{result.reason}", pytrace=False)
    else:
        assert listed is None, f"{row.name} holds on {name} and is listed as not claimed: {listed}"
    return result
