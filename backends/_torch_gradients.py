"""The closed-form gradients of the plain formulas, for every kind of row.

They hold the digits that differentiating the formulas loses (to a policy near uniform or near
deterministic, and to two policies near each other), in the terms of ``_torch_plain``::

    d log_prob(a) / dz_b = 1[a = b] - p_b
    d H / dz_b           = p_b (sum p u - u_b)
    d KL(p|q) / dq_b     = p_b expm1(t_b - KL) = q_b - p_b
    d KL(p|q) / dp_b     = -p_b t_b

Each sums to 0 over b: the entry at the largest logit, a small difference of large numbers where
its p is near 1, is taken from the others. All of them are exactly 0 under the mask and NaN at the
legal entries of a NaN row. Not differentiable themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backends import _torch_plain as plain
from backends._torch_plain import Rows


def log_prob(logits: Tensor, legal: Tensor, actions: Tensor, g: Tensor) -> Tensor:
    """``[..., A]`` gradient of ``log_prob`` for incoming gradients ``g`` ``[...]``."""
    r = plain.rows(logits, legal)
    index = actions[..., None]
    taken = torch.zeros_like(legal).scatter(-1, index, True)
    direction = _balanced(torch.where(taken, 1 - _p(r), -_p(r)), r)
    alive = legal.gather(-1, index) & ~r.empty[..., None]
    return _finish(torch.where(alive, direction, 0), legal, g, r.nan)


def entropy(logits: Tensor, legal: Tensor, g: Tensor) -> Tensor:
    """``[..., A]`` gradient of ``entropy``."""
    r = plain.rows(logits, legal)
    u = torch.where(r.support, plain.bounded(r.u), 0)
    p = _p(r)
    return _finish(p * ((p * u).sum(-1, keepdim=True) - u), legal, g, r.nan)


def kl_divergence(
    p_logits: Tensor, q_logits: Tensor, p_legal: Tensor, q_legal: Tensor, g: Tensor
) -> tuple[Tensor, Tensor]:
    """``[..., A]`` gradients of ``kl_divergence`` to both logits."""
    p, q = plain.rows(p_logits, p_legal), plain.rows(q_logits, q_legal)
    two = plain.pair(p, q)
    to_p = _balanced(-two.p * two.t, p)
    return _both(p, q, to_p, _to_q(p, q, two), g)


def cross_entropy(
    p_logits: Tensor, q_logits: Tensor, p_legal: Tensor, q_legal: Tensor, g: Tensor
) -> tuple[Tensor, Tensor]:
    """``[..., A]`` gradients of ``cross_entropy`` to both logits: ``-p_b (log q_b + C)`` to p."""
    p, q = plain.rows(p_logits, p_legal), plain.rows(q_logits, q_legal)
    two = plain.pair(p, q)
    at_best = (q.z * p.best).sum(-1, keepdim=True)
    relative = torch.where(two.shared, plain.bounded(q.z - at_best), 0)
    mean = (two.p * relative).sum(-1, keepdim=True)
    to_p = _balanced(two.p * (mean - relative), p)
    return _both(p, q, to_p, _to_q(p, q, two), g)


def _to_q(p: Rows, q: Rows, two: plain.Pair) -> Tensor:
    """``q - p``, through log q - log p = t - KL where these are small."""
    s = torch.where(two.shared, two.t - two.kl[..., None], 0)
    close = two.shared & two.small[..., None] & (s.abs() < 1)
    direct = torch.where(q.support, _p(q), 0) - two.p
    to_q = torch.where(close, two.p * torch.expm1(torch.where(close, s, 0)), direct)
    return _balanced(_balanced(to_q, p), q)


def _p(r: Rows) -> Tensor:
    return torch.where(r.support, plain.probabilities(r), 0)


def _balanced(direction: Tensor, r: Rows) -> Tensor:
    """Let the entry at the largest logit, if its p > 1/2, be minus the sum of the others."""
    heavy = r.best & (r.rest < 1)[..., None]
    others = torch.where(heavy, 0, direction)
    return torch.where(heavy, -others.sum(-1, keepdim=True), direction)


def _both(p: Rows, q: Rows, to_p: Tensor, to_q: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    nan = (p.nan | q.nan) & ~p.empty
    dead = (p.empty | plain.forbidden(p, q))[..., None]
    to_p, to_q = torch.where(dead, 0, to_p), torch.where(dead, 0, to_q)
    return _finish(to_p, p.legal, g, nan), _finish(to_q, q.legal, g, nan)


def _finish(direction: Tensor, legal: Tensor, g: Tensor, nan: Tensor) -> Tensor:
    """Times the incoming gradient, which may be anything where the direction is 0."""
    direction = torch.where(legal & nan[..., None], torch.nan, direction)
    return torch.where(direction == 0, 0, direction * g[..., None])
