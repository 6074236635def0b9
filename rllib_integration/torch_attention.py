"""RLlib's attention layer with one window for acting and learning.

When RLlib 2.60 acts, a step attends to the ``memory_inference`` steps before it. When it learns, it
is given a chunk of steps after the same memory, and step t of the chunk attends to the whole memory
and to the t steps before it: to up to ``max_seq_len - 1`` steps more than when the action was
chosen. The ratio of new and old probability is then not 1 before the first update. The window below
ends that; nothing else differs, and the parameters are the same.
"""

from __future__ import annotations

import torch
from ray.rllib.models.torch.modules import RelativeMultiHeadAttention
from ray.rllib.utils.annotations import override
from torch import Tensor, nn

__all__ = ["WindowedAttention", "attend_within_window"]


class WindowedAttention(RelativeMultiHeadAttention):
    """``RelativeMultiHeadAttention`` in which each step sees the same number of steps before it."""

    @override(RelativeMultiHeadAttention)
    def forward(self, inputs: Tensor, memory: Tensor) -> Tensor:
        """Attend.

        Follows RLlib's method of the same name (Apache License 2.0), which follows Transformer-XL,
        https://www.aclweb.org/anthology/P19-1285.pdf.

        Args:
            inputs: ``[B, T, n]``, the steps.
            memory: ``[B, tau, n]``, the steps before them; no gradient flows into it.

        Returns:
            ``[B, T, out_dim]``; step t attends to itself and the tau steps before it.
        """
        steps, tau = inputs.shape[1], memory.shape[1]
        heads, size = self._num_heads, self._head_dim
        inputs = torch.cat((memory.detach(), inputs), dim=1)
        if self._input_layernorm is not None:
            inputs = self._input_layernorm(inputs)
        queries, keys, values = torch.chunk(self._qkv_layer(inputs), chunks=3, dim=-1)
        queries = queries[:, -steps:].reshape(-1, steps, heads, size)
        keys = keys.reshape(-1, tau + steps, heads, size)
        values = values.reshape(-1, tau + steps, heads, size)
        positions = self._pos_proj(self._rel_pos_embedding(tau + steps))
        positions = positions.reshape(tau + steps, heads, size)
        score = torch.einsum("bihd,bjhd->bijh", queries + self._uvar, keys)
        pos_score = torch.einsum("bihd,jhd->bijh", queries + self._vvar, positions)
        score = (score + self.rel_shift(pos_score)) / size**0.5
        ahead = torch.arange(tau + steps, device=score.device) - torch.arange(
            steps, device=score.device
        ).unsqueeze(1)
        outside = (ahead < 0) | (ahead > tau)  # RLlib leaves only what lies ahead out.
        score = score.masked_fill(outside[None, :, :, None], -torch.inf)
        weights = torch.softmax(score, dim=2)
        out = torch.einsum("bijh,bjhd->bihd", weights, values)
        return self._linear_layer(out.reshape(*out.shape[:2], heads * size))


def attend_within_window(network: nn.Module) -> None:
    """Turn every attention layer of RLlib's in ``network`` into a ``WindowedAttention``."""
    for layer in network.modules():
        if type(layer) is RelativeMultiHeadAttention:
            layer.__class__ = WindowedAttention  # It adds no state: the parameters stay.
