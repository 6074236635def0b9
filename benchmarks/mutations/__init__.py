"""Single mutations of the backends; ``benchmarks.mutants`` applies them one at a time."""

from benchmarks.mutations.mutation import Mutation
from benchmarks.mutations.of_numpy import OF_NUMPY
from benchmarks.mutations.of_tf import OF_TF
from benchmarks.mutations.of_torch import OF_TORCH

MUTATIONS: tuple[Mutation, ...] = (*OF_NUMPY, *OF_TORCH, *OF_TF)

__all__ = ["MUTATIONS", "Mutation"]
