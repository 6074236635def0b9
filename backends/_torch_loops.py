"""The closed forms as two loops for a compiler: values after two passes over a row, gradients one.

With t = z - max z and t' = z_old - max z_old over the legal actions, p and S those of the old
policy, and ``D = t - t'``, the constant that ``z - z_old`` is off by being at hand from the start::

    M = sum p D      G = sum p (expm1(D) - D)      E = M + G = S_new / S - 1
    KL = log1p(E) - M = G - (E - log1p(E))         log q - log p = D - log1p(E)

The second form of KL keeps every digit where KL is small, unless D is far from 0 in the mean: M^2
against G tells. That, and whatever else is not an ordinary row (empty, forced, NaN, -inf among the
legal logits, an illegal action, nearly deterministic, policies that differ in entries near
probability 0 alone), is named by a flag and computed again by the plain formulas. D is taken with
what rounding loses of it. ``p exp(D)`` is ``exp(t) / S``, so that no third exponential is needed;
everything is arithmetic that a compiler makes vectors of, and a mask is loaded as uint8, compared
as float.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from backends._series import FACTORS
from backends._torch_block import CERTAIN

TEXTBOOK = 0.5  # KL from which it is log1p(E) - M
CANCELS = 24.0  # G / KL from which too many digits of KL are gone
DEEP = -15.0  # t' below which exp shows what rounding loses of it: at -40, 16 epsilon
SHOWS = 0.2  # sum of |q - p| of such entries over the largest of all, from which that shows
LARGEST_WIDTH = 2**24  # columns that float32 can number


def values(
    z: Tensor, old: Tensor, mask: Tensor, index: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """log_prob, entropy, KL(old | new), each ``[N, 1]``; numbers ``[N, 6]``; flags ``[N, 1]``.

    Args:
        z, old: ``[N, A]`` float32 logits.
        mask: ``[N, A]`` uint8, the mask of both.
        index: ``[N, 1]`` actions.
    """
    legal = mask.to(z.dtype) != 0
    top = torch.where(legal, z, -math.inf).amax(-1, keepdim=True)
    old_top = torch.where(legal, old, -math.inf).amax(-1, keepdim=True)
    t = torch.where(legal, z - top, 0.0)
    old_t = torch.where(legal, old - old_top, 0.0)
    e = torch.where(legal, torch.exp(t), 0.0)
    old_e = torch.where(legal, torch.exp(old_t), 0.0)
    d = torch.where(legal, _difference(z, old, top, old_top), 0.0)
    rest, old_rest = _rest(e, t, legal), _rest(old_e, old_t, legal)
    total, old_total = 1 + rest, 1 + old_rest
    mean = (e * t).sum(-1, keepdim=True) / total
    tangent = old_e * d
    m = tangent.sum(-1, keepdim=True) / old_total
    terms = torch.where(d.abs() <= 1, old_e * _phi(d), (e - old_e) - tangent)
    g = terms.sum(-1, keepdim=True) / old_total
    w = (terms + tangent).abs()  # of q - p, but for the constant
    deep = torch.where(old_t < DEEP, w, 0.0).sum(-1, keepdim=True)

    log_total = torch.log1p(rest)
    ratio = m + g  # E
    r = ratio / (2 + ratio)
    rr = r * r
    odd = 1 / 3 + rr * (1 / 5 + rr * (1 / 7 + rr * (1 / 9 + rr * (1 / 11))))
    small = (g - ratio * r) + 2 * r * rr * odd
    large = (log_total - torch.log1p(old_rest)) - m
    use_large = (large > TEXTBOOK) | (ratio.abs() > 0.6)
    kl = torch.where(use_large, large, small).clamp(min=0)
    shift = torch.where(use_large, log_total - torch.log1p(old_rest), m + kl)

    taken = mask.gather(-1, index).to(z.dtype)
    log_prob = (z.gather(-1, index) - top) - log_total
    entropy = log_total - mean
    check = log_prob + entropy + kl + m + shift
    bad = (
        ~(check.abs() < 1e30)
        | (taken == 0)
        | (rest < CERTAIN)
        | (old_rest < CERTAIN)
        | (~use_large & (g > CANCELS * kl))
        | (use_large & (kl < 0.1))
        | (deep > SHOWS * w.amax(-1, keepdim=True))
    )
    numbers = torch.cat((top, rest, mean, old_top, old_rest, shift), -1)
    return log_prob, entropy, kl, numbers, bad.to(z.dtype)


def gradient(
    z: Tensor,
    old: Tensor,
    mask: Tensor,
    index: Tensor,
    numbers: Tensor,
    g_log_prob: Tensor,
    g_entropy: Tensor,
    g_kl: Tensor,
) -> Tensor:
    """The gradient ``[N, A]`` to the new logits, for incoming ones ``[N, 1]``."""
    parts = cast("tuple[Tensor, ...]", numbers.split(1, -1))
    top, rest, mean, old_top, old_rest, shift = parts
    legal = mask.to(z.dtype) != 0
    t = torch.where(legal, z - top, 0.0)
    p = torch.exp(t) * (1 / (1 + rest))
    p_old = torch.exp(torch.where(legal, old - old_top, 0.0)) * (1 / (1 + old_rest))
    here = torch.arange(z.shape[-1], device=z.device, dtype=z.dtype) == index.to(z.dtype)
    others = torch.where(t == 0, rest / (1 + rest), 1 - p)
    x = _difference(z, old, top, old_top) - shift
    direction = torch.where(x.abs() <= 1, p_old * (x + _phi(x)), p - p_old)
    to_new = g_log_prob * torch.where(here, others, -p) + g_entropy * p * (mean - t)
    return torch.where(legal, to_new + g_kl * direction, 0.0)


def _difference(z: Tensor, old: Tensor, top: Tensor, old_top: Tensor) -> Tensor:
    """``(z - old) - (top - old_top)`` with what each difference loses (Knuth 1969, TwoSum)."""
    d, lost = _two_sum(z, old)
    c, lost_of_c = _two_sum(top, old_top)
    return (d - c) + (lost - lost_of_c)


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    d = a - b
    virtual = d - a
    return d, (a - (d - virtual)) - (b + virtual)


def _rest(e: Tensor, t: Tensor, legal: Tensor) -> Tensor:
    """Sum of exp(t) without one entry at the top, so that small ones count."""
    is_top = legal & (t == 0)
    below = torch.where(is_top, 0.0, e).sum(-1, keepdim=True)
    return below + (torch.where(is_top, 1.0, 0.0).sum(-1, keepdim=True) - 1)


def _phi(x: Tensor) -> Tensor:
    """``expm1(x) - x`` for |x| <= 1, see ``_series``."""
    scale, factors = FACTORS
    out = x * x * scale
    for a, b in factors:
        shifted = x + a
        out = out * (shifted * shifted + b)
    return out
