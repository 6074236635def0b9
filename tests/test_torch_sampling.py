"""Drawing in Torch at the ends of the uniform number, in small batches and in blocks of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from backends import _torch_block
from backends import torch_backend as backend
from maskcore import MaskError, spec

LAST = 1 - 2.0**-53  # the largest number that torch.rand gives in float64
EPS = torch.finfo(torch.float32).eps


def uniform(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """Let ``torch.rand`` give that number everywhere."""

    def rand(*size: Any, dtype: torch.dtype, **_: Any) -> Tensor:
        return torch.zeros(*size, dtype=dtype).fill_(value)

    monkeypatch.setattr(torch, "rand", rand)


def hard(copies: int) -> tuple[Tensor, Tensor]:
    """Rows ``[6 copies, 20]`` with nothing to draw at either end, NaN and +inf under the mask."""
    g = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(6, 20, generator=g)
    mask = torch.zeros(6, 20, dtype=torch.bool)
    mask[:, 4:15] = True
    z[0, :4], z[0, 15:] = torch.nan, torch.inf
    z[1, 4], z[1, 14] = -torch.inf, -torch.inf  # legal, of probability 0
    z[2, 4], z[2, 14] = -200.0, -200.0
    z[3, 7] = 90.0  # certain
    mask[4], mask[4, 9] = False, True  # forced
    mask[5] = False
    return z.repeat(copies, 1), mask.repeat(copies, 1)


SIZES = pytest.mark.parametrize("copies", [1, 200])  # below SMALL, and above


@SIZES
@pytest.mark.parametrize("value", [0.0, 2.0**-53, 0.5, 1 - EPS, LAST])
def test_no_uniform_number_leads_to_an_illegal_action(
    copies: int, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, mask = hard(copies)
    assert (z.numel() <= _torch_block.SMALL) == (copies == 1)
    uniform(monkeypatch, value)
    drawn, log_prob = backend.sample_with_log_prob(z, mask)
    drawn, log_prob = drawn.view(-1, 6), log_prob.view(-1, 6)
    assert bool(((drawn >= 4) & (drawn < 15))[:, :5].all())
    assert bool(((drawn != 4) & (drawn != 14))[:, 1].all())
    assert bool((drawn[:, 5] == 0).all())
    assert bool((log_prob[:, 4:] == 0).all())
    assert bool(torch.isfinite(log_prob).all())


@SIZES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_log_prob_of_a_draw_is_within_the_bound(copies: int, dtype: torch.dtype) -> None:
    z, mask = hard(copies)
    z = z.to(dtype)
    drawn, log_prob = backend.sample_with_log_prob(z, mask)
    assert log_prob.dtype == dtype
    want = spec.log_prob(z.double().numpy(), mask.numpy(), drawn.numpy())
    off = np.abs(log_prob.double().numpy() - want)
    assert (off <= 4 * torch.finfo(dtype).eps * np.maximum(1, np.abs(want))).all()


@SIZES
@pytest.mark.parametrize("actions", [3, 20, 600])
def test_log_prob_of_a_draw_is_that_of_log_prob(copies: int, actions: int) -> None:
    g = torch.Generator().manual_seed(0)
    for spread in (0.3, 3.0, 12.0):
        z = spread * torch.randn(6 * copies, actions, generator=g)
        mask = torch.rand(6 * copies, actions, generator=g) < 0.5
        mask[:, 0] = True
        drawn, log_prob = backend.sample_with_log_prob(z, mask)
        assert torch.equal(log_prob, backend.log_prob(z, mask, drawn))


@SIZES
def test_log_prob_of_a_nearly_certain_draw_keeps_its_digits(copies: int) -> None:
    z = torch.tensor([0.0, -20.0, -21.0, 5.0]).repeat(copies * 100, 1)
    mask = torch.tensor([True, True, True, False]).expand(len(z), 4)
    drawn, log_prob = backend.sample_with_log_prob(z, mask)
    want = -np.log1p(np.exp(-20.0) + np.exp(-21.0))
    np.testing.assert_allclose(log_prob[drawn == 0].numpy(), want, rtol=1e-6)


def test_small_batches_draw_what_float32_sums_would_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    z = torch.tensor([[0.0, -18.5, -18.5]])  # 9e-9 each
    uniform(monkeypatch, 1 - 1.5e-8)
    assert backend.sample(z, torch.ones(1, 3)).item() == 1
    uniform(monkeypatch, 1 - 0.5e-8)
    assert backend.sample(z, torch.ones(1, 3)).item() == 2


def test_draws_in_small_batches_have_the_right_frequencies() -> None:
    g = torch.Generator().manual_seed(0)
    z, mask = torch.randn(5, 12, generator=g), torch.rand(5, 12, generator=g) < 0.6
    mask[:, 3] = True
    p = backend.masked_softmax(z, mask)
    torch.manual_seed(0)
    drawn = backend.MaskedCategorical(z, mask).sample((40_000,))
    for row in range(5):
        share = torch.bincount(drawn[:, row], minlength=12) / len(drawn)
        assert float((share - p[row]).abs().max()) < 6 * (0.25 / len(drawn)) ** 0.5
        assert not share[~mask[row]].any()


@SIZES
@pytest.mark.parametrize("logit", [torch.nan, torch.inf, -torch.inf])
def test_rows_without_a_distribution_are_refused(copies: int, logit: float) -> None:
    z, mask = hard(copies)
    z[2, mask[2] if logit < 0 else 6] = logit
    with pytest.raises(MaskError, match=r"in 1 row\(s\), first in row \(2,\)"):
        backend.sample(z, mask)


def test_other_shapes_and_strides() -> None:
    z, mask = torch.zeros(4, 3, 2), torch.zeros(4, 3, 2, dtype=torch.bool)
    mask[1:] = True
    for logits, legal in ((z.permute(1, 2, 0), mask.permute(1, 2, 0)), (z[:, 0].T, mask[:, 0].T)):
        drawn, log_prob = backend.sample_with_log_prob(logits.requires_grad_(), legal)
        assert drawn.shape == log_prob.shape == logits.shape[:-1]
        assert bool((drawn > 0).all())
        assert not log_prob.requires_grad
    assert backend.sample(torch.zeros(4), torch.ones(4)).shape == ()
    assert backend.sample(torch.zeros(0, 4), torch.ones(0, 4)).shape == (0,)
    policy = backend.MaskedCategorical(torch.zeros(2, 4), torch.ones(2, 4))
    assert policy.sample((0,)).shape == (0, 2)
