"""log_prob, entropy and KL as one autograd function with closed-form gradients, for eager code.

Small batches are evaluated in float64 (``_torch_small``), the rows of others in blocks that stay in
cache (``_torch_fused``). Up to ``KEEP`` entries the arrays that the gradient needs are kept; above,
they are computed again in the backward pass, block by block, so that the memory needed beside the
returned gradient does not grow with the batch. Rows that these formulas do not cover, and second
derivatives, take the plain formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from backends import _torch_fused as fused
from backends import _torch_gradients as gradients
from backends import _torch_plain as plain
from backends import _torch_small as small
from backends._torch_block import SMALL, Lease, Space, blocks, spaces
from backends._torch_fused import Block, Policy

KEEP = 2**20  # entries up to which nothing is computed twice


class Results(NamedTuple):
    """What was asked for, ``[...]``; also the incoming gradients of it."""

    log_prob: Tensor | None
    entropy: Tensor | None
    kl: Tensor | None


def evaluate(policy: Policy) -> Results:
    """The fused evaluation of ``[..., A]`` policies, with a graph where one is needed."""
    old = policy.old_logits
    if torch.is_grad_enabled() and (
        policy.logits.requires_grad or (old is not None and old.requires_grad)
    ):
        return Results(*cast("tuple[Any, Any, Any]", Evaluate.apply(*policy)))
    return Results(*_run(policy, keep=False).results)


def evaluate_plain(policy: Policy) -> Results:
    """The plain formulas, differentiable to any order."""
    z, old, legal, old_legal, actions, with_entropy = policy
    return Results(
        None if actions is None else plain.log_prob(z, legal, actions),
        plain.entropy(z, legal) if with_entropy else None,
        None
        if old is None
        else plain.kl_divergence(old, z, legal if old_legal is None else old_legal, legal),
    )


def closed_gradient(policy: Policy, incoming: Results) -> list[Tensor]:
    """Gradients to the new and, where there are some, to the old logits, for every kind of row."""
    z, old, legal, old_legal, actions, _ = policy
    g_log_prob, g_entropy, g_kl = incoming
    new = torch.zeros_like(z)
    if g_log_prob is not None and actions is not None:
        new += gradients.log_prob(z, legal, actions, g_log_prob)
    if g_entropy is not None:
        new += gradients.entropy(z, legal, g_entropy)
    if old is None:
        return [new]
    if g_kl is None:
        return [new, torch.zeros_like(old)]
    before = legal if old_legal is None else old_legal
    to_old, to_new = gradients.kl_divergence(old, z, before, legal, g_kl)
    return [new + to_new, to_old]


def plain_gradient(policy: Policy, incoming: Results) -> list[Tensor | None]:
    """The same, differentiable again: autograd's through the plain formulas."""
    with torch.enable_grad():
        results = evaluate_plain(policy)
    pairs = [
        (r, g) for r, g in zip(results, incoming, strict=True) if r is not None and g is not None
    ]
    return differentiable_gradient([r for r, _ in pairs], list(policy[:2]), [g for _, g in pairs])


def differentiable_gradient(
    results: list[Tensor], inputs: list[Tensor | None], incoming: list[Tensor]
) -> list[Tensor | None]:
    """``torch.autograd.grad`` with a graph, to those inputs that require one; None to others."""
    wanted = [x for x in inputs if x is not None and x.requires_grad]
    got = iter(
        torch.autograd.grad(
            results, wanted, incoming, create_graph=True, allow_unused=True, materialize_grads=True
        )
    )
    return [next(got) if x is not None and x.requires_grad else None for x in inputs]


class Evaluate(torch.autograd.Function):
    """``apply(*policy)`` of ``[..., A]`` arguments broadcast to one shape gives the results."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:  # pyright: ignore
        run = ctx.run = _run(Policy(*arguments), keep=True)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*arguments[:5])
        results, run.results = run.results, ()  # which would refer back to ctx
        return results

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> Any:  # pyright: ignore
        run: Run | SmallRun = ctx.run
        need_old = ctx.needs_input_grad[1]
        if torch.is_grad_enabled():
            policy = Policy(*ctx.saved_tensors, run.with_entropy)  # pyright: ignore
            new, old = plain_gradient(policy, Results(*incoming))
            return new, old, None, None, None, None
        new, *rest = run.gradient(ctx, Results(*incoming), need_old=need_old)
        return new, (rest[0] if rest else None), None, None, None, None


class CrossEntropy(torch.autograd.Function):
    """``apply(p_logits, q_logits, p_legal, q_legal)``: the plain value, the closed gradient."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:  # pyright: ignore
        ctx.save_for_backward(*arguments)
        return plain.cross_entropy(*arguments)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> Any:  # pyright: ignore
        arguments = ctx.saved_tensors
        if torch.is_grad_enabled():
            with torch.enable_grad():
                value = plain.cross_entropy(*arguments)
            to_both = differentiable_gradient([value], list(arguments[:2]), [incoming])
        else:
            to_both = gradients.cross_entropy(*arguments, incoming)  # pyright: ignore
        return (*to_both, None, None)


