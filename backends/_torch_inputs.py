"""Reading the arguments of the Torch backend: dtypes, masks, actions, and whether values show.

Values can be looked at in eager code. Inside ``torch.compile``, ``torch.export``, a ``torch.func``
transform or a fake tensor they cannot; there nonzero is legal and nothing raises on values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from maskcore.masks import MaskError, as_bool, check_actions, check_shapes

TensorLike: TypeAlias = "Tensor | ArrayLike"

_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def in_transform() -> bool:
    """Whether this code is being compiled, exported or run under a ``torch.func`` transform."""
    if torch.compiler.is_compiling():
        return True
    return torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore


def can_look(*tensors: Tensor | None) -> bool:
    """Whether the values of ``tensors`` are there to be read, without a transform in between."""
    if in_transform():
        return False
    for tensor in tensors:
        if tensor is not None and (type(tensor) not in _PLAIN_TYPES or tensor.is_meta):
            return False
    return True


def as_logits(logits: TensorLike, *, name: str = "logits") -> Tensor:
    """``logits`` as a floating tensor; what is not floating point becomes float64."""
    tensor = logits if isinstance(logits, Tensor) else torch.as_tensor(np.asarray(logits))
    if tensor.is_floating_point():
        return tensor
    if tensor.is_complex():
        raise MaskError(
            f"{name} has dtype {tensor.dtype}, shape {tuple(tensor.shape)}. Expected real numbers."
        )
    return tensor.to(torch.float64)


def as_legal(mask: TensorLike, logits: Tensor, *, name: str = "mask") -> Tensor:
    """``mask`` as a bool tensor; a bool mask is returned as it is, others are checked for 0/1."""
    if not isinstance(mask, Tensor):
        return torch.as_tensor(as_bool(mask, name=name), device=logits.device)
    if mask.dtype == torch.bool:
        return mask
    legal = mask != 0
    if can_look(mask) and not bool(((mask == 1) | ~legal).all()):
        values = mask.detach().cpu()
        as_bool((values.float() if values.is_floating_point() else values).numpy(), name=name)
    return legal


def batch_of(logits: Tensor, legal: Tensor, *, name: str = "mask") -> Sequence[int]:
    """The common batch shape; raises ``MaskError`` where the shapes do not fit."""
    if logits.shape == legal.shape and logits.dim() and logits.shape[-1]:
        return logits.shape[:-1]
    return check_shapes(tuple(logits.shape), tuple(legal.shape), name=name)


def as_actions(
    actions: TensorLike, logits: Tensor, batch: Sequence[int]
) -> tuple[Tensor, Sequence[int]]:
    """``actions`` as int64 and the batch shape with theirs. The range is left to ``gather``."""
    if not isinstance(actions, Tensor):
        checked = check_actions(actions, num_actions=logits.shape[-1])
        actions = torch.as_tensor(checked, device=logits.device)
    if actions.dtype != torch.int64:
        if actions.dtype == torch.bool or actions.is_floating_point() or actions.is_complex():
            raise MaskError(
                f"actions have dtype {actions.dtype}, shape {tuple(actions.shape)}. Expected "
                f"integers in [0, {logits.shape[-1]}): cast with `.long()`."
            )
        actions = actions.long()
    if actions.shape == batch:
        return actions, batch
    try:
        return actions, torch.Size(torch.broadcast_shapes(actions.shape, tuple(batch)))  # pyright: ignore
    except RuntimeError:
        raise MaskError(
            f"actions have shape {tuple(actions.shape)}, logits and mask {tuple(batch)} before the "
            "action axis. Expected one action a row (actions have no action axis)."
        ) from None


def refuse_actions(actions: Tensor, num_actions: int) -> None:
    """Raise ``MaskError`` if an action is outside ``[0, num_actions)``, where that can be seen."""
    if can_look(actions):
        check_actions(actions.detach().cpu().numpy(), num_actions=num_actions)


def working(logits: Tensor) -> Tensor:
    """float16 and bfloat16 as float32: they are results, never accumulators."""
    if logits.dtype in (torch.float32, torch.float64):
        return logits
    return logits.float()
