"""One masked categorical policy, the same functions for each framework.

``get_backend("torch")`` loads torch and nothing else; ``available_backends()`` loads nothing.

>>> "numpy" in available_backends()
True
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from maskcore import MaskError

__all__ = ["available_backends", "get_backend"]

# Name -> (module, the distribution packages it needs, how to install them).
_BACKENDS = {
    "numpy": ("backends.numpy_backend", "numpy", "pip install maskcore"),
    "torch": ("backends.torch_backend", "torch", "pip install 'maskcore[torch]'"),
    "tf": ("backends.tf_backend", "tensorflow", "pip install 'maskcore[tf]'"),
}


def available_backends() -> tuple[str, ...]:
    """Names of the backends whose framework is installed, without importing any of them."""
    return tuple(
        name
        for name, (_, package, _) in _BACKENDS.items()
        if importlib.util.find_spec(package) is not None
    )


def get_backend(name: str) -> ModuleType:
    """Import one backend.

    Args:
        name: ``"numpy"``, ``"torch"`` or ``"tf"``.

    Returns:
        The module, with the functions of ``maskcore.spec`` for that framework's arrays.

    Raises:
        MaskError: For a name that is not a backend.
        ImportError: If the framework is not installed, with the command that installs it.

    >>> get_backend("numpy").NAME
    'numpy'
    """
    if name not in _BACKENDS:
        raise MaskError(
            f"backend {name!r} is not known. Expected one of {', '.join(map(repr, _BACKENDS))}."
        )
    module, package, install = _BACKENDS[name]
    if importlib.util.find_spec(package) is None:
        raise ImportError(
            f"backend {name!r} needs {package}, which is not installed. Run `{install}`."
        )
    return importlib.import_module(module)
