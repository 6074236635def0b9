"""The eager evaluation of a small float32 batch, in float64: few calls instead of few passes.

Where calls cost more than arithmetic, the digits that float32 has to be asked for come for free.
With k the largest legal entry of a row::

    t = x - x_k      e = exp(t), 0 at k      rest = sum e      p = e / (1 + rest), and 1 of it at k
    log p = t - log1p(rest)                  H = log1p(rest) - sum p t

and for the old policy p, its k, and the new logits x, old ones x'::

    D = (x - x') - (x_k - x'_k)              s = D - sum p D   KL = log1p(sum p (expm1(s) - s))

D is 0 at k, whatever offset the logits have. Each gradient sums to 0 over a row, which gives its
entry k, where p may be near 1, from the others. Rows of which this does not hold (empty,
NaN, -inf where it is seen, an illegal action, policies too far apart for exp, or much nearer than
their offset) are named, and take the plain formulas.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from backends._torch_block import constant
from backends._torch_fused import Policy

LIMIT = 2**12  # entries up to which this is faster than blocks of float32
FILL = -1e200  # below all float32, and in range times any
HIDDEN = 1e-14  # KL, in parts of the squared offset and of 1 - p_k, that rounding may reach

_LOG2E = 1 / math.log(2)


def suits(logits: Tensor) -> bool:
    """Whether these logits are evaluated here."""
    return logits.dtype == torch.float32 and logits.numel() <= LIMIT and logits.is_cpu


class Small(NamedTuple):
    """Results ``[N, 1]`` in float32, the rest in float64 for the gradient."""

    log_prob: Tensor | None
    entropy: Tensor | None
    kl: Tensor | None
    bad: Tensor | None  # [N, 1] rows whose results are not to be used; None where there are none
    k: Tensor  # [1 or 2, N, 1] the largest legal entry
    p: Tensor  # [N, A], 0 at k
    t: Tensor  # [N, A]
    mean: Tensor | None  # [N, 1] sum p t
    p_old: Tensor | None  # [N, A]
    s: Tensor | None  # [N, A]
    w: Tensor | None  # [N, A] p_old expm1(s)
    growth: Tensor | None  # [N, 1] expm1(KL), which is also the sum of w


class Parts(NamedTuple):
    """What all begins with, in float64: ``[..., N, A]``, or ``[..., N, 1]``."""

    x: Tensor  # FILL where illegal
    top: Tensor  # its largest
    k: Tensor  # where
    t: Tensor  # x - top
    e: Tensor  # exp(t), 0 at k
    rest: Tensor  # the sum of it


def parts(logits: Tensor, legal: Tensor) -> Parts:
    """Of logits ``[..., N, A]`` and mask ``[N, A]``."""
    x = torch.where(legal, logits.double(), constant(FILL, torch.float64))
    top, k = x.max(-1, keepdim=True)  # pyright: ignore
    t = x - top
    e = (t * _LOG2E).exp2_().scatter_(-1, k, 0.0)
    return Parts(x, top, k, t, e, e.sum(-1, keepdim=True))


def evaluate(policy: Policy) -> Small:
    """Evaluate rows ``[N, A]``, actions ``[N, 1]``, as if the old mask was the new one.

    Raises:
        RuntimeError: From ``gather``, where an action is outside ``[0, A)``.
    """
    z, old, legal, _, actions, with_entropy = policy
    both = z.unsqueeze(0) if old is None else torch.stack((z, old))
    x, top, k, t, e, rest = parts(both, legal)
    total = rest + 1.0
    p = e.div_(total)
    new, t, check, log_total = x[0], t[0], top[0], rest[0].log1p_()
    log_prob = mean = entropy = None
    if actions is not None:
        log_prob = (new.gather(-1, actions) - check).sub_(log_total)
        check = check + log_prob
    if with_entropy:
        mean = (p[0] * t).sum(-1, keepdim=True)
        entropy = log_total - mean
        check = check + mean
    good = check.amin().item() > FILL / 2
    kl = p_old = s = w = growth = apart = None
    if old is not None:
        p_old, k_old, s = p[1], k[1], new - x[1]
        p_old.scatter_(-1, k_old, total[1].reciprocal_())
        shift = s.gather(-1, k_old)
        s.sub_(shift)
        s.sub_((p_old * s).sum(-1, keepdim=True))
        w = s.expm1()
        growth = (w - s).mul_(p_old).sum(-1, keepdim=True).clamp_min_(0.0)
        w.mul_(p_old)
        kl = growth.log1p()
        apart = torch.addcmul(kl, shift.square_(), log_total, value=-HIDDEN)
        least, most = apart.aminmax()
        good = good and least.item() >= 0 and most.item() < math.inf
    bad = None
    if not good:
        bad = ~(check > FILL / 2)
        if apart is not None:
            bad |= ~((apart >= 0) & (apart < math.inf))
    return Small(
        None if log_prob is None else log_prob.float(),
        None if entropy is None else entropy.float(),
        None if kl is None else kl.float(),
        bad,
        k,
        p[0],
        t,
        mean,
        p_old,
        s,
        w,
        growth,
    )


def gradient(
    small: Small,
    index: Tensor | None,
    g_log_prob: Tensor | None,
    g_entropy: Tensor | None,
    g_kl: Tensor | None,
) -> Tensor:
    """The gradient to the new logits ``[N, A]``, for incoming gradients ``[N, 1]``."""
    p, k = small.p, small.k[0]
    g_log_prob, g_entropy, g_kl = (
        None if g is None else g.double() for g in (g_log_prob, g_entropy, g_kl)
    )
    out = None
    if g_entropy is not None and small.mean is not None:
        factor = (small.mean - small.t).mul_(g_entropy)
        out = (factor if g_log_prob is None else factor.sub_(g_log_prob)).mul_(p)
    elif g_log_prob is not None:
        out = p * -g_log_prob
    w, p_old, growth = small.w, small.p_old, small.growth
    if g_kl is not None and w is not None and p_old is not None and growth is not None:
        # p_old expm1(s - KL) = (w - p_old growth) / (1 + growth)
        scale = g_kl / (growth + 1.0)
        direction = torch.addcmul(w, p_old, growth, value=-1)
        out = direction.mul_(scale) if out is None else out.addcmul_(direction, scale)
    if out is None:
        return torch.zeros_like(p, dtype=torch.float32)
    if index is not None and g_log_prob is not None:
        out.scatter_add_(-1, index, g_log_prob)
    return _balanced(out, k)


def old_gradient(small: Small, g_kl: Tensor | None) -> Tensor:
    """The gradient to the old logits: ``p (log p - log q - KL) = -p s``."""
    if g_kl is None or small.p_old is None or small.s is None:
        return torch.zeros_like(small.p, dtype=torch.float32)
    return _balanced((small.p_old * small.s).mul_(-g_kl), small.k[1])


def _balanced(out: Tensor, k: Tensor) -> Tensor:
    """Make entry k minus the sum of the others."""
    out.scatter_(-1, k, 0.0)
    return out.scatter_(-1, k, out.sum(-1, keepdim=True).neg_()).float()
