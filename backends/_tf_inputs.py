"""Reading the arguments of the TensorFlow backend: dtypes, masks, actions, and whether values show.

Values can be looked at in eager code and in NumPy arguments. A symbolic tensor (``tf.function``,
XLA, a TF1 graph) shows its dtype and what is known of its shape; there nonzero is legal and nothing
raises on values.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from backends._tf_api import Tensor, tf
from maskcore.masks import MaskError, as_bool, check_actions, check_shapes

TensorLike: TypeAlias = "Tensor | ArrayLike"

NEG_INF = float("-inf")


class Policy(NamedTuple):
    """Logits in float32 or float64 and the mask; they broadcast."""

    x: Tensor  # [..., A] logits, whatever is under the mask
    legal: Tensor  # [..., A] bool
    empty: Tensor  # [..., 1] bool, True in rows without a legal action
    dtype: Tensor  # the dtype of the caller's logits

    @property
    def shape(self) -> Tensor:
        """What is known of the shape ``[..., A]``, a ``tf.TensorShape``."""
        return tf.broadcast_static_shape(self.x.shape, self.legal.shape)

    def masked(self) -> Tensor:
        """``[..., A]`` logits, -inf at illegal entries.

        ``tf.where`` selects the gradient as it selects the value: illegal entries get exactly 0,
        whatever the formulas behind it give them.
        """
        return tf.where(self.legal, self.x, tf.constant(NEG_INF, self.x.dtype))

    def at(self, x: Tensor) -> Policy:
        """The same with other logits."""
        return self._replace(x=x)


def can_look(tensor: Tensor) -> bool:
    """Whether the values of ``tensor`` are there to be read."""
    return not tf.is_symbolic_tensor(tensor)


def as_logits(logits: TensorLike, *, name: str = "logits") -> Tensor:
    """``logits`` as a floating tensor; what is not floating point becomes float64."""
    tensor = tf.convert_to_tensor(logits)
    if tensor.dtype.is_floating:
        return tensor
    if not tensor.dtype.is_integer and not tensor.dtype.is_bool:
        raise MaskError(
            f"{name} has dtype {tensor.dtype.name}, shape {tensor.shape}. Expected real numbers."
        )
    return tf.cast(tensor, tf.float64)


def as_legal(mask: TensorLike, *, name: str = "mask") -> Tensor:
    """``mask`` as a bool tensor; a mask that is not bool is checked for 0/1 where it shows."""
    if not tf.is_tensor(mask):
        return tf.convert_to_tensor(as_bool(mask, name=name))
    tensor = tf.convert_to_tensor(mask)
    if tensor.dtype.is_bool:
        return tensor
    if not (tensor.dtype.is_integer or tensor.dtype.is_floating):
        raise MaskError(
            f"{name} has dtype {tensor.dtype.name}, shape {tensor.shape}. Expected bool, or "
            "numbers that are exactly 0 or 1 (True/1 = legal)."
        )
    if can_look(tensor):
        return tf.convert_to_tensor(as_bool(tensor.numpy(), name=name))
    return tf.not_equal(tensor, tf.zeros([], tensor.dtype))


def as_policy(
    logits: TensorLike, mask: TensorLike, *, logits_name: str = "logits", mask_name: str = "mask"
) -> Policy:
    """Read logits and mask, float16 and bfloat16 as float32."""
    x, legal = as_logits(logits, name=logits_name), as_legal(mask, name=mask_name)
    _check_static_shapes(x.shape, legal.shape, logits_name, mask_name)
    legal = constant_in_graph(legal)
    work = x if x.dtype in (tf.float32, tf.float64) else tf.cast(x, tf.float32)
    return Policy(work, legal, tf.logical_not(tf.reduce_any(legal, -1, keepdims=True)), x.dtype)


def as_actions(policy: Policy, actions: TensorLike) -> Tensor:
    """``actions`` as int32 or int64, checked against the policy as far as they show."""
    shape = policy.shape
    num_actions = shape[-1]
    if not tf.is_tensor(actions):
        actions = np.asarray(actions)
        if num_actions is not None:
            check_actions(actions, num_actions=num_actions)
    a = tf.convert_to_tensor(actions)
    if not a.dtype.is_integer:
        raise MaskError(
            f"actions have dtype {a.dtype.name}, shape {a.shape}. Expected integers in "
            f"[0, {num_actions}): cast with `tf.cast(actions, tf.int64)`."
        )
    if can_look(a) and num_actions is not None:
        check_actions(a.numpy(), num_actions=num_actions)
    if a.dtype not in (tf.int32, tf.int64):
        a = tf.cast(a, tf.int64)
    if a.shape.rank is not None and shape.rank is not None:
        try:
            tf.broadcast_static_shape(shape[:-1], a.shape)
        except ValueError:
            raise MaskError(
                f"actions have shape {a.shape}, logits and mask {shape}. Expected one action a "
                f"row, shape {shape[:-1]} (actions have no action axis)."
            ) from None
    return constant_in_graph(a)


def one_batch(actions: Tensor, *policies: Policy) -> tuple[Tensor, ...]:
    """``actions`` and policies broadcast to one batch shape; as they are where they have it.

    Sizes that a graph leaves open are broadcast when it runs, which costs nothing if they match.
    """
    arrays = [x for policy in policies for x in (policy.x, policy.legal)]
    if all_same(*(x.shape for x in arrays)) and all_same(arrays[0].shape[:-1], actions.shape):
        return actions, *policies
    batch = tf.shape(actions)
    for x in arrays:
        batch = tf.broadcast_dynamic_shape(batch, tf.shape(x)[:-1])
    wide = tf.concat([batch, tf.shape(arrays[0])[-1:]], 0)
    masks: dict[int, Tensor] = {}  # two policies with one mask go on having one
    for policy in policies:
        if id(policy.legal) not in masks:
            masks[id(policy.legal)] = tf.broadcast_to(policy.legal, wide)
    return tf.broadcast_to(actions, batch), *(
        policy._replace(x=tf.broadcast_to(policy.x, wide), legal=masks[id(policy.legal)])
        for policy in policies
    )


def same_pair(p: Policy, q: Policy) -> Tensor:
    """Check that two policies fit and return the dtype of a result over both."""
    _check_static_shapes(p.shape, q.shape, "p_logits", "q_logits")
    if p.dtype == q.dtype:
        return p.dtype
    return tf.float64 if tf.float64 in (p.dtype, q.dtype) else tf.float32


def all_same(*shapes: Tensor) -> bool:
    """Whether static shapes are known and the same."""
    known = all(shape.is_fully_defined() for shape in shapes)
    return known and len({tuple(shape.as_list()) for shape in shapes}) == 1


def constant_in_graph(tensor: Tensor) -> Tensor:
    """A tensor that has no gradient anyway, cut off in a graph.

    ``tf.custom_gradient`` refuses a function that reaches a variable: through actions that were
    drawn from the logits of a network, say.
    """
    return tensor if can_look(tensor) else tf.stop_gradient(tensor)


def _check_static_shapes(logits: Tensor, mask: Tensor, logits_name: str, mask_name: str) -> None:
    if logits.is_fully_defined() and mask.is_fully_defined():
        check_shapes(logits.as_list(), mask.as_list(), name=mask_name)
        return
    if logits.rank is None or mask.rank is None:
        return
    known = logits.rank and mask.rank
    if not known or (None not in (logits[-1], mask[-1]) and logits[-1] != mask[-1]):
        raise MaskError(
            f"{mask_name} has shape {mask}, {logits_name} have shape {logits}. Expected the same "
            f"length on the last axis: {mask_name} as [..., A], one entry an action. A mask is "
            "never reshaped or broadcast over the action axis."
        )
    try:
        tf.broadcast_static_shape(logits, mask)
    except ValueError:
        raise MaskError(
            f"{mask_name} has shape {mask}, {logits_name} have shape {logits}. Expected batch axes "
            "that broadcast."
        ) from None
