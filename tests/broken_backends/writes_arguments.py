"""Illegal logits are overwritten in the caller's own array."""

from maskcore import spec
from maskcore.spec import *  # noqa: F403

CAUGHT_BY = "arguments_unchanged"


def masked_softmax(logits, mask):
    result = spec.masked_softmax(logits, mask)
    if logits.flags.writeable and mask.shape == logits.shape:
        logits[~mask] = -1e9
    return result
