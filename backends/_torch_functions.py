"""The functions of the Torch backend, and which formulas each call takes.

In eager code they are the fused closed forms of ``_torch_autograd`` or, where asked for, those of
``_torch_compiled``. Under ``torch.compile``, ``torch.export``, ``torch.func`` and forward-mode
differentiation, where values cannot be looked at, they are the plain formulas of ``_torch_plain``.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from backends import _torch_autograd as fast
from backends import _torch_compiled as loops
from backends import _torch_plain as plain
from backends import _torch_sampling as sampling
from backends._torch_fused import Policy
from backends._torch_inputs import (
    TensorLike,
    as_actions,
    as_legal,
    as_logits,
    batch_of,
    can_look,
    refuse_actions,
    working,
)
from maskcore.masks import MaskError


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
    z, legal, dtype = _read(logits, mask)
    z, legal, index = _with_actions(z, legal, actions)
    return cast("Tensor", _evaluate(Policy(z, None, legal, None, index, False)).log_prob).to(dtype)


def entropy(logits: TensorLike, mask: TensorLike) -> Tensor:
    """Entropy ``-sum p log p`` in nats (Shannon 1948); gradient ``-p_b (log p_b + H)``.

    Arguments as ``masked_softmax``.

    Returns:
        ``[...]`` in ``[0, log(number legal)]``; 0 in forced and empty rows.

    >>> entropy(torch.tensor([0.0, 0.0, 9.0]), torch.tensor([True, True, False]))
    tensor(0.6931)
    """
    z, legal, dtype = _read(logits, mask)
    return cast("Tensor", _evaluate(Policy(z, None, legal, None, None, True)).entropy).to(dtype)


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
    policy = Policy(zq, zp, q_legal, _if_other(p_legal, q_legal), None, False)
    return cast("Tensor", _evaluate(policy).kl).to(dtype)


def cross_entropy(
    p_logits: TensorLike, q_logits: TensorLike, *, p_mask: TensorLike, q_mask: TensorLike
) -> Tensor:
    """Cross-entropy ``-sum p log q`` in nats: entropy(p) + KL(p | q); arguments as there.

    >>> both = torch.tensor([True, True])
    >>> cross_entropy(torch.zeros(2), torch.zeros(2), p_mask=both, q_mask=both)
    tensor(0.6931)
    """
    zp, zq, p_legal, q_legal, dtype = _read_pair(p_logits, q_logits, p_mask, q_mask)
    if _eager(zp, zq, p_legal, q_legal):
        return cast("Tensor", fast.CrossEntropy.apply(zp, zq, p_legal, q_legal)).to(dtype)
    return plain.cross_entropy(zp, zq, p_legal, q_legal).to(dtype)


def mode(logits: TensorLike, mask: TensorLike) -> Tensor:
    """The most probable legal action ``[...]``, the lowest index on a tie; 0 in an empty row.

    In a row that holds a legal NaN it is the first such entry: a legal index in any case.

    >>> mode(torch.tensor([1.0, 9.0, 1.0]), torch.tensor([True, False, True]))
    tensor(0)
    """
    z, legal, _ = _read(logits, mask)
    return sampling.mode(z.detach(), legal)


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
    return sampling.sample(z, legal, generator=generator)[0]


def sample_with_log_prob(
    logits: TensorLike, mask: TensorLike, *, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw one action a row and give its log_prob, for the price of the draw; as ``sample``.

    Returns:
        Actions ``[...]`` int64 and their log-probabilities ``[...]`` in nats. These are the numbers
        that ``log_prob`` gives for the actions, but constants: no gradient flows.

    >>> sample_with_log_prob(torch.tensor([1.0, 9.0]), torch.tensor([True, False]))
    (tensor(0), tensor(0.))
    """
    z, legal, dtype = _read(logits, mask)
    actions, log_prob = sampling.sample(z, legal, generator=generator)
    return actions, log_prob if log_prob.dtype == dtype else log_prob.to(dtype)


