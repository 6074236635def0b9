"""What a mutation is."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutation:
    """One text of one file replaced by another.

    ``survives`` explains a mutation that no test can notice, or that none needs to.
    """

    backend: str
    file: str
    name: str
    old: str
    new: str
    survives: str | None = None
