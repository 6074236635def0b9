"""``with_action_masking``: one call that turns an RLlib config into one that trains masked.

Whatever would run without the mask, or train on a mask that something has altered, is an error here
and once more when the algorithm is built, because a config can be changed in between.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, TypeVar

from maskcore import MaskError

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

__all__ = ["FRAMEWORKS", "check_masking_supported", "masking_settings", "with_action_masking"]

# Framework name in RLlib -> (the package it needs, how to install it).
FRAMEWORKS = {
    "torch": ("torch", "pip install 'maskcore[torch,rllib]'"),
    "tf": ("tensorflow", "pip install 'maskcore[tf,rllib]'"),
    "tf2": ("tensorflow", "pip install 'maskcore[tf,rllib]'"),
}
_OLD_STACK = (
    "config.api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)"
)

Config = TypeVar("Config", bound="AlgorithmConfig")


def masking_settings(
    *,
    mask_key: str = "action_mask",
    obs_key: str | None = "observations",
    no_masking: bool = False,
    empty_masks: str = "error",
) -> dict[str, Any]:
    """The value of the config key ``action_masking``, which every masked policy reads.

    Raises:
        MaskError: For keys that are not strings, or the same, or an unknown ``empty_masks``.
    """
    if empty_masks not in ("error", "drop"):
        raise MaskError(f"empty_masks is {empty_masks!r}. Expected 'error' or 'drop'.")
    if not isinstance(mask_key, str) or not (obs_key is None or isinstance(obs_key, str)):
        raise MaskError(
            f"mask_key={mask_key!r}, obs_key={obs_key!r}. Expected the names of two keys of the "
            "Dict observation (obs_key=None: everything but the mask)."
        )
    if mask_key == obs_key:
        raise MaskError(
            f"mask_key and obs_key are both {mask_key!r}: the network would see the mask. "
            "Expected two keys of the Dict observation."
        )
    return {
        "mask_key": mask_key,
        "obs_key": obs_key,
        "no_masking": bool(no_masking),
        "empty_masks": empty_masks,
    }


def with_action_masking(
    config: Config,
    *,
    mask_key: str = "action_mask",
    obs_key: str | None = "observations",
    no_masking: bool = False,
    empty_masks: str = "error",
) -> Config:
    """Configure ``config`` so that its policies act, and are updated, under the action mask.

    A ``PPOConfig`` becomes a ``MaskedPPOConfig``, keeping every setting: the mask is looked up by
    key in the Dict observation and applied outside whatever network ``config.model`` describes
    (RLlib's own, recurrent or attention layers included, or a custom model), which sees only what
    is under ``obs_key`` and returns ordinary logits.

    Args:
        config: A ``PPOConfig`` or ``MaskedPPOConfig`` on RLlib's old API stack. It is changed in
            place, so that a caller who drops the return value does not train unmasked.
        mask_key: Key of the mask in the Dict observation: MultiBinary(A) or Box(0, 1, (A,)), 1 is
            legal.
        obs_key: Key of what the network sees; ``None`` for everything but the mask.
        no_masking: Train the same model without the mask, for ablations.
        empty_masks: What a sampled row without a legal action is: ``"error"``, a fault of the
            environment, or ``"drop"``, a row to leave out of the loss (turn-based agents that are
            not acting; the action sent for them is 0).

    Returns:
        The same object.

    Raises:
        MaskError: For what cannot be trained under a mask: the new API stack (not yet supported),
            other algorithms, an observation filter, an exploration that draws from the whole
            action space, a missing framework, a frozen config.

    Example::

        config = with_action_masking(
            PPOConfig()
            .api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
            .environment(MyEnv)
            .framework("torch")
        )
        algorithm = config.build_algo()
    """
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
    from ray.rllib.algorithms.ppo import PPO, PPOConfig

    from rllib_integration.ppo import MaskedPPO, MaskedPPOConfig

    settings = masking_settings(
        mask_key=mask_key, obs_key=obs_key, no_masking=no_masking, empty_masks=empty_masks
    )
    if not isinstance(config, AlgorithmConfig):
        raise MaskError(
            f"config is a {type(config).__name__}. Expected an AlgorithmConfig, e.g. PPOConfig()."
        )
    if config._is_frozen:
        raise MaskError(
            "config is frozen: an algorithm was built from it already. Expected a config that can "
            "be changed: pass config.copy(copy_frozen=False)."
        )
    if isinstance(config, MaskedPPOConfig):
        check_masking_supported(config)
    elif type(config) is PPOConfig and config.algo_class is PPO:
        check_masking_supported(config)
        # PPOConfig has no slots and MaskedPPOConfig only adds attributes, so the caller's object
        # can become one; a new object would leave the caller's to train unmasked.
        config.__class__ = MaskedPPOConfig
        config.algo_class = MaskedPPO
        MaskedPPOConfig.set_masking_defaults(config)
    else:
        algorithm = getattr(config.algo_class, "__name__", config.algo_class)
        raise MaskError(
            f"config is a {type(config).__name__} for {algorithm}. Expected PPOConfig (or a "
            "subclass of rllib_integration.MaskedPPOConfig): action masking supports PPO. "
            "Other algorithms would ignore the mask."
        )
    config.action_masking = settings
    return config


def check_masking_supported(config: AlgorithmConfig) -> None:
    """Raise where a policy of ``config`` would ignore the mask, or be given an altered one.

    Raises:
        MaskError: Saying which setting it is, what it has to be, and why.
    """
    if config.enable_rl_module_and_learner or config.enable_env_runner_and_connector_v2:
        raise MaskError(
            "config is on RLlib's new API stack (the default of PPOConfig), which would ignore "
            "the masked model and train without the mask. Expected the old stack, for now: call "
            f"{_OLD_STACK}."
        )
    if config._rl_module_spec is not None:
        raise MaskError(
            "config has an RLModule (config.rl_module(...)), which the old API stack ignores. "
            "Expected none; give a network with config.training(model={...})."
        )
    check_framework(config.framework_str)
    check_policy_settings(
        observation_filter=config.observation_filter,
        exploration=config.exploration_config,
        model=config.model,
    )


def check_framework(framework: str) -> None:
    """Raise ``MaskError`` for a framework that is not supported or not installed."""
    if framework not in FRAMEWORKS:
        raise MaskError(
            f"framework {framework!r} is not supported. Expected one of {sorted(FRAMEWORKS)}: "
            "config.framework(...)."
        )
    package, install = FRAMEWORKS[framework]
    if importlib.util.find_spec(package) is None:
        raise MaskError(
            f"framework {framework!r} needs {package}, which is not installed. Run `{install}`."
        )


def check_policy_settings(
    *, observation_filter: Any, exploration: dict[str, Any], model: dict[str, Any]
) -> None:
    """Raise for a filter over the mask, an exploration that draws past it, or a model that RLlib
    shows something else when it acts than when it learns.

    These are settings that a policy of its own can override, so each policy checks them again.
    """
    if observation_filter != "NoFilter":
        raise MaskError(
            f"observation_filter is {observation_filter!r}. RLlib 2.60 filters the flattened "
            "observation, the mask along with it, and 0/1 become other numbers. Expected "
            '"NoFilter": config.env_runners(observation_filter="NoFilter"), and normalise the '
            "network's observation inside the environment (gymnasium.wrappers."
            "NormalizeObservation on the part under obs_key)."
        )
    kind = exploration.get("type", "StochasticSampling")
    name = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    if name.rpartition(".")[2] != "StochasticSampling":
        raise MaskError(
            f"exploration_config has type {name!r}, which may draw illegal actions. Expected "
            '"StochasticSampling", which draws from the masked policy.'
        )
    if exploration.get("random_timesteps", 0):
        raise MaskError(
            f"exploration_config has random_timesteps={exploration['random_timesteps']}: RLlib "
            "draws those from the whole action space, illegal actions included. Expected 0."
        )
    for setting in ("attention_use_n_prev_actions", "attention_use_n_prev_rewards"):
        if model.get(setting):
            raise MaskError(
                f"model has {setting}={model[setting]}. RLlib 2.60 shows an acting attention model "
                "the steps up to the last but one, a learning one those up to the last, so the "
                "two compute different probabilities. Expected 0; use_lstm with "
                "lstm_use_prev_action is not affected."
            )