class Run:
    """One evaluation: its results, and what the gradient needs."""

    def __init__(self, policy: Policy, *, keep: bool) -> None:
        self.with_entropy = policy.with_entropy
        self.shape = policy.logits.shape
        self.policies = 1 if policy.old_logits is None else 2
        self.wrong: tuple[Tensor, Tensor] | None = None
        self.lease: Lease | None = None
        self.kept = True
        whole = flattened(policy)
        flat = _with_one_mask(whole)
        self.index = flat.actions
        size = flat.logits.numel()
        if size <= SMALL:
            self.blocks: list[tuple[slice | None, Block]] = [(None, fused.evaluate(flat, Space()))]
        else:
            self.kept = keep and size <= KEEP
            if self.kept:
                self.lease = Lease(flat.logits, 3 * self.policies * size)
            self.blocks = [
                (rows, fused.evaluate(flat if rows is None else flat.rows(rows), space))
                for rows, space in zip(
                    blocks(flat.logits),
                    spaces(flat.logits, self.policies, self.lease),
                    strict=True,
                )
            ]
        parts = [(block.log_prob, block.entropy, block.kl) for _, block in self.blocks]
        results = parts[0] if len(parts) == 1 else tuple(map(_joined, zip(*parts, strict=True)))
        if policy.old_legal is not None or any(block.bad is not None for _, block in self.blocks):
            self.wrong = self._mend(whole, results)
        shape = self.shape[:-1]
        self.results: tuple[Tensor | None, ...] = tuple(
            None if x is None else x.view(shape) for x in results
        )

    def _mend(
        self, policy: Policy, results: tuple[Tensor | None, ...]
    ) -> tuple[Tensor, Tensor] | None:
        """Put the right results into the rows that the fused formulas got wrong."""
        wrong = torch.zeros(len(policy.logits), dtype=torch.bool, device=policy.logits.device)
        for rows, block in self.blocks:
            if block.bad is not None:
                wrong[slice(None) if rows is None else rows] = block.bad.squeeze(-1)
        if policy.old_legal is not None:
            wrong |= _masks_differ(policy).squeeze(-1)
        return mend(policy, wrong, results)

    def gradient(self, ctx: Any, incoming: Results, *, need_old: bool) -> list[Tensor]:
        """Gradients to the new and the old logits."""
        grads = _columns(incoming, self.shape)
        block = self.blocks[0][1]
        width = self.shape[-1]
        count = self.shape.numel() // max(1, width)
        out = [block.p.new_empty((count, width)) for _ in range(2 if need_old else 1)]
        policy = None
        if not self.kept or self.wrong is not None:
            policy = flattened(Policy(*ctx.saved_tensors, self.with_entropy))  # pyright: ignore
        again = flat = None
        if not self.kept and policy is not None:
            again, flat = spaces(policy.logits, self.policies), _with_one_mask(policy)
        for rows, block in self.blocks:
            if again is not None and flat is not None:
                fused.refill(flat if rows is None else flat.rows(rows), block, next(again))
            here = (self.index, *grads, *out)
            if rows is not None:
                here = tuple(None if x is None else x[rows] for x in here)
            index, g_log_prob, g_entropy, g_kl, new, *old = here
            fused.gradient(block, index, g_log_prob, g_entropy, g_kl, cast("Tensor", new))
            if old:
                fused.old_gradient(block, g_kl, cast("Tensor", old[0]))
        if self.wrong is not None and policy is not None:
            mend_gradient(policy, self.wrong, grads, out)
        return out if len(self.shape) == 2 else [x.view(self.shape) for x in out]