def evaluate_actions(
    logits: TensorLike,
    mask: TensorLike,
    actions: TensorLike,
    *,
    old_logits: TensorLike | None = None,
    old_mask: TensorLike | None = None,
    compiled: bool = False,
) -> ActionEvaluation:
    """log_prob, entropy and KL(old | new) of a batch of actions.

    Args:
        logits: ``[..., A]``, the policy being trained.
        mask: ``[..., A]``, True is legal.
        actions: ``[...]`` integers in ``[0, A)``.
        old_logits: ``[..., A]``, the policy the actions were drawn from; None for no KL.
        old_mask: ``[..., A]``, its mask; ``mask`` otherwise.
        compiled: Use ``torch.compile`` where that is faster: for float32 from 32,768 logits up,
            with ``old_logits`` that need no gradient. The first call takes seconds. Without a C++
            compiler one RuntimeWarning is given and nothing is compiled.

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
    z, legal, dtype = _read(logits, mask)
    kl_dtype, old, old_legal = dtype, None, None
    if old_logits is not None:
        before = legal if old_mask is None else old_mask
        old, z, old_legal, legal, kl_dtype = _read_pair(
            old_logits, z, before, legal, prefixes=("old_", ""), q_dtype=dtype
        )
        old_legal = _if_other(old_legal, legal)
    z, legal, index = _with_actions(z, legal, actions)
    if old is not None and old.shape != z.shape:
        old = old.expand(z.shape)
        old_legal = old_legal if old_legal is None else old_legal.expand(z.shape)
    results = _evaluate(Policy(z, old, legal, old_legal, index, True), compiled=compiled)
    return ActionEvaluation(
        cast("Tensor", results.log_prob).to(dtype),
        cast("Tensor", results.entropy).to(dtype),
        None if results.kl is None else results.kl.to(kl_dtype),
    )


def _eager(*tensors: Tensor | None) -> bool:
    return can_look(*tensors) and forward_ad._current_level < 0  # pyright: ignore


def _evaluate(policy: Policy, *, compiled: bool = False) -> fast.Results:
    """By the fused formulas where values can be looked at, by the plain ones elsewhere."""
    z, old, legal, old_legal, index, _ = policy
    if index is not None and index.device.type == "cuda":  # elsewhere `gather` itself raises
        refuse_actions(index, z.shape[-1])
    try:
        if z.numel() and _eager(z, old, legal, old_legal, index):
            if compiled and loops.suits(policy):
                return loops.evaluate(policy)
            return fast.evaluate(policy)
        return fast.evaluate_plain(policy)
    except (RuntimeError, IndexError):
        if index is not None:
            refuse_actions(index, z.shape[-1])
        raise


# --- arguments: tensors broadcast to one shape, float32 or float64, and the dtype of the result ---


def _read(logits: TensorLike, mask: TensorLike) -> tuple[Tensor, Tensor, torch.dtype]:
    z = as_logits(logits)
    legal = as_legal(mask, z)
    if z.shape != legal.shape or not z.dim() or not z.shape[-1]:
        shape = (*batch_of(z, legal), z.shape[-1])
        return working(z).expand(shape), legal.expand(shape), z.dtype
    return working(z), legal, z.dtype


def _with_actions(z: Tensor, legal: Tensor, actions: TensorLike) -> tuple[Tensor, Tensor, Tensor]:
    index, batch = as_actions(actions, z, z.shape[:-1])
    if batch == z.shape[:-1]:
        return z, legal, index if index.shape == batch else index.expand(batch)
    shape = (*batch, z.shape[-1])
    return z.expand(shape), legal.expand(shape), index.expand(batch)


def _read_pair(
    p_logits: TensorLike,
    q_logits: TensorLike,
    p_mask: TensorLike,
    q_mask: TensorLike,
    *,
    prefixes: tuple[str, str] = ("p_", "q_"),
    q_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, torch.dtype]:
    p_name, q_name = prefixes
    zp, zq = (
        as_logits(p_logits, name=f"{p_name}logits"),
        as_logits(q_logits, name=f"{q_name}logits"),
    )
    p_legal = as_legal(p_mask, zp, name=f"{p_name}mask")
    q_legal = as_legal(q_mask, zq, name=f"{q_name}mask")
    dtype = torch.promote_types(zp.dtype, q_dtype or zq.dtype)
    wide = torch.float64 if torch.float64 in (zp.dtype, zq.dtype) else torch.float32
    zp, zq = zp.to(wide), zq.to(wide)
    if zp.dim() and zp.shape == zq.shape == p_legal.shape == q_legal.shape:
        return zp, zq, p_legal, q_legal, dtype
    p_batch = batch_of(zp, p_legal, name=f"{p_name}mask")
    q_batch = batch_of(zq, q_legal, name=f"{q_name}mask")
    if zp.shape[-1] != zq.shape[-1]:
        batch_of(zq, zp, name=f"{p_name}logits")
    try:
        batch = torch.Size(torch.broadcast_shapes(tuple(p_batch), tuple(q_batch)))  # pyright: ignore
    except RuntimeError:
        raise MaskError(
            f"{p_name}logits and {p_name}mask have batch shape {tuple(p_batch)}, {q_name}logits "
            f"and {q_name}mask {tuple(q_batch)}. Expected batch axes that broadcast."
        ) from None
    shape = (*batch, zp.shape[-1])
    return zp.expand(shape), zq.expand(shape), p_legal.expand(shape), q_legal.expand(shape), dtype


def _if_other(old_legal: Tensor, legal: Tensor) -> Tensor | None:
    """None where the two masks are known to be equal."""
    if old_legal is legal or (can_look(old_legal, legal) and torch.equal(old_legal, legal)):
        return None
    return old_legal
