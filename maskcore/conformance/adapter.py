"""The protocol that a module is run through: NumPy in, NumPy out, whatever is in between.

A module under test has the functions of ``maskcore.spec`` (those it has are tested, the others are
reported as not claimed) and, unless it works on NumPy arrays, these hooks:

======================================= =======================================================
``NAME``                                what to call it in the table
``asarray(array)``                      NumPy array -> its own array
``to_numpy(array)``                     its own array -> NumPy array
``vjp(fn, *arrays, cotangent)``         gradients of ``sum(fn(*arrays) * cotangent)``
``NOT_CLAIMED``                         mapping of row names (``fnmatch`` patterns) to reasons
``REFUSES_WITH``                        tuple of exceptions it refuses bad input with
``LEAVES_OUT``                          kinds of input it is not for (names of ``claims``)
``SLACK``                               relative error it may have beyond the contract's bounds
======================================= =======================================================

Without ``vjp`` the closed forms ``log_prob_grad(logits, mask, actions)``, ``entropy_grad``,
``kl_divergence_grad``, ``cross_entropy_grad`` are used where the module has them. ``sample`` may
take ``rng`` (a NumPy generator), ``seed`` (an int), or neither.
"""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from maskcore.conformance.claims import LEAVABLE
from maskcore.conformance.registry import NotClaimed

__all__ = ["Adapter", "Call", "load"]

Array = NDArray[Any]


_SPECIFICATION = dict.fromkeys(
    (
        "entropy_accuracy",
        "kl_divergence_accuracy",
        "log_prob_gradient_accuracy",
        "entropy_gradient_accuracy",
        "kl_divergence_gradient_accuracy",
    ),
    "textbook sums in float64, right to a few 1e-16 of their largest term",
)


@dataclass(frozen=True)
class Call:
    """The last call made, so that a failure can be printed as code."""

    function: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dtype: str | None = None
    field: str | None = None
    wrt: tuple[int, ...] = ()
    cotangent: Array | None = None


def load(name: str) -> Adapter:
    """An adapter for ``"package.module"``, ``"package.module:object"`` or a backend's short name.

    Raises:
        ImportError: If there is no such module.
        AttributeError: If the module has no such object.

    >>> load("maskcore.spec").name
    'maskcore.spec'
    """
    if "." not in name and importlib.util.find_spec("backends") is not None:
        short = {"spec": "maskcore.spec"}.get(name, f"backends.{name}_backend")
        if importlib.util.find_spec(short) is not None:
            name = short
    path, _, attribute = name.partition(":")
    found: Any = importlib.import_module(path)
    for part in attribute.split(".") if attribute else ():
        found = getattr(found, part)
    return Adapter(found, source=name)


