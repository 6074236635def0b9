"""What is never read, what stays loud, and when KL is infinite."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskcore import spec
from maskcore.conformance.adapter import Adapter
from maskcore.conformance.case import Case, loud_rows, support
from maskcore.conformance.compare import holds, same
from maskcore.conformance.registry import Broken, row
from maskcore.conformance.rows.gradients import CORE, gradients
from maskcore.conformance.strategies import cases

Array = NDArray[Any]
LOUD = cases(loud=True)


def values(m: Adapter, c: Case, *, most: int = 2) -> Iterator[tuple[str, Array]]:
    """Values that the module has, ``most`` functions a case: what it is, and the array."""
    one, pair = (c.logits, c.mask), (c.logits, c.q_logits)
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "masked_softmax": (one, {}),
        "masked_log_softmax": (one, {}),
        "log_prob": ((*one, c.actions), {}),
        "entropy": (one, {}),
        "kl_divergence": (pair, c.masks),
        "cross_entropy": (pair, c.masks),
        "mode": (one, {}),
    }
    for name in c.turns([name for name in calls if m.lacks(name) is None], most=most):
        args, kwargs = calls[name]
        yield name, m.call(name, *args, **kwargs)


def _clean(c: Case) -> Case:
    return dataclasses.replace(
        c,
        logits=np.where(c.mask, c.logits, 0).astype(c.logits.dtype),
        q_logits=np.where(c.q_mask, c.q_logits, 0).astype(c.q_logits.dtype),
    )


@row(group="value", needs=("log_prob", "entropy"), cases=cases())
def under_the_mask_values(m: Adapter, c: Case) -> None:
    """What is under the mask (NaN, infinities, 3e38) changes no value, not in the last bit."""
    clean = dict(values(m, _clean(c)))
    for what, found in values(m, c):
        same(found, clean[what], f"{what} with junk under the mask")


@row(group="gradient", needs=CORE, cases=cases())
def under_the_mask_gradients(m: Adapter, c: Case) -> None:
    """What is under the mask changes no gradient, not in the last bit."""
    clean = dict(gradients(m, _clean(c)))
    for what, found in gradients(m, c):
        same(found, clean[what], f"{what} with junk under the mask")


@row(group="value", needs=("log_prob", "entropy"), cases=LOUD)
def legal_nan_values(m: Adapter, c: Case) -> None:
    """A legal NaN or +inf, or nothing but -inf, makes its own row NaN and no other."""
    bad, q_bad = loud_rows(c.logits, c.mask), loud_rows(c.q_logits, c.q_mask)
    pair_bad = (bad | q_bad) & c.mask.any(-1)
    for what, found in values(m, c):
        if what == "mode":
            continue
        is_nan = np.isnan(found)
        if what in ("masked_softmax", "masked_log_softmax"):
            same(is_nan, bad[:, None] & c.mask, f"{what} is NaN at legal entries of loud rows")
        else:
            expected = pair_bad if what in ("kl_divergence", "cross_entropy") else bad
            same(is_nan, expected, f"{what} is NaN in loud rows alone")


@row(group="gradient", needs=CORE, cases=LOUD)
def legal_nan_gradients(m: Adapter, c: Case) -> None:
    """The gradient of a loud row is NaN at legal entries, 0 at illegal ones; no other row is."""
    c = dataclasses.replace(
        c,
        cotangent=np.ones_like(c.cotangent),
        entry_cotangent=np.ones_like(c.entry_cotangent),
    )
    bad, q_bad = loud_rows(c.logits, c.mask), loud_rows(c.q_logits, c.q_mask)
    pair_bad = (bad | q_bad) & c.mask.any(-1)
    for what, g in gradients(m, c):
        mask = c.q_mask if what.endswith("d q") else c.mask
        rows = pair_bad if "/" in what else bad
        same(np.isnan(g), rows[:, None] & mask, f"{what} is NaN at legal entries of loud rows")
        holds(g[~mask] == 0, f"{what} at illegal entries", g[~mask])


@row(group="value", needs=("mode",), cases=LOUD)
def legal_nan_mode(m: Adapter, c: Case) -> None:
    """mode of a loud row is a legal index: the first legal NaN, else the legal argmax."""
    same(m.call("mode", c.logits, c.mask), spec.mode(c.wide, c.mask), "mode")


@row(group="value", needs=("sample",), cases=LOUD)
def legal_nan_sample(m: Adapter, c: Case) -> None:
    """sample refuses a row without a distribution by name, or at least stays in [0, A)."""
    try:
        found = m.sample(c.logits, c.mask, seed=0)
    except m.refuses_with:
        holds(loud_rows(c.logits, c.mask).any(), "sample refused a batch without a loud row", False)
        return
    holds((found >= 0) & (found < c.shape[-1]), "sample in [0, A)", found)


@row(
    group="gradient",
    needs=CORE,
    cases=cases(kinds=("ordinary",), flavours=("minus_inf",), relations=("near", "equal")),
)
def legal_minus_infinity(m: Adapter, c: Case) -> None:
    """A legal -inf logit is an action of probability 0: values and gradients as if masked."""
    masked = dataclasses.replace(
        c, mask=support(c.logits, c.mask), q_mask=support(c.q_logits, c.q_mask)
    )
    expected = dict(values(m, masked))
    for what, found in values(m, c):
        same(np.isnan(found), np.isnan(expected[what]), f"{what} has no NaN")
        if what in ("entropy", "kl_divergence", "cross_entropy", "masked_softmax"):
            ok = np.isclose(found, expected[what], rtol=1e-5, atol=1e-6)
            holds(ok, f"{what} as if the -inf entries were masked", found)
    for what, g in gradients(m, c):
        holds(np.isfinite(g), f"{what} is finite", g)
        if what != "d log_prob" and what != "d masked_log_softmax":
            gone = ~(masked.q_mask if what.endswith("d q") else masked.mask)
            holds(g[gone] == 0, f"{what} where the probability is 0", g[gone])


@row(group="value", needs=("kl_divergence",), cases=cases(relations=("independent", "near")))
def kl_infinite_exactly_by_rule(m: Adapter, c: Case) -> None:
    """KL is +inf exactly where p has mass that q forbids: by masks and -inf, never underflow."""
    lost = support(c.logits, c.mask) & ~support(c.q_logits, c.q_mask)
    found = m.call("kl_divergence", c.logits, c.q_logits, **c.masks)
    same(np.equal(found, np.inf), lost.any(-1), "kl_divergence is +inf where p has mass q forbids")


@row(group="gradient", needs=("grad kl_divergence",), cases=cases(relations=("independent",)))
def kl_infinite_has_gradient_0(m: Adapter, c: Case) -> None:
    """The gradient of a row whose KL is +inf is exactly 0, to both policies."""
    lost = (support(c.logits, c.mask) & ~support(c.q_logits, c.q_mask)).any(-1)
    pair = m.gradient(
        "kl_divergence", c.logits, c.q_logits, wrt=(0, 1), cotangent=c.cotangent, **c.masks
    )
    for g in pair:
        same(g[lost], np.zeros_like(g[lost]), "gradient of an infinite KL")
        holds(np.isfinite(g), "gradient of kl_divergence is finite", g)


@row(group="gradient", needs=("grad log_prob",), cases=cases(actions="illegal"))
def log_prob_of_illegal_action_has_gradient_0(m: Adapter, c: Case) -> None:
    """The gradient of log_prob at an illegal action is exactly 0, not 0 * inf."""
    g = m.gradient("log_prob", c.logits, c.mask, c.actions, cotangent=c.cotangent)[0]
    taken = np.take_along_axis(c.mask, c.actions[:, None], -1)[:, 0]
    same(g[~taken], np.zeros_like(g[~taken]), "gradient of log_prob at an illegal action")


@row(group="value", needs=("masked_softmax", "log_prob", "entropy"), cases=cases(max_rows=2))
def arguments_unchanged(m: Adapter, c: Case) -> None:
    """No function writes into its arguments."""
    native = {
        "logits": m.asarray(c.logits),
        "mask": m.asarray(c.mask),
        "actions": m.asarray(c.actions),
        "q_logits": m.asarray(c.q_logits),
        "q_mask": m.asarray(c.q_mask),
    }
    one = (native["logits"], native["mask"])
    masks = {"p_mask": native["mask"], "q_mask": native["q_mask"]}
    pair = (native["logits"], native["q_logits"])
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        **{name: (one, {}) for name in ("masked_softmax", "masked_log_softmax", "entropy", "mode")},
        "log_prob": ((*one, native["actions"]), {}),
        "kl_divergence": (pair, masks),
        "cross_entropy": (pair, masks),
        "evaluate_actions": ((*one, native["actions"]), {"old_logits": native["q_logits"]}),
    }
    for function in c.turns([name for name in calls if m.lacks(name) is None]):
        args, kwargs = calls[function]
        m.direct(function, *args, **kwargs)
        for name, array in native.items():
            same(m.to_numpy(array), getattr(c, name), f"{name} after {function}")


@row(group="value", needs=("masked_softmax", "log_prob", "entropy"))
def no_rows(m: Adapter) -> None:
    """A batch without rows gives results without rows."""
    logits, mask = np.zeros((0, 3), np.float32), np.ones((0, 3), bool)
    c = Case(
        logits,
        mask,
        np.zeros(0, np.int64),
        logits,
        mask,
        np.zeros(0),
        np.zeros((0, 3)),
    )
    for what, found in values(m, c, most=99):
        shape = (0, 3) if "softmax" in what else (0,)
        if found.shape != shape:
            raise Broken(f"{what} of no rows: found shape {found.shape}, expected {shape}")


@row(group="value", needs=("masked_softmax", "log_prob", "entropy", "mode"))
def single_row_without_batch_axes(m: Adapter) -> None:
    """logits of shape [A] give scalars: reductions of shape ()."""
    logits = np.array([1.0, 2.0, 3.0], np.float32)
    mask = np.array([True, False, True])
    c = Case(
        logits,
        mask,
        np.array(2),
        logits,
        mask,
        np.array(1.0),
        np.ones(3),
    )
    for what, found in values(m, c, most=99):
        shape = (3,) if "softmax" in what else ()
        if np.shape(found) != shape:
            raise Broken(f"{what}: found shape {np.shape(found)}, expected {shape}")
    same(m.call("mode", logits, mask), np.array(2), "mode")
