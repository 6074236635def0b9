"""What ``make accuracy`` measures: our backends, each path of them, and three other libraries."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from benchmarks.accuracy_rows import Rows
from maskcore.conformance import Adapter
from maskcore.conformance import load as load_adapter

Values = dict[str, np.ndarray]


def functions(adapter: Adapter) -> Callable[[Rows], Values]:
    """The functions one by one, as the conformance kit calls them."""

    def compute(rows: Rows) -> Values:
        one, masks = (rows.p, rows.mask), {"p_mask": rows.mask, "q_mask": rows.mask}
        ones = np.ones(len(rows.p))
        found: Values = {
            "log_prob": adapter.call("log_prob", *one, rows.actions),
            "entropy": adapter.call("entropy", *one),
            "kl": adapter.call("kl_divergence", rows.p, rows.q, **masks),
            "kl_equal": adapter.call("kl_divergence", rows.p, rows.p, **masks),
            "d_log_prob": adapter.gradient("log_prob", *one, rows.actions, cotangent=ones)[0],
            "d_entropy": adapter.gradient("entropy", *one, cotangent=ones)[0],
        }
        if adapter.lacks("masked_log_softmax") is None:
            found["log_softmax"] = adapter.call("masked_log_softmax", *one)
        pair = adapter.gradient(
            "kl_divergence", rows.p, rows.q, wrt=(0, 1), cotangent=ones, **masks
        )
        found["d_kl_p"], found["d_kl_q"] = pair
        return found

    return compute


def evaluate(adapter: Adapter, **options: Any) -> Callable[[Rows], Values]:
    """``evaluate_actions``: the fused path, the gradient to the new logits of each of the three.

    p are the new logits for log_prob and entropy and the old ones for the KL, as in the exact rows.
    """

    def compute(rows: Rows) -> Values:
        ones = np.ones(len(rows.p))

        def call(new: np.ndarray, old: np.ndarray) -> Any:
            arguments = (new, rows.mask, rows.actions)
            return adapter.call("evaluate_actions", *arguments, old_logits=old, **options)

        def gradient(new: np.ndarray, old: np.ndarray, field: str) -> np.ndarray:
            return adapter.gradient(
                "evaluate_actions",
                new,
                rows.mask,
                rows.actions,
                old_logits=old,
                field=field,
                cotangent=ones,
                **options,
            )[0]

        forward, back = call(rows.p, rows.q), call(rows.q, rows.p)
        return {
            "log_prob": forward.log_prob,
            "entropy": forward.entropy,
            "kl": back.kl_divergence,
            "kl_equal": call(rows.p, rows.p).kl_divergence,
            "d_log_prob": gradient(rows.p, rows.q, "log_prob"),
            "d_entropy": gradient(rows.p, rows.q, "entropy"),
            "d_kl_q": gradient(rows.q, rows.p, "kl_divergence"),
        }

    return compute


def in_small_batches(compute: Callable[[Rows], Values], entries: int) -> Callable[[Rows], Values]:
    """The same, few rows a call, of ``entries`` in all or one row.

    What is small has formulas of its own; and among many rows there is always one that sends all of
    them on the most general path.
    """

    def batches(rows: Rows) -> Values:
        step = max(1, entries // rows.p.shape[-1])
        parts: list[Values] = []
        for start in range(0, len(rows.p), step):
            some = slice(start, start + step)
            names = (field.name for field in dataclasses.fields(rows))
            parts.append(compute(Rows(**{name: getattr(rows, name)[some] for name in names})))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    return batches


def compiled() -> Callable[[Rows], Values]:
    """Torch's compiled path, where it is built."""
    adapter = load_adapter("torch")
    if "compiled" not in inspect.signature(adapter.module.evaluate_actions).parameters:
        raise ImportError("evaluate_actions has no compiled=True")
    return evaluate(adapter, compiled=True)


def in_tf_function(*, xla: bool) -> Callable[[Rows], Values]:
    """TensorFlow's ``evaluate_actions`` in ``tf.function``, with XLA or without."""
    tf: Any = importlib.import_module("tensorflow")
    backend: Any = importlib.import_module("backends.tf_backend")

    @tf.function(jit_compile=xla, reduce_retracing=True)
    def step(new: Any, old: Any, mask: Any, actions: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(new)
            found = backend.evaluate_actions(new, mask, actions, old_logits=old, old_mask=mask)
            parts = (found.log_prob, found.entropy, found.kl_divergence)
        return parts, [tape.gradient(part, new) for part in parts]

    def compute(rows: Rows) -> Values:
        def run(new: np.ndarray, old: np.ndarray) -> Any:
            parts, gradients = step(*map(tf.constant, (new, old, rows.mask, rows.actions)))
            return [x.numpy() for x in parts], [x.numpy() for x in gradients]

        (log_prob, entropy, _), (d_log_prob, d_entropy, _) = run(rows.p, rows.q)
        (_, _, kl), (_, _, d_kl_q) = run(rows.q, rows.p)
        return {
            "log_prob": log_prob,
            "entropy": entropy,
            "kl": kl,
            "kl_equal": run(rows.p, rows.p)[0][2],
            "d_log_prob": d_log_prob,
            "d_entropy": d_entropy,
            "d_kl_q": d_kl_q,
        }

    return compute


def _peer(name: str) -> Callable[[], Callable[[Rows], Values]]:
    return lambda: functions(load_adapter(f"benchmarks.peers.{name}:PEER"))


OURS = {
    "Torch": lambda: functions(load_adapter("torch")),
    "Torch, evaluate_actions": lambda: evaluate(load_adapter("torch")),
    "Torch, small batches": lambda: in_small_batches(evaluate(load_adapter("torch")), 4096),
    "Torch, compiled": compiled,
    "TensorFlow": lambda: functions(load_adapter("tf")),
    "TensorFlow, evaluate_actions": lambda: evaluate(load_adapter("tf")),
    "TensorFlow, a row a call": lambda: in_small_batches(in_tf_function(xla=False), 1),
    "TensorFlow, XLA": lambda: in_tf_function(xla=True),
    "TensorFlow, XLA, a row a call": lambda: in_small_batches(in_tf_function(xla=True), 1),
    "NumPy": lambda: functions(load_adapter("numpy")),
}
CANDIDATES: dict[str, Callable[[], Callable[[Rows], Values]]] = {
    **OURS,
    "torch.distributions": _peer("torch_sentinel"),
    "RLlib, TensorFlow": _peer("rllib_tf"),
    "sb3-contrib": _peer("sb3_contrib"),
}


def load(name: str) -> Callable[[Rows], Values]:
    """The candidate's function from rows to values; ImportError where it is not installed."""
    return CANDIDATES[name]()
