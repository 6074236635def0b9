"""Drawing actions and finding the mode, with no way to an illegal index.

An action is drawn by inverting the running sum of the probabilities at one uniform number a row: it
is the first index whose running sum reaches ``u * total``, u in (0, 1]. The running sum grows only
where a probability is positive, so that index is legal whatever rounding does. Long rows do this
twice, over sums of parts and then inside one part, in float64 for the place in the part: 50,000
actions keep their probabilities to many digits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backends import _torch_plain as plain
from backends._torch_block import (
    CERTAIN,
    SMALL,
    Space,
    blocks,
    constant,
    log_largest,
    masked,
    nearly_certain,
    softmax,
    spaces,
    with_penalty,
)
from backends._torch_inputs import can_look
from maskcore.masks import MaskError

PART = 128  # entries of a part of a long row
LONG = 512  # entries from which a row is long


def sample(
    logits: Tensor,
    legal: Tensor,
    *,
    count: int = 1,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """``count`` actions a row ``[..., count]`` and their log_prob (not differentiable).

    Raises:
        MaskError: For a row without a distribution, where values can be looked at.
    """
    batch, width = logits.shape[:-1], logits.shape[-1]
    if logits.device.type != "cpu" or not can_look(logits, legal) or not logits.numel():
        return _sample_plain(logits, legal, count, generator)
    z, m = logits.reshape(-1, width), legal.reshape(-1, width)
    uniform = torch.rand(len(z), count, generator=generator, dtype=torch.float64)
    torch.sub(constant(1.0, torch.float64), uniform, out=uniform)
    if z.numel() <= SMALL:
        actions, log_prob = _sample_block(z, m, uniform, Space())
    else:
        parts = [
            _sample_block(z, m, uniform, space)
            if rows is None
            else _sample_block(z[rows], m[rows], uniform[rows], space)
            for rows, space in zip(blocks(z), spaces(z, 1), strict=True)
        ]
        actions = torch.cat([part[0] for part in parts])
        log_prob = torch.cat([part[1] for part in parts])
    return actions.view((*batch, count)), log_prob.view((*batch, count))


def _sample_block(z: Tensor, legal: Tensor, uniform: Tensor, space: Space) -> tuple[Tensor, Tensor]:
    x, _, _ = masked(z, None, legal, space)
    t, probs, p_max = softmax(x, x.amax(-1, keepdim=True), space)
    p = probs[0]
    log_top, _ = log_largest(p, p_max[0], space)
    bad = certain = None
    if not log_top.amax().item() <= -CERTAIN:
        certain = nearly_certain(log_top).squeeze(-1)
        bad = torch.isnan(log_top).squeeze(-1)  # an empty row, or one without a distribution
        if bool((bad & legal.any(-1)).any()):
            refuse_rows(z, legal)
        p[bad] = 0
    actions = _invert_long(p, uniform) if z.shape[-1] >= LONG else _invert(p, uniform)
    log_prob = t.gather(-1, actions).add_(log_top)
    if bad is not None and certain is not None:
        actions[bad], log_prob[bad] = 0, 0
        exact = plain.masked_log_softmax(z[certain].double(), legal[certain])
        log_prob[certain] = exact.gather(-1, actions[certain]).to(z.dtype)
    return actions, log_prob


def _invert(p: Tensor, uniform: Tensor) -> Tensor:
    """First index ``[n, count]`` at which the running sum of ``[n, A]`` reaches u * total."""
    running = p.cumsum(-1)
    return torch.searchsorted(running, (uniform * running[:, -1:]).to(p.dtype))


def _invert_long(p: Tensor, uniform: Tensor) -> Tensor:
    width = p.shape[-1]
    whole = width // PART * PART
    sums = p[:, :whole].reshape(len(p), -1, PART).sum(-1)
    if whole < width:
        sums = torch.cat((sums, p[:, whole:].sum(-1, keepdim=True)), -1)
    running = sums.cumsum(-1, dtype=torch.float64)
    target = uniform * running[:, -1:]
    part = torch.searchsorted(running, target)
    target -= torch.where(part > 0, running.gather(-1, (part - 1).clamp_(min=0)), 0)
    # Every part is read as PART entries; the last one reaches back, over entries taken as 0.
    first = part * PART
    start = first.clamp(max=width - PART)
    index = start.unsqueeze(-1) + torch.arange(PART)
    inside = p.gather(-1, index.flatten(1)).view(index.shape)
    if whole < width:
        inside = torch.where(index >= first.unsqueeze(-1), inside, 0)
    inside = inside.cumsum(-1, dtype=torch.float64)
    target = torch.minimum(target.unsqueeze(-1), inside[..., -1:])
    return start + torch.searchsorted(inside, target).squeeze(-1)


def _sample_plain(
    logits: Tensor, legal: Tensor, count: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """The same in a graph or on another device, where sums may run in another order.

    So the result is checked: an index of probability 0 is replaced by the mode.
    """
    p = plain.masked_softmax(logits, legal).detach()
    running = p.to(torch.float32 if p.device.type == "mps" else torch.float64).cumsum(-1)
    total = running[..., -1:]
    if can_look(logits, legal) and bool(torch.isnan(total).any()):
        refuse_rows(logits, legal)
    shape = (*p.shape[:-1], count)
    uniform = torch.empty(shape, device=p.device, dtype=total.dtype).uniform_(generator=generator)
    index = torch.searchsorted(running, (1 - uniform) * total).clamp(max=p.shape[-1] - 1)
    best = plain.mode(logits, legal).unsqueeze(-1)
    index = torch.where(p.gather(-1, index) > 0, index, best)
    log_prob = plain.masked_log_softmax(logits, legal).detach().gather(-1, index)
    return index, torch.where(legal.any(-1, keepdim=True), log_prob, 0)


def refuse_rows(logits: Tensor, legal: Tensor) -> None:
    """Raise the error about rows that have no distribution."""
    top = torch.where(legal, logits, -torch.inf).amax(-1)
    bad = (legal.any(-1) & ~torch.isfinite(top)).nonzero()
    first = tuple(bad[0])
    shown = ", ".join(f"{float(x):g}" for x in logits[first][legal[first]][:4])
    raise MaskError(
        f"logits have no distribution in {len(bad)} row(s), first in row "
        f"{tuple(map(int, first))}: legal entries {shown}. Expected finite numbers (or -inf beside "
        "finite ones). The network that made them has diverged: look at its loss and learning rate."
    )


def mode(logits: Tensor, legal: Tensor) -> Tensor:
    """``[...]`` the first largest legal logit, NaN counting as largest; 0 in an empty row."""
    if logits.device.type != "cpu" or not can_look(logits, legal) or logits.numel() <= SMALL:
        return plain.mode(logits, legal)
    width = logits.shape[-1]
    z, m = logits.reshape(-1, width), legal.reshape(-1, width)
    parts = [
        _mode_block(z if rows is None else z[rows], m if rows is None else m[rows], space)
        for rows, space in zip(blocks(z), spaces(z, 1), strict=True)
    ]
    return torch.cat(parts).view(logits.shape[:-1])


def _mode_block(z: Tensor, legal: Tensor, space: Space) -> Tensor:
    top, k = _argmax(with_penalty(z, legal, space))
    if not bool(torch.isfinite(top).all()):  # perhaps only for what is under the mask
        top, k = _argmax(masked(z, None, legal, space)[0][0])
        low = top == -torch.inf  # nothing legal, or nothing but -inf: the first legal index, or 0
        k[low] = legal[low].to(torch.uint8).argmax(-1)
    return k


def _argmax(x: Tensor) -> tuple[Tensor, Tensor]:
    """Largest entry and its first index. ``amax`` is ten times as fast as ``argmax``."""
    width = x.shape[-1]
    if width < 2 * PART:
        return x.max(-1)  # pyright: ignore
    whole = width // PART * PART
    tops = x[:, :whole].reshape(len(x), -1, PART).amax(-1)
    if whole < width:
        tops = torch.cat((tops, x[:, whole:].amax(-1, keepdim=True)), -1)
    top, part = tops.max(-1, keepdim=True)
    start = (part * PART).clamp(max=width - PART)
    inside = x.gather(-1, start + torch.arange(PART))
    return top.squeeze(-1), (start + inside.argmax(-1, keepdim=True)).squeeze(-1)
