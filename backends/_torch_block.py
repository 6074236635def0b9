"""Masked probabilities of one block of rows, in few passes over buffers that stay in cache.

Eager time is the number of passes over memory and, for small blocks, the number of calls, so:

- in large blocks the bits of the logits are masked: ``where`` costs ten times as much, and adding
  a large negative number would read what is under the mask;
- nothing but ``softmax``, which has no slow path for -inf, exponentiates a masked logit, except in
  rows shorter than a vector, which it takes entry by entry;
- buffers are reused, the larger ones from call to call: fresh pages cost as much as the work.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

BLOCK = 2**17  # entries of a block: 5 MB of buffers in float32
SMALL = 4096  # entries up to which `where` and fresh arrays beat bits and buffers
SCRATCH = 3  # buffers of a block beside those that outlast it
SHORT = 16  # entries below which a row is no vector: softmax would take it entry by entry
WIDE = 512  # entries of a row whose softmax may sum to 1 by several epsilon less or more
CERTAIN = 2e-7  # 1 - p_max below which the others are over 15 down, where exp shows rounding of t
LOWEST = -1e30  # in place of log 0 where it meets the probability 0; never in a result

# The integers of each dtype's size; the bits of -inf are minus that power of two.
_BITS = {torch.float32: (torch.int32, 2**23), torch.float64: (torch.int64, 2**52)}


@functools.cache
def constant(value: float, dtype: torch.dtype) -> Tensor:
    """A 0-dim tensor. Of a Python number one is made in every call, at the price of the call."""
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=dtype)


class Space(NamedTuple):
    """Buffers ``[n, A]`` for a block, or None everywhere for fresh arrays."""

    x: Tensor | None = None  # [1 or 2, n, A], new policy first
    probs: Tensor | None = None  # [1 or 2, n, A]
    heavy: Tensor | None = None
    w: Tensor | None = None
    select: Tensor | None = None
    square: Tensor | None = None
    scratch: Tensor | None = None

    @classmethod
    def of(cls, buffers: Tensor, keep: Tensor | None = None) -> Space:
        """From ``[SCRATCH, n, A]`` and ``[3 or 6, n, A]``, which follow or are given."""
        select, square, scratch, *rest = buffers.unbind(0)
        if keep is None:
            keep = buffers[SCRATCH:]
        else:
            rest = keep.unbind(0)
        k = len(rest) // 3
        return cls(keep[:k], keep[k : 2 * k], rest[2 * k], rest[-1], select, square, scratch)


class Lease:
    """A flat buffer for arrays that outlast a call; taken over by a later one once this is gone."""

    _returned: ClassVar[dict[torch.dtype, Tensor]] = {}

    def __init__(self, like: Tensor, size: int) -> None:
        tensor = self._returned.pop(like.dtype, None) if like.device.type == "cpu" else None
        if tensor is None or len(tensor) < size:
            with torch.inference_mode(False):
                tensor = torch.empty(size, dtype=like.dtype, device=like.device)
        self.tensor = tensor

    def __del__(self) -> None:
        if self.tensor.device.type == "cpu":
            self._returned[self.tensor.dtype] = self.tensor


def spaces(like: Tensor, policies: int, lease: Lease | None = None) -> Iterator[Space]:
    """Buffers for one block of rows of ``[N, A]`` after another, see ``blocks``.

    ``lease`` holds ``3 * policies * N * A`` entries, for arrays that outlast their block; without
    it the next block overwrites them.
    """
    count, width = like.shape
    kept = 3 * policies
    step = _step(like)
    buffers = _workspace(like, (SCRATCH + (0 if lease is not None else kept)) * step * width)
    buffers = buffers.view(-1, step, width)
    for start in range(0, count, step):
        size = min(step, count - start)
        own = None
        if lease is not None:
            own = lease.tensor[start * kept * width : (start + size) * kept * width]
            own = own.view(kept, size, width)
        yield Space.of(buffers if size == step else buffers[:, :size], own)


def blocks(like: Tensor) -> list[slice | None]:
    """The rows of each block of ``[N, A]``; None for all of them."""
    count, step = len(like), _step(like)
    if count <= step:
        return [None]
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _step(like: Tensor) -> int:
    return min(len(like), max(1, BLOCK // like.shape[-1]))


_local = threading.local()


def _workspace(like: Tensor, size: int) -> Tensor:
    """A flat buffer, kept for the thread on the CPU."""
    if like.device.type != "cpu" or size > 10 * BLOCK:
        return like.new_empty(size)
    name = str(like.dtype)
    space: Tensor | None = getattr(_local, name, None)
    if space is None or len(space) < size:
        with torch.inference_mode(False):
            space = torch.empty(size, dtype=like.dtype)
        setattr(_local, name, space)
    return space[:size]


def masked(
    z: Tensor, old: Tensor | None, legal: Tensor, space: Space
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Logits ``[1 or 2, n, A]``, -inf if illegal.

    Returns:
        The logits; what ``selected`` selects with; -inf where illegal (0 elsewhere, as bits), or
        None in a small block.
    """
    if space.x is None or space.select is None or space.square is None:
        both = z.unsqueeze(0) if old is None else torch.stack((z, old))
        return torch.where(legal, both, constant(-torch.inf, z.dtype)), legal, None
    integer, infinite = _BITS[z.dtype]
    select, fill, bits = (b.view(integer) for b in (space.select, space.square, space.x))
    select.copy_(legal)
    torch.add(constant(-infinite, integer), select, alpha=infinite, out=fill)
    select.neg_()  # every bit where legal, none elsewhere
    torch.bitwise_and(z.view(integer), select, out=bits[0])
    if old is not None:
        torch.bitwise_and(old.view(integer), select, out=bits[1])
    bits.bitwise_or_(fill)
    return space.x, select, fill


