"""Derivatives on Torch: first and second order, torch.func, torch.compile, torch.export."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from backends import torch_backend as backend
from maskcore import spec


@pytest.fixture
def rows() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """float64 logits, old logits, mask (an empty and a forced row among them), actions."""
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 5, generator=g, dtype=torch.float64)
    old = logits + 0.1 * torch.randn(6, 5, generator=g, dtype=torch.float64)
    mask = torch.rand(6, 5, generator=g) < 0.6
    mask[0], mask[1] = False, torch.arange(5) == 2
    return logits, old, mask, mask.to(torch.uint8).argmax(-1)


# torch's own forward-mode formulas are scripted on first use.
scripted_by_torch = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")

Three = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


def three(mask: Tensor, actions: Tensor) -> Three:
    def function(logits: Tensor, old: Tensor) -> tuple[Tensor, ...]:
        return tuple(backend.evaluate_actions(logits, mask, actions, old_logits=old))

    return function


def test_first_and_second_derivatives_of_the_step(rows: tuple[Tensor, ...]) -> None:
    logits, old, mask, actions = rows
    inputs = (logits.requires_grad_(), old.requires_grad_())
    assert torch.autograd.gradcheck(three(mask, actions), inputs)
    assert torch.autograd.gradgradcheck(three(mask, actions), inputs)


@scripted_by_torch
def test_forward_mode_derivatives_of_the_step(rows: tuple[Tensor, ...]) -> None:
    logits, old, mask, actions = rows
    inputs = (logits.requires_grad_(), old.requires_grad_())
    assert torch.autograd.gradcheck(
        three(mask, actions), inputs, check_forward_ad=True, check_backward_ad=False
    )


@pytest.mark.parametrize("name", ["masked_softmax", "entropy"])
def test_derivatives_of_one_policy(name: str, rows: tuple[Tensor, ...]) -> None:
    logits, _, mask, _ = rows

    def function(z: Tensor) -> Tensor:
        return getattr(backend, name)(z, mask)

    assert torch.autograd.gradcheck(function, logits.requires_grad_())
    assert torch.autograd.gradgradcheck(function, logits)


@pytest.mark.parametrize("name", ["kl_divergence", "cross_entropy"])
def test_derivatives_of_two_policies(name: str, rows: tuple[Tensor, ...]) -> None:
    logits, old, mask, _ = rows

    def function(p: Tensor, q: Tensor) -> Tensor:
        return getattr(backend, name)(p, q, p_mask=mask, q_mask=mask)

    inputs = (old.requires_grad_(), logits.requires_grad_())
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@scripted_by_torch
def test_torch_func_agrees_with_autograd(rows: tuple[Tensor, ...]) -> None:
    logits, old, mask, actions = rows
    function = three(mask, actions)

    def total(z: Tensor) -> Tensor:
        return torch.stack(function(z, old)).sum()

    leaf = logits.clone().requires_grad_()
    want = torch.autograd.grad(total(leaf), leaf)[0]
    torch.testing.assert_close(torch.func.grad(total)(logits), want)
    torch.testing.assert_close(
        torch.func.vmap(backend.entropy)(logits, mask), backend.entropy(logits, mask)
    )
    direction = torch.ones_like(logits).cumsum(-1)
    _, slope = torch.func.jvp(total, (logits,), (direction,))
    torch.testing.assert_close(slope, (want * direction).sum())


@pytest.mark.parametrize("dynamic", [None, True])
def test_compiles_without_a_graph_break(rows: tuple[Tensor, ...], dynamic: bool | None) -> None:
    logits, old, mask, actions = rows
    torch._dynamo.reset()

    def step(z: Tensor, q: Tensor, m: Tensor, a: Tensor) -> tuple[Tensor, ...]:
        return tuple(backend.evaluate_actions(z, m, a, old_logits=q))

    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    inputs = (logits.requires_grad_(), old.requires_grad_())
    got, want = compiled(*inputs, mask, actions), step(*inputs, mask, actions)
    torch.testing.assert_close(got, want)
    gradients = (torch.autograd.grad([x.sum() for x in r], inputs) for r in (got, want))
    torch.testing.assert_close(*gradients)


def test_exports_with_the_mask_as_an_input(rows: tuple[Tensor, ...]) -> None:
    class Policy(torch.nn.Module):
        def forward(self, z: Tensor, m: Tensor) -> tuple[Tensor, ...]:
            return backend.mode(z, m), backend.entropy(z, m), backend.sample(z, m)

    logits, _, mask, _ = rows
    rows_axis = torch.export.Dim("rows")
    program = torch.export.export(
        Policy(), (logits, mask), dynamic_shapes=({0: rows_axis}, {0: rows_axis})
    )
    best, entropy, drawn = program.module()(logits[:4], ~mask[:4])
    assert torch.equal(best, backend.mode(logits[:4], ~mask[:4]))
    torch.testing.assert_close(entropy, backend.entropy(logits[:4], ~mask[:4]))
    assert bool((~mask[:4]).gather(-1, drawn[:, None]).all())


@pytest.mark.parametrize("apart", [1e-4, 1e-2, 1.0])
def test_kl_under_a_transform_keeps_its_digits(apart: float) -> None:
    rng = np.random.default_rng(0)
    p = rng.normal(size=(30, 9)).astype(np.float32)
    q = (p + apart * rng.normal(size=p.shape)).astype(np.float32)
    mask = rng.random(p.shape) < 0.5
    mask[:, 0] = True

    def kl(*row: Tensor) -> Tensor:
        return backend.kl_divergence(row[0], row[1], p_mask=row[2], q_mask=row[2])

    found = torch.func.vmap(kl)(*map(torch.from_numpy, (p, q, mask)))
    exact = spec.kl_divergence(p, q, p_mask=mask, q_mask=mask)
    np.testing.assert_allclose(found.numpy(), exact, rtol=1e-5, atol=1e-15)
