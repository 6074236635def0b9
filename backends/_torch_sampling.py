"""Drawing actions: an inverse CDF with one uniform a row, and no way to an illegal index."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from backends import _torch_plain as plain
from backends._torch_inputs import can_look
from maskcore.masks import MaskError


def draw(
    logits: Tensor, legal: Tensor, shape: Sequence[int], generator: torch.Generator | None
) -> Tensor:
    """``[*shape, ...]`` actions for ``[..., A]`` logits (float32 or float64) and a bool mask.

    The uniform is compared with the running sum of the probabilities, in float64. Whatever rounding
    does there, the result is checked once more: an index whose probability is 0 is replaced by the
    mode, so an illegal action cannot come out.
    """
    p = plain.masked_softmax(logits, legal).detach()
    batch = p.shape[:-1]
    wide = torch.float32 if p.device.type == "mps" else torch.float64
    running = p.to(wide).cumsum(-1)
    total = running[..., -1:]
    if can_look(logits, legal) and bool(torch.isnan(total).any()):
        refuse_rows(logits, legal)
    count = 1
    for size in shape:
        count *= size
    uniform = torch.empty((*batch, count), device=p.device, dtype=wide).uniform_(
        generator=generator
    )
    index = torch.searchsorted(running, uniform * total, right=True)
    index = index.clamp(max=p.shape[-1] - 1)
    safe = plain.mode(logits, legal)[..., None]
    index = torch.where(p.gather(-1, index) > 0, index, safe)
    return index.movedim(-1, 0).reshape((*shape, *batch))


def refuse_rows(logits: Tensor, legal: Tensor) -> None:
    """Raise the error about rows that have no distribution."""
    top = torch.where(legal, logits, -torch.inf).amax(-1)
    bad = (legal.any(-1) & ~torch.isfinite(top)).nonzero()
    first = tuple(bad[0].tolist())
    shown = ", ".join(f"{x:g}" for x in logits[first][legal[first]][:4].tolist())
    raise MaskError(
        f"logits have no distribution in {len(bad)} row(s), first in row {first}: legal entries "
        f"{shown}. Expected finite numbers (or -inf beside finite ones). The network that made "
        "them has diverged: look at its loss and learning rate."
    )
