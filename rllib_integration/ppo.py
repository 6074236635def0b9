"""MaskedPPO: RLlib's PPO with masked policies, the accurate KL, loss terms, on three frameworks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.policy.policy import Policy
from ray.rllib.utils.annotations import override

from rllib_integration.config import check_masking_supported, masking_settings
from rllib_integration.key_order import by_key

__all__ = ["MaskedPPO", "MaskedPPOConfig"]


class MaskedPPOConfig(PPOConfig):
    """``PPOConfig`` for masked policies, on RLlib's old API stack.

    Adds to ``training()``:
        loss_terms: ``{name: fn(model, batch) -> scalar}``, added to the policy loss.
        loss_coeffs: ``{name: number or [[timestep, value], ...]}``, 1.0 where not named.
        policy_loss: ``fn(policy, model, dist_class, train_batch)`` -> scalar, or (scalar, dict of
            scalar statistics): replaces the PPO loss (``loss_terms`` are still added).
        loss_stats: ``{name: fn(policy, train_batch) -> scalar}``, reported as metrics.
        grad_stats: ``{name: fn(policy, gradients) -> scalar}``, reported as metrics; ``gradients``
            maps a variable's name to its gradient.
    """

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or MaskedPPO)
        # Through the method, which also brings the exploration that the old stack samples with.
        self.api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
        self.set_masking_defaults()

    def set_masking_defaults(self) -> None:
        """The settings that this class adds to those of ``PPOConfig``."""
        self.action_masking: dict[str, Any] = masking_settings()
        self.loss_terms: dict[str, Callable[..., Any]] = {}
        self.loss_coeffs: dict[str, Any] = {}
        self.policy_loss: Callable[..., Any] | None = None
        self.loss_stats: dict[str, Callable[..., Any]] = {}
        self.grad_stats: dict[str, Callable[..., Any]] = {}

    @override(PPOConfig)
    def training(
        self,
        *,
        loss_terms: Mapping[str, Callable[..., Any]] = NotProvided,
        loss_coeffs: Mapping[str, Any] = NotProvided,
        policy_loss: Callable[..., Any] | None = NotProvided,
        loss_stats: Mapping[str, Callable[..., Any]] = NotProvided,
        grad_stats: Mapping[str, Callable[..., Any]] = NotProvided,
        **kwargs: Any,
    ) -> MaskedPPOConfig:
        """``PPOConfig.training`` and the five settings named in the class docstring."""
        super().training(**kwargs)
        if loss_terms is not NotProvided:
            self.loss_terms = dict(loss_terms)
        if loss_coeffs is not NotProvided:
            self.loss_coeffs = dict(loss_coeffs)
        if policy_loss is not NotProvided:
            self.policy_loss = policy_loss
        if loss_stats is not NotProvided:
            self.loss_stats = dict(loss_stats)
        if grad_stats is not NotProvided:
            self.grad_stats = dict(grad_stats)
        return self

    @override(PPOConfig)
    def validate(self) -> None:
        """Fail at build where the mask would be ignored or altered."""
        check_masking_supported(self)
        super().validate()


class MaskedPPO(PPO):
    """PPO whose policies sample, evaluate and learn under the mask; one class, three frameworks."""

    @classmethod
    @override(PPO)
    def get_default_config(cls) -> MaskedPPOConfig:
        return MaskedPPOConfig()

    @classmethod
    @override(PPO)
    def get_default_policy_class(cls, config: AlgorithmConfig) -> type[Policy]:
        if config["framework"] == "torch":
            from rllib_integration.torch_policy import MaskedPPOTorchPolicy

            return MaskedPPOTorchPolicy
        if config["framework"] == "tf":
            from rllib_integration.tf_graph_policy import MaskedPPOTF1Policy

            return MaskedPPOTF1Policy
        from rllib_integration.tf_eager_policy import MaskedPPOTF2Policy

        return MaskedPPOTF2Policy

    @override(PPO)
    def compute_actions(self, observations: Any, *args: Any, **kwargs: Any) -> Any:
        """RLlib's; the keys of the observations may come in any order."""
        observations = {agent: by_key(value) for agent, value in observations.items()}
        return super().compute_actions(observations, *args, **kwargs)

    @override(PPO)
    def setup(self, config: AlgorithmConfig) -> None:
        """RLlib's, and every env runner starts with the weights that learn.

        Ray 2.60 leaves remote env runners of the old stack with initial weights of their own until
        the first update, so that the first batch is another policy's: its ratios are not 1.
        """
        super().setup(config)
        if self.env_runner_group is not None and self.env_runner_group.num_remote_workers() > 0:
            self.env_runner_group.sync_weights()
