"""What a mask is: dtype, values and shape, checked where data enters.

A mask is an array ``[..., A]``: ``True`` (or exactly 1) is a legal action, ``False`` (or exactly 0)
an illegal one. Everything else is refused by name, because every other reading that users have
met in practice (an additive 0/-inf mask, a mask that an observation filter normalised, a mask that
had to be reshaped) trains a policy on the wrong set of actions without any error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["MaskError", "as_bool", "check_actions", "check_mask", "check_shapes", "is_floating"]

BoolArray = NDArray[np.bool_]
Layout = Literal["flat", "padded", "joint"]


class MaskError(ValueError):
    """A mask, or an argument that travels with one, is not what it has to be.

    The message says which argument, what was found, what was expected and what to do.
    """


def as_bool(mask: ArrayLike, *, name: str = "mask") -> BoolArray:
    """Read ``mask`` as booleans, refusing every value that is not exactly 0 or 1.

    Args:
        mask: ``[..., A]``, bool or any integer or float dtype holding only 0 and 1; ``True`` is
            legal. Nested lists are accepted.
        name: What to call the argument in an error.

    Returns:
        ``[..., A]`` bool. A bool array is returned as it is, without a copy.

    Raises:
        MaskError: For a dtype that holds no numbers, or for values other than 0 and 1.

    >>> as_bool([1, 0, 1.0])
    array([ True, False,  True])
    """
    try:
        array: NDArray[Any] = np.asarray(mask)
    except ValueError as error:
        raise MaskError(
            f"{name} is ragged: its rows have different lengths ({error}). Expected one array "
            "[..., A]; for a Tuple or Dict action space concatenate the component masks."
        ) from error
    if array.dtype == np.bool_:
        return array
    if not _is_real(array.dtype):
        raise MaskError(
            f"{name} has dtype {array.dtype}, shape {array.shape}. Expected bool, or numbers that "
            "are exactly 0 or 1 (True/1 = legal). Convert it first, e.g. `np.asarray(mask, bool)`."
        )
    legal = array == 1
    if bool((legal | (array == 0)).all()):
        return np.asarray(legal)
    raise MaskError(_explain_values(array, name))


def check_shapes(
    logits_shape: Sequence[int], mask_shape: Sequence[int], *, name: str = "mask"
) -> tuple[int, ...]:
    """Check that a mask fits its logits and return their common batch shape.

    Args:
        logits_shape: ``[..., A]``.
        mask_shape: ``[..., A]``: the last axes must be equal, the axes before them broadcast.
        name: What to call the mask in an error.

    Returns:
        The broadcast shape without the action axis.

    Raises:
        MaskError: If an argument has no action axis, if the action axes differ (a mask is never
            broadcast over actions), or if the batch axes do not broadcast.

    >>> check_shapes((2, 3, 4, 5), (1, 5))
    (2, 3, 4)
    """
    logits_shape, mask_shape = tuple(logits_shape), tuple(mask_shape)
    found = f"{name} has shape {mask_shape}, logits have shape {logits_shape}"
    if not logits_shape or not mask_shape:
        raise MaskError(f"{found}. Expected both as [..., A] with at least the action axis A.")
    if logits_shape[-1] == 0:
        raise MaskError(f"{found}. Expected at least one action on the last axis.")
    if logits_shape[-1] != mask_shape[-1]:
        hint = ""
        if math.prod(logits_shape) == math.prod(mask_shape):
            hint = " The sizes agree, but a reshape would scramble which action each entry is of."
        elif mask_shape[-1] == 1:
            hint = " A mask is not broadcast over the action axis."
        raise MaskError(
            f"{found}. Expected the same length A = {logits_shape[-1]} on the last axis.{hint} "
            f"Pass {name} as [..., A], one entry an action."
        )
    if logits_shape[:-1] == mask_shape[:-1]:
        return logits_shape[:-1]
    try:
        return np.broadcast_shapes(logits_shape[:-1], mask_shape[:-1])
    except ValueError:
        raise MaskError(
            f"{found}. Expected batch axes that broadcast: {mask_shape[:-1]} against "
            f"{logits_shape[:-1]} do not. Give {name} one row a state, or a leading axis of 1."
        ) from None


def check_actions(
    actions: ArrayLike, *, num_actions: int, name: str = "actions"
) -> NDArray[np.int64]:
    """Check integer actions ``[...]`` in ``[0, num_actions)``.

    Raises:
        MaskError: For a dtype that is not integer, or an index out of range.

    >>> check_actions([0, 2], num_actions=3)
    array([0, 2])
    """
    array = np.asarray(actions)
    if not np.issubdtype(array.dtype, np.integer):
        raise MaskError(
            f"{name} has dtype {array.dtype}, shape {array.shape}. Expected integers in "
            f"[0, {num_actions}): indices of actions. Cast with `.astype(np.int64)`."
        )
    if array.size and (int(array.min()) < 0 or int(array.max()) >= num_actions):
        raise MaskError(
            f"{name} (dtype {array.dtype}, shape {array.shape}) holds indices from {array.min()} "
            f"to {array.max()}. Expected [0, {num_actions}). Is the action space's `start` "
            "subtracted?"
        )
    return array.astype(np.int64)


def check_mask(
    mask: ArrayLike,
    *,
    num_actions: int | Sequence[int],
    layout: Layout | None = None,
    allow_empty: bool = False,
    env: object = None,
    agent: object = None,
    step: object = None,
    name: str = "mask",
) -> BoolArray:
    """Check a mask where data enters: values, length, layout, and that each row allows something.

    Args:
        mask: ``[..., A]``, exactly 0/1 in any numeric dtype; ``True`` is legal.
        num_actions: ``A``; or the sizes ``(n1, n2, ...)`` of a MultiDiscrete action space.
        layout: How a MultiDiscrete mask is laid out. ``"flat"``: ``[..., n1 + n2 + ...]``, the
            component masks side by side. ``"padded"``: ``[..., k, max(n)]``, one row a component,
            entries past the component's size False. ``"joint"``: ``[..., n1, n2, ...]``, one
            entry a combination. ``None`` accepts ``"flat"`` and refuses what could be read in
            more than one way.
        allow_empty: Whether rows without a legal action are accepted (padding) or refused.
        env, agent, step: Where the mask came from; named in the error.
        name: What to call the argument in an error.

    Returns:
        A fresh bool array, so that a caller who writes into ``mask`` later changes nothing:
        ``[..., A]``; for MultiDiscrete ``[..., sum(n)]`` (flat, padded) or ``[..., *n]`` (joint).

    Raises:
        MaskError: Naming the argument, what was found and expected, the source and the remedy.

    >>> check_mask([[1, 0, 1]], num_actions=3)
    array([[ True, False,  True]])
    """
    name = _with_source(name, env=env, agent=agent, step=step)
    legal = np.array(as_bool(mask, name=name), dtype=np.bool_)
    if isinstance(num_actions, (int, np.integer)):
        if layout not in (None, "flat"):
            raise MaskError(
                f"layout={layout!r} needs the sizes of a MultiDiscrete space as num_actions, "
                f"found the single number {num_actions}."
            )
        if not legal.ndim or legal.shape[-1] != num_actions:
            raise MaskError(
                f"{name} has shape {legal.shape}. Expected [..., {num_actions}], one entry an "
                "action on the last axis. It is never reshaped or broadcast over actions."
            )
        if not allow_empty:
            _refuse_empty(legal.any(-1), name, what="action")
        return legal
    sizes = tuple(int(size) for size in num_actions)
    layout = layout or _only_reading(legal.shape, sizes, name)
    if layout == "joint":
        if legal.shape[legal.ndim - len(sizes) :] != sizes:
            raise MaskError(
                f"{name} has shape {legal.shape}. Expected a joint mask [..., "
                f"{', '.join(map(str, sizes))}], one entry a combination of components."
            )
        if not allow_empty:
            _refuse_empty(legal.any(tuple(range(-len(sizes), 0))), name, what="combination")
        return legal
    if layout == "padded":
        legal = _unpad(legal, sizes, name)
    elif not legal.ndim or legal.shape[-1] != sum(sizes):
        raise MaskError(
            f"{name} has shape {legal.shape}. Expected [..., {sum(sizes)}]: the masks of the "
            f"components {sizes} side by side."
        )
    if not allow_empty:
        bounds = np.cumsum(sizes)[:-1]
        for k, part in enumerate(np.split(legal, bounds, axis=-1)):
            _refuse_empty(part.any(-1), f"component {k} of {name}", what="action")
    return legal


def _is_real(dtype: np.dtype[Any]) -> bool:
    return np.issubdtype(dtype, np.integer) or is_floating(dtype)


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether ``dtype`` is a real floating dtype; bfloat16 (an extension dtype) counts."""
    return bool(np.issubdtype(dtype, np.floating)) or str(dtype) == "bfloat16"


