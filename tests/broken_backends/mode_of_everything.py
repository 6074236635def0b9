"""The mode is looked for among illegal actions too."""

import numpy as np

from maskcore.spec import *  # noqa: F403

CAUGHT_BY = "mode_ordinary_row"


def mode(logits, mask):
    return np.argmax(logits + 0 * mask, -1)