def with_penalty(z: Tensor, legal: Tensor, out: Tensor) -> Tensor:
    """Logits plus 0 or -inf in the buffer: NaN where NaN or +inf is under the mask."""
    integer, infinite = _BITS[z.dtype]
    bits = out.view(integer).copy_(legal)
    torch.add(constant(-infinite, integer), bits, alpha=infinite, out=bits)
    return torch.add(z, out, out=out)


def selected(x: Tensor, select: Tensor) -> Tensor:
    """``x`` with exactly 0 where illegal, whatever was there; in place in large blocks."""
    if select.dtype == torch.bool:
        return torch.where(select, x, constant(0.0, x.dtype))
    x.view(select.dtype).bitwise_and_(select)
    return x


class Softmax(NamedTuple):
    """Probabilities of a block and what comes with them."""

    t: Tensor  # [n, A] z - max of the new policy, -inf if illegal
    probs: Tensor  # [1 or 2, n, A]
    largest: Tensor  # [1 or 2, n, 1] of each row of probs


def softmax(x: Tensor, top: Tensor, space: Space) -> Softmax:
    """Softmax of ``[1 or 2, n, A]``, of which ``top`` is the row maximum; ``x[0]`` becomes t."""
    probs, largest = probabilities(x, top, space)
    return Softmax(x[0] if x.shape[-1] < SHORT else x[0].sub_(top[0]), probs, largest)


def probabilities(x: Tensor, top: Tensor, space: Space) -> tuple[Tensor, Tensor]:
    """``probs`` and ``largest`` of ``softmax``; ``top`` is subtracted in short rows alone."""
    if x.shape[-1] < SHORT:
        probs = torch.exp(x.sub_(top), out=space.probs)
        largest = probs.sum(-1, keepdim=True).reciprocal_()
        return probs.mul_(largest), largest
    probs = torch.softmax(x, -1) if space.probs is None else torch.softmax(x, -1, out=space.probs)
    if x.shape[-1] >= WIDE:
        probs.div_(probs.sum(-1, keepdim=True))
    return probs, probs.amax(-1, keepdim=True)


def log_largest(p: Tensor, p_max: Tensor, space: Space) -> tuple[Tensor, Tensor]:
    """``log p_max`` with every digit, from the other p where it is above 1/2.

    Returns:
        ``[n, 1]``, and ``[n, A]`` 1 where p > 1/2, else 0.
    """
    half = constant(0.5, p.dtype)
    heavy = torch.gt(p, half, out=torch.empty_like(p) if space.heavy is None else space.heavy)
    others = torch.addcmul(p, p, heavy, value=-1, out=space.scratch).sum(-1, keepdim=True)
    return torch.where(p_max > half, others.neg_().log1p_(), p_max.log()), heavy


def nearly_certain(log_top: Tensor) -> Tensor:
    """Rows with 0 < 1 - p_max < CERTAIN."""
    return (log_top > -CERTAIN) & (log_top < 0)
