"""The house: imports run down, no framework is loaded unasked, and these tests can fail."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from backends import available_backends, get_backend
from maskcore import MaskError

ROOT = Path(__file__).resolve().parent.parent
FRAMEWORKS = ("torch", "tensorflow", "tf_keras", "keras", "ray", "gymnasium")
# What each floor may import besides the standard library.
FLOORS = {
    "maskcore": {"maskcore", "numpy"},
    "backends": {"maskcore", "backends", "numpy", "torch", "tensorflow"},
    "rllib_integration": None,
}
# The property suite of the conformance kit is the one place below maskcore/ that needs these.
KIT = {"hypothesis", "pytest"}


def imported(source: str) -> set[str]:
    """Top-level packages that a source imports anywhere, functions included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").split(".")[0])
    return names


def illegal_imports(source: str, floor: str, *, kit: bool = False) -> set[str]:
    allowed = FLOORS[floor]
    if allowed is None:
        return set()
    return imported(source) - allowed - sys.stdlib_module_names - (KIT if kit else set())


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_run_one_way(floor):
    files = sorted((ROOT / floor).rglob("*.py"))
    assert files
    wrong = {
        str(path.relative_to(ROOT)): names
        for path in files
        if (names := illegal_imports(path.read_text(), floor, kit="conformance" in path.parts))
    }
    assert wrong == {}


def test_the_import_check_sees_a_wrong_import():
    assert illegal_imports("def f():\n    import torch", "maskcore") == {"torch"}
    assert illegal_imports("from rllib_integration import x", "backends") == {"rllib_integration"}
    assert illegal_imports("import hypothesis", "maskcore") == {"hypothesis"}


def loaded_frameworks(statement: str) -> set[str]:
    """Which frameworks a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys; print(*set({FRAMEWORKS!r}) & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import maskcore",
        "import backends; backends.available_backends()",
        "import backends; backends.get_backend('numpy')",
    ],
)
def test_nothing_loads_a_framework_unasked(statement):
    assert loaded_frameworks(statement) == set()


def test_the_loading_check_sees_a_loaded_framework():
    assert loaded_frameworks("import maskcore, gymnasium") == {"gymnasium"}


def test_get_backend_loads_its_own_framework_only():
    assert loaded_frameworks("import backends; backends.get_backend('torch')") == {"torch"}


def test_backends_are_listed_without_being_imported():
    assert available_backends() == ("numpy", "torch", "tf")


def test_an_unknown_backend_is_named():
    with pytest.raises(MaskError, match=r"'jax' is not known. Expected one of 'numpy'"):
        get_backend("jax")


def test_a_missing_framework_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'maskcore\[torch\]'"):
        get_backend("torch")


@pytest.mark.parametrize("floor", FLOORS)
def test_no_file_is_named_after_a_framework(floor):
    names = {path.stem for path in (ROOT / floor).rglob("*.py")}
    assert not names & {*FRAMEWORKS, "numpy", "tf"}
