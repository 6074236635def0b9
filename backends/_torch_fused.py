"""The fast eager formulas, for one block of rows ``[n, A]`` that stays in cache.

Eager time is the number of passes over memory and, for small blocks, the number of calls, so:

- in large blocks the bits of the logits are masked: ``where`` costs ten times as much, and adding
  a large negative number would read what is under the mask;
- nothing but ``softmax``, which has no slow path for -inf, exponentiates a masked logit, except in
  rows shorter than a vector, which it takes entry by entry;
- old and new policy share their passes, and buffers are reused.

The formulas are those of ``_torch_plain`` with the largest logit subtracted, ``t = z - max``::

    log p     = t + log p_max           log p_max = log1p(-sum of the other p) where p_max > 1/2
    H         = -(log p_max + sum p t)
    KL        = log1p(sum p phi(s))     p the old policy, s = (z - z_old) - sum p (z - z_old),
                                        phi(s) = expm1(s) - s (``_torch_excess``)

and the gradient to the new logits, for incoming gradients g::

    g_log_prob (1[a = b] - p_b) + g_entropy p_b (mean t - t_b) + g_kl p_old_b expm1(s_b - KL)

Each of the three sums to 0 over b, which gives the entry with p > 1/2, a small difference of large
numbers where that is near 1, from the others.

Not every row comes out right: NaN and empty rows, -inf among the legal logits, an illegal action, a
KL hidden below a much larger common offset of the logits. ``Block.bad`` names them; the caller
takes the plain formulas there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from backends._torch_excess import FARTHEST, NEAR, constant, excess
from backends._torch_plain import exact_difference

SMALL = 4096  # entries up to which `where` and fresh arrays beat bits and buffers
KEPT = {1: 3, 2: 6}  # buffers that the gradient needs, by number of policies
SCRATCH = 3  # buffers beside those
LOWEST = -1e30  # in place of log 0 where it meets the probability 0; never in a result
DOUBT = 512.0  # (sum p D)^2 / KL from which rounding of D = z - z_old is looked into
TEXTBOOK = 0.5  # KL from which the difference of the log-sum-exps is used

_BITS = {torch.float32: (torch.int32, -(2**23)), torch.float64: (torch.int64, -(2**52))}


class Policy(NamedTuple):
    """What is evaluated, with the rows flattened. ``old_legal`` is None where it is ``legal``."""

    logits: Tensor  # [N, A] float32 or float64
    old_logits: Tensor | None  # [N, A]
    legal: Tensor  # [N, A] bool
    old_legal: Tensor | None  # [N, A] bool
    index: Tensor | None  # [N, 1] int64
    with_entropy: bool

    def rows(self, which: slice | Tensor) -> Policy:
        """Some of the rows."""
        return Policy(*(x[which] if isinstance(x, Tensor) else x for x in self))  # pyright: ignore


class Space(NamedTuple):
    """Buffers ``[n, A]`` for a block, or None everywhere for fresh arrays."""

    x: Tensor | None = None  # [1 or 2, n, A], new policy first
    probs: Tensor | None = None  # [1 or 2, n, A]
    heavy: Tensor | None = None
    w: Tensor | None = None
    select: Tensor | None = None
    square: Tensor | None = None
    scratch: Tensor | None = None

    @classmethod
    def of(cls, buffers: Tensor, keep: Tensor | None = None) -> Space:
        """From ``[KEPT, n, A]`` that last as long as the block, and ``[SCRATCH, n, A]`` before."""
        select, square, scratch, *rest = buffers.unbind(0)
        if keep is None:
            keep = buffers[SCRATCH:]
        else:
            rest = keep.unbind(0)
        k = len(rest) // 3
        return cls(keep[:k], keep[k : 2 * k], rest[2 * k], rest[-1], select, square, scratch)


@dataclass
class Block:
    """What one block leaves: results and numbers ``[n, 1]``, arrays ``[n, A]`` for the gradient."""

    t: Tensor  # z - max
    p: Tensor
    heavy: Tensor  # 1 where p > 1/2, else 0
    top: Tensor  # [1 or 2, n, 1] the largest logit of each policy
    mean: Tensor | None = None  # sum p t
    log_prob: Tensor | None = None
    entropy: Tensor | None = None
    kl: Tensor | None = None
    mu: Tensor | None = None  # sum p_old (z - z_old)
    p_old: Tensor | None = None
    s: Tensor | None = None  # z - z_old - mu
    w: Tensor | None = None  # p_old expm1(s)
    large: Tensor | None = None  # KL > TEXTBOOK; None where no row can be
    bad: Tensor | None = None  # rows whose results are not to be used; None where there are none


def evaluate(policy: Policy, space: Space) -> Block:
    """Evaluate rows as if the old mask was the new one.

    Raises:
        RuntimeError: From ``gather``, where an action is outside ``[0, A)``.
    """
    dtype = policy.logits.dtype
    x, select = _masked(policy, space)
    top = x.amax(-1, keepdim=True)
    probs, largest = _softmax_and_shift(x, top, space)
    t, p, p_max = x[0], probs[0], largest[0]
    taken = None if policy.index is None else t.gather(-1, policy.index)
    torch.maximum(t, constant(LOWEST, dtype), out=t)

    half = constant(0.5, dtype)
    heavy = space.heavy if space.heavy is not None else torch.empty_like(t)
    torch.gt(p, half, out=heavy)
    others = torch.addcmul(p, p, heavy, value=-1, out=space.scratch)
    others = others.sum(-1, keepdim=True)
    log_top = torch.where(p_max > half, others.neg_().log1p_(), p_max.log())

    block = Block(t, p, heavy, top)
    check = log_top
    if taken is not None:
        block.log_prob = taken.add_(log_top)
    if policy.with_entropy:
        block.mean = torch.mul(p, t, out=space.scratch).sum(-1, keepdim=True)
        block.entropy = constant(0.0, dtype) - (log_top + block.mean)
    if policy.old_logits is not None:
        p_old = block.p_old = probs[1]
        s = block.s = _difference(policy, select, None if space.x is None else x[1])
        mu = block.mu = torch.mul(p_old, s, out=space.scratch).sum(-1, keepdim=True)
        s.sub_(mu)
        check = _kl(block, largest[1], log_top, space)
    _name_bad_rows(policy, block, check)
    return block


def refill(policy: Policy, block: Block, space: Space) -> None:
    """Compute the arrays of an evaluated block again, into other buffers."""
    dtype = policy.logits.dtype
    x, select = _masked(policy, space)
    probs, _ = _softmax_and_shift(x, block.top, space)
    block.t, block.p = x[0], probs[0]
    torch.maximum(block.t, constant(LOWEST, dtype), out=block.t)
    block.heavy = space.heavy if space.heavy is not None else torch.empty_like(block.t)
    torch.gt(block.p, constant(0.5, dtype), out=block.heavy)
    if block.mu is not None:
        block.p_old = probs[1]
        s = block.s = _difference(policy, select, None if space.x is None else x[1])
        s.sub_(block.mu)
        far = block.large is not None
        block.w = torch.expm1(s.clamp(max=FARTHEST) if far else s, out=space.w).mul_(block.p_old)


def _masked(policy: Policy, space: Space) -> tuple[Tensor, Tensor]:
    """Logits ``[1 or 2, n, A]``, -inf if illegal, and what ``_difference`` selects with."""
    z, old, legal = policy[:3]
    if space.x is None or space.select is None or space.square is None:
        both = z.unsqueeze(0) if old is None else torch.stack((z, old))
        return torch.where(legal, both, constant(-torch.inf, z.dtype)), legal
    integer, infinite = _BITS[z.dtype]
    select, fill, bits = (b.view(integer) for b in (space.select, space.square, space.x))
    select.copy_(legal)
    select.sub_(constant(1, integer))
    torch.bitwise_and(select, constant(infinite, integer), out=fill)
    select.bitwise_not_()
    torch.bitwise_and(z.view(integer), select, out=bits[0])
    if old is not None:
        torch.bitwise_and(old.view(integer), select, out=bits[1])
    bits.bitwise_or_(fill)
    return space.x, select


def _softmax_and_shift(x: Tensor, top: Tensor, space: Space) -> tuple[Tensor, Tensor]:
    """Probabilities and the largest of each row; ``x[0]`` becomes ``x[0] - top[0]``."""
    if x.shape[-1] < 16:
        x.sub_(top)
        probs = torch.exp(x, out=space.probs)
        largest = probs.sum(-1, keepdim=True).reciprocal_()
        return probs.mul_(largest), largest
    probs = torch.softmax(x, -1) if space.probs is None else torch.softmax(x, -1, out=space.probs)
    x[0].sub_(top[0])
    return probs, probs.amax(-1, keepdim=True)


def _difference(policy: Policy, select: Tensor, out: Tensor | None) -> Tensor:
    """``z - z_old``, exactly 0 where illegal."""
    z, old = policy.logits, policy.old_logits
    if out is None:
        return torch.where(select, torch.sub(z, old), constant(0.0, z.dtype))  # pyright: ignore
    torch.sub(z, old, out=out)  # pyright: ignore
    out.view(select.dtype).bitwise_and_(select)
    return out


def _kl(block: Block, largest_old: Tensor, log_top: Tensor, space: Space) -> Tensor:
    """Put KL(old | new) into the block; return what is > 0 where rounding of D may show."""
    mu, s, p_old = block.mu, block.s, block.p_old
    if mu is None or s is None or p_old is None:
        raise AssertionError
    value, block.w, reach = excess(s, p_old, w=space.w, square=space.square, scratch=space.scratch)
    block.kl = value.log1p()
    if not reach <= NEAR:
        textbook = (block.top[0] - block.top[1]).sub_(mu).add_(largest_old.log()).sub_(log_top)
        block.large = textbook > constant(TEXTBOOK, s.dtype)
        block.kl = torch.where(block.large, textbook, block.kl)
        value = torch.where(block.large, textbook * textbook, value)
        if not reach <= 0.9 * FARTHEST:
            cut = ~block.large & (s.amax(-1, keepdim=True) > 0.9 * FARTHEST)
            value = torch.where(cut, torch.nan, value)
    return torch.addcmul(value * constant(-DOUBT, s.dtype), mu, mu)


def _name_bad_rows(policy: Policy, block: Block, check: Tensor) -> None:
    """Set ``block.bad``, after one look at the whole block that settles it in most cases."""
    worst = check
    if block.log_prob is not None:  # +inf where the action is illegal
        worst = torch.sub(check, block.log_prob, alpha=1e-30)
    if worst.amax().item() <= 1e-20:
        return
    bad = ~torch.isfinite(check)
    if block.log_prob is not None:
        bad |= block.log_prob == -torch.inf
    if block.kl is not None:
        bad |= ~torch.isfinite(block.kl)
        doubtful = ((check > 0) & ~bad).squeeze(-1).nonzero().squeeze(-1)
        if len(doubtful):
            bad[doubtful] = _rounding_shows(policy, block, doubtful)
    if bool(bad.any()):
        block.bad = bad


def _rounding_shows(policy: Policy, block: Block, rows: Tensor) -> Tensor:
    """Whether rounding of z - z_old costs KL or its gradient its accuracy, ``[n, 1]`` bool."""
    z, old, mu = policy.logits[rows], policy.old_logits[rows], block.mu[rows].abs()  # pyright: ignore
    p, s, w = block.p_old[rows], block.s[rows], block.w[rows].abs()  # pyright: ignore
    kl, eps = block.kl[rows], torch.finfo(z.dtype).eps  # pyright: ignore
    _, lost = exact_difference(z, old)
    lost = torch.where(p > 0, p * lost.abs(), 0)
    in_kl = (lost * s.abs()).sum(-1, keepdim=True) > 30 * eps * kl
    in_gradient = lost.amax(-1, keepdim=True) > 3 * eps * w.amax(-1, keepdim=True)
    return torch.where(kl > TEXTBOOK, mu > 33 * kl, in_kl | in_gradient)


def gradient(
    block: Block,
    index: Tensor | None,
    g_log_prob: Tensor | None,
    g_entropy: Tensor | None,
    g_kl: Tensor | None,
    out: Tensor,
) -> Tensor:
    """The gradient to the new logits in ``out``, ``[n, A]``, for incoming gradients ``[n, 1]``."""
    on_p = on_w = on_old = None
    if g_entropy is not None and block.mean is not None:
        on_p = g_entropy * block.mean
    if g_log_prob is not None:
        on_p = g_log_prob.neg() if on_p is None else on_p.sub_(g_log_prob)
    if g_kl is not None and block.w is not None:
        # p expm1(s - KL) = (w - p W) / (1 + W), W = sum w, whatever constant s is off by.
        total = block.w.sum(-1, keepdim=True)
        on_w = g_kl / (total + constant(1.0, out.dtype))
        on_old = on_w * total.neg_()
        if block.large is not None:  # there q - p itself
            zero = constant(0.0, out.dtype)
            on_w = torch.where(block.large, zero, on_w)
            on_old = torch.where(block.large, -g_kl, on_old)
            direct = torch.where(block.large, g_kl, zero)
            on_p = direct if on_p is None else on_p.add_(direct)
    if g_entropy is not None and on_p is not None:
        torch.mul(block.t, -g_entropy, out=out).add_(on_p).mul_(block.p)
    elif on_p is not None:
        torch.mul(block.p, on_p, out=out)
    else:
        out.zero_()
    if on_w is not None and on_old is not None and block.w is not None:
        out.addcmul_(block.w, on_w).addcmul_(block.p_old, on_old)  # pyright: ignore
    if g_log_prob is not None and index is not None:
        out.scatter_add_(-1, index, g_log_prob)
    return _balance(out, block.heavy)


def old_gradient(block: Block, g_kl: Tensor | None, out: Tensor) -> Tensor:
    """The gradient to the old logits: ``p (log p - log q - KL) = -p s``."""
    if g_kl is None:
        return out.zero_()
    torch.mul(block.p_old, block.s, out=out)  # pyright: ignore
    out.addcmul_(block.p_old, out.sum(-1, keepdim=True), value=-1).mul_(-g_kl)  # pyright: ignore
    heavy = torch.gt(block.p_old, constant(0.5, out.dtype), out=torch.empty_like(out))  # pyright: ignore
    return _balance(out, heavy)


def _balance(out: Tensor, heavy: Tensor) -> Tensor:
    """Make the entry with p > 1/2 minus the sum of the others."""
    return out.addcmul_(heavy, out.sum(-1, keepdim=True), value=-1)