def _explain_values(array: NDArray[Any], name: str) -> str:
    values = array.astype(np.float64)
    wrong = np.unique(values[~((values == 0) | (values == 1))])
    shown = ", ".join(f"{value:g}" for value in wrong[:4]) + (", ..." if wrong.size > 4 else "")
    found = (
        f"{name} (dtype {array.dtype}, shape {array.shape}) holds {shown}. "
        "Expected exactly 0 (illegal) and 1 (legal). "
    )
    finite = wrong[np.isfinite(wrong)]
    additive = wrong.size and not finite.size and bool((values <= 0).all())
    if additive or (finite.size and bool((finite <= -1e4).all()) and bool((values <= 0).all())):
        return found + "This looks like an additive mask (0 legal, -inf illegal): pass `mask == 0`."
    if np.isnan(wrong).any():
        return found + "NaN in a mask is neither legal nor illegal: find where it is computed."
    if finite.size == wrong.size and bool((np.abs(finite) < 100).all()):
        return found + (
            "Did an observation filter normalise the mask (RLlib's "
            'observation_filter="MeanStdFilter")? Exempt the mask from it, or pass `mask > 0` '
            "if these are legal where positive."
        )
    return found + "Pass a boolean array that is True where the action is legal."


def _with_source(name: str, *, env: object, agent: object, step: object) -> str:
    source = {"environment": env, "agent": agent, "step": step}
    parts = [f"{key} {value!r}" for key, value in source.items() if value is not None]
    return f"{name} (from {', '.join(parts)})" if parts else name


