"""Results in the dtype of logits; half precision accumulates in float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from maskcore import spec
from maskcore.conformance.adapter import Adapter
from maskcore.conformance.case import Case
from maskcore.conformance.compare import close, holds, same
from maskcore.conformance.registry import Broken, row
from maskcore.conformance.strategies import cases

HALF = cases(
    dtypes=("float16",),
    flavours=("plain", "small", "equal", "minus_inf", "deterministic"),
    relations=("equal", "independent"),
)
_ROUNDING = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # one unit in the last place
_SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133}  # the smallest subnormals


@row(group="dtype", needs=("masked_softmax", "log_prob", "entropy"))
def results_have_the_dtype_of_logits(m: Adapter) -> None:
    """Every result is in the dtype of logits, float16 and bfloat16 included."""
    logits = np.array([[1.0, 2.0, -0.5]], np.float64)
    mask = np.array([[True, True, False]])
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        if m.lacks(f"dtype {dtype}") is not None:
            continue
        results = {
            "masked_softmax": m.raw("masked_softmax", logits, mask, dtype=dtype),
            "log_prob": m.raw("log_prob", logits, mask, np.array([1]), dtype=dtype),
            "entropy": m.raw("entropy", logits, mask, dtype=dtype),
        }
        if m.lacks("masked_log_softmax") is None:
            results["masked_log_softmax"] = m.raw("masked_log_softmax", logits, mask, dtype=dtype)
        if m.lacks("kl_divergence") is None:
            masks = {"p_mask": mask, "q_mask": mask}
            results["kl_divergence"] = m.raw("kl_divergence", logits, logits, dtype=dtype, **masks)
        for what, native in results.items():
            if m.dtype_of(native) != dtype:
                raise Broken(f"{what} of {dtype} logits: found {m.dtype_of(native)}")


def _check_half(m: Adapter, c: Case, dtype: str) -> None:
    if dtype == "bfloat16":
        logits, q_logits = _round_bfloat16(c.logits), _round_bfloat16(c.q_logits)
    else:
        logits, q_logits = c.logits, c.q_logits
    wide, q_wide = logits.astype(np.float64), q_logits.astype(np.float64)
    ulp, least = _ROUNDING[dtype], _SMALLEST[dtype]
    one = (wide, c.mask)
    parts: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = [
        ("masked_softmax", (logits, c.mask), {}, spec.masked_softmax(*one)),
        ("log_prob", (logits, c.mask, c.actions), {}, spec.log_prob(*one, c.actions)),
        ("entropy", (logits, c.mask), {}, spec.entropy(*one)),
        (
            "kl_divergence",
            (logits, q_logits),
            c.masks,
            spec.kl_divergence(wide, q_wide, **c.masks),
        ),
    ]
    for what, args, kwargs, expected in parts:
        if m.lacks(what) is not None:
            continue
        found = np.asarray(m.call(what, *args, dtype=dtype, **kwargs), np.float64)
        size = np.abs(np.where(np.isfinite(expected), expected, 0))
        # Half a unit of the dtype for the rounding at the end, and a little for float32 and for
        # the specification's float64: sums of terms up to 1 and of log probabilities.
        slack = 1e-6 if what in ("log_prob", "kl_divergence") else 1e-14
        close(found, expected, 0.51 * ulp * size + least + slack, f"{what} in {dtype}")


@row(group="dtype", needs=("masked_softmax", "log_prob", "entropy", "dtype float16"), cases=HALF)
def float16_accumulates_in_float32(m: Adapter, c: Case) -> None:
    """float16 results are those of float32, rounded once at the end."""
    _check_half(m, c, "float16")


@row(group="dtype", needs=("masked_softmax", "log_prob", "entropy", "dtype bfloat16"), cases=HALF)
def bfloat16_accumulates_in_float32(m: Adapter, c: Case) -> None:
    """bfloat16 results are those of float32, rounded once at the end."""
    _check_half(m, c, "bfloat16")


@row(
    group="dtype",
    needs=("sample", "mode", "dtype float16"),
    cases=cases(dtypes=("float16",), kinds=("ordinary", "forced")),
)
def float16_draws_are_legal(m: Adapter, c: Case) -> None:
    """sample and mode of float16 logits are legal actions."""
    for what, found in {
        "sample": m.sample(c.logits, c.mask, seed=int(c.actions[0])),
        "mode": m.call("mode", c.logits, c.mask),
    }.items():
        legal = np.take_along_axis(c.mask, np.asarray(found)[:, None], -1)[:, 0]
        holds(legal, f"{what} of float16 logits is legal", found)


@row(group="dtype", needs=("grad log_prob", "grad entropy", "dtype float16"), cases=HALF)
def float16_gradients(m: Adapter, c: Case) -> None:
    """Gradients of float16 logits are finite, and exactly 0 at illegal entries."""
    for what, g in {
        "d log_prob": m.gradient("log_prob", c.logits, c.mask, c.actions, cotangent=c.cotangent)[0],
        "d entropy": m.gradient("entropy", c.logits, c.mask, cotangent=c.cotangent)[0],
    }.items():
        same(g[~c.mask], np.zeros_like(g[~c.mask]), f"{what} at illegal entries")
        holds(np.isfinite(g), f"{what} is finite", g)


def _round_bfloat16(x: np.ndarray) -> np.ndarray:
    """Round to bfloat16 (to nearest even), kept as float32."""
    bits = x.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(x), rounded.view(np.float32), x.astype(np.float32))
