"""What is particular to the Torch backend: dtypes, block sizes, which formulas a call takes."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor

from backends import _torch_autograd, _torch_block
from backends import torch_backend as backend
from backends._torch_fused import Policy
from maskcore import MaskError, spec


def batch(rows: int, actions: int, *, spread: float = 0.1, seed: int = 0) -> tuple[Tensor, ...]:
    """Logits, old logits, mask with a legal action in each row, legal actions."""
    g = torch.Generator().manual_seed(seed)
    old = torch.randn(rows, actions, generator=g)
    logits = old + spread * torch.randn(rows, actions, generator=g)
    mask = torch.rand(rows, actions, generator=g) < 0.5
    mask[:, 0] = True
    chosen = torch.where(mask, torch.rand(rows, actions, generator=g), -1.0).argmax(-1)
    return logits, old, mask, chosen


def test_a_row_of_a_small_batch_comes_out_as_it_does_alone() -> None:
    """To the bit: padded rows, other masks or strange rows beside it change nothing."""
    logits, old, mask, actions = batch(40, 7, spread=1.0)
    old_mask = mask.clone()
    old_mask[20:] = True
    logits[10:15] *= 100
    mask[15:18], old_mask[15:18] = False, False
    whole = backend.evaluate_actions(logits, mask, actions, old_logits=old, old_mask=old_mask)
    for row in range(10):
        alone = backend.evaluate_actions(logits[row], mask[row], actions[row], old_logits=old[row])
        for found, expected in zip(whole, alone, strict=True):
            assert torch.equal(found[row], expected)


@pytest.mark.parametrize("spread", [1e-3, 0.1, 3.0])
@pytest.mark.parametrize(("rows", "actions"), [(30, 7), (40, 200), (300, 700), (3, 140_000)])
def test_every_block_size_gives_what_the_plain_formulas_give(
    rows: int, actions: int, spread: float
) -> None:
    """Small, one block, several blocks, and rows longer than a block."""
    logits, old, mask, chosen = batch(rows, actions, spread=spread)
    logits.requires_grad_()
    fast = backend.evaluate_actions(logits, mask, chosen, old_logits=old)
    policy = Policy(logits.double(), old.double(), mask, None, chosen, True)
    exact = _torch_autograd.evaluate_plain(policy)
    for got, want in zip(fast, exact, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=2e-6)
    weights = torch.randn(3, rows, generator=torch.Generator().manual_seed(1))
    got = torch.autograd.grad(fast, logits, list(weights))[0]
    want = torch.autograd.grad(exact, logits, list(weights.double()))[0]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=3e-6)
    assert not got[~mask].any()


def test_recomputing_in_the_backward_pass_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, old, mask, chosen = batch(300, 700)
    mask[5] = False
    logits.requires_grad_()

    def gradient() -> Tensor:
        results = backend.evaluate_actions(logits, mask, chosen, old_logits=old)
        return torch.autograd.grad([r.sum() for r in results if r is not None], logits)[0]

    kept = gradient()
    monkeypatch.setattr(_torch_autograd, "KEEP", 0)
    torch.testing.assert_close(gradient(), kept, rtol=1e-6, atol=1e-8)


def test_backward_twice_gives_the_same_gradient() -> None:
    logits, old, mask, chosen = batch(300, 64)
    logits.requires_grad_()
    results = backend.evaluate_actions(logits, mask, chosen, old_logits=old)
    sums = [r.sum() for r in results if r is not None]
    first = torch.autograd.grad(sums, logits, retain_graph=True)[0]
    backend.evaluate_actions(old, mask, chosen, old_logits=logits.detach())  # other use of buffers
    assert torch.equal(torch.autograd.grad(sums, logits)[0], first)


def test_a_graph_that_is_dropped_is_freed_without_the_garbage_collector() -> None:
    logits, old, mask, chosen = batch(300, 64)
    gc.disable()
    try:
        results = backend.evaluate_actions(logits.requires_grad_(), mask, chosen, old_logits=old)
        node = results.log_prob.grad_fn
        run = weakref.ref(node.run)  # pyright: ignore
        del results, node
        assert run() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_float32_rounded_once(dtype: torch.dtype) -> None:
    logits, _, mask, chosen = batch(20, 500)
    half = logits.to(dtype)
    for name in ("log_prob", "entropy"):
        arguments = (mask, chosen) if name == "log_prob" else (mask,)
        got = getattr(backend, name)(half, *arguments)
        assert got.dtype == dtype
        assert torch.equal(got, getattr(backend, name)(half.float(), *arguments).to(dtype))


def test_integer_logits_become_float64() -> None:
    assert backend.entropy([1, 2], [1, 1]).dtype == torch.float64


@pytest.mark.parametrize("actions", [[0, 3], [-1, 0]])
def test_actions_out_of_range_are_named(actions: list[int]) -> None:
    with pytest.raises(MaskError, match=r"Expected \[0, 3\)"):
        backend.log_prob(
            torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool), torch.tensor(actions)
        )


def test_float_actions_are_refused() -> None:
    with pytest.raises(MaskError, match=r"cast with `\.long\(\)`"):
        backend.log_prob(torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(2))


def test_the_same_generator_gives_the_same_actions() -> None:
    logits, _, mask, _ = batch(50, 600)

    def draw() -> Tensor:
        return backend.sample(logits, mask, generator=torch.Generator().manual_seed(7))

    assert torch.equal(draw(), draw())


@pytest.mark.parametrize("actions", [3, 64, 511, 512, 640, 1000])
def test_draws_are_legal_and_come_with_their_log_prob(actions: int) -> None:
    logits, _, mask, _ = batch(2000, actions, spread=5.0)
    drawn, log_prob = backend.sample_with_log_prob(logits, mask)
    assert bool(mask.gather(-1, drawn[:, None]).all())
    assert torch.equal(log_prob, backend.log_prob(logits, mask, drawn))


def test_draws_in_long_rows_have_the_right_frequencies() -> None:
    """Across the border of a part, and in the last part, which reaches back over the one before."""
    logits = torch.full((1000,), -40.0)
    logits[[0, 127, 128, 895, 896, 999]] = torch.tensor([0.0, 1.0, 2.0, 0.0, 1.0, 2.0])
    drawn = backend.sample(logits.expand(40_000, 1000), torch.ones(1000, dtype=torch.bool))
    share = torch.bincount(drawn, minlength=1000) / 40_000
    p = backend.masked_softmax(logits, torch.ones(1000, dtype=torch.bool))
    assert float((share - p).abs().max()) < 6 * (0.25 / 40_000) ** 0.5


@pytest.mark.parametrize("actions", [5, 64, 300, 1000])
def test_mode_of_large_batches_is_the_specification_s(actions: int) -> None:
    logits, _, mask, _ = batch(2000, actions)
    logits = (2 * logits).round()  # ties
    mask[3] = False
    logits[4], logits[5, 1], logits[6][~mask[6]] = -torch.inf, torch.nan, torch.nan
    want = spec.mode(logits.numpy(), mask.numpy())
    np.testing.assert_array_equal(backend.mode(logits, mask).numpy(), want)


def test_arguments_of_other_dtypes_share_no_buffers() -> None:
    """float32 and float64 steps in turn, each larger than the small path."""
    logits, old, mask, chosen = batch(200, 64)
    want = backend.evaluate_actions(logits, mask, chosen, old_logits=old)
    backend.evaluate_actions(logits.double(), mask, chosen, old_logits=old.double())
    got = backend.evaluate_actions(logits, mask, chosen, old_logits=old)
    assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))
    assert logits.numel() > _torch_block.SMALL


def test_under_inference_mode_and_after_it() -> None:
    """Buffers made in inference mode would refuse to be written outside it."""
    logits, old, mask, chosen = batch(200, 64)
    with torch.inference_mode():
        backend.evaluate_actions(logits, mask, chosen, old_logits=old)
    backend.evaluate_actions(logits.requires_grad_(), mask, chosen, old_logits=old)
