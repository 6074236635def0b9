"""Gradients: the closed forms of the contract, and exactly 0 where it says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskcore import spec
from maskcore.conformance.adapter import Adapter
from maskcore.conformance.case import Case, support
from maskcore.conformance.compare import close, holds, same
from maskcore.conformance.registry import row
from maskcore.conformance.strategies import broadcast_cases, cases

Array = NDArray[Any]
ANY = cases()
CORE = ("grad log_prob", "grad entropy")
EPS64 = float(np.finfo(np.float64).eps)


_ONE = ("log_prob", "entropy", "masked_softmax", "masked_log_softmax")
_PAIR = ("kl_divergence", "cross_entropy")


def gradients(m: Adapter, c: Case, *, most: int = 2) -> Iterator[tuple[str, Array]]:
    """Gradients that the module has, ``most`` functions a case: what it is of, ``[..., A]``."""
    names = [name for name in (*_ONE, *_PAIR) if m.lacks(f"grad {name}") is None]
    for name in c.turns(names, most=most):
        if name in _PAIR:
            arguments: dict[str, Any] = {"wrt": (0, 1), "cotangent": c.cotangent, **c.masks}
            pair = m.gradient(name, c.logits, c.q_logits, **arguments)
            yield f"d {name} / d p", pair[0]
            yield f"d {name} / d q", pair[1]
        else:
            actions = (c.actions,) if name == "log_prob" else ()
            weight = c.entry_cotangent if "softmax" in name else c.cotangent
            yield f"d {name}", m.gradient(name, c.logits, c.mask, *actions, cotangent=weight)[0]


def gradient_bound(c: Case, exact: Array, *, relative_to: Array | None = None) -> Array:
    """8 eps of the row's largest entry, and the float64 rounding of the specification."""
    size = np.abs(exact).max(-1, keepdims=True)
    if relative_to is not None:
        size = np.maximum(size, relative_to.max(-1, keepdims=True))
    size = np.where(np.isfinite(size), size, 0)
    return np.broadcast_to(8 * c.eps * size + 64 * EPS64, exact.shape)


@row(group="gradient", needs=CORE, cases=cases(kinds=("ordinary",)))
def gradients_ordinary_row(m: Adapter, c: Case) -> None:
    """Every gradient, ordinary row: exactly 0 at illegal entries, finite at legal ones."""
    for what, g in gradients(m, c):
        mask = c.q_mask if what.endswith("d q") else c.mask
        holds(g[~mask] == 0, f"{what} at illegal entries", g[~mask])
        holds(np.isfinite(g), f"{what} is finite", g)


@row(group="gradient", needs=CORE, cases=cases(kinds=("forced",), relations=("equal", "near")))
def gradients_forced_row(m: Adapter, c: Case) -> None:
    """Every gradient, forced row: exactly 0."""
    for what, g in gradients(m, c):
        same(g, np.zeros(c.shape), what)


@row(group="gradient", needs=CORE, cases=cases(kinds=("empty",)))
def gradients_empty_row(m: Adapter, c: Case) -> None:
    """Every gradient, empty row: exactly 0, the second policy's too."""
    for what, g in gradients(m, c):
        same(g, np.zeros(c.shape), what)


@row(group="gradient", needs=("grad log_prob",), cases=ANY)
def log_prob_gradient(m: Adapter, c: Case) -> None:
    """d log_prob(a) / dz_b = 1[a = b] - p_b; 0 for an illegal action."""
    exact = spec.log_prob_grad(c.wide, c.mask, c.actions)
    weight = c.cotangent[..., None]
    found = m.gradient("log_prob", c.logits, c.mask, c.actions, cotangent=c.cotangent)[0]
    close(found, exact * weight, gradient_bound(c, exact) * np.abs(weight), "d log_prob")


@row(group="gradient", needs=("grad entropy",), cases=ANY)
def entropy_gradient(m: Adapter, c: Case) -> None:
    """d H / dz_b = -p_b (log p_b + H)."""
    exact = spec.entropy_grad(c.wide, c.mask)
    weight = c.cotangent[..., None]
    found = m.gradient("entropy", c.logits, c.mask, cotangent=c.cotangent)[0]
    close(found, exact * weight, gradient_bound(c, exact) * np.abs(weight), "d entropy")


