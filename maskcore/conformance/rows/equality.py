"""Values equal to the specification's, on rows of every kind, float32 and float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskcore import spec
from maskcore.conformance.adapter import Adapter
from maskcore.conformance.case import Case, support
from maskcore.conformance.compare import close, holds, same
from maskcore.conformance.registry import row
from maskcore.conformance.strategies import broadcast_cases, cases

ANY = cases()
EPS64 = float(np.finfo(np.float64).eps)


def log_bound(expected: NDArray[Any], eps: float) -> NDArray[Any]:
    """4 eps max(1, abs(value)), and as much for the float64 of the specification."""
    size = np.maximum(1, np.abs(np.where(np.isfinite(expected), expected, 0)))
    return np.asarray(4 * (eps + EPS64) * size)


def entropy_bound(expected: NDArray[Any], c: Case) -> NDArray[Any]:
    """16 eps relative, 16 float64 eps of what the specification sums, and subnormals (p log p)."""
    tiny = 100 * float(np.finfo(c.logits.dtype).tiny)
    return 16 * c.eps * np.abs(expected) + 16 * EPS64 + c.shape[-1] * tiny


def kl_bound(expected: NDArray[Any], c: Case) -> NDArray[Any]:
    """The bound of the KL row, and the rounding of the specification's own sum.

    Rows of different support have no bound of their own in the contract: 16 eps max(1, value).
    """
    eps = c.eps
    equal = (support(c.logits, c.mask) == support(c.q_logits, c.q_mask)).all(-1)
    terms = 1 + np.abs(spec.cross_entropy(c.wide, c.q_wide, **c.masks))
    terms = np.where(np.isfinite(terms), terms, 1)
    size = np.where(np.isfinite(expected), expected, 0)
    relative = np.where(equal, 1e-5 if eps > 1e-10 else 1e-9, 16 * eps)
    return relative * np.where(equal, size, np.maximum(1, size)) + 16 * EPS64 * terms


def check_values(m: Adapter, c: Case, functions: tuple[str, ...]) -> None:
    """Compare the named functions with the specification on one case."""
    one = (c.wide, c.mask)
    for name in functions:
        if name == "masked_softmax":
            close(m.call(name, c.logits, c.mask), spec.masked_softmax(*one), 4 * c.eps, name)
        elif name == "masked_log_softmax":
            expected = spec.masked_log_softmax(*one)
            close(m.call(name, c.logits, c.mask), expected, log_bound(expected, c.eps), name)
        elif name == "log_prob":
            expected = spec.log_prob(*one, c.actions)
            found = m.call(name, c.logits, c.mask, c.actions)
            close(found, expected, log_bound(expected, c.eps), name)
        elif name == "entropy":
            expected = spec.entropy(*one)
            found = m.call(name, c.logits, c.mask)
            close(found, expected, entropy_bound(expected, c), name)
        elif name == "kl_divergence":
            expected = spec.kl_divergence(c.wide, c.q_wide, **c.masks)
            found = m.call(name, c.logits, c.q_logits, **c.masks)
            close(found, expected, kl_bound(expected, c), name)
        elif name == "cross_entropy":
            expected = spec.cross_entropy(c.wide, c.q_wide, **c.masks)
            bound = 16 * (c.eps + EPS64) * np.maximum(1, np.abs(expected))
            found = m.call(name, c.logits, c.q_logits, **c.masks)
            close(found, expected, np.where(np.isfinite(bound), bound, 0), name)
        else:
            same(m.call("mode", c.logits, c.mask), spec.mode(*one), "mode")


@row(group="value", needs=("masked_softmax",), cases=ANY)
def masked_softmax_equals_specification(m: Adapter, c: Case) -> None:
    """masked_softmax equals the specification (4 eps) on every kind of row."""
    check_values(m, c, ("masked_softmax",))


@row(group="value", needs=("masked_log_softmax",), cases=ANY)
def masked_log_softmax_equals_specification(m: Adapter, c: Case) -> None:
    """masked_log_softmax equals the specification, 4 eps max(1, abs(value))."""
    check_values(m, c, ("masked_log_softmax",))


@row(group="value", needs=("log_prob",), cases=ANY)
def log_prob_equals_specification(m: Adapter, c: Case) -> None:
    """log_prob equals the specification, 4 eps max(1, abs(value))."""
    check_values(m, c, ("log_prob",))


@row(group="value", needs=("entropy",), cases=ANY)
def entropy_equals_specification(m: Adapter, c: Case) -> None:
    """entropy equals the specification, 16 eps relative."""
    check_values(m, c, ("entropy",))


@row(group="value", needs=("kl_divergence",), cases=ANY)
def kl_divergence_equals_specification(m: Adapter, c: Case) -> None:
    """kl_divergence equals the specification, equal masks and different ones."""
    check_values(m, c, ("kl_divergence",))


@row(group="value", needs=("cross_entropy",), cases=ANY)
def cross_entropy_equals_specification(m: Adapter, c: Case) -> None:
    """cross_entropy equals the specification."""
    check_values(m, c, ("cross_entropy",))


@row(group="value", needs=("log_prob", "entropy"), cases=broadcast_cases())
def broadcasting_values(m: Adapter, c: Case) -> None:
    """logits and mask with different batch axes broadcast, in every quantity of one policy."""
    names = ("masked_softmax", "masked_log_softmax", "log_prob", "entropy", "mode")
    check_values(m, c, tuple(name for name in names if m.lacks(name) is None))


@row(group="value", needs=("kl_divergence",), cases=broadcast_cases())
def broadcasting_divergences(m: Adapter, c: Case) -> None:
    """The four arguments of kl_divergence broadcast against each other."""
    shape = np.broadcast_shapes(c.shape, c.q_logits.shape, c.q_mask.shape)
    names = ("logits", "mask", "q_logits", "q_mask")
    wide = {name: np.broadcast_to(getattr(c, name), shape) for name in names}
    full = dataclasses.replace(c, **wide)
    expected = spec.kl_divergence(full.wide, full.q_wide, **full.masks)
    found = m.call("kl_divergence", c.logits, c.q_logits, **c.masks)
    close(found, expected, kl_bound(expected, full), "kl_divergence")


@row(group="value", needs=("evaluate_actions",), cases=ANY)
def evaluate_actions_equals_its_parts(m: Adapter, c: Case) -> None:
    """evaluate_actions gives log_prob, entropy and KL(old, new) as the specification does."""
    found = m.call(
        "evaluate_actions",
        c.logits,
        c.mask,
        c.actions,
        old_logits=c.q_logits,
        old_mask=c.q_mask,
    )
    expected = spec.log_prob(c.wide, c.mask, c.actions)
    close(found.log_prob, expected, log_bound(expected, c.eps), "log_prob")
    expected = spec.entropy(c.wide, c.mask)
    close(found.entropy, expected, entropy_bound(expected, c), "entropy")
    back = Case(c.q_logits, c.q_mask, c.actions, c.logits, c.mask, c.cotangent, c.entry_cotangent)
    expected = spec.kl_divergence(back.wide, back.q_wide, **back.masks)
    close(found.kl_divergence, expected, kl_bound(expected, back), "kl_divergence")


@row(group="value", needs=("evaluate_actions",), cases=cases(relations=("near",)))
def evaluate_actions_defaults(m: Adapter, c: Case) -> None:
    """evaluate_actions: no KL without old_logits; old_mask defaults to mask."""
    alone = m.call("evaluate_actions", c.logits, c.mask, c.actions)
    holds(alone.kl_divergence is None, "kl_divergence is None without old_logits", False)
    both = m.call("evaluate_actions", c.logits, c.mask, c.actions, old_logits=c.q_logits)
    named = m.call(
        "evaluate_actions", c.logits, c.mask, c.actions, old_logits=c.q_logits, old_mask=c.mask
    )
    same(both.kl_divergence, named.kl_divergence, "kl_divergence with the default old_mask")
    close(alone.log_prob, both.log_prob, log_bound(both.log_prob, c.eps), "log_prob")


@row(group="value", needs=("MaskedCategorical", "log_prob"), cases=cases())
def masked_categorical_equals_functions(m: Adapter, c: Case) -> None:
    """MaskedCategorical(logits, mask) has the log_prob and the entropy of the functions."""
    dist = m.raw("MaskedCategorical", c.logits, c.mask)
    found = m.to_numpy(dist.log_prob(m.asarray(c.actions)))
    expected = spec.log_prob(c.wide, c.mask, c.actions)
    close(found, expected, log_bound(expected, c.eps), "MaskedCategorical.log_prob")
    found = m.to_numpy(dist.entropy())
    expected = spec.entropy(c.wide, c.mask)
    close(found, expected, entropy_bound(expected, c), "MaskedCategorical.entropy")
