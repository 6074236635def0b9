"""``evaluate_actions(..., compiled=True)``: the contract on every kind of row, and the fallback."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._inductor import config as inductor
from torch._inductor import cpp_builder, exc

from backends import _torch_compiled as compiled
from backends import torch_backend as backend
from maskcore import spec
from maskcore.conformance import exact
from maskcore.masks import MaskError

# torch.compile imports what torch itself scripts.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script.* is deprecated")

WIDTH = 64
ROWS = compiled.FROM // WIDTH
Rows = dict[str, Tensor]


def ordinary(rows: int = ROWS, *, spread: float = 0.05, seed: int = 0) -> Rows:
    g = torch.Generator().manual_seed(seed)
    old = 3 * torch.randn(rows, WIDTH, generator=g)
    mask = torch.rand(rows, WIDTH, generator=g) < 0.5
    mask[:, :2] = True
    return {
        "logits": old + spread * torch.randn(rows, WIDTH, generator=g),
        "mask": mask,
        "actions": torch.randint(2, (rows,), generator=g),
        "old_logits": old,
    }


def extreme() -> Rows:
    """Rows of every kind, each next to ordinary ones."""
    rows = ordinary()
    z, mask, old = rows["logits"], rows["mask"], rows["old_logits"]
    z[~mask], old[~mask] = torch.nan, torch.inf  # never read
    mask[0] = False  # empty
    mask[1], mask[1, rows["actions"][1]] = False, True  # forced
    z[2, 0] = torch.nan
    z[3, 1] = torch.inf
    z[4, 0] = -torch.inf  # KL = +inf
    old[5, 0] = -torch.inf
    z[6, mask[6]] = -torch.inf
    mask[7, rows["actions"][7]] = False  # the action is illegal
    z[8, :2], old[8, :2] = torch.tensor([40.0, -40.0]), torch.tensor([39.0, -41.0])
    z[9] = old[9] + 1000.0  # one policy, and a constant
    z[10] = old[10]
    z[11, 0], old[11, 1] = 60.0, 60.0  # far apart
    z[12], old[12] = z[12] + 1e4, old[12] - 1e4
    z[13, 0] = old[13, 0] + 4.0
    return rows


def evaluate(rows: Rows, **more: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The three values and the gradient of a weighted sum of them."""
    z = rows["logits"].clone().requires_grad_()
    result = backend.evaluate_actions(z, **{k: v for k, v in rows.items() if k != "logits"}, **more)
    assert result.kl_divergence is not None
    loss = [(result.log_prob, 1.0), (result.entropy, -0.01), (result.kl_divergence, 0.2)]
    grad = torch.autograd.grad(
        [x for x, _ in loss], z, [torch.full_like(x, weight) for x, weight in loss]
    )[0]
    return result.log_prob, result.entropy, result.kl_divergence, grad


def expected(rows: Rows, old_mask: Tensor | None = None) -> tuple[np.ndarray, ...]:
    z, mask, actions, old = (
        x.double().numpy() if x.is_floating_point() else x.numpy() for x in rows.values()
    )
    before = mask if old_mask is None else old_mask.numpy()
    kl = spec.kl_divergence(old, z, p_mask=before, q_mask=mask)
    ordinary = mask.any(-1) & (mask == before).all(-1)
    for i in np.flatnonzero((kl < 1e-6) & ordinary):  # of the sum float64 has no digits left
        kl[i] = exact.kl_divergence(old[i, mask[i]], z[i, mask[i]])
    entropy = spec.entropy(z, mask)
    for i in np.flatnonzero((entropy > 0) & (entropy < 1e-6)):
        entropy[i] = exact.entropy(z[i, mask[i]])
    gradient = spec.log_prob_grad(z, mask, actions) - 0.01 * spec.entropy_grad(z, mask)
    to_new = spec.kl_divergence_grad(old, z, p_mask=before, q_mask=mask)[1]
    values = spec.log_prob(z, mask, actions), entropy, kl
    return *values, gradient + 0.2 * to_new


def close(got: Tensor, want: np.ndarray, *, relative: float, absolute: float) -> None:
    np.testing.assert_allclose(got.detach().numpy(), want, rtol=relative, atol=absolute)


