"""The masked categorical policy in PyTorch: the functions of ``maskcore.spec``, differentiable.

``logits`` and ``mask`` are ``[..., A]`` and broadcast over the batch axes, ``actions`` are integer
``[...]``, reductions are ``[...]``. ``True`` is legal. Results are in nats and in the dtype of
``logits``; float16 and bfloat16 accumulate in float32. Tensors are taken and returned; NumPy arrays
and lists are accepted. A bool mask is read as it is, a mask of another dtype is checked for exact
0/1 in eager code.

====================== ========================== ======================== =====================
quantity               ordinary row               forced row               empty row
====================== ========================== ======================== =====================
``masked_softmax``     illegal 0, legal sum to 1  one-hot                  all 0
``masked_log_softmax`` illegal -inf               0 at the legal action    all -inf
``log_prob(a)``        -inf where a is illegal    0 at the legal action    0: no choice was made
``entropy``            in [0, log(number legal)]  0                        0
``kl_divergence``      >= 0, 0 for equal inputs   as ordinary              0 where p is empty
``mode``               legal argmax, lowest index the legal action         0
``sample``             never an illegal action    the legal action         0
every gradient         0 at illegal entries       0                        0
====================== ========================== ======================== =====================

All functions work under ``torch.compile``, ``torch.export``, ``torch.func`` and double backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backends import _torch_plain as plain
from backends._torch_inputs import (
    TensorLike,
    as_actions,
    as_legal,
    as_logits,
    batch_of,
    refuse_actions,
    working,
)
from backends._torch_sampling import draw
from maskcore.masks import MaskError

__all__ = [
    "NAME",
    "ActionEvaluation",
    "asarray",
    "cross_entropy",
    "entropy",
    "evaluate_actions",
    "kl_divergence",
    "log_prob",
    "masked_log_softmax",
    "masked_softmax",
    "mode",
    "sample",
    "to_numpy",
    "vjp",
]

NAME = "torch"


class ActionEvaluation(NamedTuple):
    """What a policy-gradient loss needs of a batch of actions, each ``[...]`` and in nats."""

    log_prob: Tensor
    entropy: Tensor
    kl_divergence: Tensor | None


def masked_softmax(logits: TensorLike, mask: TensorLike) -> Tensor:
    """Probabilities of the policy restricted to the legal actions.

    Args:
        logits: ``[..., A]`` unnormalised log-probabilities.
        mask: ``[..., A]``, True is legal.

    Returns:
        ``[..., A]``; exactly 0 at illegal entries, all 0 in an empty row.

    Raises:
        MaskError: For a mask that is not exactly 0/1 or does not fit the logits.

    >>> masked_softmax(torch.tensor([0.0, 0.0, 9.0]), torch.tensor([True, True, False]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    z, legal, dtype = _read(logits, mask)
    return plain.masked_softmax(z, legal).to(dtype)


def masked_log_softmax(logits: TensorLike, mask: TensorLike) -> Tensor:
    """Log-probabilities in nats, -inf at illegal entries; arguments as ``masked_softmax``.

    >>> masked_log_softmax(torch.tensor([0.0, 0.0, 9.0]), torch.tensor([True, True, False]))
    tensor([-0.6931, -0.6931,    -inf])
    """
    z, legal, dtype = _read(logits, mask)
    return plain.masked_log_softmax(z, legal).to(dtype)


def log_prob(logits: TensorLike, mask: TensorLike, actions: TensorLike) -> Tensor:
    """Log-probability, in nats, of the actions taken; gradient ``1[a = b] - p_b``.

    Args:
        logits: ``[..., A]``.
        mask: ``[..., A]``, True is legal.
        actions: ``[...]`` integers in ``[0, A)``.

    Returns:
        ``[...]``; -inf, with gradient 0, where the action is illegal; 0 in an empty row.

    Raises:
        MaskError: For a bad mask, or actions that are not integers in ``[0, A)``.

    >>> logits, mask = torch.tensor([1.0, 5.0, 3.0]), torch.tensor([True, False, True])
    >>> log_prob(logits, mask, torch.tensor(2))
    tensor(-0.1269)
    """
    z, legal, actions, dtype = _read_with_actions(logits, mask, actions)
    return plain.log_prob(z, legal, actions).to(dtype)


def entropy(logits: TensorLike, mask: TensorLike) -> Tensor:
    """Entropy ``-sum p log p`` in nats (Shannon 1948); gradient ``-p_b (log p_b + H)``.

    Arguments as ``masked_softmax``.

    Returns:
        ``[...]`` in ``[0, log(number legal)]``; 0 in forced and empty rows.

    >>> entropy(torch.tensor([0.0, 0.0, 9.0]), torch.tensor([True, True, False]))
    tensor(0.6931)
    """
    z, legal, dtype = _read(logits, mask)
    return plain.entropy(z, legal).to(dtype)


def kl_divergence(
    p_logits: TensorLike, q_logits: TensorLike, *, p_mask: TensorLike, q_mask: TensorLike
) -> Tensor:
    """Kullback-Leibler divergence ``KL(p | q) = sum p (log p - log q)`` in nats.

    Relative error below 1e-5 in float32 down to KL = 1e-12, where the textbook sum has no correct
    digit. Gradients: ``p_b (log p_b - log q_b - KL)`` to p, ``q_b - p_b`` to q.

    Args:
        p_logits, q_logits: ``[..., A]``.
        p_mask, q_mask: ``[..., A]``, True is legal.

    Returns:
        ``[...]``, >= 0 and 0 for equal inputs; +inf, with gradient 0, exactly where p gives mass to
        an action that q forbids, decided on the masks and on -inf logits; 0 where p is empty.

    Raises:
        MaskError: For a mask that is not exactly 0/1 or does not fit its logits.

    >>> both = torch.tensor([True, True])
    >>> p, q = torch.tensor([0.0, 0.0]), torch.tensor([0.0, 1.0])
    >>> kl_divergence(p, q, p_mask=both, q_mask=both)
    tensor(0.1201)
    """
    zp, zq, p_legal, q_legal, dtype = _read_pair(p_logits, q_logits, p_mask, q_mask)
    return plain.kl_divergence(zp, zq, p_legal, q_legal).to(dtype)


def cross_entropy(
    p_logits: TensorLike, q_logits: TensorLike, *, p_mask: TensorLike, q_mask: TensorLike
) -> Tensor:
    """Cross-entropy ``-sum p log q`` in nats: entropy(p) + KL(p | q); arguments as there.

    >>> both = torch.tensor([True, True])
    >>> cross_entropy(torch.zeros(2), torch.zeros(2), p_mask=both, q_mask=both)
    tensor(0.6931)
    """
    zp, zq, p_legal, q_legal, dtype = _read_pair(p_logits, q_logits, p_mask, q_mask)
    return plain.cross_entropy(zp, zq, p_legal, q_legal).to(dtype)


def mode(logits: TensorLike, mask: TensorLike) -> Tensor:
    """The most probable legal action ``[...]``, the lowest index on a tie; 0 in an empty row.

    In a row that holds a legal NaN it is the first such entry: a legal index in any case.

    >>> mode(torch.tensor([1.0, 9.0, 1.0]), torch.tensor([True, False, True]))
    tensor(0)
    """
    z, legal, _ = _read(logits, mask)
    return plain.mode(z.detach(), legal)


def sample(
    logits: TensorLike, mask: TensorLike, *, generator: torch.Generator | None = None
) -> Tensor:
    """Draw one action a row from the masked policy; ``[...]`` int64, 0 in an empty row.

    Args:
        logits: ``[..., A]``.
        mask: ``[..., A]``, True is legal.
        generator: Where the uniforms come from; Torch's default one otherwise.

    Raises:
        MaskError: For a bad mask, and in eager code for a row without a distribution (a legal NaN
            or +inf, or nothing but -inf). In a graph such a row gives some index in ``[0, A)``.

    >>> sample(torch.tensor([1.0, 9.0, 1.0]), torch.tensor([False, False, True]))
    tensor(2)
    """
    z, legal, _ = _read(logits, mask)
    return draw(z.detach(), legal, (), generator)


def evaluate_actions(
    logits: TensorLike,
    mask: TensorLike,
    actions: TensorLike,
    *,
    old_logits: TensorLike | None = None,
    old_mask: TensorLike | None = None,
) -> ActionEvaluation:
    """log_prob, entropy and KL(old | new) of a batch of actions.

    Args:
        logits: ``[..., A]``, the policy being trained.
        mask: ``[..., A]``, True is legal.
        actions: ``[...]`` integers in ``[0, A)``.
        old_logits: ``[..., A]``, the policy the actions were drawn from; None for no KL.
        old_mask: ``[..., A]``, its mask; ``mask`` otherwise.

    Returns:
        ``ActionEvaluation(log_prob, entropy, kl_divergence)``, each ``[...]``; ``kl_divergence`` is
        None without ``old_logits``.

    Raises:
        MaskError: As the three functions.

    >>> logits, mask = torch.zeros(3), torch.tensor([True, True, False])
    >>> log_prob, entropy, kl = evaluate_actions(logits, mask, torch.tensor(1), old_logits=logits)
    >>> kl
    tensor(0.)
    """
    kl = None
    if old_logits is not None:
        before = mask if old_mask is None else old_mask
        kl = kl_divergence(old_logits, logits, p_mask=before, q_mask=mask)
    return ActionEvaluation(log_prob(logits, mask, actions), entropy(logits, mask), kl)


# --- hooks of the conformance kit ---------------------------------------------------------


def asarray(array: NDArray[Any]) -> Tensor:
    """A tensor with a copy of a NumPy array (bfloat16 included)."""
    array = np.array(array)
    if str(array.dtype) == "bfloat16":
        return torch.tensor(array.astype(np.float32)).bfloat16()
    return torch.tensor(array)


def to_numpy(tensor: Tensor) -> NDArray[Any]:
    """The NumPy array of a tensor; bfloat16, which NumPy lacks, as float32."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def vjp(fn: Callable[..., Tensor], *arrays: Tensor, cotangent: Tensor) -> tuple[Tensor, ...]:
    """Gradients of ``sum(fn(*arrays) * cotangent)``, 0 where ``fn`` does not depend on an array."""
    leaves = [array.detach().clone().requires_grad_() for array in arrays]
    out = fn(*leaves)
    return torch.autograd.grad(out, leaves, cotangent, allow_unused=True, materialize_grads=True)


# --- arguments ----------------------------------------------------------------------------


def _read(logits: TensorLike, mask: TensorLike) -> tuple[Tensor, Tensor, torch.dtype]:
    z = as_logits(logits)
    legal = as_legal(mask, z)
    shape = (*batch_of(z, legal), z.shape[-1])
    return working(z).expand(shape), legal.expand(shape), z.dtype


def _read_with_actions(
    logits: TensorLike, mask: TensorLike, actions: TensorLike
) -> tuple[Tensor, Tensor, Tensor, torch.dtype]:
    z, legal, dtype = _read(logits, mask)
    index, batch = as_actions(actions, z, z.shape[:-1])
    refuse_actions(index, z.shape[-1])
    shape = (*batch, z.shape[-1])
    return z.expand(shape), legal.expand(shape), index.expand(tuple(batch)), dtype


def _read_pair(
    p_logits: TensorLike, q_logits: TensorLike, p_mask: TensorLike, q_mask: TensorLike
) -> tuple[Tensor, Tensor, Tensor, Tensor, torch.dtype]:
    zp, zq = as_logits(p_logits, name="p_logits"), as_logits(q_logits, name="q_logits")
    p_legal = as_legal(p_mask, zp, name="p_mask")
    q_legal = as_legal(q_mask, zq, name="q_mask")
    p_batch = batch_of(zp, p_legal, name="p_mask")
    q_batch = batch_of(zq, q_legal, name="q_mask")
    if zp.shape[-1] != zq.shape[-1]:
        batch_of(zp, zq, name="q_logits")
    try:
        batch = torch.broadcast_shapes(tuple(p_batch), tuple(q_batch))
    except RuntimeError:
        raise MaskError(
            f"p has batch shape {tuple(p_batch)}, q {tuple(q_batch)}. Expected batch axes that "
            "broadcast."
        ) from None
    dtype = torch.promote_types(zp.dtype, zq.dtype)
    wide = dtype if dtype == torch.float64 else torch.float32
    shape = (*batch, zp.shape[-1])
    return (
        zp.to(wide).expand(shape),
        zq.to(wide).expand(shape),
        p_legal.expand(shape),
        q_legal.expand(shape),
        dtype,
    )
