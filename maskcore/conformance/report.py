"""A failure as code that can be pasted, and the table of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from maskcore.conformance.adapter import Adapter, Call

if TYPE_CHECKING:
    from maskcore.conformance.runner import Result

__all__ = ["as_code", "table"]

_MOST = 64  # entries of an array that are written out


def as_code(adapter: Adapter, message: str) -> str:
    """The adapter's last call as a script, with the message as its last line."""
    call = adapter.last
    if call is None:
        return f"# {message}"
    lines = ["import numpy as np", *_import(adapter), ""]
    names: list[str] = []
    for i, value in enumerate(call.args):
        known = _ARGUMENTS.get(call.function, ())[i : i + 1]
        names.append(_bind(adapter, lines, known[0] if known else f"argument_{i}", value))
    pairs = [f"{k}={_bind(adapter, lines, k, v)}" for k, v in call.kwargs.items()]
    if call.cotangent is None:
        lines.append(_show(adapter, f"m.{call.function}({', '.join(names + pairs)})"))
    else:
        lines += _gradient(adapter, call, names, pairs)
    lines += [f"# {line}" for line in message.splitlines()]
    return "\n".join(lines)


def table(results: list[Result], name: str) -> str:
    """One line a row (name, verdict, title), then each failure as code."""
    width = max((len(result.row.name) for result in results), default=0)
    lines = [f"{name}: the contract, row by row", ""]
    for result in results:
        why = result.row.title if result.verdict != "not claimed" else result.reason
        lines.append(f"{result.row.name:<{width}}  {result.verdict:<11}  {why}")
    for result in results:
        if result.verdict == "fails":
            lines += ["", f"--- {result.row.name}: {result.row.title}", "", result.reason]
    counts = {v: sum(r.verdict == v for r in results) for v in ("holds", "fails", "not claimed")}
    total = sum(result.examples for result in results)
    lines += ["", ", ".join(f"{n} {v}" for v, n in counts.items()) + f"; {total:,} examples"]
    return "\n".join(lines)


_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "masked_softmax": ("logits", "mask"),
    "masked_log_softmax": ("logits", "mask"),
    "log_prob": ("logits", "mask", "actions"),
    "entropy": ("logits", "mask"),
    "mode": ("logits", "mask"),
    "sample": ("logits", "mask"),
    "kl_divergence": ("p_logits", "q_logits"),
    "cross_entropy": ("p_logits", "q_logits"),
    "evaluate_actions": ("logits", "mask", "actions"),
    "MaskedCategorical": ("logits", "mask"),
}


def _import(adapter: Adapter) -> list[str]:
    path, _, attribute = adapter.source.partition(":")
    lines = [f"import {path} as m"]
    if attribute:
        lines.append(f"m = m.{attribute}")
    return lines


def _bind(adapter: Adapter, lines: list[str], name: str, value: Any) -> str:
    """Add a line that defines an argument; return what to pass."""
    call = adapter.last
    if not isinstance(value, np.ndarray):
        lines.append(f"{name} = {value!r}")
        return name
    value = np.asarray(cast(Any, value))
    dtype = call.dtype if call is not None and np.issubdtype(value.dtype, np.floating) else None
    code = _array(value)
    if dtype is not None and dtype != "bfloat16":
        code = _array(value.astype(dtype))
    if hasattr(adapter.module, "asarray") and not code.startswith("..."):
        code = f"m.asarray({code})"
    lines.append(f"{name} = {code}" + ("  # as bfloat16" if dtype == "bfloat16" else ""))
    return name


def _show(adapter: Adapter, expression: str) -> str:
    convert = hasattr(adapter.module, "to_numpy") and "evaluate_actions" not in expression
    return f"print(m.to_numpy({expression}))" if convert else f"print({expression})"


def _gradient(adapter: Adapter, call: Call, names: list[str], pairs: list[str]) -> list[str]:
    if adapter.lacks("vjp") is not None:
        return [_show(adapter, f"m.{call.function}_grad({', '.join(names + pairs)})")]
    lines: list[str] = []
    _bind(adapter, lines, "cotangent", np.asarray(call.cotangent, call.args[0].dtype))
    inner = list(names)
    for k, position in enumerate(call.wrt):
        inner[position] = f"z{k}"
    apply = f"m.{call.function}({', '.join(inner + pairs)})"
    if call.field:
        apply += f".{call.field}"
    arguments = ", ".join(f"z{k}" for k in range(len(call.wrt)))
    wrt = ", ".join(names[position] for position in call.wrt)
    lines.append(f"gradients = m.vjp(lambda {arguments}: {apply}, {wrt}, cotangent=cotangent)")
    convert = "m.to_numpy" if hasattr(adapter.module, "to_numpy") else "np.asarray"
    lines.append(f"print(*map({convert}, gradients))")
    return lines


def _array(value: NDArray[Any]) -> str:
    dtype = "bool" if value.dtype == bool else f"np.{value.dtype}"
    if value.size > _MOST:
        first = value.reshape(-1)[0]
        if (value == first).all():
            return f"np.full({value.shape}, {_literal(first)}, {dtype})"
        return f"...  # {value.dtype} {value.shape}; the row's source builds it"
    if not value.size:
        return f"np.zeros({value.shape}, {dtype})"
    return f"np.array({_nested(value)}, {dtype})"


def _nested(value: NDArray[Any]) -> str:
    if value.ndim == 0:
        return _literal(value[()])
    return "[" + ", ".join(_nested(part) for part in value) + "]"


def _literal(value: Any) -> str:
    if np.isnan(value):
        return "np.nan"
    if np.isinf(value):
        return "np.inf" if value > 0 else "-np.inf"
    return str(value)
