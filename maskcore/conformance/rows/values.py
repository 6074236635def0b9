"""The contract's table: each quantity on ordinary, forced and empty rows."""

from __future__ import annotations

import numpy as np

from maskcore.conformance.adapter import Adapter
from maskcore.conformance.case import Case, support
from maskcore.conformance.compare import close, holds, same
from maskcore.conformance.registry import row
from maskcore.conformance.strategies import cases

ORDINARY = cases(kinds=("ordinary",), actions="any")
FORCED = cases(kinds=("forced",), actions="any")
EMPTY = cases(kinds=("empty",))


@row(group="value", needs=("masked_softmax",), cases=ORDINARY)
def masked_softmax_ordinary_row(m: Adapter, c: Case) -> None:
    """masked_softmax, ordinary row: illegal entries exactly 0, legal ones sum to 1."""
    p = m.call("masked_softmax", c.logits, c.mask)
    holds(p[~c.mask] == 0, "illegal entries of masked_softmax", p[~c.mask])
    holds((p >= 0) & (p <= 1), "masked_softmax in [0, 1]", p)
    close(p.sum(-1, dtype=np.float64), np.ones(len(p)), 8 * c.eps, "sum of masked_softmax")


@row(group="value", needs=("masked_softmax",), cases=FORCED)
def masked_softmax_forced_row(m: Adapter, c: Case) -> None:
    """masked_softmax, forced row: exactly one-hot."""
    same(m.call("masked_softmax", c.logits, c.mask), c.mask.astype(float), "masked_softmax")


@row(group="value", needs=("masked_softmax",), cases=EMPTY)
def masked_softmax_empty_row(m: Adapter, c: Case) -> None:
    """masked_softmax, empty row: all 0."""
    same(m.call("masked_softmax", c.logits, c.mask), np.zeros(c.shape), "masked_softmax")


@row(group="value", needs=("masked_log_softmax",), cases=ORDINARY)
def masked_log_softmax_ordinary_row(m: Adapter, c: Case) -> None:
    """masked_log_softmax, ordinary row: illegal entries -inf, legal ones <= 0 and finite."""
    found = m.call("masked_log_softmax", c.logits, c.mask)
    holds(
        np.equal(found[~c.mask], -np.inf), "illegal entries of masked_log_softmax", found[~c.mask]
    )
    has_mass = support(c.logits, c.mask)
    holds(np.isfinite(found[has_mass]), "legal entries of masked_log_softmax", found[has_mass])
    holds(found <= 0, "masked_log_softmax <= 0", found)


@row(group="value", needs=("masked_log_softmax",), cases=FORCED)
def masked_log_softmax_forced_row(m: Adapter, c: Case) -> None:
    """masked_log_softmax, forced row: 0 at the legal action, -inf elsewhere."""
    found = m.call("masked_log_softmax", c.logits, c.mask)
    same(found, np.where(c.mask, 0.0, -np.inf), "masked_log_softmax")


@row(group="value", needs=("masked_log_softmax",), cases=EMPTY)
def masked_log_softmax_empty_row(m: Adapter, c: Case) -> None:
    """masked_log_softmax, empty row: all -inf."""
    found = m.call("masked_log_softmax", c.logits, c.mask)
    same(found, np.full(c.shape, -np.inf), "masked_log_softmax")


@row(group="value", needs=("log_prob",), cases=cases(kinds=("ordinary",), actions="illegal"))
def log_prob_ordinary_row(m: Adapter, c: Case) -> None:
    """log_prob, ordinary row: -inf where the action is illegal, else finite (or -inf logit)."""
    found = m.call("log_prob", c.logits, c.mask, c.actions)
    has_mass = np.take_along_axis(support(c.logits, c.mask), c.actions[:, None], -1)[:, 0]
    same(np.equal(found, -np.inf), ~has_mass, "log_prob is -inf where the action has no mass")
    holds(found <= 0, "log_prob <= 0", found)


@row(group="value", needs=("log_prob",), cases=FORCED)
def log_prob_forced_row(m: Adapter, c: Case) -> None:
    """log_prob, forced row: exactly 0 at the legal action, -inf at others."""
    legal = np.take_along_axis(c.mask, c.actions[:, None], -1)[:, 0]
    found = m.call("log_prob", c.logits, c.mask, c.actions)
    same(found, np.where(legal, 0.0, -np.inf), "log_prob")


@row(group="value", needs=("log_prob",), cases=EMPTY)
def log_prob_empty_row(m: Adapter, c: Case) -> None:
    """log_prob, empty row: exactly 0, no choice was made."""
    found = m.call("log_prob", c.logits, c.mask, c.actions)
    same(found, np.zeros(c.shape[:-1]), "log_prob")


@row(group="value", needs=("entropy",), cases=ORDINARY)
def entropy_ordinary_row(m: Adapter, c: Case) -> None:
    """entropy, ordinary row: in [0, log(number legal)]."""
    found = m.call("entropy", c.logits, c.mask)
    most = np.log(c.mask.sum(-1))
    holds((found >= 0) & (found <= most * (1 + 16 * c.eps)), "entropy in [0, log legal]", found)


