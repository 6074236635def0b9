"""What the wheel holds, and what the README says."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import maskcore

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("maskcore", "backends", "rllib_integration")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_the_three_packages_and_nothing_else(wheel):
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_the_wheel_holds_every_module(wheel):
    modules = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert modules <= wheel


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_says_that_it_is_typed(wheel, package):
    assert f"{package}/py.typed" in wheel


def test_the_version_is_said_once():
    declared = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared is not None
    assert declared[1] == maskcore.__version__


def readme_blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_first_example_of_the_readme_runs():
    exec(readme_blocks("python")[0], {})


def test_the_rllib_example_of_the_readme_runs():
    from ray.rllib.algorithms.ppo import PPOConfig

    from rllib_integration.envs import MaskedChainEnv

    example = readme_blocks("python")[1]
    config = (
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
        .environment(MaskedChainEnv)
        .framework("torch")
    )
    names = {"your_ppo_config": config}
    exec(example.replace("algorithm = config.build_algo()", ""), names)
    assert names["config"].action_masking["mask_key"] == "action_mask"


def test_every_make_target_of_the_readme_exists():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert {"demo", "test", "check", "bench"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_contract_of_the_readme_is_the_specifications():
    from maskcore import spec

    readme = (ROOT / "README.md").read_text()
    rows = re.findall(r"^``(\w+)(?:\(a\))?`` ", spec.__doc__ or "", re.MULTILINE)
    assert len(rows) == 7
    for name in rows:
        assert re.search(rf"^\| `{name}", readme, re.MULTILINE), name
