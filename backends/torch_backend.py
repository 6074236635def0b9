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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backends._torch_distribution import MaskedCategorical
from backends._torch_functions import (
    ActionEvaluation,
    cross_entropy,
    entropy,
    evaluate_actions,
    kl_divergence,
    log_prob,
    masked_log_softmax,
    masked_softmax,
    mode,
    sample,
    sample_with_log_prob,
)

__all__ = [
    "NAME",
    "ActionEvaluation",
    "MaskedCategorical",
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
    "sample_with_log_prob",
    "to_numpy",
    "vjp",
]

NAME = "torch"

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
