"""The accuracy rows: float32 results against 100-digit arithmetic on the same inputs."""

from __future__ import annotations

import numpy as np

from maskcore.conformance import exact
from maskcore.conformance.adapter import Adapter
from maskcore.conformance.case import Case, support
from maskcore.conformance.compare import close, holds
from maskcore.conformance.registry import row
from maskcore.conformance.strategies import cases

EPS = float(np.finfo(np.float32).eps)
# Probabilities below the smallest normal number may be flushed to 0; log p is -100 there.
TINY = 100 * float(np.finfo(np.float32).tiny)
KINDS = ("ordinary", "forced")
ONE = cases(kinds=KINDS, dtypes=("float32",), actions="legal", max_rows=3)
NEAR = cases(kinds=("ordinary",), dtypes=("float32",), relations=("near",), max_rows=3)


def _scatter(rows: list[list[float]], mask: np.ndarray) -> np.ndarray:
    out = np.zeros(mask.shape)
    for i, values in enumerate(rows):
        out[i, mask[i]] = values
    return out


def _row_bound(exact_gradient: np.ndarray, *others: np.ndarray) -> np.ndarray:
    size = np.max([np.abs(g).max(-1) for g in (exact_gradient, *others)], axis=0)
    bound = (
        8 * EPS * size + exact_gradient.shape[-1] * TINY
    )  # an entry's worth each, as for entropy
    return np.broadcast_to(bound[:, None], exact_gradient.shape)


@row(group="accuracy", needs=("masked_log_softmax",), cases=ONE)
def masked_log_softmax_accuracy(m: Adapter, c: Case) -> None:
    """masked_log_softmax: error <= 4 eps max(1, abs(value)) against 100 digits."""
    has = support(c.logits, c.mask)
    rows = [[float(v) for v in exact.log_softmax(z[s])] for z, s in zip(c.logits, has, strict=True)]
    expected = np.where(has, _scatter(rows, has), -np.inf)
    bound = 4 * EPS * np.maximum(1, np.abs(np.where(has, expected, 0)))
    close(m.call("masked_log_softmax", c.logits, c.mask), expected, bound, "masked_log_softmax")


@row(group="accuracy", needs=("log_prob",), cases=ONE)
def log_prob_accuracy(m: Adapter, c: Case) -> None:
    """log_prob: error <= 4 eps max(1, abs(value)) against 100 digits."""
    has = support(c.logits, c.mask)
    rows = [[float(v) for v in exact.log_softmax(z[s])] for z, s in zip(c.logits, has, strict=True)]
    table = np.where(has, _scatter(rows, has), -np.inf)
    expected = np.take_along_axis(table, c.actions[:, None], -1)[:, 0]
    size = np.maximum(1, np.abs(np.where(np.isfinite(expected), expected, 0)))
    close(m.call("log_prob", c.logits, c.mask, c.actions), expected, 4 * EPS * size, "log_prob")


@row(group="accuracy", needs=("entropy",), cases=ONE)
def entropy_accuracy(m: Adapter, c: Case) -> None:
    """entropy: relative error <= 16 eps against 100 digits, near-deterministic rows included."""
    expected = exact.over_rows(exact.entropy, support(c.logits, c.mask), c.logits, empty=0)
    bound = 16 * EPS * expected + c.shape[-1] * TINY
    close(m.call("entropy", c.logits, c.mask), expected, bound, "entropy")


@row(group="accuracy", needs=("kl_divergence",), cases=NEAR)
def kl_divergence_accuracy(m: Adapter, c: Case) -> None:
    """kl_divergence, equal masks: relative error <= 1e-5 from 1e-12 up, never negative."""
    has = support(c.logits, c.mask)
    expected = exact.over_rows(exact.kl_divergence, has, c.logits, c.q_logits, empty=0)
    found = m.call("kl_divergence", c.logits, c.q_logits, **c.masks)
    holds(found >= 0, "kl_divergence >= 0", found)
    bound = np.where(expected >= 1e-12, 1e-5 * expected, 1e-12)
    close(found, expected, bound, "kl_divergence of near policies")


@row(group="accuracy", needs=("grad log_prob",), cases=ONE)
def log_prob_gradient_accuracy(m: Adapter, c: Case) -> None:
    """d log_prob: error <= 8 eps of the row's largest entry against 100 digits."""
    has = support(c.logits, c.mask)
    possible = np.take_along_axis(has, c.actions[:, None], -1)[:, 0]
    rows = [
        exact.log_prob_gradient(z[s], int(s[:a].sum()))
        for z, s, a in zip(c.logits, has, c.actions, strict=True)
    ]
    expected = _scatter(rows, has)
    ones = np.ones(len(expected))
    found = m.gradient("log_prob", c.logits, c.mask, c.actions, cotangent=ones)[0]
    expected, found = expected[possible], found[possible]
    close(found, expected, _row_bound(expected), "d log_prob")


@row(group="accuracy", needs=("grad entropy",), cases=ONE)
def entropy_gradient_accuracy(m: Adapter, c: Case) -> None:
    """d entropy: error <= 8 eps of the row's largest entry against 100 digits."""
    has = support(c.logits, c.mask)
    rows = [exact.entropy_gradient(z[s]) for z, s in zip(c.logits, has, strict=True)]
    expected = _scatter(rows, has)
    found = m.gradient("entropy", c.logits, c.mask, cotangent=np.ones(len(expected)))[0]
    close(found, expected, _row_bound(expected), "d entropy")


@row(group="accuracy", needs=("grad kl_divergence",), cases=NEAR)
def kl_divergence_gradient_accuracy(m: Adapter, c: Case) -> None:
    """d KL: error <= 8 eps of the row's largest abs(q - p) against 100 digits."""
    has = support(c.logits, c.mask)
    pairs = [
        exact.kl_gradients(p[s], q[s]) for p, q, s in zip(c.logits, c.q_logits, has, strict=True)
    ]
    dp, dq = (_scatter([pair[i] for pair in pairs], has) for i in (0, 1))
    found = m.gradient(
        "kl_divergence",
        c.logits,
        c.q_logits,
        wrt=(0, 1),
        cotangent=np.ones(len(dp)),
        **c.masks,
    )
    close(found[0], dp, _row_bound(dp, dq), "d kl_divergence / d p")
    close(found[1], dq, _row_bound(dq), "d kl_divergence / d q")
