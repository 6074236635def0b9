"""The rows of ``make accuracy``, and their exact values in 60-digit arithmetic.

Python's ``decimal`` computes the values (in C, a few microseconds an exponential) and mpmath, at 60
digits too, checks them on a sample: two implementations of the textbook formulas that share nothing
with the code that is measured.
"""

from __future__ import annotations

import dataclasses
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal

import mpmath
import numpy as np

# Actions -> rows; 20,060 in all.
SIZES = {
    2: 3000,
    3: 3000,
    5: 4000,
    8: 4000,
    16: 3000,
    64: 2400,
    256: 500,
    1024: 120,
    4096: 40,
}
PAIRS = ("near", "far", "shifted")
_context = Context(prec=60, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])
_ZERO = Decimal(0)


@dataclasses.dataclass
class Rows:
    """Float32 inputs ``[B, A]``: half the entries legal, two a row at least.

    ``pair`` says how q was drawn from p: ``"near"`` (1e-6 to 1e-1 apart), ``"far"`` (independent),
    or ``"shifted"`` (near, and all logits moved by one constant, which changes no policy).
    """

    p: np.ndarray
    q: np.ndarray
    mask: np.ndarray
    actions: np.ndarray
    pair: np.ndarray

    @classmethod
    def draw(cls, rows: int, actions: int, rng: np.random.Generator) -> Rows:
        noise = rng.normal(size=(2, rows, actions))
        scale = 10 ** rng.uniform(-6, 4, (rows, 1))
        p = noise[0] * scale
        kind = rng.integers(0, 4, rows)
        sure = kind == 1  # near-deterministic: one logit 5 to 85 ahead
        p[sure] = noise[0, sure] - rng.uniform(5, 85, (sure.sum(), 1))
        p[sure, rng.integers(0, actions, sure.sum())] = 0
        p[kind == 2] += 10 ** rng.uniform(0, 4, ((kind == 2).sum(), 1))  # an offset
        p = p.astype(np.float32)
        distance = 10 ** rng.uniform(-6, -1, (rows, 1))
        pair = np.array(PAIRS)[rng.choice(3, rows, p=[0.6, 0.25, 0.15])]
        q = p + distance * noise[1]
        q[pair == "far"] = (noise[1] * scale)[pair == "far"]
        shifted = pair == "shifted"
        q[shifted] += rng.uniform(-1, 1, (shifted.sum(), 1))
        mask = rng.random((rows, actions)) < 0.5
        chosen = rng.random((rows, actions)).argpartition(1, axis=-1)[:, :2]
        mask[np.arange(rows)[:, None], chosen] = True
        return cls(p, q.astype(np.float32), mask, chosen[:, 0], pair)


@dataclasses.dataclass
class Exact:
    """The exact values as float64; entrywise ones are ``[B, A]``, NaN at illegal entries."""

    log_softmax: np.ndarray
    log_prob: np.ndarray
    entropy: np.ndarray
    kl: np.ndarray
    d_log_prob: np.ndarray
    d_entropy: np.ndarray
    d_kl_p: np.ndarray
    d_kl_q: np.ndarray


def exact(rows: Rows) -> Exact:
    """All quantities of all rows."""
    B, A = rows.p.shape
    entrywise = {name: np.full((B, A), np.nan) for name in _ENTRYWISE}
    reduced = {name: np.empty(B) for name in ("log_prob", "entropy", "kl")}
    for i in range(B):
        m = rows.mask[i]
        action = int(m[: rows.actions[i]].sum())
        row = _row(rows.p[i, m], rows.q[i, m], action)
        for name in entrywise:
            entrywise[name][i, m] = row[name]
        for name in reduced:
            reduced[name][i] = row[name]
    return Exact(**entrywise, **reduced)


_ENTRYWISE = ("log_softmax", "d_log_prob", "d_entropy", "d_kl_p", "d_kl_q")


def _row(p_logits: np.ndarray, q_logits: np.ndarray, action: int) -> dict[str, object]:
    sub, mul, exp = _context.subtract, _context.multiply, _context.exp
    log_p, log_q = _log_softmax(p_logits), _log_softmax(q_logits)
    p, q = [exp(x) for x in log_p], [exp(x) for x in log_q]
    entropy = _context.minus(_sum(mul(a, x) for a, x in zip(p, log_p, strict=True)))
    ratio = [sub(x, y) for x, y in zip(log_p, log_q, strict=True)]
    kl = _sum(mul(a, r) for a, r in zip(p, ratio, strict=True))
    return {
        "log_softmax": [float(x) for x in log_p],
        "log_prob": float(log_p[action]),
        "entropy": float(entropy),
        "kl": float(kl),
        "d_log_prob": [float(sub(Decimal(k == action), a)) for k, a in enumerate(p)],
        "d_entropy": [
            -float(mul(a, _context.add(x, entropy))) for a, x in zip(p, log_p, strict=True)
        ],
        "d_kl_p": [float(mul(a, sub(r, kl))) for a, r in zip(p, ratio, strict=True)],
        "d_kl_q": [float(sub(b, a)) for a, b in zip(p, q, strict=True)],
    }


def _log_softmax(logits: np.ndarray) -> list[Decimal]:
    z = [Decimal(x) for x in logits.tolist()]
    top = max(z)
    shifted = [_context.subtract(x, top) for x in z]
    log_total = _context.ln(_sum(_context.exp(x) for x in shifted))
    return [_context.subtract(x, log_total) for x in shifted]


def _sum(terms) -> Decimal:
    total = _ZERO
    for term in terms:
        total = _context.add(total, term)
    return total


def check_with_mpmath(rows: Rows, found: Exact, *, sample: int) -> float:
    """The largest relative difference of the first ``sample`` rows from mpmath at 60 digits."""
    worst = 0.0
    with mpmath.workdps(60):
        for i in range(min(sample, len(rows.p))):
            m = rows.mask[i]
            log_p, log_q = _mp_log_softmax(rows.p[i, m]), _mp_log_softmax(rows.q[i, m])
            p = [mpmath.exp(x) for x in log_p]
            entropy = -mpmath.fsum(a * x for a, x in zip(p, log_p, strict=True))
            kl = mpmath.fsum(a * (x - y) for a, x, y in zip(p, log_p, log_q, strict=True))
            action = int(m[: rows.actions[i]].sum())
            pairs = ((found.entropy, entropy), (found.kl, kl), (found.log_prob, log_p[action]))
            for array, value in pairs:
                if abs(value) > 1e-40:
                    worst = max(worst, abs(float(array[i] / value - 1)))
    return worst


def _mp_log_softmax(logits: np.ndarray) -> list[mpmath.mpf]:
    z = [mpmath.mpf(x) for x in logits.tolist()]
    top = max(z)
    log_total = mpmath.log(mpmath.fsum(mpmath.exp(x - top) for x in z))
    return [x - top - log_total for x in z]
