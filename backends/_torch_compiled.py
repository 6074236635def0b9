"""``evaluate_actions(..., compiled=True)``: the loops of ``_torch_loops``, compiled on first use.

The two functions are compiled with open sizes, so that another batch size is no other compilation.
Rows that the loops flag, and rows whose two masks differ, are computed by the plain formulas, and
so are second derivatives. Where nothing can be compiled, one warning says so and the eager formulas
take over.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from backends import _torch_autograd as fast
from backends import _torch_loops as loops
from backends._torch_autograd import Results
from backends._torch_fused import Policy
from backends._torch_inputs import refuse_actions

FROM = 2**15  # entries from which compiled code beats the eager formulas

_failed: list[str] = []  # why nothing is compiled here; empty as long as it is


def suits(policy: Policy) -> bool:
    """Whether the compiled loops cover the policy and are faster than the eager formulas."""
    z, old, _, _, actions, _ = policy
    return (
        old is not None
        and actions is not None
        and z.dtype == torch.float32
        and z.numel() >= FROM
        and z.shape[-1] <= loops.LARGEST_WIDTH
        and not (torch.is_grad_enabled() and old.requires_grad)
    )


def evaluate(policy: Policy) -> Results:
    """As the eager ``evaluate``, of which it takes the results where nothing can be compiled."""
    refuse_actions(cast("Tensor", policy.actions), policy.logits.shape[-1])
    run = None if _failed else Run.of(policy)
    if run is None:
        return fast.evaluate(policy)
    if torch.is_grad_enabled() and policy.logits.requires_grad:
        return Results(*cast("tuple[Any, Any, Any]", Evaluate.apply(run, *policy)))
    return run.results


class Evaluate(torch.autograd.Function):
    """``apply(run, *policy)`` gives the run's results."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:  # pyright: ignore
        run, *policy = arguments
        ctx.run = run
        ctx.save_for_backward(*policy[:5])
        results, run.results = run.results, Results(None, None, None)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> Any:  # pyright: ignore
        policy = Policy(*ctx.saved_tensors, True)  # pyright: ignore
        if torch.is_grad_enabled():
            new = fast.plain_gradient(policy, Results(*incoming))[0]
        else:
            new = ctx.run.gradient(policy, Results(*incoming))
        return None, new, None, None, None, None, None


class Run:
    """One evaluation: its results, and the numbers of each row that the gradient needs."""

    def __init__(self, flat: Policy, shape: torch.Size, found: tuple[Tensor, ...]) -> None:
        *results, self.numbers, flags = found
        self.redone: tuple[Tensor, Tensor] | None = None
        wrong = flags if flags.amax().item() else None
        if flat.old_legal is not None:
            differ = (flat.legal != flat.old_legal).any(-1, keepdim=True)
            wrong = differ if wrong is None else differ | (wrong > 0)
        if wrong is not None:
            self.redone = fast.mend(flat, wrong.squeeze(-1) != 0, results)
        self.results = Results(*(x.view(shape) for x in results))

    @classmethod
    def of(cls, policy: Policy) -> Run | None:
        """The run of a policy that ``suits``; None where nothing can be compiled."""
        with torch.no_grad():
            flat = fast.flattened(policy)
            found = _call(0, *_arguments(flat))
            return None if found is None else cls(flat, policy.logits.shape[:-1], found)

    def gradient(self, policy: Policy, incoming: Results) -> Tensor:
        """The gradient to the new logits."""
        flat = fast.flattened(policy)
        grads = [cast("Tensor", g).reshape(-1, 1).contiguous() for g in incoming]
        out = _call(1, *_arguments(flat), self.numbers, *grads)
        if out is None:
            here = Results(*(g.squeeze(-1) for g in grads))
            return fast.closed_gradient(fast.unflattened(flat), here)[0].view(policy.logits.shape)
        if self.redone is not None:
            empty, other = self.redone
            out[empty] = 0
            if len(other):
                here = Results(*(g[other].squeeze(-1) for g in grads))
                right = fast.closed_gradient(fast.wide_rows(flat, other), here)[0]
                out[other] = right.to(out.dtype)
        return out.view(policy.logits.shape)


def _arguments(flat: Policy) -> tuple[Tensor, ...]:
    z, old, legal, _, index, _ = flat
    arrays = (z, old, legal.view(torch.uint8), index)
    return tuple(cast("Tensor", x).detach().contiguous() for x in arrays)


@functools.cache
def _functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    return (
        torch.compile(loops.values, dynamic=True, fullgraph=True),
        torch.compile(loops.gradient, dynamic=True, fullgraph=True),
    )


def _call(which: int, *arguments: Tensor) -> Any:
    """Call one of the compiled functions; None, with a warning the first time, without compiler."""
    try:
        return _functions()[which](*arguments)
    except Exception as error:
        if not _no_compiler(error):
            raise
        if not _failed:
            why = " ".join(str(error).split()[:40])
            warnings.warn(
                f"evaluate_actions(compiled=True): torch.compile failed here with "
                f"{type(error).__name__}: {why}. The eager formulas are used instead, with "
                "the same results but slower. Install a C++ compiler that torch.compile finds "
                "(g++, or the path in CXX), or leave out compiled=True.",
                RuntimeWarning,
                stacklevel=2,
            )
            _failed.append(why)
        return None


def _no_compiler(error: BaseException) -> bool:
    """Whether it says, perhaps in an ``InductorError``, that a compiler is missing or broken."""
    from torch._inductor import exc

    inner = getattr(error, "inner_exception", error)
    kinds = (exc.InvalidCxxCompiler, exc.CppCompileError, exc.TritonMissing, exc.GPUTooOldForTriton)
    return isinstance(error, kinds) or isinstance(inner, kinds)
