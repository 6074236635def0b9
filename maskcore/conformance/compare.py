"""Comparisons that say which entry is off, what was found and what was expected."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from maskcore.conformance.registry import Broken

__all__ = ["close", "holds", "refuses", "same", "slack"]

_slack: ContextVar[float] = ContextVar("slack", default=0.0)


@contextmanager
def slack(relative: float) -> Generator[None, None, None]:
    """Widen the bounds of ``close`` by ``relative * max(1, abs(expected))``."""
    token = _slack.set(relative)
    try:
        yield
    finally:
        _slack.reset(token)


def holds(condition: ArrayLike, what: str, found: ArrayLike) -> None:
    """Raise ``Broken`` unless ``condition`` is True everywhere."""
    ok = np.asarray(condition)
    if not ok.all():
        found = np.broadcast_to(np.asarray(found), ok.shape)
        index = tuple(int(i) for i in np.argwhere(~ok)[0])
        raise Broken(f"{what}: found {found[index]!r}{_at(index)}")


def close(found: ArrayLike, expected: ArrayLike, bound: ArrayLike, what: str) -> None:
    """Raise ``Broken`` unless ``abs(found - expected) <= bound``; NaN equals NaN, inf inf."""
    f = np.asarray(found, np.float64)
    e = np.asarray(expected, np.float64)
    _same_shape(f, e, what)
    with np.errstate(invalid="ignore", over="ignore"):
        if wider := _slack.get():
            bound = np.asarray(bound) + wider * np.maximum(
                1, np.abs(np.where(np.isfinite(e), e, 0))
            )
        ok = (f == e) | (np.isnan(f) & np.isnan(e)) | (np.abs(f - e) <= bound)
    if not ok.all():
        index = tuple(int(i) for i in np.argwhere(~ok)[0])
        limit = float(np.broadcast_to(np.asarray(bound, np.float64), ok.shape)[index])
        raise Broken(
            f"{what}: found {float(f[index])!r}, expected {float(e[index])!r} "
            f"within {limit:.3g}{_at(index)}"
        )


def same(found: ArrayLike, expected: ArrayLike, what: str) -> None:
    """Raise ``Broken`` unless the two are equal in every bit that matters (NaN equals NaN)."""
    f, e = np.asarray(found), np.asarray(expected)
    _same_shape(f, e, what)
    with np.errstate(invalid="ignore"):
        ok = (f == e) | ((f != f) & (e != e))
    if not ok.all():
        index = tuple(int(i) for i in np.argwhere(~ok)[0])
        raise Broken(f"{what}: found {f[index].item()!r}, expected {e[index].item()!r}{_at(index)}")


def refuses(call: Callable[[], Any], errors: tuple[type[Exception], ...], what: str) -> str:
    """Raise ``Broken`` unless ``call`` raises one of ``errors``; return the message."""
    try:
        result = call()
    except errors as error:
        return str(error)
    except Exception as error:
        names = " or ".join(error.__name__ for error in errors)
        raise Broken(
            f"{what}: raised {type(error).__name__} ({str(error)[:80]!r}), expected {names}"
        ) from error
    raise Broken(f"{what}: accepted, result {_short(result)}; expected an error")


def _same_shape(f: NDArray[Any], e: NDArray[Any], what: str) -> None:
    if f.shape != e.shape:
        raise Broken(f"{what}: found shape {f.shape}, expected {e.shape}")


def _at(index: tuple[int, ...]) -> str:
    return f" at index {index}" if index else ""


def _short(value: Any) -> str:
    return np.array2string(np.asarray(value), threshold=6, edgeitems=3)
