"""The masked categorical as RLlib calls it, Torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rllib_support
import torch
from gymnasium import spaces

import maskcore
from maskcore import MaskError
from rllib_integration.torch_distribution import (
    TorchMaskedCategorical,
    torch_masked_categorical_with_temperature,
)

pytestmark = rllib_support.RLLIB_MARKS


def inputs_of(logits: Any, mask: Any) -> torch.Tensor:
    return torch.cat([torch.tensor(logits), torch.tensor(mask, dtype=torch.float32)], -1)


def test_the_distribution_agrees_with_the_specification() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (50, 7)).astype(np.float32)
    mask = rng.random((50, 7)) < 0.4
    other = rng.normal(0, 3, (50, 7)).astype(np.float32)
    p = TorchMaskedCategorical(inputs_of(logits, mask))
    q = TorchMaskedCategorical(inputs_of(other, mask))
    actions = p.sample()
    drawn = mask[np.arange(50), actions.numpy()]
    assert (drawn | ~mask.any(-1)).all()
    for found, expected in (
        (p.logp(actions), maskcore.log_prob(logits, mask, actions.numpy())),
        (p.sampled_action_logp(), maskcore.log_prob(logits, mask, actions.numpy())),
        (p.entropy(), maskcore.entropy(logits, mask)),
        (p.kl(q), maskcore.kl_divergence(logits, other, p_mask=mask, q_mask=mask)),
    ):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(p.deterministic_sample(), maskcore.mode(logits, mask))


def test_the_distribution_is_total_on_a_batch_of_zeros() -> None:
    p = TorchMaskedCategorical(torch.zeros(4, 6, requires_grad=True))
    actions = p.sample()
    assert actions.tolist() == [0] * 4
    total = p.logp(actions).sum() + p.entropy().sum() + p.kl(p).sum()
    total.backward()
    assert total.item() == 0.0
    assert p.inputs.grad.abs().sum() == 0.0


def test_what_is_stored_carries_its_own_mask_for_the_kl() -> None:
    """FAULTS A5: the old and the new mask differ; infinite, with gradient 0."""
    new = inputs_of([[1.0, 2.0, 9.9]], [[1, 1, 0]]).requires_grad_()
    kl = TorchMaskedCategorical(inputs_of([[1.0, 9.9, 3.0]], [[1, 0, 1]])).kl(
        TorchMaskedCategorical(new)
    )
    assert kl.tolist() == [float("inf")]
    kl.sum().backward()
    assert new.grad is not None
    assert new.grad.abs().sum() == 0.0


def test_temperature_divides_the_logits_and_changes_nothing_it_was_given() -> None:
    inputs = inputs_of([[1.0, 3.0, 5.0]], [[1, 1, 0]])
    before = inputs.clone()
    warm = torch_masked_categorical_with_temperature(2.0)(inputs)
    assert torch.equal(inputs, before)
    np.testing.assert_allclose(
        warm.logp(torch.tensor([1])), maskcore.log_prob([[0.5, 1.5, 2.5]], [[1, 1, 0]], [1]), 1e-6
    )
    with pytest.raises(MaskError, match="temperature is 0"):
        TorchMaskedCategorical(inputs, temperature=0.0)


def test_misuse_of_the_distribution_is_named() -> None:
    with pytest.raises(MaskError, match=r"shape \(1, 5\). Expected \[..., 2A\]"):
        TorchMaskedCategorical(torch.zeros(1, 5))
    with pytest.raises(MaskError, match="nothing was sampled yet"):
        TorchMaskedCategorical(torch.zeros(1, 4)).sampled_action_logp()
    with pytest.raises(MaskError, match="Discrete"):
        TorchMaskedCategorical.required_model_output_shape(spaces.MultiDiscrete([2, 2]), {})


def test_what_was_sampled_has_the_log_probability_that_logp_gives_it() -> None:
    """To the bit, from one pass for both; with its gradient where one is wanted."""
    rng = np.random.default_rng(1)
    mask = rng.random((200, 9)) < 0.3
    mask[:5] = False
    inputs = inputs_of(rng.normal(0, 4, (200, 9)).astype(np.float32), mask)
    p = TorchMaskedCategorical(inputs)
    for choose in (p.sample, p.deterministic_sample, p.sample):
        actions = choose()
        assert torch.equal(p.sampled_action_logp(), p.logp(actions))
    assert torch.equal(p.sampled_action_logp()[:5], torch.zeros(5))
    trained = TorchMaskedCategorical(inputs.requires_grad_())
    trained.sample()
    assert trained.sampled_action_logp().requires_grad
