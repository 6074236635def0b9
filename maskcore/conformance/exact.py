"""The quantities in 100-digit decimal arithmetic, for the accuracy rows.

Textbook formulas on Python's ``decimal``: an oracle that shares nothing with the backends and
that has digits left where float64 has none (a KL of 1e-12 between logits of 1e4).
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "entropy",
    "entropy_gradient",
    "kl_divergence",
    "kl_gradients",
    "log_prob_gradient",
    "log_softmax",
    "over_rows",
]

Array = NDArray[Any]
_context = Context(prec=100, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])
_ZERO = Decimal(0)


def log_softmax(logits: Array) -> list[Decimal]:
    """``z - log sum exp z`` of one row's legal logits ``[n]``, at least one of them finite."""
    z = [Decimal(float(x)) for x in logits]
    top = max(z)
    shifted = [_context.subtract(x, top) for x in z]
    total = _ZERO
    for x in shifted:
        total = _context.add(total, _context.exp(x))
    log_total = _context.ln(total)
    return [_context.subtract(x, log_total) for x in shifted]


def entropy(logits: Array) -> float:
    """``-sum p log p`` of one row's legal logits ``[n]``."""
    return -float(_expect(log_softmax(logits), log_softmax(logits)))


def kl_divergence(p_logits: Array, q_logits: Array) -> float:
    """``sum p (log p - log q)`` of two rows ``[n]`` with the same support."""
    p, q = log_softmax(p_logits), log_softmax(q_logits)
    return float(_expect(p, [_context.subtract(a, b) for a, b in zip(p, q, strict=True)]))


def log_prob_gradient(logits: Array, action: int) -> list[float]:
    """``1[a = b] - p_b`` over one row's legal logits ``[n]``; ``action`` counts legal entries."""
    return [
        float(_context.subtract(Decimal(i == action), _context.exp(x)))
        for i, x in enumerate(log_softmax(logits))
    ]


def entropy_gradient(logits: Array) -> list[float]:
    """``-p (log p + H)`` over one row's legal logits ``[n]``."""
    log_p = log_softmax(logits)
    total = _expect(log_p, log_p)
    return [-float(_times_exp(x, _context.subtract(x, total))) for x in log_p]


def kl_gradients(p_logits: Array, q_logits: Array) -> tuple[list[float], list[float]]:
    """``p (log p - log q - KL)`` and ``q - p`` over two rows ``[n]`` with the same support."""
    log_p, log_q = log_softmax(p_logits), log_softmax(q_logits)
    ratio = [_context.subtract(a, b) for a, b in zip(log_p, log_q, strict=True)]
    kl = _expect(log_p, ratio)
    dp = [float(_times_exp(a, _context.subtract(r, kl))) for a, r in zip(log_p, ratio, strict=True)]
    dq = [
        float(_context.subtract(_context.exp(b), _context.exp(a)))
        for a, b in zip(log_p, log_q, strict=True)
    ]
    return dp, dq


def over_rows(function: Callable[..., Any], support: Array, *arrays: Array, empty: Any) -> Array:
    """Apply ``function`` to the entries of each row ``[..., A]`` that have mass."""
    out = [
        function(*(a[s] for a in rows)) if s.any() else empty
        for s, *rows in zip(support, *arrays, strict=True)
    ]
    return np.array(out, np.float64)


def _times_exp(log: Decimal, factor: Decimal) -> Decimal:
    return _context.multiply(_context.exp(log), factor)


def _expect(log_p: list[Decimal], values: list[Decimal]) -> Decimal:
    total = _ZERO
    for log, value in zip(log_p, values, strict=True):
        total = _context.add(total, _times_exp(log, value))
    return total
