"""Inputs on which real programs failed, with the right values: numbers A1-A18, masks B1-B7.

``X`` under a mask stands for each of NaN, +inf, -inf, 3e38 and 1e6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskcore import spec
from maskcore.conformance.adapter import Adapter
from maskcore.conformance.compare import close, holds, refuses, same
from maskcore.conformance.registry import row

Array = NDArray[Any]
X = (np.nan, np.inf, -np.inf, 3e38, 1e6)
EPS = float(np.finfo(np.float32).eps)
ONE = np.ones(1)


def _f(*values: float) -> Array:
    return np.array([values], np.float32)


def _b(*values: int) -> NDArray[np.bool_]:
    return np.array([values], bool)


A1_P = _f(-84.742, -7.2213, -0.00073051, -51.313, -103.49)
A1_Q = _f(-86.197, -5.939, -0.0026379, -53.358, -105.7)
A1_ALL: dict[str, Any] = {"p_mask": _b(1, 1, 1, 1, 1), "q_mask": _b(1, 1, 1, 1, 1)}


@row(group="fault", needs=("kl_divergence",))
def fault_a1_kl_of_underflowed_probability(m: Adapter) -> None:
    """A1: a probability that underflows to 0 does not make the KL infinite (ray#21297)."""
    found = m.call("kl_divergence", A1_P, A1_Q, **A1_ALL)
    close(found, [0.00096845617], 1e-5 * 0.00096845617, "KL(p, q)")
    found = m.call("kl_divergence", A1_Q, A1_P, **A1_ALL)
    close(found, [0.00147643213], 1e-5 * 0.00147643213, "KL(q, p)")


@row(group="fault", needs=("grad kl_divergence",))
def fault_a2_kl_with_coefficient_0(m: Adapter) -> None:
    """A2: a KL loss with coefficient 0 is 0, in value and gradient, not 0 * inf."""
    found = m.call("kl_divergence", A1_P, A1_Q, **A1_ALL)
    holds(np.isfinite(found), "a KL that 0 times is 0", found)
    pair = m.gradient("kl_divergence", A1_P, A1_Q, wrt=(0, 1), cotangent=0 * ONE, **A1_ALL)
    for g in pair:
        same(g, np.zeros((1, 5)), "gradient of 0 * KL")
    masks: dict[str, Any] = {"p_mask": _b(1, 1, 0), "q_mask": _b(1, 0, 1)}
    pair = m.gradient(
        "kl_divergence", _f(1, 2, 9), _f(1, 9, 3), wrt=(0, 1), cotangent=0 * ONE, **masks
    )
    for g in pair:
        same(g, np.zeros((1, 3)), "gradient of 0 * (infinite KL)")


@row(group="fault", needs=("grad entropy",))
def fault_a3_entropy_with_minus_infinity(m: Adapter) -> None:
    """A3: entropy of [0, 0, -inf] is log 2 with gradient 0 (pytorch#40553)."""
    inputs = [(_f(0, 0, -np.inf), _b(1, 1, 1))] + [(_f(0, 0, x), _b(1, 1, 0)) for x in X]
    for logits, mask in inputs:
        found = m.call("entropy", logits, mask)
        close(found, [0.69314718], 16 * EPS * 0.7, f"entropy of {logits.tolist()}")
        found = m.gradient("entropy", logits, mask, cotangent=ONE)[0]
        close(found, np.zeros((1, 3)), 2 * EPS, f"gradient at {logits.tolist()}")
        same(found[0, 2], 0.0, "gradient at the entry without mass")


@row(group="fault", needs=("grad entropy", "grad log_prob"))
def fault_a4_gradient_not_cleaned_afterwards(m: Adapter) -> None:
    """A4: [1, x, 3] masked at x: values right and gradients finite, 0 at x."""
    mask = _b(1, 0, 1)
    p = np.exp([1.0, 3.0]) / np.exp([1.0, 3.0]).sum()
    dH = -p * (np.log(p) + 0.36533386)
    for x in X:
        logits = _f(1, x, 3)
        close(m.call("entropy", logits, mask), [0.36533386], 16 * EPS * 0.37, "entropy")
        found = m.call("log_prob", logits, mask, np.array([2]))
        close(found, [-0.12692801], 4 * EPS, "log_prob(2)")
        found = m.gradient("entropy", logits, mask, cotangent=ONE)[0]
        close(found, [[dH[0], 0, dH[1]]], 8 * EPS, "d entropy")
        same(found[0, 1], 0.0, "d entropy at the illegal entry")
        found = m.gradient("log_prob", logits, mask, np.array([2]), cotangent=ONE)[0]
        close(found, [[-p[0], 0, 1 - p[1]]], 8 * EPS, "d log_prob")
        same(found[0, 1], 0.0, "d log_prob at the illegal entry")


@row(group="fault", needs=("kl_divergence", "grad kl_divergence"))
def fault_a5_kl_of_different_masks(m: Adapter) -> None:
    """A5: masks that differ: KL is +inf with gradient 0, and no other row is touched."""
    p_mask = np.array([[1, 1, 0]] * 4, bool)
    q_mask = np.array(p_mask)
    q_mask[0] = [True, False, True]
    for x in X:
        p, q = np.tile(_f(1, 2, x), (4, 1)), np.tile(_f(1, 2.5, 3), (4, 1))
        q[0] = [1, x, 3]
        masks: dict[str, Any] = {"p_mask": p_mask, "q_mask": q_mask}
        found = m.call("kl_divergence", p, q, **masks)
        same(np.equal(found, np.inf), [True, False, False, False], "KL is +inf in row 0 alone")
        pair = m.gradient("kl_divergence", p, q, wrt=(0, 1), cotangent=np.ones(4), **masks)
        for g in pair:
            same(g[0], np.zeros(3), "gradient of the infinite row")
            holds(np.isfinite(g), "gradient is finite", g)
            holds((g[1:, :2] != 0), "gradient of the other rows", g[1:, :2])


@row(group="fault", needs=("masked_softmax",))
def fault_a6_huge_illegal_logit(m: Adapter) -> None:
    """A6: 3e8 under the mask takes no probability."""
    found = m.call("masked_softmax", _f(1, 2, 3e8), _b(1, 1, 0))
    close(found, [[0.26894142, 0.73105858, 0]], 4 * EPS, "masked_softmax")
    same(found[0, 2], 0.0, "the illegal entry")


@row(group="fault", needs=("masked_softmax", "mode", "sample"))
def fault_a7_legal_logits_below_the_sentinel(m: Adapter) -> None:
    """A7: legal logits below -1e9 beside an illegal 0: the softmax of the legal ones."""
    for low in (-2e9, -1e30, -3e38):
        logits, mask = _f(low, low, 0), _b(1, 1, 0)
        found = m.call("masked_softmax", logits, mask)
        close(found, [[0.5, 0.5, 0]], 4 * EPS, f"masked_softmax at {low}")
        same(m.call("mode", logits, mask), [0], f"mode at {low}")
        holds(m.sample(logits, mask, seed=0) < 2, f"sample at {low}", 2)


@row(group="fault", needs=("entropy",))
def fault_a8_entropy_near_deterministic(m: Adapter) -> None:
    """A8: the float32 entropy of [2, -20] is 6.415777e-9, not 0."""
    found = m.call("entropy", _f(2, -20), _b(1, 1))
    close(found, [6.415777e-9], 16 * EPS * 6.415777e-9 + 5e-16, "entropy")


@row(group="fault", needs=("kl_divergence",))
def fault_a9_kl_of_near_policies(m: Adapter) -> None:
    """A9: the float32 KL of [1, 2, 3] and [1.0001, 1.9999, 3] is 1.554653e-9."""
    masks = {"p_mask": _b(1, 1, 1), "q_mask": _b(1, 1, 1)}
    found = m.call("kl_divergence", _f(1, 2, 3), _f(1.0001, 1.9999, 3), **masks)
    close(found, [1.554653e-9], 1.1e-5 * 1.554653e-9, "kl_divergence")


@row(group="fault", needs=("sample", "masked_softmax", "dtype float16"))
def fault_a10_float16_rows_with_one_legal(m: Adapter) -> None:
    """A10: float16, 2,000 rows of 500 actions with one legal: no illegal draw, no overflow."""
    rng = np.random.default_rng(10)
    logits = rng.normal(size=(2000, 500)).astype(np.float16) * 4
    legal = rng.integers(0, 500, 2000)
    mask = np.arange(500) == legal[:, None]
    same(m.sample(logits, mask, seed=10), legal, "sample")
    same(m.call("masked_softmax", logits, mask), mask.astype(float), "masked_softmax")


@row(group="fault", needs=("entropy", "dtype bfloat16"))
def fault_a11_bfloat16_entropy_of_many(m: Adapter) -> None:
    """A11: bfloat16 entropy of 32,000 equal logits is 10.3734912 to bfloat16's own rounding."""
    logits, mask = np.zeros((1, 32_000), np.float32), np.ones((1, 32_000), bool)
    found = m.call("entropy", logits, mask, dtype="bfloat16")
    close(np.asarray(found, np.float64), [10.375], 0.0, "entropy (10.375 is the nearest bfloat16)")


@row(group="fault", needs=("log_prob", "entropy", "sample"))
def fault_a12_legal_nan_is_loud(m: Adapter) -> None:
    """A12: a legal NaN makes its row NaN; sample refuses it or stays in range."""
    logits = np.array([[1, np.nan, 2], [1, 0, 2]], np.float32)
    mask = np.array([[1, 1, 0], [1, 1, 0]], bool)
    same(np.isnan(m.call("entropy", logits, mask)), [True, False], "entropy is NaN")
    found = m.call("log_prob", logits, mask, np.array([0, 0]))
    same(np.isnan(found), [True, False], "log_prob is NaN")
    try:
        drawn = m.sample(logits, mask, seed=0)
    except m.refuses_with:
        return
    holds((drawn >= 0) & (drawn < 3), "sample in [0, A)", drawn)


@row(group="fault", needs=("masked_softmax", "entropy"))
def fault_a13_nan_under_one_mask(m: Adapter) -> None:
    """A13: a NaN under one row's mask changes nothing in any row."""
    clean = np.array([[1, 2, 0], [3, 1, 2]], np.float32)
    mask = np.array([[1, 1, 0], [1, 1, 1]], bool)
    for x in X:
        dirty = np.array(clean)
        dirty[0, 2] = x
        for name in ("masked_softmax", "entropy"):
            same(m.call(name, dirty, mask), m.call(name, clean, mask), f"{name} with {x} masked")


@row(group="fault", needs=("grad kl_divergence",))
def fault_a14_kl_gradient_with_equal_masks(m: Adapter) -> None:
    """A14: the gradient of KL(new, old) under equal masks is p (log p - log q - KL), 0 masked."""
    masks: dict[str, Any] = {"p_mask": _b(1, 0, 1), "q_mask": _b(1, 0, 1)}
    for x in X:
        p, q = _f(1, x, 3), _f(0.5, x, 2.0)
        pair = m.gradient("kl_divergence", p, q, wrt=(0, 1), cotangent=ONE, **masks)
        exact = spec.kl_divergence_grad(p.astype(float), q.astype(float), **masks)
        for g, e in zip(pair, exact, strict=True):
            close(g, e, 8 * EPS * np.abs(exact[1]).max(), "gradient of KL")
            same(g[0, 1], 0.0, "gradient at the illegal entry")


@row(group="fault", needs=("masked_softmax", "sample"))
def fault_a15_probabilities_as_logits(m: Adapter) -> None:
    """A15: probabilities handed over as logits still give the illegal action nothing."""
    logits, mask = np.tile(_f(0.09, 0.24, 0.67, 0), (1000, 1)), np.tile(_b(1, 1, 1, 0), (1000, 1))
    same(m.call("masked_softmax", logits, mask)[:, 3], np.zeros(1000), "the illegal action")
    holds(m.sample(logits, mask, seed=15) < 3, "sample is legal", 3)


@row(group="fault", needs=("masked_softmax", "sample"))
def fault_a16_many_actions_masked_again(m: Adapter) -> None:
    """A16: 20,000 actions, re-masked 200 times: no "Simplex" error (sb3-contrib#81, #322)."""
    rng = np.random.default_rng(16)
    logits = rng.normal(size=(1, 20_000)).astype(np.float32) * 10
    for i in range(200):
        mask = rng.random((1, 20_000)) < 0.5
        if i % 20 == 0:
            p = m.call("masked_softmax", logits, mask)
            close(p.sum(dtype=np.float64), 1.0, 64 * EPS, "sum of masked_softmax")
        drawn = m.sample(logits, mask, seed=i)
        holds(mask[0, drawn[0]], "sample is legal", drawn)


@row(group="fault", needs=("masked_softmax", "log_prob", "entropy"))
def fault_a17_mask_broadcasts(m: Adapter) -> None:
    """A17: a mask (1, 5) with logits (2, 3, 4, 5) broadcasts."""
    logits = np.random.default_rng(17).normal(size=(2, 3, 4, 5)).astype(np.float32)
    mask, actions = _b(1, 0, 1, 1, 0), np.zeros((2, 3, 4), np.int64)
    wide = logits.astype(float)
    found = m.call("masked_softmax", logits, mask)
    close(found, spec.masked_softmax(wide, mask), 4 * EPS, "masked_softmax")
    found = m.call("entropy", logits, mask)
    close(found, spec.entropy(wide, mask), 32 * EPS, "entropy")
    found = m.call("log_prob", logits, mask, actions)
    expected = spec.log_prob(wide, mask, actions)
    close(found, expected, 4 * EPS * np.maximum(1, np.abs(expected)), "log_prob")


@row(group="fault", needs=("grad log_prob",))
def fault_a18_log_prob_of_illegal_action(m: Adapter) -> None:
    """A18: log_prob of an illegal action is -inf with gradient 0: the ratio cannot overflow."""
    for x in X:
        logits, mask, actions = _f(1, x, 3), _b(1, 0, 1), np.array([1])
        same(m.call("log_prob", logits, mask, actions), [-np.inf], "log_prob")
        found = m.gradient("log_prob", logits, mask, actions, cotangent=ONE)[0]
        same(found, np.zeros((1, 3)), "gradient")


# --- masks as data ------------------------------------------------------------------------


@row(group="fault", needs=("masked_softmax", "log_prob"))
def fault_b1_mask_dtypes(m: Adapter) -> None:
    """B1: bool, int8, int32, int64, float16, float32, float64 and lists of exactly 0/1 work."""
    logits, actions = _f(1, 2, 3), np.array([2])
    masks: list[Any] = [[[1, 0, 1]], [[True, False, True]]]
    for dtype in ("bool", "int8", "int32", "int64", "float16", "float32", "float64"):
        masks.append(np.array([[1, 0, 1]], dtype))
    for mask in masks:
        what = f"with a mask of {getattr(mask, 'dtype', 'lists')}"
        found = m.call("log_prob", logits, mask, actions)
        close(found, [-0.12692801], 4 * EPS, f"log_prob {what}")
        found = m.call("masked_softmax", logits, mask)
        close(found, [[0.11920292, 0, 0.88079708]], 4 * EPS, f"masked_softmax {what}")


@row(group="fault", needs=("masked_softmax", "log_prob"))
def fault_b2_filtered_mask(m: Adapter) -> None:
    """B2: a mask [.447, -.447, 0] is refused with an error that names filters."""
    mask, logits = np.array([[0.447, -0.447, 0]], np.float32), _f(1, 2, 3)
    for name, rest in (("masked_softmax", ()), ("log_prob", (np.array([0]),))):
        error = refuses(
            lambda n=name, r=rest: m.raw(n, logits, mask, *r), m.refuses_with, f"{name} of B2"
        )
        holds("filter" in error, f"{name}: the error names filters, it says {error!r}", False)


@row(group="fault", needs=("masked_softmax", "entropy"))
def fault_b3_additive_mask(m: Adapter) -> None:
    """B3: an additive mask [0, -inf, 0] is refused with the hint `mask == 0`."""
    mask, logits = _f(0, -np.inf, 0), _f(1, 2, 3)
    for name in ("masked_softmax", "entropy"):
        error = refuses(lambda n=name: m.raw(n, logits, mask), m.refuses_with, f"{name} of B3")
        holds("mask == 0" in error, f"{name}: the error has the hint, it says {error!r}", False)


@row(group="fault", needs=("masked_softmax", "entropy"))
def fault_b4_mask_not_reshaped(m: Adapter) -> None:
    """B4: a mask (3, 2) for logits (2, 3) is refused, not silently reshaped."""
    logits, mask = np.zeros((2, 3), np.float32), np.ones((3, 2), bool)
    for name in ("masked_softmax", "entropy"):
        refuses(lambda n=name: m.raw(n, logits, mask), m.refuses_with, f"{name} of B4")


@row(group="fault", needs=("masked_softmax", "entropy"))
def fault_b5_square_mask_for_flat_logits(m: Adapter) -> None:
    """B5: a (5, 5) mask for the 10 logits of MultiDiscrete([5, 5]) is refused, not guessed."""
    for name in ("masked_softmax", "entropy"):
        for length in (10, 25):
            logits, mask = np.zeros((1, length), np.float32), np.ones((5, 5), bool)
            refuses(lambda n=name, z=logits, k=mask: m.raw(n, z, k), m.refuses_with, f"{name}, B5")


@row(group="fault", needs=("masked_softmax", "sample", "mode"))
def fault_b6_empty_mask_is_not_uniform(m: Adapter) -> None:
    """B6: an empty mask never gives a uniform policy: all 0, and action 0 always."""
    logits, mask = np.zeros((200, 4), np.float32), np.zeros((200, 4), bool)
    same(m.call("masked_softmax", logits, mask), np.zeros((200, 4)), "masked_softmax")
    same(m.sample(logits, mask, seed=6), np.zeros(200), "sample")
    same(m.call("mode", logits, mask), np.zeros(200), "mode")


@row(group="fault", needs=("grad log_prob", "grad entropy", "grad kl_divergence"))
def fault_b7_padded_rows(m: Adapter) -> None:
    """B7: a batch of zeros with empty masks: values 0, gradients 0, nothing NaN (ray#8551)."""
    logits, mask = np.zeros((3, 4), np.float32), np.zeros((3, 4), bool)
    actions, ones = np.zeros(3, np.int64), np.ones(3)
    masks: dict[str, Any] = {"p_mask": mask, "q_mask": mask}
    same(m.call("log_prob", logits, mask, actions), np.zeros(3), "log_prob")
    same(m.call("entropy", logits, mask), np.zeros(3), "entropy")
    same(m.call("kl_divergence", logits, logits, **masks), np.zeros(3), "kl_divergence")
    found = (
        *m.gradient("log_prob", logits, mask, actions, cotangent=ones),
        *m.gradient("entropy", logits, mask, cotangent=ones),
        *m.gradient("kl_divergence", logits, logits, wrt=(0, 1), cotangent=ones, **masks),
    )
    for g in found:
        same(g, np.zeros((3, 4)), "gradient")