class SmallRun:
    """The same for a batch that ``_torch_small`` evaluates."""

    def __init__(self, policy: Policy) -> None:
        self.with_entropy = policy.with_entropy
        self.shape = policy.logits.shape
        whole = flattened(policy)
        self.index = whole.actions
        self.small = small.evaluate(_with_one_mask(whole))
        results, bad = self.small[:3], self.small.bad
        self.wrong = None
        if policy.old_legal is not None:
            differ = _masks_differ(whole)
            bad = differ if bad is None else bad | differ
        if bad is not None:
            self.wrong = mend(whole, bad.squeeze(-1), results)
        shape = self.shape[:-1]
        self.results: tuple[Tensor | None, ...] = tuple(
            None if x is None else x.view(shape) for x in results
        )

    def gradient(self, ctx: Any, incoming: Results, *, need_old: bool) -> list[Tensor]:
        """Gradients to the new and the old logits."""
        grads = _columns(incoming, self.shape)
        out = [small.gradient(self.small, self.index, *grads)]
        if need_old:
            out.append(small.old_gradient(self.small, grads.kl))
        if self.wrong is not None:
            policy = flattened(Policy(*ctx.saved_tensors, self.with_entropy))  # pyright: ignore
            mend_gradient(policy, self.wrong, grads, out)
        return out if len(self.shape) == 2 else [x.view(self.shape) for x in out]


def _run(policy: Policy, *, keep: bool) -> Run | SmallRun:
    return SmallRun(policy) if small.suits(policy.logits) else Run(policy, keep=keep)


def _columns(incoming: Results, shape: torch.Size) -> Results:
    """Incoming gradients as ``[N, 1]``."""
    if len(shape) == 2:
        return Results(*(None if g is None else g.unsqueeze(-1) for g in incoming))
    return Results(*(None if g is None else g.reshape(-1, 1) for g in incoming))


def mend(
    policy: Policy, wrong: Tensor, results: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor] | None:
    """Put the plain formulas' results, ``[N, 1]``, into the rows of ``wrong``, ``[N]``.

    Returns:
        The numbers of those rows that are empty, and of the others; None if there are none.
    """
    any_legal = policy.legal if policy.old_legal is None else policy.legal | policy.old_legal
    which = wrong.nonzero().squeeze(-1)
    some = any_legal[which].any(-1)
    empty, other = which[~some], which[some]
    right = evaluate_plain(wide_rows(policy, other)) if len(other) else None
    for k, result in enumerate(results):
        if result is not None:
            result[empty] = 0
            if right is not None:
                result[other] = cast("Tensor", right[k]).unsqueeze(-1).to(result.dtype)
    return (empty, other) if len(which) else None


def mend_gradient(
    policy: Policy, wrong: tuple[Tensor, Tensor], incoming: Results, out: list[Tensor]
) -> None:
    """Put the plain formulas' gradients ``[N, A]`` into the rows that ``mend`` mended."""
    empty, other = wrong
    for array in out:
        array[empty] = 0
    if len(other):
        here = Results(*(None if g is None else g[other].squeeze(-1) for g in incoming))
        for array, rows in zip(out, closed_gradient(wide_rows(policy, other), here), strict=False):
            array[other] = rows.to(array.dtype)


def wide_rows(policy: Policy, which: Tensor) -> Policy:
    """Rows of a flattened policy, in float64 where the device has it: they are few, and special."""
    z, old, *rest = unflattened(policy.rows(which))
    if z.device.type != "mps":
        z, old = z.double(), None if old is None else old.double()
    return Policy(z, old, *rest)  # pyright: ignore


def _joined(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    return None if parts[0] is None else torch.cat(cast("list[Tensor]", list(parts)))


def flattened(policy: Policy) -> Policy:
    z, old, legal, old_legal, actions, with_entropy = policy
    if z.dim() == 2:
        if actions is None:
            return policy
        return Policy(z, old, legal, old_legal, actions.unsqueeze(-1), with_entropy)
    shape = (-1, z.shape[-1])
    arrays = (None if x is None else x.reshape(shape) for x in (z, old, legal, old_legal))
    index = None if actions is None else actions.reshape(-1, 1)
    return Policy(*arrays, index, with_entropy)  # pyright: ignore


def _with_one_mask(policy: Policy) -> Policy:
    """The rows ``[N, A]``, with the new logits as the old ones too in rows whose masks differ.

    These are computed by the plain formulas; here what is under the old mask must not be seen.
    """
    if policy.old_legal is None or policy.old_logits is None:
        return policy
    same = torch.where(_masks_differ(policy), policy.logits, policy.old_logits)
    return policy._replace(old_logits=same)


def _masks_differ(policy: Policy) -> Tensor:
    return (policy.legal != policy.old_legal).any(-1, keepdim=True)  # pyright: ignore


def unflattened(policy: Policy) -> Policy:
    index = policy.actions
    return policy if index is None else policy._replace(actions=index.squeeze(-1))