@row(group="value", needs=("entropy",), cases=FORCED)
def entropy_forced_row(m: Adapter, c: Case) -> None:
    """entropy, forced row: exactly 0."""
    same(m.call("entropy", c.logits, c.mask), np.zeros(len(c.logits)), "entropy")


@row(group="value", needs=("entropy",), cases=EMPTY)
def entropy_empty_row(m: Adapter, c: Case) -> None:
    """entropy, empty row: exactly 0."""
    same(m.call("entropy", c.logits, c.mask), np.zeros(len(c.logits)), "entropy")


@row(group="value", needs=("kl_divergence",), cases=ORDINARY)
def kl_divergence_ordinary_row(m: Adapter, c: Case) -> None:
    """kl_divergence, ordinary row: never negative, never NaN."""
    found = m.call("kl_divergence", c.logits, c.q_logits, **c.masks)
    holds(found >= 0, "kl_divergence >= 0", found)


@row(group="value", needs=("kl_divergence",), cases=cases(relations=("equal",)))
def kl_divergence_equal_inputs(m: Adapter, c: Case) -> None:
    """kl_divergence, equal inputs: exactly 0 on every kind of row."""
    found = m.call("kl_divergence", c.logits, c.q_logits, **c.masks)
    same(found, np.zeros(c.shape[:-1]), "kl_divergence of equal inputs")


@row(group="value", needs=("kl_divergence",), cases=FORCED)
def kl_divergence_forced_row(m: Adapter, c: Case) -> None:
    """kl_divergence, forced row: -log q(the legal action), 0 where q is forced too."""
    found = m.call("kl_divergence", c.logits, c.q_logits, **c.masks)
    holds(found >= 0, "kl_divergence >= 0", found)
    both = (c.mask == c.q_mask).all(-1)
    same(found[both], np.zeros(both.sum()), "kl_divergence of two forced rows")


@row(group="value", needs=("kl_divergence",), cases=EMPTY)
def kl_divergence_empty_row(m: Adapter, c: Case) -> None:
    """kl_divergence, empty row: 0 where p is empty, whatever q is."""
    found = m.call("kl_divergence", c.logits, c.q_logits, **c.masks)
    same(found, np.zeros(len(c.logits)), "kl_divergence")


@row(group="value", needs=("mode",), cases=ORDINARY)
def mode_ordinary_row(m: Adapter, c: Case) -> None:
    """mode, ordinary row: the legal argmax, the lowest index on a tie."""
    same(m.call("mode", c.logits, c.mask), _argmax(c), "mode")


@row(group="value", needs=("mode",), cases=FORCED)
def mode_forced_row(m: Adapter, c: Case) -> None:
    """mode, forced row: the legal action."""
    same(m.call("mode", c.logits, c.mask), c.mask.argmax(-1), "mode")


@row(group="value", needs=("mode",), cases=EMPTY)
def mode_empty_row(m: Adapter, c: Case) -> None:
    """mode, empty row: 0."""
    same(m.call("mode", c.logits, c.mask), np.zeros(len(c.logits)), "mode")


@row(group="value", needs=("sample",), cases=ORDINARY)
def sample_ordinary_row(m: Adapter, c: Case) -> None:
    """sample, ordinary row: never an illegal action, nor one of probability 0."""
    found = m.sample(c.logits, c.mask, seed=int(c.actions[0]))
    holds((found >= 0) & (found < c.shape[-1]), "sample in [0, A)", found)
    drawn = np.take_along_axis(support(c.logits, c.mask), found[:, None], -1)[:, 0]
    holds(drawn, "sample has mass", found)


@row(group="value", needs=("sample",), cases=FORCED)
def sample_forced_row(m: Adapter, c: Case) -> None:
    """sample, forced row: the legal action."""
    same(m.sample(c.logits, c.mask, seed=0), c.mask.argmax(-1), "sample")


@row(group="value", needs=("sample",), cases=EMPTY)
def sample_empty_row(m: Adapter, c: Case) -> None:
    """sample, empty row: 0."""
    same(m.sample(c.logits, c.mask, seed=0), np.zeros(len(c.logits)), "sample")


@row(group="value", needs=("sample", "masked_softmax"))
def sample_frequencies(m: Adapter) -> None:
    """sample draws each action as often as masked_softmax says (20,000 draws, 6 sigma)."""
    n = 20_000
    logits = np.array([1.0, -2.0, 3.0, 0.0, -1.0], np.float32)
    mask = np.array([True, True, False, True, True])
    found = m.sample(np.tile(logits, (n, 1)), np.tile(mask, (n, 1)), seed=0)
    counts = np.bincount(found, minlength=5)
    p = np.where(mask, np.exp(logits), 0)
    p = p / p.sum()
    close(counts / n, p, 6 * np.sqrt(p * (1 - p) / n), "frequency of each action")


def _argmax(c: Case) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    z = np.where(c.mask, c.logits, -np.inf)
    first = (c.mask & (z == z.max(-1, keepdims=True))).argmax(-1)
    return np.asarray(first, np.int64)
