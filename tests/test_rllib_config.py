"""``with_action_masking`` and ``register``: what they set, what they refuse, and when."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import rllib_support
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.models import ModelCatalog
from ray.rllib.models.catalog import MODEL_DEFAULTS
from rllib_support import masked, old_stack, policy_of

import rllib_integration
from maskcore import MaskError
from rllib_integration import MaskedPPO, MaskedPPOConfig, register, with_action_masking

pytestmark = rllib_support.RLLIB_MARKS


def test_a_ppo_config_becomes_a_masked_one_in_place_and_keeps_its_settings() -> None:
    config = old_stack().training(lr=0.123, clip_param=0.4)
    assert with_action_masking(config, mask_key="m", obs_key="o") is config
    assert type(config) is MaskedPPOConfig
    assert config.algo_class is MaskedPPO
    assert (config.lr, config.clip_param) == (0.123, 0.4)
    assert config.action_masking["mask_key"] == "m"
    assert config.action_masking["obs_key"] == "o"
    config.training(loss_terms={"extra": lambda model, batch: 0.0})
    assert set(config.loss_terms) == {"extra"}


def test_a_masked_config_can_be_configured_again() -> None:
    config = with_action_masking(MaskedPPOConfig().framework("torch"), no_masking=True)
    assert config.action_masking["no_masking"] is True
    assert config.enable_rl_module_and_learner is False


def test_the_default_stack_of_ppo_is_refused_with_what_to_set() -> None:
    """Ray 2.60 puts PPOConfig on the new API stack, where a ModelV2 is ignored (C5)."""
    assert PPOConfig().enable_rl_module_and_learner
    with pytest.raises(MaskError, match=r"config.api_stack\(enable_rl_module_and_learner=False"):
        with_action_masking(PPOConfig())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.env_runners(observation_filter="MeanStdFilter"), "observation_filter"),
        (
            lambda c: c.env_runners(exploration_config={"type": "EpsilonGreedy"}),
            "draw illegal actions",
        ),
        (
            lambda c: c.env_runners(exploration_config={"random_timesteps": 10}),
            "random_timesteps=10",
        ),
        (lambda c: c.framework("jax"), "framework 'jax' is not supported"),
        (
            lambda c: c.api_stack(
                enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True
            ),
            "new API stack",
        ),
    ],
)
def test_what_would_alter_or_bypass_the_mask_is_refused_now_and_at_build(
    change: Any, message: str
) -> None:
    with pytest.raises(MaskError, match=message):
        with_action_masking(change(old_stack()))
    changed_afterwards = change(masked())
    with pytest.raises(MaskError, match=message):
        changed_afterwards.validate()


def test_a_policy_that_overrides_the_filter_for_itself_is_refused() -> None:
    config = masked()
    worker = rllib_support.worker_of(config)
    policy = worker.get_policy()
    with pytest.raises(MaskError, match="observation_filter"):
        type(policy)(
            policy.observation_space,
            policy.action_space,
            {**config.to_dict(), "observation_filter": "MeanStdFilter"},
        )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (APPOConfig(), "APPOConfig for APPO"),
        (type("MyConfig", (PPOConfig,), {})(), "MyConfig for PPO"),
        ({"env": "x"}, "config is a dict"),
    ],
)
def test_other_algorithms_would_ignore_the_mask_and_are_refused(config: Any, message: str) -> None:
    if isinstance(config, PPOConfig):
        config.api_stack(
            enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False
        )
    with pytest.raises(MaskError, match=message):
        with_action_masking(config)


def test_a_frozen_config_is_refused_with_what_to_do() -> None:
    config = old_stack()
    config.freeze()
    with pytest.raises(MaskError, match="copy_frozen=False"):
        with_action_masking(config)


def test_keys_that_could_not_be_told_apart_are_refused() -> None:
    with pytest.raises(MaskError, match="both 'x'"):
        with_action_masking(old_stack(), mask_key="x", obs_key="x")
    with pytest.raises(MaskError, match="empty_masks is 'ignore'"):
        with_action_masking(old_stack(), empty_masks="ignore")


def test_a_missing_mask_key_is_an_error_at_build_that_lists_the_keys() -> None:
    config = with_action_masking(old_stack(), mask_key="legal_moves")
    with pytest.raises(MaskError, match=r"no key 'legal_moves'. Found \['action_mask', 'obs"):
        policy_of(config)


def test_register_is_idempotent_and_its_names_build_masked_policies() -> None:
    names = register()
    assert register() == names
    assert "maskcore_torch_model" in names
    assert "maskcore_torch_masked_categorical" in names
    policy = policy_of(
        old_stack().training(
            model={
                "custom_model": "maskcore_torch_model",
                "custom_action_dist": "maskcore_torch_masked_categorical",
                "custom_model_config": {"obs_key": "observations"},
            }
        )
    )
    assert type(policy).__name__ == "PPOTorchPolicy"
    assert type(policy.model).__name__ == "MaskedTorchModel"
    assert policy.dist_class.__name__ == "TorchMaskedCategorical"


def test_the_names_resolve_in_the_model_catalog() -> None:
    register()
    space = rllib_support.MaskedChainEnv(rllib_support.SMALL).action_space
    config = {**MODEL_DEFAULTS, "custom_action_dist": "maskcore_torch_masked_categorical"}
    dist_class, size = ModelCatalog.get_action_dist(space, config, framework="torch")
    assert dist_class.__name__ == "TorchMaskedCategorical"
    assert size == 2 * space.n


def test_masked_ppo_is_a_ppo_with_a_policy_for_each_framework() -> None:
    assert issubclass(MaskedPPO, PPO)
    assert isinstance(MaskedPPO.get_default_config(), MaskedPPOConfig)
    policy = MaskedPPO.get_default_policy_class(masked())
    assert policy.__name__ == "MaskedPPOTorchPolicy"


def test_the_public_names_are_sorted_and_importing_them_is_lazy() -> None:
    assert rllib_integration.__all__ == sorted(rllib_integration.__all__)
    for name in rllib_integration.__all__:
        assert getattr(rllib_integration, name) is not None
    code = (
        "import rllib_integration, sys; "
        "assert not {'torch', 'tensorflow', 'ray'} & set(sys.modules), 'not lazy'; "
        "assert 'register' in dir(rllib_integration)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rllib_integration.nothing
