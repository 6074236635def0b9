"""What the tests of the TensorFlow policies share. Import it before anything of Ray."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import rllib_support
import tensorflow as tf
from rllib_support import MaskedChainEnv

__all__ = [
    "FRAMEWORKS",
    "TF_MARKS",
    "A",
    "change_weights",
    "config_of",
    "evaluate",
    "gradients_of",
    "moved",
    "set_logits_bias",
    "weights_of",
]

# These tests need no running Ray: under pytest-xdist they run beside those that do.
TF_MARKS = [
    *(mark for mark in rllib_support.RLLIB_MARKS if mark.name != "xdist_group"),
    pytest.mark.xdist_group("tensorflow"),
]

# Name in a test's id -> (framework, eager tracing).
FRAMEWORKS = {"tf": ("tf", False), "tf2": ("tf2", False), "tf2 traced": ("tf2", True)}
A = 6  # Actions in rllib_support.SMALL; the mask's columns come first in the flat observation.


def config_of(name: str, env: Any = MaskedChainEnv, **env_config: Any) -> Any:
    """``rllib_support.old_stack`` on one of ``FRAMEWORKS``."""
    framework, tracing = FRAMEWORKS[name]
    config = rllib_support.old_stack(env, framework=framework, **env_config)
    return config.framework(framework, eager_tracing=tracing)


def evaluate(policy: Any, function: Callable[[], Any]) -> Any:
    """``function()``, which returns tensors, as NumPy: in the policy's graph, or eagerly."""
    session = policy.get_session()
    if session is None:
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), function())
    with session.graph.as_default():
        return session.run(function())


def gradients_of(policy: Any, batch: Any) -> tuple[dict[str, Any], list[Any]]:
    """The learner's statistics and the gradients, without an update."""
    gradients, info = policy.compute_gradients(batch.copy())
    return info["learner_stats"], [np.zeros(()) if g is None else g for g in gradients]


def moved(policy: Any, seed: int = 3) -> Any:
    """Another policy than the one that sampled: so that KL and ratio say something."""
    rng = np.random.default_rng(seed)
    change_weights(policy, lambda _, w: w + 0.2 * rng.normal(size=w.shape).astype(w.dtype))
    return policy


def change_weights(policy: Any, change: Callable[[str, Any], Any]) -> None:
    """Set every weight to ``change(name, weight)``; the names are the model's."""
    names = list(policy.model.variables(as_dict=True))
    weights = policy.get_weights()
    if isinstance(weights, dict):
        assert len(names) == len(weights)
        policy.set_weights(
            {k: change(n, w) for n, (k, w) in zip(names, weights.items(), strict=True)}
        )
    else:
        policy.set_weights([change(n, w) for n, w in zip(names, weights, strict=True)])


def weights_of(policy: Any) -> dict[str, Any]:
    """Every weight under the model's name for it."""
    found: dict[str, Any] = {}

    def keep(name: str, weight: Any) -> Any:
        found[name] = weight.copy()
        return weight

    change_weights(policy, keep)
    return found


def set_logits_bias(policy: Any, values: Any) -> None:
    """Set the bias of the logits layer of a fully connected network."""
    change_weights(
        policy,
        lambda name, w: (
            np.broadcast_to(np.asarray(values, w.dtype), w.shape).copy()
            if name.endswith("fc_out.bias:0")
            else w
        ),
    )