def _check_divergence(m: Adapter, c: Case, name: str) -> None:
    closed_form = spec.kl_divergence_grad if name == "kl_divergence" else spec.cross_entropy_grad
    exact = closed_form(c.wide, c.q_wide, **c.masks)
    weight = c.cotangent[..., None]
    found = m.gradient(name, c.logits, c.q_logits, wrt=(0, 1), cotangent=c.cotangent, **c.masks)
    # A row of p log p - p log q is as wrong as its largest term, not as its sum.
    size = np.abs(spec.cross_entropy(c.wide, c.q_wide, **c.masks))[..., None]
    noise = 64 * EPS64 * np.where(np.isfinite(size), size, 0)
    for g, e, side in zip(found, exact, ("p", "q"), strict=True):
        bound = (gradient_bound(c, e, relative_to=np.abs(exact[1])) + noise) * np.abs(weight)
        close(g, e * weight, bound, f"d {name} / d {side}")


@row(group="gradient", needs=("grad kl_divergence",), cases=ANY)
def kl_divergence_gradient(m: Adapter, c: Case) -> None:
    """d KL / dq_b = q_b - p_b and d KL / dp_b = p_b (log p_b - log q_b - KL)."""
    _check_divergence(m, c, "kl_divergence")


@row(group="gradient", needs=("grad cross_entropy",), cases=ANY)
def cross_entropy_gradient(m: Adapter, c: Case) -> None:
    """d CE / dq_b = q_b - p_b and d CE / dp_b = -p_b (log q_b + CE)."""
    _check_divergence(m, c, "cross_entropy")


@row(group="gradient", needs=("grad masked_softmax",), cases=ANY)
def masked_softmax_gradient(m: Adapter, c: Case) -> None:
    """Gradient of masked_softmax: p (c - sum p c)."""
    p, weight = spec.masked_softmax(c.wide, c.mask), c.entry_cotangent
    exact = p * (weight - (p * weight).sum(-1, keepdims=True))
    found = m.gradient("masked_softmax", c.logits, c.mask, cotangent=weight)[0]
    close(found, exact, 16 * c.eps * 3, "d masked_softmax")


@row(group="gradient", needs=("grad masked_log_softmax",), cases=ANY)
def masked_log_softmax_gradient(m: Adapter, c: Case) -> None:
    """Gradient of masked_log_softmax: c - p sum c over legal entries of probability > 0."""
    weight = np.where(support(c.logits, c.mask), c.entry_cotangent, 0.0)
    p = spec.masked_softmax(c.wide, c.mask)
    exact = weight - p * weight.sum(-1, keepdims=True)
    found = m.gradient("masked_log_softmax", c.logits, c.mask, cotangent=weight)[0]
    size = np.abs(weight).sum(-1, keepdims=True)
    close(found, exact, np.broadcast_to(16 * c.eps * size, exact.shape), "d masked_log_softmax")


@row(group="gradient", needs=("grad evaluate_actions",), cases=ANY)
def evaluate_actions_gradient(m: Adapter, c: Case) -> None:
    """The gradients of evaluate_actions to the new logits are those of its parts."""
    weight = c.cotangent[..., None]
    q: dict[str, Any] = {"old_logits": c.q_logits, "old_mask": c.q_mask}
    kl = spec.kl_divergence_grad(c.q_wide, c.wide, p_mask=c.q_mask, q_mask=c.mask)[1]
    exact = {
        "log_prob": spec.log_prob_grad(c.wide, c.mask, c.actions),
        "entropy": spec.entropy_grad(c.wide, c.mask),
        "kl_divergence": kl,
    }
    for name, e in exact.items():
        found = m.gradient(
            "evaluate_actions",
            c.logits,
            c.mask,
            c.actions,
            field=name,
            cotangent=c.cotangent,
            **q,
        )[0]
        close(found, e * weight, gradient_bound(c, e) * np.abs(weight), f"d {name}")


@row(group="gradient", needs=CORE, cases=broadcast_cases())
def broadcasting_gradients(m: Adapter, c: Case) -> None:
    """Where logits broadcast, their gradient is the sum over the rows they stand for."""
    weight = c.cotangent[..., None]
    exact = spec.log_prob_grad(c.wide, c.mask, c.actions)
    found = m.gradient("log_prob", c.logits, c.mask, c.actions, cotangent=c.cotangent)[0]
    bound = 64 * c.eps * np.abs(weight).sum() + 0 * found
    close(found, _fold(exact * weight, c.logits.shape), bound, "d log_prob")
    exact = spec.entropy_grad(c.wide, c.mask)
    found = m.gradient("entropy", c.logits, c.mask, cotangent=c.cotangent)[0]
    size = np.abs(np.where(np.isfinite(exact), exact, 0)).max() + 1
    close(found, _fold(exact * weight, c.logits.shape), bound * size, "d entropy")


def _fold(array: Array, shape: tuple[int, ...]) -> Array:
    array = array.sum(tuple(range(array.ndim - len(shape))))
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and array.shape[i] != 1)
    return array.sum(axes, keepdims=True)
