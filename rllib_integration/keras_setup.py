"""Keras 2 for RLlib's TensorFlow stack, chosen while it can still be chosen.

RLlib 2.60 on TensorFlow works with Keras 2 only. TensorFlow 2.16 and later bring Keras 3; with it
``framework="tf2"`` fails when the optimizer refuses a variable as learning rate and ``"tf"`` when
weights are read. The package ``tf-keras`` is Keras 2, and TensorFlow uses it when
``TF_USE_LEGACY_KERAS=1`` is set before the first use of ``tf.keras`` in a process. RLlib's own PPO
module uses ``tf.keras`` while it is imported, so in practice: before ``ray.rllib`` is imported.

A worker process of a local Ray inherits the variable from the driver that started Ray. A worker of
a cluster that was running before needs it in its runtime environment: ``runtime_env()``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping
from typing import Any

from maskcore import MaskError

__all__ = [
    "ENV_VAR",
    "import_tensorflow_first",
    "prefer_legacy_keras",
    "runtime_env",
    "setup_keras",
]

ENV_VAR = "TF_USE_LEGACY_KERAS"
_YES = ("1", "true", "True")
_REMEDY = (
    f"Set {ENV_VAR}=1 in the environment before Python starts, or import rllib_integration (or "
    "call rllib_integration.keras_setup.setup_keras()) before ray.rllib and before anything that "
    "uses tf.keras. For Ray workers: ray.init(runtime_env=rllib_integration.keras_setup."
    "runtime_env())."
)


def prefer_legacy_keras() -> None:
    """Set ``TF_USE_LEGACY_KERAS=1`` where nobody has decided yet. Imports nothing, never fails.

    Harmless for programs that never import TensorFlow, and without effect once ``tf.keras`` is in
    use; ``setup_keras`` is what finds that out.
    """
    if importlib.util.find_spec("tf_keras") is not None:
        os.environ.setdefault(ENV_VAR, "1")


def import_tensorflow_first() -> None:
    """Import TensorFlow, if it is installed, before Ray does.

    Where RLlib 2.60 is the first to import TensorFlow it switches v2 behaviour, and with it eager
    execution, off for the whole process. Both frameworks, "tf" and "tf2", work with it on.
    """
    prefer_legacy_keras()
    if importlib.util.find_spec("tensorflow") is not None:
        importlib.import_module("tensorflow")


def setup_keras() -> None:
    """Make ``tf.keras`` Keras 2 in this process, or say what to do. Imports TensorFlow.

    Idempotent; called by every module of the integration that needs TensorFlow.

    Raises:
        ImportError: If TensorFlow is not installed, or TensorFlow 2.16+ without tf-keras.
        MaskError: If Keras 3 is already in use, or ``TF_USE_LEGACY_KERAS`` forbids Keras 2.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ImportError("tensorflow is not installed. Run `pip install 'maskcore[tf]'`.")
    import_tensorflow_first()
    import tensorflow as tf

    version = _keras_version(tf)
    if not version.startswith("3"):
        return
    if importlib.util.find_spec("tf_keras") is None:
        raise ImportError(
            f"RLlib's TensorFlow stack needs Keras 2, found Keras {version}. Run `pip install "
            "tf-keras` (the same minor version as TensorFlow), then start again."
        )
    if os.environ.get(ENV_VAR) not in _YES:
        raise MaskError(
            f"{ENV_VAR} is set to {os.environ.get(ENV_VAR)!r}, so tf.keras is Keras {version}. "
            f"Expected '1': RLlib's TensorFlow stack needs Keras 2. {_REMEDY}"
        )
    raise MaskError(
        f"tf.keras is Keras {version}: it was used before {ENV_VAR}=1 was set, and cannot be "
        f"changed any more in this process. Expected Keras 2 (tf-keras). {_REMEDY}"
    )


def runtime_env(base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A Ray runtime environment whose workers use Keras 2.

    Args:
        base: A runtime environment to extend; it is not changed.

    Returns:
        For ``ray.init(runtime_env=...)``: ``base`` with ``TF_USE_LEGACY_KERAS=1`` among its
        ``env_vars``.

    >>> runtime_env({"env_vars": {"A": "1"}})
    {'env_vars': {'A': '1', 'TF_USE_LEGACY_KERAS': '1'}}
    """
    merged = dict(base or {})
    merged["env_vars"] = {**merged.get("env_vars", {}), ENV_VAR: "1"}
    return merged


def _keras_version(tf: Any) -> str:
    # tf-keras, seen as tf.keras, has no __version__; Keras 2 before TensorFlow 2.16 and Keras 3 do.
    # tf.compat.v1.keras is chosen separately, at its own first use.
    for keras in (tf.keras, tf.compat.v1.keras):
        try:
            version = str(getattr(keras, "__version__", "2"))
        except (AttributeError, ImportError):
            version = "3"
        if version.startswith("3"):
            return version
    return "2"
