"""The demo: PPO three times on one environment, with the mask, with half of it, and without.

Run ``python -m rllib_integration.demo``.
"""

from __future__ import annotations
