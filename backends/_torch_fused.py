"""The fast eager formulas, for one block of rows (``_torch_block``): values, then gradients.

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
nearly certain action, a KL hidden below a much larger common offset of the logits. ``Block.bad``
names them; the caller takes the plain formulas there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from backends._torch_block import (
    CERTAIN,
    LOWEST,
    Space,
    constant,
    log_largest,
    masked,
    nearly_certain,
    selected,
    softmax,
)
from backends._torch_excess import FARTHEST, NEAR, excess, largest
from backends._torch_plain import exact_difference

DOUBT = 512.0  # (sum p D)^2 / KL from which rounding of D = z - z_old is looked into
FAR = 3.0  # s beyond which a small KL needs q itself, in place of p exp(s)
MIDDLE = 8.0  # |s| from which a large KL is the difference of the log-sum-exps
OFFSET = 4.0  # sum p D beyond which it costs a large KL's gradient its digits
TEXTBOOK = 0.5  # KL that is large


class Policy(NamedTuple):
    """What is evaluated, with the rows flattened. ``old_legal`` is None where it is ``legal``."""

    logits: Tensor  # [N, A] float32 or float64
    old_logits: Tensor | None  # [N, A]
    legal: Tensor  # [N, A] bool
    old_legal: Tensor | None  # [N, A] bool
    actions: Tensor | None  # [N, 1] int64
    with_entropy: bool

    def rows(self, which: slice | Tensor) -> Policy:
        """Some of the rows."""
        return Policy(*(x[which] if isinstance(x, Tensor) else x for x in self))  # pyright: ignore


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
    z, old, legal, _, actions, with_entropy = policy
    x, select, _ = masked(z, old, legal, space)
    top = x.amax(-1, keepdim=True)
    t, probs, p_max = softmax(x, top, space)
    p = probs[0]
    log_top, heavy = log_largest(p, p_max[0], space)
    block = Block(t, p, heavy, top)
    check = log_top
    if actions is not None:
        block.log_prob = t.gather(-1, actions).add_(log_top)
    torch.maximum(t, constant(LOWEST, z.dtype), out=t)
    if with_entropy:
        block.mean = torch.mul(p, t, out=space.scratch).sum(-1, keepdim=True)
        block.entropy = constant(0.0, z.dtype) - (log_top + block.mean)
    if old is not None:
        p_old = block.p_old = probs[1]
        s = block.s = _difference(z, old, select, None if space.x is None else x[1])
        mu = block.mu = torch.mul(p_old, s, out=space.scratch).sum(-1, keepdim=True)
        s.sub_(mu)
        check = _kl(block, p_max[1], log_top, space)
    _name_bad_rows(policy, block, check, _nearly_certain(p_max, log_top, block.kl))
    return block


def _nearly_certain(p_max: Tensor, log_top: Tensor, kl: Tensor | None) -> Tensor | None:
    """Rows ``[n, 1]`` in which that holds of a policy that matters; None where there is none."""
    if p_max.amax().item() <= 1 - CERTAIN:
        return None
    certain = nearly_certain(log_top)
    return certain if kl is None else certain | ((p_max[1] > 1 - CERTAIN) & (kl > 0))


def refill(policy: Policy, block: Block, space: Space) -> None:
    """Compute the arrays of an evaluated block again, into other buffers."""
    z, old, legal = policy[:3]
    x, select, _ = masked(z, old, legal, space)
    t, probs, _ = softmax(x, block.top, space)
    block.t, block.p = torch.maximum(t, constant(LOWEST, z.dtype), out=t), probs[0]
    heavy = torch.empty_like(t) if space.heavy is None else space.heavy
    block.heavy = torch.gt(block.p, constant(0.5, z.dtype), out=heavy)
    if block.mu is not None and old is not None:
        block.p_old = probs[1]
        s = block.s = _difference(z, old, select, None if space.x is None else x[1])
        s.sub_(block.mu)
        far = block.large is not None
        block.w = torch.expm1(s.clamp(max=FARTHEST) if far else s, out=space.w).mul_(block.p_old)


def _difference(z: Tensor, old: Tensor, select: Tensor, out: Tensor | None) -> Tensor:
    """``z - z_old``, exactly 0 where illegal."""
    return selected(torch.sub(z, old, out=out), select)


def _kl(block: Block, p_max_old: Tensor, log_top: Tensor, space: Space) -> Tensor:
    """Put KL(old | new) into the block; return what is > 0 where rounding of D may show."""
    p_old, s, mu = cast("tuple[Tensor, Tensor, Tensor]", (block.p_old, block.s, block.mu))
    reach, square = largest(s, space.square)
    value, block.w = excess(s, p_old, reach, square, w=space.w, scratch=space.scratch)
    block.kl = value.log1p()
    if not reach <= NEAR:
        if not reach <= MIDDLE:
            textbook = (block.top[0] - block.top[1]).sub_(mu).add_(p_max_old.log()).sub_(log_top)
            block.kl = torch.where(textbook > TEXTBOOK, textbook, block.kl)
        block.large = block.kl > constant(TEXTBOOK, s.dtype)
        if not reach <= FAR:
            far = (s.amax(-1, keepdim=True) > FAR) & ~block.large
            value = torch.where(far, torch.nan, value)
        value = torch.where(block.large, constant(OFFSET**2 / DOUBT, s.dtype), value)
    doubt = torch.addcmul(value * constant(-DOUBT, s.dtype), mu, mu)
    # What entries of p < CERTAIN / 2 can add up to: a smaller KL may be theirs, and p is off there.
    some = s.shape[-1] * CERTAIN * (math.expm1(min(reach, FAR)) - min(reach, FAR))
    return torch.maximum(doubt, some - value)


def _name_bad_rows(policy: Policy, block: Block, check: Tensor, certain: Tensor | None) -> None:
    """Set ``block.bad``, after one look at the whole block that settles it in most cases."""
    worst = check
    if block.log_prob is not None:  # +inf where the action is illegal
        worst = torch.sub(check, block.log_prob, alpha=1e-30)
    if worst.amax().item() <= 1e-20 and certain is None:
        return
    bad = ~torch.isfinite(check)
    if certain is not None:
        bad |= certain
    if block.log_prob is not None:
        bad |= block.log_prob == -torch.inf
    if block.kl is not None:
        bad |= ~torch.isfinite(block.kl)
        apart = (block.kl > 0) | (cast("Tensor", block.mu) != 0)
        doubtful = ((check > 0) & apart & ~bad).squeeze(-1).nonzero().squeeze(-1)
        if len(doubtful):
            bad[doubtful] |= _rounding_shows(policy, block, doubtful)
    if bool(bad.any()):
        block.bad = bad


def _rounding_shows(policy: Policy, block: Block, rows: Tensor) -> Tensor:
    """Which of the rows ``[n]`` need what rounding loses, ``[n, 1]``.

    What z - z_old loses is off by ``w lost`` in KL and by ``p_old exp(s) lost`` in its gradient;
    what z_old - max loses, by ``w lost`` in both; what the mean of z - z_old loses, by its product
    with KL and half its square.
    """
    all_p, all_kl, all_mu, all_s, all_w, old = cast(
        "tuple[Tensor, ...]",
        (block.p_old, block.kl, block.mu, block.s, block.w, policy.old_logits),
    )
    p, kl, mu, s, w, old = (x[rows] for x in (all_p, all_kl, all_mu, all_s, all_w, old))
    eps = torch.finfo(p.dtype).eps
    size = w.abs()
    largest_w = size.amax(-1, keepdim=True)
    _, lost = exact_difference(policy.logits[rows], old)
    _, lost_of_p = exact_difference(old, block.top[1][rows])
    lost, lost_of_p = (torch.where(p > 0, x.abs(), 0) for x in (lost, lost_of_p))
    mean = (p * s).sum(-1, keepdim=True)
    shows = (
        ((lost * size).sum(-1, keepdim=True) > 30 * eps * kl)
        | ((lost * (size + p)).amax(-1, keepdim=True) > 3 * eps * largest_w)
        | ((lost_of_p * size).amax(-1, keepdim=True) > 3 * eps * largest_w)
        | (mean.square() > 1e-6 * kl)
        | (mean.abs() > 25 * eps)
    )
    return torch.where(kl > TEXTBOOK, mu.abs() > OFFSET, shows)


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
    return _balance(out, heavy)  # pyright: ignore


def _balance(out: Tensor, heavy: Tensor) -> Tensor:
    """Make the entry with p > 1/2 minus the sum of the others."""
    return out.addcmul_(heavy, out.sum(-1, keepdim=True), value=-1)
