"""Inputs on which real programs failed: A1-A18 and B1-B7, on every backend.

The inputs and the right values are in ``maskcore/conformance/rows/faults.py``.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from contract_support import require

from maskcore import MaskError, check_mask
from maskcore.conformance import ROWS, Adapter, Row

FAULTS = [row for row in ROWS.values() if row.group == "fault"]


@pytest.mark.parametrize("row", FAULTS, ids=[row.name for row in FAULTS])
def test_fault(row: Row, backend: ModuleType) -> None:
    require(row, Adapter(backend), backend.NAME)


def test_every_number_is_there() -> None:
    numbers = {row.name.split("_")[1] for row in FAULTS}
    assert numbers == {f"a{i}" for i in range(1, 19)} | {f"b{i}" for i in range(1, 8)}


def test_b6_empty_mask_of_an_environment_is_an_error(backend: ModuleType) -> None:
    mask = backend.to_numpy(backend.asarray(np.zeros(4, np.int8)))
    with pytest.raises(MaskError) as error:
        check_mask(mask, num_actions=4, env="Chain-v0", agent="agent_1", step=7)
    for part in ("Chain-v0", "agent_1", "7"):
        assert part in str(error.value)


def test_refusals_are_mask_errors(backend: ModuleType) -> None:
    adapter = Adapter(backend)
    adapter.refuses_with = (MaskError,)
    for name in (
        "mask_of_other_values_is_refused",
        "mask_that_is_additive_is_refused",
        "mask_of_wrong_shape_is_refused",
        "actions_out_of_range_are_refused",
        "actions_of_wrong_shape_are_refused",
        "fault_b2_filtered_mask",
        "fault_b3_additive_mask",
    ):
        ROWS[name].check(adapter)