def _refuse_empty(any_legal: NDArray[np.bool_] | np.bool_, name: str, *, what: str) -> None:
    rows = np.argwhere(~np.asarray(any_legal))
    if not len(rows):
        return
    shown = ", ".join(str(tuple(map(int, row))) for row in rows[:3])
    where = f" in {len(rows)} row(s), first at {shown}" if rows.shape[1] else ""
    raise MaskError(
        f"{name} allows no {what}{where}. Expected at least one legal {what}: an agent that must "
        "act has to have one. Give a no-op action, end the episode, or pass allow_empty=True if "
        "these rows are padding."
    )


def _only_reading(shape: tuple[int, ...], sizes: tuple[int, ...], name: str) -> Layout:
    readings: list[str] = []
    if shape[-1:] == (sum(sizes),):
        readings.append('layout="flat" (the component masks side by side)')
    if len(sizes) > 1 and len(shape) > 1 and shape[-1] == max(sizes):
        padded = f"[..., {len(sizes)}, {max(sizes)}]"
        readings.append(f'layout="padded" (one row a component, padded to the longest: {padded})')
    if len(sizes) > 1 and shape[max(0, len(shape) - len(sizes)) :] == sizes:
        readings.append('layout="joint" (one entry a combination)')
    if len(readings) == 1 and "flat" in readings[0]:
        return "flat"
    if readings:
        raise MaskError(
            f"{name} has shape {shape} for components {sizes}, which can be read as "
            f"{' or as '.join(readings)}. Nothing is guessed: pass the layout you mean."
        )
    raise MaskError(
        f"{name} has shape {shape}. Expected [..., {sum(sizes)}] (the masks of the components "
        f"{sizes} side by side), or a layout named with layout=."
    )


def _unpad(legal: BoolArray, sizes: tuple[int, ...], name: str) -> BoolArray:
    if legal.shape[-2:] != (len(sizes), max(sizes)):
        raise MaskError(
            f"{name} has shape {legal.shape}. Expected a padded mask [..., {len(sizes)}, "
            f"{max(sizes)}]: one row for each of the components {sizes}."
        )
    for k, size in enumerate(sizes):
        outside = np.argwhere(legal[..., k, size:])
        if len(outside):
            raise MaskError(
                f"{name} allows action {size + int(outside[0][-1])} of component {k}, which has "
                f"only the actions 0 to {size - 1}. Expected False past the component's size."
            )
    return np.concatenate([legal[..., k, :size] for k, size in enumerate(sizes)], axis=-1)
