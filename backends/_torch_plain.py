"""The formulas, plainly: differentiable to any order, and the same in eager code and in a graph.

Each row is taken relative to its largest legal logit ``z_k``::

    u = z - z_k                      (0 at k, <= 0 elsewhere, -inf where the logit is -inf)
    R = sum over b != k of exp(u_b)  (so that log Z - z_k = log1p(R) keeps every digit;
                                      exp with what rounding loses of u: at -40 it is 16 epsilon)
    log p = u - log1p(R)
    H     = log1p(R) - sum p u       (two terms >= 0)

Nothing depends on the values in a way that changes the graph, so ``torch.compile``,
``torch.export``, ``torch.func`` and double backward all take these. Rows without a distribution
(empty, or NaN) are computed as if every entry were illegal, so that nothing undefined arises there;
their results, and for NaN rows their gradients, are put in at the end.

Arguments here are float32 or float64 logits and bool masks, already broadcast to one shape.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """One policy a row, relative to its largest logit."""

    legal: Tensor  # [..., A]
    support: Tensor  # [..., A] legal and of positive probability, in rows that have a distribution
    best: Tensor  # [..., A] one-hot: the entry k, False everywhere in rows without a distribution
    z: Tensor  # [..., A] logits, 0 outside the support
    z_best: Tensor  # [...] z_k
    u: Tensor  # [..., A] z - z_k, -inf at legal -inf logits, 0 at k and at illegal entries
    exp_u: Tensor  # [..., A] exp(u) on the support without k, 0 elsewhere
    rest: Tensor  # [...] R
    empty: Tensor  # [...] no legal action
    nan: Tensor  # [...] a legal NaN or +inf, or nothing but -inf


def rows(logits: Tensor, legal: Tensor) -> Rows:
    """Read ``[..., A]`` logits under a mask; what is under the mask never enters."""
    top = torch.where(legal, logits.detach(), -torch.inf)
    k = top.argmax(-1, keepdim=True)
    top = top.gather(-1, k).squeeze(-1)
    empty = ~legal.any(-1)
    nan = ~empty & ~torch.isfinite(top)
    ok = torch.isfinite(top)[..., None]
    usable = legal & ok
    support = usable & (logits != -torch.inf)
    best = torch.zeros_like(legal).scatter(-1, k, True) & ok
    z = torch.where(support, logits, 0)
    z_best = z.gather(-1, k)
    others = usable & ~best
    u, lost = exact_difference(torch.where(usable, logits, 0), z_best)
    u, lost = torch.where(others, u, 0), torch.where(torch.isfinite(lost), lost, 0)
    exp_u = torch.where(support & ~best, torch.exp(u) * (1 + lost), 0)
    return Rows(legal, support, best, z, z_best.squeeze(-1), u, exp_u, exp_u.sum(-1), empty, nan)


def poison(nan: Tensor, logits: Tensor, legal: Tensor) -> Tensor:
    """``[...]`` NaN in the rows ``nan``, whose gradient is NaN at their legal entries alone."""
    pain = torch.where(nan, torch.nan, torch.zeros_like(logits[..., 0]))
    return torch.where(legal, logits, 0).sum(-1) * pain


def probabilities(r: Rows) -> Tensor:
    """``[..., A]`` probabilities; 0 in rows without a distribution."""
    return (r.exp_u + r.best) / (1 + r.rest)[..., None]


def log_probabilities(r: Rows) -> Tensor:
    """``[..., A]`` log-probabilities on the usable legal entries; finite nonsense elsewhere."""
    return r.u - torch.log1p(r.rest)[..., None]


def bounded(log: Tensor) -> Tensor:
    """Replace -inf by the lowest number, so that probability 0 times it is 0, not NaN."""
    return log.clamp(min=torch.finfo(log.dtype).min)


def masked_softmax(logits: Tensor, legal: Tensor) -> Tensor:
    r = rows(logits, legal)
    p = torch.where(r.support, probabilities(r), 0)
    return torch.where(r.nan[..., None] & legal, poison(r.nan, logits, legal)[..., None], p)


def masked_log_softmax(logits: Tensor, legal: Tensor) -> Tensor:
    r = rows(logits, legal)
    log_p = torch.where(legal & ~r.empty[..., None], log_probabilities(r), -torch.inf)
    return torch.where(r.nan[..., None] & legal, poison(r.nan, logits, legal)[..., None], log_p)


def log_prob(logits: Tensor, legal: Tensor, actions: Tensor) -> Tensor:
    r = rows(logits, legal)
    index = actions[..., None]
    value = r.u.gather(-1, index).squeeze(-1) - torch.log1p(r.rest)
    value = torch.where(legal.gather(-1, index).squeeze(-1), value, -torch.inf)
    return torch.where(r.nan, poison(r.nan, logits, legal), torch.where(r.empty, 0, value))


def entropy(logits: Tensor, legal: Tensor) -> Tensor:
    r = rows(logits, legal)
    u = torch.where(r.support, bounded(r.u), 0)
    value = torch.log1p(r.rest) - (probabilities(r) * u).sum(-1)
    return torch.where(r.nan, poison(r.nan, logits, legal), value)


def mode(logits: Tensor, legal: Tensor) -> Tensor:
    """``[...]`` int64: the first largest legal logit, a NaN counting as largest."""
    top, k = torch.where(legal, logits, -torch.inf).max(-1)
    first_legal = legal.to(torch.uint8).argmax(-1)
    return torch.where(top == -torch.inf, first_legal, k)


def kl_divergence(p_logits: Tensor, q_logits: Tensor, p_legal: Tensor, q_legal: Tensor) -> Tensor:
    """KL(p | q) without the cancellation of ``sum p (log p - log q)``; see ``pair``."""
    p, q = rows(p_logits, p_legal), rows(q_logits, q_legal)
    value = torch.where(forbidden(p, q), torch.inf, pair(p, q).kl.clamp(min=0))
    nan = (p.nan | q.nan) & ~p.empty
    pain = poison(nan, p_logits, p_legal) + poison(nan, q_logits, q_legal)
    return torch.where(p.empty, 0, torch.where(nan, pain, value))


def cross_entropy(p_logits: Tensor, q_logits: Tensor, p_legal: Tensor, q_legal: Tensor) -> Tensor:
    """``-sum p log q``: terms >= 0."""
    p, q = rows(p_logits, p_legal), rows(q_logits, q_legal)
    log_q = torch.where(p.support & q.support, bounded(log_probabilities(q)), 0)
    value = torch.where(forbidden(p, q), torch.inf, -(probabilities(p) * log_q).sum(-1))
    nan = (p.nan | q.nan) & ~p.empty
    pain = poison(nan, p_logits, p_legal) + poison(nan, q_logits, q_legal)
    return torch.where(p.empty, 0, torch.where(nan, pain, value))


def forbidden(p: Rows, q: Rows) -> Tensor:
    """``[...]`` whether p gives mass to an action that q forbids."""
    return (p.support & ~q.support).any(-1)


class Pair(NamedTuple):
    """Two policies a row, of which q allows what p takes (elsewhere everything is 0)."""

    shared: Tensor  # [..., A] the support of p
    p: Tensor  # [..., A] probabilities on it
    q: Tensor  # [..., A] probabilities on it, of which it may hold less than 1
    t: Tensor  # [..., A] zq - zp - sum p (zq - zp)
    kl: Tensor  # [...]
    small: Tensor  # [...] bool: KL <= 0.5


def pair(p: Rows, q: Rows) -> Pair:
    """KL(p | q) and what its gradient needs.

    On the support of p, with D = zq - zp and t = D - sum p D (mean 0 under p)::

        exp(KL) - 1 = sum p (expm1(t) - t)        every term >= 0

    Where t > 3 (p tiny, q not) ``p exp(t)`` is taken as ``q exp(KL)``, which neither overflows nor
    multiplies an underflowed p, and the equation is solved for exp(KL). A large KL is the textbook
    sum, which then does not cancel. Where q gives mass to actions outside the support of p, that
    adds ``-log q(support of p)``.

    D is taken relative to its entry at the largest p, with what rounding loses of it, so that
    neither a common offset of the logits nor p near 1 costs digits.
    """
    both = p.support & ~forbidden(p, q)[..., None]
    prob_p = torch.where(both, probabilities(p), 0)
    prob_q = torch.where(both, probabilities(q), 0)
    log_p = torch.where(both, bounded(log_probabilities(p)), 0)
    log_q = torch.where(both, bounded(log_probabilities(q)), 0)
    textbook = (prob_p * bounded(log_p - log_q)).sum(-1)
    is_small = (textbook <= 0.5) & both.any(-1)

    d, lost = exact_difference(torch.where(both, q.z, 0), torch.where(both, p.z, 0))
    at_best = (d * p.best).sum(-1, keepdim=True).detach()
    lost = torch.where(torch.isfinite(lost), lost, 0)
    lost = lost - (lost * p.best).sum(-1, keepdim=True)
    t = torch.where(both, bounded((d - at_best) + lost), 0).clamp(max=torch.finfo(d.dtype).max)
    t = torch.where(both, bounded(t - (prob_p * t).sum(-1, keepdim=True)), 0)

    outside = torch.where(q.support & ~p.support, probabilities(q), 0).sum(-1)
    outside = torch.where(is_small, outside, 0)
    large = both & (t > 3)
    t_large = torch.where(large, t, 0)
    q_large = torch.where(large, prob_q / (1 - outside)[..., None], 0)
    near = prob_p * convexity(torch.where(large, 0, t))
    far = torch.where(large, q_large - prob_p * (1 + t_large), 0)
    excess = (near + far).sum(-1) / torch.where(is_small, 1 - q_large.sum(-1), 1)
    small = torch.log1p(torch.where(is_small, excess, 0)) - torch.log1p(-outside)
    return Pair(both, prob_p, prob_q, t, torch.where(is_small, small, textbook), is_small)


def exact_difference(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """``a - b`` and what rounding lost of it (Knuth 1969, TwoSum).

    The loss is a constant to autograd, and NaN where ``a - b`` is not finite.
    """
    d = a - b
    x, y, s = a.detach(), b.detach(), d.detach()
    virtual = s - x
    lost = (x - (s - virtual)) - (y + virtual)
    return d, lost


def convexity(t: Tensor) -> Tensor:
    """``expm1(t) - t >= 0``, every digit of it near 0: the remainder of exp after its tangent.

    Below |t| = 0.3 the power series ``t^2/2 (1 + t/3 (1 + t/4 (...)))``.
    """
    terms = 9 if t.dtype == torch.float32 else 14
    small = t.abs() < 0.3
    x = torch.where(small, t, 0)
    series = torch.ones_like(x)
    for n in range(terms, 2, -1):
        series = 1 + series * x / n
    return torch.where(small, series * x * x / 2, torch.expm1(t) - t)
