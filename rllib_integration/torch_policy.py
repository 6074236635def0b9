"""PPO's policy under a mask, Torch: one fused evaluation a minibatch, faulty rows dropped.

The loss is that of RLlib's PPOTorchPolicy, with three differences. The mask goes through
``evaluate_actions``, which gives log-probability, entropy and the accurate KL(old, new) in one
pass. Rows that say nothing about the policy (padding, empty masks, actions illegal under their own
mask, masks that contradict the stored ones) are left out of every mean and counted. Further terms,
by name, are part of it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.algorithms.ppo.ppo_torch_policy import PPOTorchPolicy
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.policy.rnn_sequencing import pad_batch_to_sequences_of_same_size
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.policy.torch_policy_v2 import TorchPolicyV2
from ray.rllib.utils.annotations import override
from ray.rllib.utils.torch_utils import apply_grad_clipping, explained_variance, sequence_mask
from torch import Tensor

from backends import torch_backend
from rllib_integration.key_order import FlattensByKey
from rllib_integration.loss_terms import ROW_FAULTS, LossTerms, RowReport, refuse_constant_term
from rllib_integration.policy_parts import (
    accept_raw_observations,
    check_sampled_masks,
    masked_model_arguments,
    prepare_policy_config,
)
from rllib_integration.torch_distribution import TorchMaskedCategorical, split_inputs
from rllib_integration.torch_model import MaskedTorchModel

__all__ = ["MaskedPPOTorchPolicy"]


class MaskedPPOTorchPolicy(FlattensByKey, PPOTorchPolicy):
    """PPO on Torch whose model, distribution and loss carry the mask.

    Attributes:
        loss_terms: The further terms of the loss with their current coefficients.
        row_report: Totals of the rows left out of the loss, by reason.
    """

    def __init__(self, observation_space: Any, action_space: Any, config: Any) -> None:
        config = prepare_policy_config(config)
        self.loss_terms = LossTerms(config["loss_terms"], config["loss_coeffs"])
        self.row_report = RowReport(type(self).__name__)
        self._tower = threading.local()  # RLlib computes the losses of several GPUs in threads.
        super().__init__(observation_space, action_space, config)

    @override(TorchPolicyV2)
    def make_model_and_action_dist(self) -> tuple[MaskedTorchModel, type[TorchMaskedCategorical]]:
        """The masked model around the network that the config describes."""
        model_class, arguments = masked_model_arguments(self.config, MaskedTorchModel)
        size = TorchMaskedCategorical.required_model_output_shape(
            self.action_space, self.config["model"]
        )
        model = model_class(
            self.observation_space,
            self.action_space,
            size,
            self.config["model"],
            "masked_model",
            **arguments,
        )
        return model, TorchMaskedCategorical

    @override(PPOTorchPolicy)
    def loss(self, model: Any, dist_class: Any, train_batch: SampleBatch) -> Tensor:
        """The sum of ``loss_parts``, each times its coefficient; keeps each for the metrics."""
        self._tower.model = model
        parts = self.loss_parts(model, dist_class, train_batch)
        total = self._tower.total = _weighted_sum(parts)
        stats = model.tower_stats
        stats["total_loss"] = total.detach()
        for name in self.loss_terms.terms:
            stats[f"loss_terms/{name}"] = parts[name][1].detach().reshape(())
        return total

    def loss_parts(
        self, model: Any, dist_class: Any, train_batch: SampleBatch
    ) -> dict[str, tuple[float, Tensor]]:
        """Every part of the loss by name: ``(coefficient, scalar)``.

        The policy's own parts come first: ``policy``, ``value``, ``entropy`` and ``kl``, or
        ``policy_loss`` alone where the config replaces it.
        """
        replaced = self.config["policy_loss"]
        if replaced is None:
            parts = self.ppo_parts(model, train_batch)
        else:
            model.tower_stats.update(_missing_stats())
            result = replaced(self, model, dist_class, train_batch)
            value, stats = result if isinstance(result, tuple) else (result, {})
            model.tower_stats.update({k: torch.as_tensor(v).detach() for k, v in stats.items()})
            parts = {"policy_loss": (1.0, value)}
        for name, value in self.loss_terms.values(model, train_batch).items():
            coeff = self.loss_terms.coeffs[name]
            if coeff and not (value.requires_grad or self._building()):
                refuse_constant_term(name, [n for n, _ in model.named_parameters()])
            parts[name] = (coeff, value)
        for name, hook in self.config["loss_stats"].items():
            model.tower_stats[name] = torch.as_tensor(hook(self, train_batch)).detach()
        return parts

    def ppo_parts(self, model: Any, batch: SampleBatch) -> dict[str, tuple[float, Tensor]]:
        """PPO's clipped surrogate, value loss, entropy and KL(old, new), means over valid rows."""
        inputs, state = model(batch)
        logits, mask = split_inputs(inputs)
        old_logits, old_mask = split_inputs(batch[SampleBatch.ACTION_DIST_INPUTS])
        actions = batch[SampleBatch.ACTIONS].long()
        use_kl = bool(self.config["use_kl_loss"])
        if torch.equal(mask, old_mask):
            old_mask = mask  # One object: nothing below compares the two again.
        log_prob, entropy, kl = torch_backend.evaluate_actions(
            logits,
            mask,
            actions,
            old_logits=old_logits if use_kl else None,
            old_mask=old_mask if use_kl else None,
        )
        present = self._present_rows(batch, state, len(logits), model)
        valid, counts = _valid_rows(logits.detach(), mask, old_mask, actions, present)
        mean = _MeanOver(valid, len(logits))
        advantages = batch[Postprocessing.ADVANTAGES]
        ratio = torch.exp(log_prob - batch[SampleBatch.ACTION_LOGP])
        clip = self.config["clip_param"]
        surrogate = mean(
            -torch.min(advantages * ratio, advantages * torch.clamp(ratio, 1 - clip, 1 + clip))
        )
        parts: dict[str, tuple[float, Tensor]] = {"policy": (1.0, surrogate)}
        value_loss = logits.new_zeros(())
        stats = _missing_stats()
        if self.config["use_critic"]:
            values = model.value_function()
            targets = batch[Postprocessing.VALUE_TARGETS]
            value_loss = mean(torch.clamp((values - targets) ** 2, 0, self.config["vf_clip_param"]))
            parts["value"] = (self.config["vf_loss_coeff"], value_loss)
            stats["vf_explained_var"] = math.nan
            if mean.count > 1:
                stats["vf_explained_var"] = explained_variance(
                    mean.rows(targets), mean.rows(values.detach())
                )
        mean_entropy = mean(entropy)
        parts["entropy"] = (-self.entropy_coeff, mean_entropy)
        if use_kl:
            parts["kl"] = (self.kl_coeff, mean(kl))
            stats["mean_kl_loss"], stats["max_kl"] = _finite_mean_and_max(mean.rows(kl.detach()))
        else:
            stats["mean_kl_loss"] = stats["max_kl"] = 0.0
        stats["mean_policy_loss"] = surrogate.detach()
        stats["mean_vf_loss"] = value_loss.detach()
        stats["mean_entropy"] = mean_entropy.detach()
        stats.update({f"rows_{fault}": float(count) for fault, count in counts.items()})
        if any(counts.values()) and not self._building():
            self.row_report.add(counts, len(logits))
        model.tower_stats.update(stats)
        return parts

    def log_ratios(self, batch: SampleBatch) -> NDArray[np.float64]:
        """New minus stored log-probability of the actions taken, a row that is no padding.

        Before any update every entry is 0, up to the rounding of a network evaluated at another
        batch size: the policy that samples and the one that learns are one function.
        """
        with torch.no_grad():
            batch = self.prepared(batch)
            inputs, state = self.model(batch)
            log_prob = TorchMaskedCategorical(inputs).logp(batch[SampleBatch.ACTIONS])
            ratios = log_prob - batch[SampleBatch.ACTION_LOGP]
            present = self._present_rows(batch, state, len(ratios), self.model)
        return (ratios if present is None else ratios[present]).double().cpu().numpy()

    def prepared(self, batch: SampleBatch) -> SampleBatch:
        """A copy of a NumPy batch, padded and lazily converted as RLlib does before it learns."""
        batch = batch.copy(shallow=True)
        if not batch.zero_padded:
            pad_batch_to_sequences_of_same_size(
                batch,
                self.max_seq_len,
                shuffle=False,
                batch_divisibility_req=self.batch_divisibility_req,
                view_requirements=self.view_requirements,
            )
        return self._lazy_tensor_dict(batch)

    @override(PPOTorchPolicy)
    def extra_grad_process(self, optimizer: Any, loss: Tensor) -> dict[str, Any]:
        """Keep the share of ``custom_loss`` and the config's gradient statistics, then clip."""
        model = self._tower.model
        model.tower_stats["custom_loss"] = (
            0.0 if loss is self._tower.total else loss.detach() - model.tower_stats["total_loss"]
        )
        if self.config["grad_stats"]:
            gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
            for name, hook in self.config["grad_stats"].items():
                model.tower_stats[name] = torch.as_tensor(hook(self, gradients)).detach()
        return apply_grad_clipping(self, optimizer, loss)

    @override(PPOTorchPolicy)
    def stats_fn(self, train_batch: SampleBatch) -> dict[str, Any]:
        """RLlib's statistics under RLlib's names, and one entry for everything else kept."""
        stats: dict[str, Any] = {
            "cur_kl_coeff": float(self.kl_coeff),
            "cur_lr": float(self.cur_lr),
            "entropy_coeff": float(self.entropy_coeff),
        }
        stats.update(
            {f"loss_coeffs/{name}": value for name, value in self.loss_terms.coeffs.items()}
        )
        names = dict.fromkeys(k for model in self.model_gpu_towers for k in model.tower_stats)
        for name in names:
            towers = [m.tower_stats for m in self.model_gpu_towers if name in m.tower_stats]
            values = [float(tower[name]) for tower in towers]
            known = [value for value in values if not math.isnan(value)] or [math.nan]
            largest = name.startswith("max_")
            stats[_RLLIB_NAMES.get(name, name)] = max(known) if largest else sum(known) / len(known)
        return stats

    @override(PPOTorchPolicy)
    def postprocess_trajectory(
        self, sample_batch: Any, other_agent_batches: Any = None, episode: Any = None
    ) -> Any:
        """Check the masks the environment sent, then RLlib's advantages."""
        if not self._building():
            check_sampled_masks(self, sample_batch, episode)
        return super().postprocess_trajectory(sample_batch, other_agent_batches, episode)

    @override(TorchPolicyV2)
    def compute_actions(self, obs_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """As RLlib's; takes flattened observations, or the environment's own, batched."""
        return super().compute_actions(accept_raw_observations(self, obs_batch), *args, **kwargs)

    @override(TorchPolicyV2)
    def compute_actions_from_input_dict(self, input_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """As RLlib's; takes flattened observations, or the environment's own, batched."""
        observations = dict.__getitem__(input_dict, SampleBatch.OBS)
        accepted = accept_raw_observations(self, observations)
        if accepted is not observations:
            input_dict = SampleBatch({**input_dict, SampleBatch.OBS: accepted})
        return super().compute_actions_from_input_dict(input_dict, *args, **kwargs)

    @override(PPOTorchPolicy)
    def on_global_var_update(self, global_vars: Mapping[str, Any]) -> None:
        super().on_global_var_update(global_vars)
        self.loss_terms.update(global_vars["timestep"])

    def _present_rows(self, batch: SampleBatch, state: Any, rows: int, model: Any) -> Tensor | None:
        """Which rows are no padding ``[B]``; None where nothing is padded."""
        if not state:
            return None
        seq_lens = batch[SampleBatch.SEQ_LENS]
        mask = sequence_mask(seq_lens, rows // len(seq_lens), time_major=model.is_time_major())
        return mask.reshape(-1)

    def _building(self) -> bool:
        """Whether RLlib is running the batch of zeros it builds policies from."""
        return bool(getattr(self, "_no_tracing", False))


class _MeanOver:
    """Mean over the valid rows; 0, with a gradient of 0, where there is none."""

    def __init__(self, valid: Tensor | None, rows: int) -> None:
        self.count = rows if valid is None else int(valid.sum())
        self._valid = None if self.count == rows else valid

    def rows(self, values: Tensor) -> Tensor:
        return values if self._valid is None else values[self._valid]

    def __call__(self, values: Tensor) -> Tensor:
        return values.mean() if self._valid is None and self.count else self._mean_of_some(values)

    def _mean_of_some(self, values: Tensor) -> Tensor:
        return self.rows(values).sum() / max(self.count, 1)


def _weighted_sum(parts: Mapping[str, tuple[float, Tensor]]) -> Tensor:
    """The loss. A part with coefficient 0 is left out: 0 times an infinite KL would be NaN."""
    used = [
        (value if coeff == 1.0 else coeff * value).reshape(())
        for coeff, value in parts.values()
        if coeff != 0.0
    ]
    return sum(used[1:], used[0])


def _finite_mean_and_max(values: Tensor) -> tuple[Tensor | float, Tensor | float]:
    """Over the finite entries; without one NaN, and a largest of 0 (RLlib warns of a lone NaN)."""
    if len(values) and math.isfinite(largest := values.max().item()):
        return values.mean(), largest  # `max` would be NaN or +inf; a KL is never -inf.
    values = values[torch.isfinite(values)]
    return (values.mean(), values.max()) if len(values) else (math.nan, 0.0)


def _valid_rows(
    logits: Tensor, mask: Tensor, old_mask: Tensor, actions: Tensor, present: Tensor | None
) -> tuple[Tensor | None, dict[str, int]]:
    """Rows that belong in the loss ``[B]`` (None: all), and how many others of each kind."""
    taken = mask.gather(-1, actions[:, None])[:, 0]
    # A legal action says that its mask is not empty; a finite sum, that every logit is finite.
    if old_mask is mask and math.isfinite(logits.sum().item()) and bool(taken.all()):
        return present, dict.fromkeys(ROW_FAULTS, 0)
    if present is None:
        present = torch.ones_like(taken)
    empty = present & ~(old_mask.any(-1) & mask.any(-1))
    illegal = present & ~empty & ~taken
    differ = present & ~empty & ~illegal & (old_mask & ~mask).any(-1)
    nonfinite = present & (~torch.isfinite(logits) & mask).any(-1)
    kinds = {
        "empty_mask": empty,
        "illegal_action": illegal,
        "masks_differ": differ,
        "nonfinite_logits": nonfinite,
    }
    counts = {fault: int(rows.sum()) for fault, rows in kinds.items()}
    return present & ~(empty | illegal | differ), counts


def _missing_stats() -> dict[str, Any]:
    """What RLlib's PPO reads after each iteration, as "not measured"; the rest is left out."""
    return dict.fromkeys(("mean_policy_loss", "mean_vf_loss", "mean_kl_loss"), math.nan)


_RLLIB_NAMES = {
    "mean_policy_loss": "policy_loss",
    "mean_vf_loss": "vf_loss",
    "mean_entropy": "entropy",
    "mean_kl_loss": "kl",
}
