"""Action masking in Ray RLlib: masked models, distributions, policies, and the call that sets them.

Importing this package imports neither torch nor tensorflow nor Ray's algorithms; each name loads
what it needs on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllib_integration.config import with_action_masking
    from rllib_integration.ppo import MaskedPPO, MaskedPPOConfig
    from rllib_integration.registration import register

__all__ = ["MaskedPPO", "MaskedPPOConfig", "register", "with_action_masking"]

_HOME = {
    "MaskedPPO": "rllib_integration.ppo",
    "MaskedPPOConfig": "rllib_integration.ppo",
    "register": "rllib_integration.registration",
    "with_action_masking": "rllib_integration.config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
