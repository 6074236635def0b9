"""Single mutations of the backends; ``benchmarks.mutants`` applies them one at a time."""

from benchmarks.mutations.mutation import Mutation
from benchmarks.mutations.of_numpy import OF_NUMPY

MUTATIONS: tuple[Mutation, ...] = (*OF_NUMPY,)

__all__ = ["MUTATIONS", "Mutation"]
