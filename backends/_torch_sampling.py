"""Drawing actions and finding the mode, with no way to an illegal index.

An action is drawn by inverting the running sum of the probabilities at one uniform number a row: it
is the first index whose running sum reaches ``u * total``, u in (0, 1]. The running sum grows only
where a probability is positive, so that index is legal whatever rounding does. Long rows do this
twice, over sums of parts and then inside one part, in float64 for the place in the part: 50,000
actions keep their probabilities to many digits. Small batches, where calls cost more than sums, are
summed in float64 altogether. The log_prob is, to the bit, what ``log_prob`` gives.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from backends import _torch_plain as plain
from backends import _torch_small as small
from backends._torch_block import (
    CERTAIN,
    SMALL,
    Space,
    blocks,
    constant,
    masked,
    nearly_certain,
    probabilities,
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
    count: int | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """An action a row ``[...]``, or ``count`` of them ``[..., count]``, and their log_prob.

    Not differentiable, whatever the logits require.

    Raises:
        MaskError: For a row without a distribution, where values can be looked at.
    """
    if not logits.is_cpu or not can_look(logits, legal) or not logits.numel():
        return _sample_plain(logits, legal, count, generator)
    z = logits.detach() if logits.requires_grad else logits
    flat = z.dim() == 2
    if not flat:
        z, legal = z.reshape(-1, z.shape[-1]), legal.reshape(-1, z.shape[-1])
    size = (z.shape[0], 1 if count is None else count)
    uniform = torch.rand(size, generator=generator, dtype=torch.float64)
    drawn = (_sample_few if small.suits(z) else _sample_many)(z, legal, uniform)
    if flat:
        return drawn if count is not None else (drawn[0].squeeze(-1), drawn[1].squeeze(-1))
    shape = logits.shape[:-1] if count is None else (*logits.shape[:-1], count)
    return drawn[0].view(shape), drawn[1].view(shape)


def _sample_few(z: Tensor, legal: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """``_sample_block`` in few calls, in float64 (``_torch_small``).

    Here the action is the first whose running sum exceeds ``u * total``, u in [0, 1). That product
    rounds to less than the total, u being at most 1 - 2^-53 and the total at least 1: there is one.
    """
    _, top, k, t, e, rest = small.parts(z, legal)
    running = e.scatter_(-1, k, 1.0).cumsum(-1)
    uniform.mul_(running.narrow(-1, -1, 1))
    bad = None
    if not (small.FILL / 2 < top.sum().item() < math.inf):
        bad = _without_distribution(z, legal, torch.where(top > small.FILL / 2, top, -torch.inf))
        uniform[bad] = 0
    actions = torch.searchsorted(running, uniform, right=True)
    log_prob = t.gather(-1, actions).sub_(rest.log1p_()).float()
    if bad is not None:
        actions[bad], log_prob[bad] = 0, 0
    return actions, log_prob


def _sample_many(z: Tensor, legal: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    torch.sub(constant(1.0, torch.float64), uniform, out=uniform)
    parts = [
        _sample_block(z, legal, uniform, space)
        if rows is None
        else _sample_block(z[rows], legal[rows], uniform[rows], space)
        for rows, space in zip(blocks(z), spaces(z, 1), strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _sample_block(z: Tensor, legal: Tensor, uniform: Tensor, space: Space) -> tuple[Tensor, Tensor]:
    x = with_penalty(z, legal, cast("Tensor", space.x)[0]).unsqueeze(0)
    top = x.amax(-1, keepdim=True)
    bad = None
    if not math.isfinite(top.sum().item()):  # perhaps only for what is under the mask
        x = masked(z, None, legal, space)[0]
        top = x.amax(-1, keepdim=True)
        bad = _without_distribution(z, legal, top[0])
    probs, largest = probabilities(x, top, space)
    p = probs[0]
    if bad is not None:
        p[bad] = 0
    log_top, certain = _log_largest(p, largest[0])
    actions = _invert_long(p, uniform) if z.shape[-1] >= LONG else _invert(p, uniform, x[0])
    log_prob = z.gather(-1, actions).sub_(top[0]).add_(log_top)
    if certain is not None and len(certain):
        exact = plain.masked_log_softmax(z[certain].double(), legal[certain])
        log_prob[certain] = exact.gather(-1, actions[certain]).to(z.dtype)
    if bad is not None:
        actions[bad], log_prob[bad] = 0, 0
    return actions, log_prob


def _without_distribution(z: Tensor, legal: Tensor, top: Tensor) -> Tensor:
    """The empty rows ``[n]``; others without a distribution are refused."""
    bad = ~torch.isfinite(top).view(-1)
    if bool((bad & legal.any(-1)).any()):
        refuse_rows(z, legal)
    return bad


def _log_largest(p: Tensor, p_max: Tensor) -> tuple[Tensor, Tensor | None]:
    """``log p_max [n, 1]``, and which rows are nearly certain (None where there are none).

    The sums that p_max > 1/2 asks for are taken in those rows alone.
    """
    log_top = p_max.log()
    half = constant(0.5, p.dtype)
    heavy = (p_max > half).view(-1).nonzero().view(-1)
    if not len(heavy):
        return log_top, None
    few = p.index_select(0, heavy)
    others = torch.where(few > half, constant(0.0, p.dtype), few).sum(-1, keepdim=True)
    log_top.index_copy_(0, heavy, found := others.neg_().log1p_())
    if not found.amax().item() > -CERTAIN:
        return log_top, None
    return log_top, heavy[nearly_certain(found).view(-1)]


def _invert(p: Tensor, uniform: Tensor, buffer: Tensor) -> Tensor:
    """First index ``[n, count]`` at which the running sum of ``[n, A]`` reaches u * total."""
    running = torch.cumsum(p, -1, out=buffer)
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
    logits: Tensor, legal: Tensor, count: int | None, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """The same in a graph or on another device, where sums may run in another order.

    So the result is checked: an index of probability 0 is replaced by the mode.
    """
    logits = logits.detach()
    p = plain.masked_softmax(logits, legal)
    running = p.to(torch.float32 if p.device.type == "mps" else torch.float64).cumsum(-1)
    total = running[..., -1:]
    if can_look(logits, legal) and bool(torch.isnan(total).any()):
        refuse_rows(logits, legal)
    shape = (*p.shape[:-1], 1 if count is None else count)
    uniform = torch.empty(shape, device=p.device, dtype=total.dtype).uniform_(generator=generator)
    index = torch.searchsorted(running, (1 - uniform) * total).clamp(max=p.shape[-1] - 1)
    best = plain.mode(logits, legal).unsqueeze(-1)
    index = torch.where(p.gather(-1, index) > 0, index, best)
    log_prob = plain.masked_log_softmax(logits, legal).gather(-1, index)
    log_prob = torch.where(legal.any(-1, keepdim=True), log_prob, 0)
    return (index.squeeze(-1), log_prob.squeeze(-1)) if count is None else (index, log_prob)


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
    top, k = _argmax(with_penalty(z, legal, cast("Tensor", space.x)[0]))
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
