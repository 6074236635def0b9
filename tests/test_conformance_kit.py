"""The kit itself: its strategies draw what they promise, and it names what is broken."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import broken_backends
import numpy as np
import pytest
from hypothesis import Phase, find, given, settings

from maskcore.conformance import ROWS, Adapter, Broken, Case, check_row, load, strategies
from maskcore.conformance.case import loud_rows, support
from maskcore.conformance.compare import close, refuses, same
from maskcore.conformance.reduce import reduce_case
from maskcore.conformance.runner import run

HERE = Path(__file__).resolve().parent
BROKEN = [module.name for module in pkgutil.iter_modules(broken_backends.__path__)]
FAST = settings(phases=[Phase.generate], max_examples=5000, derandomize=True, database=None)


# --- strategies ---------------------------------------------------------------------------


def legal(case: Case) -> np.ndarray:
    return case.logits[case.mask]


@pytest.mark.parametrize(
    ("what", "holds"),
    {
        "an empty row": lambda c: (c.mask.sum(-1) == 0).any(),
        "a forced row": lambda c: (c.mask.sum(-1) == 1).any(),
        "an ordinary row": lambda c: (c.mask.sum(-1) >= 2).any(),
        "all three kinds in a batch": lambda c: {0, 1, 2} <= set(np.minimum(c.mask.sum(-1), 2)),
        "1e8": lambda c: (legal(c) == np.float32(1e8)).any(),
        "-1e8": lambda c: (legal(c) == -np.float32(1e8)).any(),
        "1e30": lambda c: (np.abs(legal(c) / 1e30 - 1) < 1e-6).any(),
        "-1e30": lambda c: (np.abs(legal(c) / -1e30 - 1) < 1e-6).any(),
        "a tiny number": lambda c: ((legal(c) != 0) & (np.abs(legal(c)) < 1e-20)).any(),
        "an offset of 1e4": lambda c: (np.abs(legal(c) - 1e4) < 20).all() and c.mask.sum() > 2,
        "equal logits": lambda c: ((c.mask.sum(-1) > 2) & (np.ptp(c.logits, -1) == 0)).any(),
        "a legal -inf": lambda c: np.isneginf(legal(c)).any(),
        "a NaN under the mask": lambda c: np.isnan(c.logits[~c.mask]).any(),
        "+inf under the mask": lambda c: np.isposinf(c.logits[~c.mask]).any(),
        "3e38 under the mask": lambda c: (c.logits[~c.mask] == np.float32(3e38)).any(),
        "junk under the second mask": lambda c: np.isnan(c.q_logits[~c.q_mask]).any(),
        "equal policies": lambda c: bool(
            (c.mask == c.q_mask).all() and (legal(c) == c.q_logits[c.mask]).all() and c.mask.any()
        ),
        "a KL that is infinite": lambda c: (
            support(c.logits, c.mask) & ~support(c.q_logits, c.q_mask)
        ).any(),
        "a larger second mask": lambda c: (
            (c.mask <= c.q_mask).all(-1) & (c.mask < c.q_mask).any(-1) & c.mask.any(-1)
        ).any(),
        "an illegal action": lambda c: (
            ~np.take_along_axis(c.mask, c.actions[:, None], -1)[:, 0] & c.mask.any(-1)
        ).any(),
        "float64": lambda c: c.logits.dtype == np.float64,
        "a weight of 0": lambda c: (c.cotangent == 0).any(),
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_cases_draw(what: str, holds: Callable[[Case], bool]) -> None:
    with np.errstate(invalid="ignore", over="ignore"):
        find(strategies.cases(), lambda c: bool(holds(c)), settings=FAST)


@pytest.mark.parametrize("flavour", strategies.FLAVOURS)
def test_every_flavour_is_drawn_alone(flavour: str) -> None:
    case = find(
        strategies.cases(flavours=(flavour,), kinds=("ordinary",), max_actions=5),
        lambda c: np.unique(legal(c)).size > 1 or flavour == "equal",
        settings=FAST,
    )
    assert support(case.logits, case.mask).any(-1).all()


@given(strategies.cases())
def test_cases_have_a_distribution_unless_loud(case: Case) -> None:
    assert not loud_rows(case.logits, case.mask).any()
    assert not loud_rows(case.q_logits, case.q_mask).any()
    assert case.logits.shape == case.mask.shape == case.q_logits.shape == case.entry_cotangent.shape
    assert ((case.actions >= 0) & (case.actions < case.logits.shape[-1])).all()


@given(strategies.cases(kinds=("forced",)))
def test_forced_cases_are_forced(case: Case) -> None:
    assert (case.mask.sum(-1) == 1).all()


@given(strategies.cases(kinds=("ordinary",), relations=("near",), actions="illegal"))
def test_near_cases_are_near(case: Case) -> None:
    assert (case.mask.sum(-1) >= 2).all()
    assert (case.mask == case.q_mask).all()
    for p, q, mask in zip(case.wide, case.q_wide, case.mask, strict=True):
        legal = mask & np.isfinite(p)
        apart, size = q[legal] - p[legal], np.maximum(np.abs(p[legal]), np.abs(q[legal]))
        room = 1.0 + 4 * case.eps * size
        assert any((np.abs(apart - shift) <= room).all() for shift in strategies.SHIFTS)
    has_illegal = ~case.mask.all(-1)
    taken = np.take_along_axis(case.mask, case.actions[:, None], -1)[:, 0]
    assert not taken[has_illegal].any()


@given(strategies.cases(dtypes=("float16",)))
def test_float16_cases_stay_finite(case: Case) -> None:
    assert not np.isposinf(case.logits[case.mask]).any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_loud_cases_draw(value: float) -> None:
    case = find(
        strategies.cases(loud=True),
        lambda c: (
            bool((loud_rows(c.logits, c.mask) & (np.isin(c.logits, value)).any(-1)).any())
            if not np.isnan(value)
            else bool(np.isnan(c.logits[c.mask]).any())
        ),
        settings=FAST,
    )
    assert loud_rows(case.logits, case.mask).any()


def test_broadcast_cases_draw_different_shapes() -> None:
    for differ in (
        lambda c: c.logits.ndim < c.mask.ndim,
        lambda c: c.mask.ndim < c.logits.ndim,
        lambda c: c.logits.shape[:-1] == (2, 1) and c.mask.shape[:-1] == (1, 3),
    ):
        case = find(strategies.broadcast_cases(), differ, settings=FAST)
        assert case.actions.shape == case.shape[:-1] == case.cotangent.shape


# --- comparisons --------------------------------------------------------------------------


def test_close_says_where() -> None:
    close([1.0, np.nan, np.inf], [1.0, np.nan, np.inf], 0.0, "x")
    with pytest.raises(Broken, match=r"x: found 2\.0, expected 1\.0 within 0\.5 at index \(1,\)"):
        close([1.0, 2.0], [1.0, 1.0], 0.5, "x")
    for wrong in ([np.nan], [np.inf], [-np.inf]):
        with pytest.raises(Broken):
            close(wrong, [1.0], 1e9, "x")
        with pytest.raises(Broken):
            close([1.0], wrong, 1e9, "x")
    with pytest.raises(Broken, match="shape"):
        close([1.0], 1.0, 1.0, "x")


def test_same_knows_nan_and_shapes() -> None:
    same([np.nan, 1], [np.nan, 1], "x")
    with pytest.raises(Broken, match="expected 2"):
        same([1, 1], [1, 2], "x")
    with pytest.raises(Broken, match="shape"):
        same([1], [[1]], "x")


def test_refuses_wants_the_right_error() -> None:
    assert refuses(lambda: int("x"), (ValueError,), "x").startswith("invalid literal")
    with pytest.raises(Broken, match="accepted, result 1"):
        refuses(lambda: 1, (ValueError,), "x")
    with pytest.raises(Broken, match="raised ZeroDivisionError"):
        refuses(lambda: 1 / 0, (ValueError,), "x")


# --- the runner ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", BROKEN)
def test_the_broken_module_is_named_with_a_small_input(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = load(f"broken_backends.{name}")
    row = ROWS[adapter.module.CAUGHT_BY]
    result = check_row(row, adapter, examples=300)
    assert result.verdict == "fails"
    assert f"import broken_backends.{name} as m" in result.reason
    exec(compile(result.reason, name, "exec"), {})  # it can be pasted
    if row.cases is not None and "print" in result.reason:
        case_size = max(len(line) for line in result.reason.splitlines() if "np.array" in line)
        assert case_size < 80  # one row of two or three short numbers
    # The same row holds on the module that this one was made from.
    assert check_row(row, load("maskcore.spec"), examples=30).verdict == "holds" or (
        row.group == "accuracy"
    )


def test_every_fault_has_its_own_row() -> None:
    rows = [load(f"broken_backends.{name}").module.CAUGHT_BY for name in BROKEN]
    assert set(rows) <= set(ROWS)
    assert len(BROKEN) >= 15


def test_reduce_finds_one_row_of_two_simple_numbers() -> None:
    ordinary = strategies.cases(kinds=("ordinary",), actions="legal")
    case = find(ordinary, lambda c: c.logits.shape == (4, 6), settings=FAST)

    def fails(c: Case) -> bool:
        return bool((np.abs(c.logits) >= 0).any() and c.mask.any() and c.shape[-1] >= 2)

    smallest = reduce_case(case, fails)
    assert smallest.logits.tolist() == [[0.0, 0.0]]
    assert smallest.mask.all()
    assert smallest.cotangent.tolist() == [1.0]


@pytest.mark.parametrize("kind", strategies.KINDS)
def test_reduce_keeps_the_kind_of_row(kind: strategies.Kind) -> None:
    alike = strategies.cases(kinds=(kind,), relations=("equal",), max_rows=2)
    case = find(alike, lambda c: c.logits.shape == (2, 5), settings=FAST)
    smallest = reduce_case(case, lambda _: True)
    number = {"empty": 0, "forced": 1, "ordinary": 2}[kind]
    assert smallest.mask.sum(-1).tolist() == smallest.q_mask.sum(-1).tolist() == [number]
    assert (smallest.logits == smallest.q_logits).all()


def test_reduce_stops_after_its_tries() -> None:
    case = find(strategies.cases(), lambda c: c.logits.shape == (4, 6), settings=FAST)
    calls: list[Case] = []

    def fails(c: Case) -> bool:
        calls.append(c)
        return True

    reduce_case(case, fails, tries=5)
    assert len(calls) == 5


def test_what_a_module_lacks_is_not_claimed() -> None:
    class Tiny:
        NAME = "tiny"
        NOT_CLAIMED = {"entropy_*": "no entropy by design"}  # noqa: RUF012
        masked_softmax = staticmethod(load("maskcore.spec").module.masked_softmax)
        entropy = staticmethod(load("maskcore.spec").module.entropy)

    results = {r.row.name: r for r in run(Adapter(Tiny), examples=5)}
    assert results["masked_softmax_forced_row"].verdict == "holds"
    assert results["log_prob_forced_row"].reason == "no log_prob"
    assert results["entropy_forced_row"].reason == "no entropy by design"
    assert results["entropy_gradient"].verdict == "not claimed"
    assert {r.verdict for r in results.values()} == {"holds", "not claimed"}


def test_unknown_rows_are_an_error() -> None:
    with pytest.raises(KeyError, match="no_such_row"):
        run(load("maskcore.spec"), only=["no_such_row"])


def test_a_module_that_is_not_deterministic_is_said_to_be() -> None:
    class Coin:
        calls = 0

        def masked_softmax(self, logits, mask):
            Coin.calls += 1
            return load("maskcore.spec").module.masked_softmax(logits, mask) + (Coin.calls == 3)

    result = check_row(ROWS["masked_softmax_forced_row"], Adapter(Coin()), examples=20)
    assert result.verdict == "fails"
    assert "not deterministic" in result.reason


# --- the command and the pytest face ------------------------------------------------------


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(HERE.parent), "PATH": "/usr/bin:/bin"},
    )


def test_the_command_prints_a_table_and_says_so_in_its_status() -> None:
    rows = ("--row", "entropy_ordinary_row", "--row", "mode_forced_row", "--examples", "30")
    good = command("maskcore.conformance", "maskcore.spec", *rows)
    assert good.returncode == 0, good.stderr
    assert "2 holds, 0 fails, 0 not claimed" in good.stdout
    bad = command("maskcore.conformance", "broken_backends.entropy_sign", *rows)
    assert bad.returncode == 1
    assert "entropy_ordinary_row  fails" in bad.stdout
    assert "mode_forced_row       holds" in bad.stdout
    assert "logits = np.array([[0.0, 0.0]], np.float32)" in bad.stdout
    missing = command("maskcore.conformance", "no.such.module")
    assert missing.returncode == 2
    assert "no.such.module" in missing.stderr


def test_the_pytest_face_takes_a_backend() -> None:
    pytest_option = ("-p", "maskcore._pytest_option") if not _installed() else ()
    done = command(
        "pytest",
        *pytest_option,
        "-p",
        "no:cacheprovider",
        "--pyargs",
        "maskcore.conformance",
        "--backend",
        "broken_backends.entropy_sign",
        "--examples",
        "10",
        "-q",
        "-k",
        "entropy_forced_row or entropy_ordinary_row or mode_empty_row",
    )
    assert done.returncode == 1, done.stderr
    assert "1 failed, 2 passed" in done.stdout
    assert "logits = np.array([[0.0, 0.0]], np.float32)" in done.stdout


def _installed() -> bool:
    from importlib.metadata import entry_points

    return any("maskcore" in point.value for point in entry_points(group="pytest11"))