class Adapter:
    """Calls a module's functions with NumPy arrays and gives NumPy arrays back.

    Args:
        module: Any object with some of the functions of ``maskcore.spec``.
        source: How to import it, for the code that a failure prints.
    """

    def __init__(self, module: Any, *, source: str | None = None) -> None:
        self.module = module
        self.source = source or getattr(module, "__name__", type(module).__name__)
        self.name: str = str(getattr(module, "NAME", self.source))
        self.refuses_with: tuple[type[Exception], ...] = tuple(
            getattr(module, "REFUSES_WITH", (ValueError,))
        )
        self.leaves_out: frozenset[str] = frozenset(getattr(module, "LEAVES_OUT", ()))
        self.slack = float(getattr(module, "SLACK", 0.0))
        unknown = self.leaves_out - set(LEAVABLE)
        if unknown:
            raise KeyError(f"LEAVES_OUT holds {sorted(unknown)}; known are {sorted(LEAVABLE)}")
        self.last: Call | None = None

    # --- what the module has ----------------------------------------------------------------

    def not_claimed(self, row: str) -> str | None:
        """The reason the module itself gives for not claiming a row."""
        own = _SPECIFICATION if self.source == "maskcore.spec" else {}
        declared: Mapping[str, str] = getattr(self.module, "NOT_CLAIMED", own)
        for pattern, reason in declared.items():
            if fnmatch.fnmatchcase(row, pattern):
                return reason
        return None

    def lacks(self, need: str) -> str | None:
        """Why a need of a row is not met, or None where it is."""
        kind, _, rest = need.rpartition(" ")
        if kind == "dtype":
            return self._lacks_dtype(rest)
        if not self._has(rest):
            return f"no {rest}"
        if kind == "grad" and not self._has("vjp") and not self._has(f"{rest}_grad"):
            return f"no gradient of {rest}"
        return None

    def _has(self, name: str) -> bool:
        return callable(getattr(self.module, name, None))

    def _lacks_dtype(self, dtype: str) -> str | None:
        try:
            found = self._native(np.zeros((1, 2), np.float32), dtype)
        except (TypeError, ValueError, NotClaimed):
            return f"no {dtype}"
        return None if self.dtype_of(found) == dtype else f"no {dtype}"

    @staticmethod
    def dtype_of(native: Any) -> str:
        """The dtype of a native array as a plain name: ``torch.float32`` -> ``"float32"``."""
        match = re.search(r"(bfloat|float|uint|int|bool)\d*", str(getattr(native, "dtype", "")))
        return match.group(0) if match else type(native).__name__

    # --- calls --------------------------------------------------------------------------------

    def raw(self, function: str, *args: Any, dtype: str | None = None, **kwargs: Any) -> Any:
        """Call a function with native arrays and give back its native result.

        Args:
            function: Its name.
            args: NumPy arrays are converted; anything else is passed as it is.
            dtype: The dtype to convert floating arguments to first.
            kwargs: As ``args``.
        """
        self.last = Call(function, args, kwargs, dtype)
        native = [self._native(a, dtype) for a in args]
        return getattr(self.module, function)(
            *native, **{k: self._native(v, dtype) for k, v in kwargs.items()}
        )

    def direct(self, function: str, *native: Any, **kwargs: Any) -> Any:
        """Call a function with the native arrays given, not with copies."""
        arguments = [self.to_numpy(value) for value in native]
        named = {k: self.to_numpy(v) for k, v in kwargs.items()}
        self.last = Call(function, tuple(map(np.array, arguments)), named)
        return getattr(self.module, function)(*native, **kwargs)

    def call(self, function: str, *args: Any, **kwargs: Any) -> Any:
        """As ``raw``, with the result (or each field of a tuple) as a NumPy array."""
        return self.to_numpy(self.raw(function, *args, **kwargs))

    def sample(self, logits: Array, mask: Array, *, seed: int, dtype: str | None = None) -> Array:
        """Draw one action a row ``[...]``, seeded where the module can be."""
        self.last = Call("sample", (logits, mask), {}, dtype)
        names = inspect.signature(self.module.sample).parameters
        extra: dict[str, Any] = {}
        if "rng" in names:
            extra["rng"] = np.random.default_rng(seed)
        elif "seed" in names:
            extra["seed"] = seed
        native = self.module.sample(self._native(logits, dtype), self._native(mask), **extra)
        return np.asarray(self.to_numpy(native))

    def gradient(
        self,
        function: str,
        *args: Any,
        cotangent: Array,
        wrt: tuple[int, ...] = (0,),
        dtype: str | None = None,
        field: str | None = None,
        **kwargs: Any,
    ) -> tuple[Array, ...]:
        """Gradients of ``sum(function(*args, **kwargs) * cotangent)`` to the arguments ``wrt``.

        Args:
            function: Its name.
            args, kwargs: Its arguments.
            cotangent: ``[...]`` of the result's shape.
            wrt: Positions of the arguments to differentiate to.
            dtype: As in ``raw``.
            field: Which field of a tuple result is meant.

        Returns:
            One array for each of ``wrt``, of its argument's shape.
        """
        self.last = Call(function, args, kwargs, dtype, field, wrt, cotangent)
        native = [self._native(a, dtype) for a in args]
        named = {k: self._native(v, dtype) for k, v in kwargs.items()}
        if not self._has("vjp"):
            return self._closed_form(function, native, named, args, cotangent, wrt)

        def apply(*arrays: Any) -> Any:
            full = list(native)
            for position, array in zip(wrt, arrays, strict=True):
                full[position] = array
            result = getattr(self.module, function)(*full, **named)
            return result if field is None else getattr(result, field)

        inputs = [native[position] for position in wrt]
        weights = self._native(cotangent.astype(args[wrt[0]].dtype), dtype)
        found = self.module.vjp(apply, *inputs, cotangent=weights)
        return tuple(np.asarray(self.to_numpy(g)) for g in found)

    def _closed_form(
        self,
        function: str,
        native: list[Any],
        named: dict[str, Any],
        args: tuple[Any, ...],
        cotangent: Array,
        wrt: tuple[int, ...],
    ) -> tuple[Array, ...]:
        if not self._has(f"{function}_grad"):
            raise NotClaimed(f"no gradient of {function}")
        found: Any = self.to_numpy(getattr(self.module, f"{function}_grad")(*native, **named))
        rows: list[Any] = list(found) if len(wrt) > 1 else [found]
        weighted = [np.asarray(g, np.float64) * cotangent[..., None] for g in rows]
        return tuple(
            _sum_to(g, args[position].shape) for position, g in zip(wrt, weighted, strict=True)
        )

    # --- conversion ---------------------------------------------------------------------------

    def asarray(self, array: Array, dtype: str | None = None) -> Any:
        """A native array of ``array``'s values."""
        return self._native(array, dtype)

    def _native(self, value: Any, dtype: str | None = None) -> Any:
        if not isinstance(value, (np.ndarray, np.generic)):
            return value
        make: Callable[[Any], Any] = getattr(self.module, "asarray", np.asarray)
        array: Array = np.array(
            cast(Any, value)
        )  # a copy of its own: the module may not write into ours
        if dtype is None or not np.issubdtype(array.dtype, np.floating):
            return make(array)
        if dtype != "bfloat16":
            return make(array.astype(dtype))
        native: Any = make(array.astype(np.float32))
        if hasattr(native, "bfloat16"):
            return native.bfloat16()
        if importlib.util.find_spec("ml_dtypes") is None:
            raise NotClaimed("no bfloat16: NumPy has it only with ml_dtypes")
        return make(array.astype(importlib.import_module("ml_dtypes").bfloat16))

    def to_numpy(self, native: Any) -> Any:
        """A NumPy array of a native one, field by field where it is a tuple."""
        if isinstance(native, (np.ndarray, np.generic, type(None))):
            return cast(Any, native)
        if isinstance(native, tuple):
            values = cast("tuple[Any, ...]", native)
            fields = [self.to_numpy(value) for value in values]
            make: Any = getattr(type(values), "_make", tuple)
            return make(fields)
        convert: Callable[[Any], Any] = getattr(self.module, "to_numpy", np.asarray)
        return convert(native)


def _sum_to(array: Array, shape: tuple[int, ...]) -> Array:
    """Sum over the axes that broadcasting added, so that a gradient has its argument's shape."""
    array = array.sum(tuple(range(array.ndim - len(shape))))
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and array.shape[i] != 1)
    return array.sum(axes, keepdims=True)
