"""Action masking in Ray RLlib: masked models, distributions, policies, and the call that sets them.

Importing this package imports neither torch nor tensorflow nor Ray's algorithms; each name loads
what it needs on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rllib_integration.keras_setup import prefer_legacy_keras

if TYPE_CHECKING:
    from rllib_integration.config import with_action_masking
    from rllib_integration.gradient_report import gradient_report
    from rllib_integration.mask_trace import mask_trace
    from rllib_integration.ppo import MaskedPPO, MaskedPPOConfig
    from rllib_integration.registration import register
    from rllib_integration.split_heads import SplitHeads

__all__ = [
    "MaskedPPO",
    "MaskedPPOConfig",
    "SplitHeads",
    "gradient_report",
    "mask_trace",
    "register",
    "with_action_masking",
]

_HOME = {
    "MaskedPPO": "rllib_integration.ppo",
    "MaskedPPOConfig": "rllib_integration.ppo",
    "SplitHeads": "rllib_integration.split_heads",
    "gradient_report": "rllib_integration.gradient_report",
    "mask_trace": "rllib_integration.mask_trace",
    "register": "rllib_integration.registration",
    "with_action_masking": "rllib_integration.config",
}


prefer_legacy_keras()  # Before anything here imports Ray, and Ray TensorFlow.


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
