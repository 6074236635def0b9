"""The list of ``make mutants`` fits the code: running it takes an hour, going stale an edit."""

from __future__ import annotations

from benchmarks.mutants import stale
from benchmarks.mutations import MUTATIONS


def test_every_mutation_can_be_applied() -> None:
    assert [(m.file, m.name, why) for m in MUTATIONS if (why := stale(m))] == []


def test_every_backend_is_mutated() -> None:
    for backend in ("numpy", "torch", "tf"):
        assert sum(m.backend == backend for m in MUTATIONS) >= 30
