"""The conformance kit: the contract of a masked categorical, as rows that anyone can run.

``python -m maskcore.conformance MODULE`` runs every row on a module and prints which hold;
``pytest --pyargs maskcore.conformance --backend MODULE`` does so as tests. What a module needs is
in ``adapter``; the strategies are public. Hypothesis is imported here and not by ``maskcore``.

>>> from maskcore.conformance import check_row, load, ROWS
>>> check_row(ROWS["entropy_forced_row"], load("maskcore.spec"), examples=5).verdict
'holds'
"""

from maskcore.conformance import strategies
from maskcore.conformance.adapter import Adapter, load
from maskcore.conformance.case import Case
from maskcore.conformance.registry import ROWS, Broken, NotClaimed, Row
from maskcore.conformance.runner import Result, check_row, run

__all__ = [
    "ROWS",
    "Adapter",
    "Broken",
    "Case",
    "NotClaimed",
    "Result",
    "Row",
    "check_row",
    "load",
    "run",
    "strategies",
]
