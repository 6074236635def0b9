"""What a masked policy made of a few observations: logits, mask, probabilities, action."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.rllib.policy.sample_batch import SampleBatch

from maskcore import masked_softmax

__all__ = ["MaskTrace", "mask_trace"]


@dataclasses.dataclass(frozen=True)
class MaskTrace:
    """One row an observation.

    Attributes:
        logits: ``[n, A]``, the network's, unmasked.
        mask: ``[n, A]`` bool, True is legal.
        probs: ``[n, A]``, masked: exactly 0 where illegal.
        actions: ``[n]``, chosen.
    """

    logits: NDArray[np.floating[Any]]
    mask: NDArray[np.bool_]
    probs: NDArray[np.floating[Any]]
    actions: NDArray[np.integer[Any]]

    def __str__(self) -> str:
        lines = []
        for row, action in enumerate(self.actions):
            lines.append(f"row {row}: action {action}, {int(self.mask[row].sum())} legal")
            order = np.argsort(~self.mask[row], kind="stable")
            for a in order[:12]:
                legal = "legal  " if self.mask[row, a] else "illegal"
                chosen = "  <- chosen" if a == action else ""
                lines.append(
                    f"  {a:4d} {legal} logit {self.logits[row, a]:9.4f}"
                    f"  probability {self.probs[row, a]:.4f}{chosen}"
                )
            if len(order) > 12:
                lines.append(f"  ... {len(order) - 12} more")
        return "\n".join(lines)


def mask_trace(
    policy: Any, observations: Any, *, rows: int = 10, explore: bool = False, **kwargs: Any
) -> MaskTrace:
    """Trace a masked policy of any framework over the first ``rows`` observations.

    Args:
        policy: A policy of ``MaskedPPO``.
        observations: ``[B, n]`` flattened, e.g. a batch's ``obs``; or a list of the environment's.
        rows: How many.
        explore: Whether actions are drawn (True) or the most probable ones.
        kwargs: For ``compute_actions``, e.g. the state of a recurrent policy.
    """
    actions, _, extra = policy.compute_actions(observations[:rows], explore=explore, **kwargs)
    logits, mask = np.split(np.asarray(extra[SampleBatch.ACTION_DIST_INPUTS]), 2, axis=-1)
    legal = mask != 0
    return MaskTrace(
        logits=logits, mask=legal, probs=masked_softmax(logits, legal), actions=np.asarray(actions)
    )