def holds(rows: Rows, old_mask: Tensor | None = None) -> None:
    eps = float(np.finfo(np.float32).eps)
    got = evaluate(rows, old_mask=old_mask, compiled=True)
    want = expected(rows, old_mask)
    close(got[0], want[0], relative=4 * eps, absolute=4 * eps)
    close(got[1], want[1], relative=16 * eps, absolute=0)
    close(got[2], want[2], relative=1e-5, absolute=0)
    largest = np.nan_to_num(np.abs(want[3])).max(-1, keepdims=True)
    off = np.abs(got[3].numpy() - want[3]) > 8 * eps * largest
    assert not off.any(), np.nonzero(off)
    assert (np.isnan(got[3].numpy()) == np.isnan(want[3])).all()
    assert (got[3][~rows["mask"]] == 0).all()


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which compiled functions were called and did give something."""
    called: list[int] = []
    call: Callable[..., Any] = compiled._call  # pyright: ignore

    def counted(which: int, *arguments: Tensor) -> Any:
        found = call(which, *arguments)
        if found is not None:
            called.append(which)
        return found

    monkeypatch.setattr(compiled, "_call", counted)
    return called


@pytest.mark.parametrize("spread", [1e-6, 1e-3, 0.05, 1.0, 5.0])
def test_ordinary_rows(spread: float, loops: list[int]) -> None:
    holds(ordinary(spread=spread))
    assert loops == [0, 1]


def test_rows_of_every_other_kind(loops: list[int]) -> None:
    holds(extreme())
    assert loops == [0, 1]


def test_masks_that_differ(loops: list[int]) -> None:
    rows = ordinary()
    old_mask = rows["mask"].clone()
    old_mask[0, 5] = ~old_mask[0, 5]
    old_mask[1] = False
    rows["old_logits"][~old_mask] = torch.nan
    holds(rows, old_mask)
    assert loops == [0, 1]


def deep() -> Rows:
    """In the first rows the policies differ in entries of probability below 1e-7 alone."""
    rows = ordinary()
    old = torch.full((12, WIDTH), -40.0)
    old[:, :3] = torch.tensor([1 + 14 * 2.0**-23, 0.5, 0.25])  # -40 minus that loses 14 epsilon
    old[8:, 20:] = -21 - torch.rand(4, WIDTH - 20)
    new = old.clone()
    new[:4, 9] += torch.tensor([0.125, -0.125, 1.5, -3.0])
    new[4:8, 3:] += torch.tensor([0.125, -0.125, 1.5, -3.0])[:, None]
    new[8:, 9:30] += torch.tensor([0.125, -0.125, 1.5, -3.0])[:, None]
    rows["mask"][:12] = True
    rows["logits"][:12], rows["old_logits"][:12] = new, old
    return rows


def test_policies_that_differ_in_deep_entries_alone(loops: list[int]) -> None:
    rows = deep()
    z, old = rows["logits"].requires_grad_(), rows["old_logits"]
    result = backend.evaluate_actions(
        z, **{k: v for k, v in rows.items() if k != "logits"}, compiled=True
    )
    kl = result.kl_divergence
    assert kl is not None
    got = torch.autograd.grad(kl.sum(), z)[0].double().numpy()
    for i in range(12):
        before, after = old[i].double().numpy(), z[i].detach().double().numpy()
        want = np.array(exact.kl_gradients(before, after)[1])
        off = np.abs(got[i] - want).max() / np.abs(want).max()
        assert off <= 8 * np.finfo(np.float32).eps, (i, off)
        np.testing.assert_allclose(kl[i].item(), exact.kl_divergence(before, after), rtol=1e-5)
    assert loops == [0, 1]


def test_another_batch_size_is_no_other_compilation(loops: list[int]) -> None:
    evaluate(ordinary(), compiled=True)
    with torch.compiler.set_stance("fail_on_recompile"):
        evaluate(ordinary(ROWS + 37), compiled=True)
    assert loops == [0, 1, 0, 1]


def test_second_derivatives() -> None:
    rows = ordinary()
    z = rows.pop("logits").requires_grad_()
    grads: list[Tensor] = []
    for more in (True, False):
        result = backend.evaluate_actions(z, **rows, compiled=more)
        first = torch.autograd.grad(result.entropy.sum(), z, create_graph=True)[0]
        grads.append(torch.autograd.grad(first.square().sum(), z)[0])
    torch.testing.assert_close(*grads)
    assert grads[0].abs().max() > 0


def test_actions_out_of_range() -> None:
    for action in (-1, WIDTH):
        rows = ordinary()
        rows["actions"][3] = action
        with pytest.raises(MaskError, match="actions"):
            evaluate(rows, compiled=True)


def failing(error: BaseException) -> Callable[[], tuple[Callable[..., Any], ...]]:
    def run(*_: Tensor) -> Any:
        raise error

    return lambda: (run, run)


def wrapped(error: Exception) -> Exception:
    return exc.InductorError(error, None)


@pytest.mark.parametrize(
    "error",
    [
        exc.InvalidCxxCompiler(),
        wrapped(exc.InvalidCxxCompiler("cl")),
        wrapped(exc.CppCompileError(["g++"], "fatal error: Python.h")),
        exc.TritonMissing(None),
    ],
    ids=lambda error: type(getattr(error, "inner_exception", error)).__name__,
)
def test_one_warning_where_nothing_can_be_compiled(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_failed", [])
    monkeypatch.setattr(compiled, "_functions", failing(error))
    with pytest.warns(RuntimeWarning, match=re.escape(type(error).__name__)) as caught:
        got = evaluate(ordinary(), compiled=True)
    assert len(caught) == 1
    assert "Install a C++ compiler" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = evaluate(ordinary(), compiled=True)
    for a, b, c in zip(got, again, evaluate(ordinary()), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As in a new process, with an empty cache; and again afterwards."""

    def forget() -> None:
        torch.compiler.reset()
        compiled._functions.cache_clear()  # pyright: ignore
        cpp_builder.cpp_compiler_search.cache_clear()

    monkeypatch.setattr(compiled, "_failed", [])
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    forget()
    yield
    forget()


@pytest.mark.usefixtures("nothing_compiled")
def test_a_compiler_that_is_not_there() -> None:
    """What torch itself raises then."""
    with (
        inductor.patch({"cpp.cxx": ("/nowhere/g++",)}),
        pytest.warns(RuntimeWarning, match=r"No working C\+\+ compiler.*Install"),
    ):
        got = evaluate(ordinary(), compiled=True)
    for a, b in zip(got, evaluate(ordinary()), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no memory"),
        RuntimeError("The size of tensor a must match"),
        wrapped(RuntimeError("the disk is full")),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(getattr(error, "inner_exception", error)).__name__,
)
def test_any_other_failure_is_raised(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_failed", [])
    monkeypatch.setattr(compiled, "_functions", failing(error))
    with pytest.raises(type(error)) as caught:
        evaluate(ordinary(), compiled=True)
    assert caught.value is error
    assert not compiled._failed  # pyright: ignore
