"""``make mutants``: break the backends in one place at a time and see which test notices.

Each mutation of ``benchmarks.mutations`` is a text that is replaced in a copy of the tree; then the
contract rows of that backend, and its own tests, run until one fails. A survivor that is not
explained, or a mutation whose text is no longer in the file, is an error. ``--only TEXT`` runs
those that name it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("maskcore", "backends", "tests", "benchmarks", "pyproject.toml")
TESTS = ("tests/test_accuracy.py", "tests/test_contract.py", "tests/test_faults_numbers.py")
SECONDS = 420


def stale(mutation: Mutation) -> str | None:
    """Why a mutation cannot be applied, or None."""
    path = ROOT / "backends" / mutation.file
    if not path.exists():
        return "the file is gone"
    count = path.read_text().count(mutation.old)
    return None if count == 1 else f"its text is in the file {count} times"


def catch(mutation: Mutation, profile: str) -> str | None:
    """The test that fails first on the mutated tree, or None where all pass."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                skip = shutil.ignore_patterns("__pycache__", ".hypothesis")
                shutil.copytree(source, tree / name, ignore=skip)
            else:
                shutil.copy(source, tree / name)
        path = tree / "backends" / mutation.file
        path.write_text(path.read_text().replace(mutation.old, mutation.new))
        return run(tree, mutation.backend, profile)


def run(tree: Path, backend: str, profile: str) -> str | None:
    """The first failing test of a backend in a tree."""
    environment = {
        **os.environ,
        "MASKCORE_PROFILE": profile,
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(tree),
    }
    # The backend's name within the brackets of a test's parameters.
    own = sorted(str(path.relative_to(tree)) for path in tree.glob(f"tests/test_{backend}_*.py"))
    command = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *TESTS, *own, "-k", backend]
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "none: the tests did not end"
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if found:
        return found[1].replace("tests/", "")
    if done.returncode:
        return f"none: pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-200:]}"
    return None


def judge(mutation: Mutation) -> str | None:
    """As ``catch``, with few examples first and 500 where these are not enough.

    A mutation that is explained is not searched for longer: should the few examples catch it after
    all, it says so.
    """
    found = catch(mutation, "dev")
    return found if found or mutation.survives else catch(mutation, "ci")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("--only", metavar="TEXT", help="those with TEXT in file, name or backend")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    chosen = [m for m in MUTATIONS if not options.only or options.only in f"{m}"]
    gone = [(m, why) for m in chosen if (why := stale(m)) is not None]
    live = [m for m in chosen if stale(m) is None]
    for backend in sorted({m.backend for m in live}):
        broken = run(ROOT, backend, "dev")
        if broken:
            print(f"{backend} fails without a mutation: {broken}")
            return 2
    survivors: list[Mutation] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutation, test in zip(live, pool.map(judge, live), strict=True):
            verdict = test or ("survives" if mutation.survives is None else "survives, explained")
            print(f"{mutation.backend:5} {mutation.name}: {verdict}", flush=True)
            if test is None:
                survivors.append(mutation)
    print(f"\n{len(live)} mutations, {len(live) - len(survivors)} caught")
    for mutation in survivors:
        why = mutation.survives or "NOT EXPLAINED"
        print(f"survivor: {mutation.backend} {mutation.name}: {why}")
    for mutation, why in gone:
        print(f"stale: {mutation.backend} {mutation.name}: {why}")
    return 1 if gone or any(m.survives is None for m in survivors) else 0


if __name__ == "__main__":
    sys.exit(main())
