"""``MaskedCategorical`` has the manners of a ``torch.distributions.Distribution``."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from backends import torch_backend as backend
from backends.torch_backend import MaskedCategorical


@pytest.fixture
def policy() -> MaskedCategorical:
    g = torch.Generator().manual_seed(0)
    mask = torch.tensor([[True, True, False, True], [False, True, False, False], [False] * 4])
    return MaskedCategorical(torch.randn(3, 4, generator=g), mask)


def test_shapes(policy: MaskedCategorical) -> None:
    assert policy.batch_shape == (3,)
    assert policy.event_shape == ()
    assert policy.param_shape == (3, 4)
    assert policy.sample().shape == (3,)
    assert policy.sample((5, 2)).shape == (5, 2, 3)
    assert policy.log_prob(policy.sample((5,))).shape == (5, 3)


def test_samples_are_legal(policy: MaskedCategorical) -> None:
    drawn = policy.sample((1000,))
    legal = policy.mask.expand(1000, 3, 4).gather(-1, drawn[..., None]).squeeze(-1)
    assert bool(legal[:, :2].all())
    assert not drawn[:, 2].any()


def test_probs_and_logits(policy: MaskedCategorical) -> None:
    torch.testing.assert_close(policy.probs.sum(-1), torch.tensor([1.0, 1.0, 0.0]))
    assert not policy.probs[~policy.mask].any()
    torch.testing.assert_close(policy.logits.exp(), policy.probs)


def test_expand_keeps_the_distribution(policy: MaskedCategorical) -> None:
    wide = policy.expand((2, 3))
    assert wide.batch_shape == (2, 3)
    assert torch.equal(wide.entropy(), policy.entropy().expand(2, 3))
    assert torch.equal(wide.mode, policy.mode.expand(2, 3))


def test_kl_is_registered(policy: MaskedCategorical) -> None:
    other = MaskedCategorical(torch.zeros(3, 4), policy.mask)
    want = backend.kl_divergence(
        policy.logits, torch.zeros(3, 4), p_mask=policy.mask, q_mask=policy.mask
    )
    torch.testing.assert_close(kl_divergence(policy, other), want)
    assert torch.equal(kl_divergence(policy, policy), torch.zeros(3))


def test_kl_with_a_plain_categorical(policy: MaskedCategorical) -> None:
    plain = Categorical(logits=torch.zeros(3, 4))
    assert bool(torch.isfinite(kl_divergence(policy, plain)).all())
    assert bool(torch.isposinf(kl_divergence(plain, policy)).all())


def test_validation_is_of_the_range_not_of_legality(policy: MaskedCategorical) -> None:
    # Asked for by name: torch.compile switches the default off for the whole process.
    checked = MaskedCategorical(torch.zeros(3, 4), policy.mask, validate_args=True)
    with pytest.raises(ValueError, match="support"):
        checked.log_prob(torch.tensor([4, 0, 0]))
    assert policy.log_prob(torch.tensor([2, 0, 0])).tolist() == [-torch.inf, -torch.inf, 0.0]


def test_enumerate_support(policy: MaskedCategorical) -> None:
    every = policy.enumerate_support()
    assert every.shape == (4, 3)
    torch.testing.assert_close(policy.log_prob(every)[:, :2].exp().sum(0), torch.ones(2))
