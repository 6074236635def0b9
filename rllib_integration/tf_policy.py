"""What PPO's two TensorFlow policies under a mask share: ``tf_graph_policy``, ``tf_eager_policy``.

Their loss is ``tf_loss``: that of RLlib's PPOTFPolicy with the mask in every term, faulty rows left
out and counted, and further terms by name. What RLlib 2.60 does differently between the two
frameworks, or not at all, is made one here: ``custom_loss`` is part of the loss on both, every part
is a metric on both, ``grad_clip`` is honoured, frozen layers stay frozen, and the optimizer's state
is saved and restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllib_integration.keras_setup import setup_keras

setup_keras()

import tensorflow as tf  # noqa: E402
from ray.rllib.policy.rnn_sequencing import pad_batch_to_sequences_of_same_size  # noqa: E402
from ray.rllib.policy.sample_batch import SampleBatch  # noqa: E402
from ray.rllib.utils.metrics.learner_info import LEARNER_STATS_KEY  # noqa: E402

from maskcore import MaskError, as_bool  # noqa: E402
from rllib_integration.key_order import FlattensByKey  # noqa: E402
from rllib_integration.loss_terms import ROW_FAULTS, LossTerms, RowReport  # noqa: E402
from rllib_integration.observations import legal_entries  # noqa: E402
from rllib_integration.policy_parts import (  # noqa: E402
    accept_raw_observations,
    check_sampled_masks,
    masked_model_arguments,
    prepare_policy_config,
)
from rllib_integration.tf_distribution import TFMaskedCategorical  # noqa: E402
from rllib_integration.tf_loss import (  # noqa: E402
    Parts,
    missing_stats,
    ppo_parts,
    present_rows,
    sum_of_parts,
)
from rllib_integration.tf_model import MaskedTFModel  # noqa: E402

__all__ = ["MaskedPPOTFPolicy"]

tf1 = tf.compat.v1


class MaskedPPOTFPolicy(FlattensByKey):
    """Mixin in front of RLlib's PPO policies for static graphs and for eager mode.

    Attributes:
        loss_terms: The further terms of the loss with their current coefficients.
        row_report: Totals of the rows left out of the loss, by reason.
        created_variables: What was created while the model was built, known to it or not.
        optimized: References of the variables that the optimizer was built for.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        config: Any,
        existing_model: Any = None,
        existing_inputs: Any = None,
    ) -> None:
        config = prepare_policy_config(config)
        self.loss_terms = LossTerms(config["loss_terms"], config["loss_coeffs"])
        self.row_report = RowReport(type(self).__name__)
        self.created_variables: list[Any] = []
        self.optimized: frozenset[Any] = frozenset()
        self._parts: Parts = {}
        self._kept_stats: dict[str, Any] = {}
        self._columns_read: set[str] = set()
        super().__init__(
            observation_space,
            action_space,
            config,
            existing_model=existing_model,
            existing_inputs=existing_inputs,
        )

    def _init_dist_class(self) -> type[TFMaskedCategorical]:
        return TFMaskedCategorical

    def make_model(self) -> MaskedTFModel:
        """The masked model around the network that the config describes."""
        model_class, arguments = masked_model_arguments(self.config, MaskedTFModel)
        size = TFMaskedCategorical.required_model_output_shape(
            self.action_space, self.config["model"]
        )

        def track(next_creator: Any, **kwargs: Any) -> Any:
            variable = next_creator(**kwargs)
            self.created_variables.append(variable)
            return variable

        with tf.variable_creator_scope(track):
            return model_class(
                self.observation_space,
                self.action_space,
                size,
                self.config["model"],
                "masked_model",
                **arguments,
            )

    def maybe_initialize_optimizer_and_loss(self) -> None:
        self._coeffs = {
            name: tf1.get_variable(
                f"loss_coeff_{i}", initializer=np.float32(value), trainable=False
            )
            for i, (name, value) in enumerate(self.loss_terms.coeffs.items())
        }
        self.optimized = frozenset(v.ref() for v in self.model.trainable_variables())
        super().maybe_initialize_optimizer_and_loss()

    def loss(self, model: Any, dist_class: Any, train_batch: Any) -> Any:
        """The sum of ``loss_parts``, each times its coefficient; keeps each for the metrics."""
        if self._building():
            seen_before = set(train_batch.accessed_keys)
            train_batch.accessed_keys.clear()
            parts = self._checked_parts(model, dist_class, train_batch)
        else:
            parts = self.loss_parts(model, dist_class, train_batch)
        total = sum_of_parts(parts)
        self._parts, self._total = parts, total
        stats = self._kept_stats
        stats["total_loss"] = total
        for name in self.loss_terms.terms:
            stats[f"loss_terms/{name}"] = tf.reshape(parts[name][1], [])
        loss = self._with_custom_loss(model, train_batch, total)
        if self._building():
            self._columns_read = set(train_batch.accessed_keys)
            train_batch.accessed_keys |= seen_before
        return loss

    def loss_parts(self, model: Any, dist_class: Any, train_batch: Any) -> Parts:
        """Every part of the loss by name: ``(coefficient, scalar)``.

        The policy's own parts come first: ``policy``, ``value``, ``entropy`` and ``kl``, or
        ``policy_loss`` alone where the config replaces it.
        """
        replaced = self.config["policy_loss"]
        if replaced is None:
            parts, stats = ppo_parts(self, model, train_batch)
        else:
            result = replaced(self, model, dist_class, train_batch)
            value, stats = result if isinstance(result, tuple) else (result, {})
            stats = {**missing_stats(), **stats}
            parts = {"policy_loss": (1.0, value)}
        for name, value in self.loss_terms.values(model, train_batch).items():
            parts[name] = (self._coeffs[name], value)
        for name, hook in self.config["loss_stats"].items():
            stats[name] = hook(self, train_batch)
        self._kept_stats = {name: tf.cast(value, tf.float32) for name, value in stats.items()}
        return parts

    def stats_fn(self, train_batch: Any) -> dict[str, Any]:
        """RLlib's statistics under RLlib's names, and one entry for everything else kept."""
        return {
            "cur_kl_coeff": tf.cast(self.kl_coeff, tf.float64),
            "cur_lr": tf.cast(self.cur_lr, tf.float64),
            "entropy_coeff": tf.cast(self.entropy_coeff, tf.float64),
            **{f"loss_coeffs/{name}": tf.identity(c) for name, c in self._coeffs.items()},
            **self._kept_stats,
        }

    def compute_gradients_fn(self, optimizer: Any, loss: Any) -> list[tuple[Any, Any]]:
        """Gradients of the trainable variables, clipped by ``grad_clip`` (global norm)."""
        variables = self.model.trainable_variables()
        gradients = [g for g, _ in optimizer.compute_gradients(loss, variables)]
        self._grad_gnorm = tf.linalg.global_norm([g for g in gradients if g is not None])
        clip = self.config["grad_clip"]
        if clip is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, clip, use_norm=self._grad_gnorm)
        return list(zip(gradients, variables, strict=True))

    def _gradient_stats(self, gradients: Mapping[str, Any]) -> dict[str, Any]:
        """The config's gradient statistics, and the norm of the whole gradient before clipping."""
        stats = {name: hook(self, gradients) for name, hook in self.config["grad_stats"].items()}
        return {"grad_gnorm": self._grad_gnorm, **stats}

    def _named_trainable(self) -> dict[Any, str]:
        named = self.model.trainable_variables(as_dict=True)
        return {variable.ref(): name for name, variable in named.items()}

    def postprocess_trajectory(
        self, sample_batch: Any, other_agent_batches: Any = None, episode: Any = None
    ) -> Any:
        """Check the masks the environment sent, then RLlib's advantages."""
        if not self._building():
            check_sampled_masks(self, sample_batch, episode)
        return super().postprocess_trajectory(sample_batch, other_agent_batches, episode)

    def compute_actions_from_input_dict(self, input_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """As RLlib's; takes flattened observations, or the environment's own, batched.

        Raises:
            MaskError: For a mask that is not exactly 0 or 1.
        """
        observations = dict.__getitem__(input_dict, SampleBatch.OBS)
        accepted = accept_raw_observations(self, observations)
        if accepted is not observations:
            input_dict = SampleBatch({**input_dict, SampleBatch.OBS: accepted})
        self._check_masks(accepted)
        return super().compute_actions_from_input_dict(input_dict, *args, **kwargs)

    def learn_on_batch(self, samples: Any) -> Any:
        """As RLlib's; names the rows that were left out of the loss."""
        results = super().learn_on_batch(samples)
        stats = results[LEARNER_STATS_KEY]
        counts = {fault: float(stats.get(f"rows_{fault}", 0.0)) for fault in ROW_FAULTS}
        if any(counts.values()):
            self.row_report.add(counts, len(samples[SampleBatch.ACTIONS]))
        # Where RLlib puts it on Torch: info.learner.<policy>.model.
        results["model"] = stats.pop("model", {})
        return results

    def on_global_var_update(self, global_vars: Mapping[str, Any]) -> None:
        super().on_global_var_update(global_vars)
        for name, value in self.loss_terms.update(global_vars["timestep"]).items():
            self._set_coeff(name, value)

    def prepared(self, batch: SampleBatch) -> SampleBatch:
        """A copy of a NumPy batch, padded as RLlib does before it learns."""
        batch = batch.copy(shallow=True)
        if not batch.zero_padded:
            pad_batch_to_sequences_of_same_size(
                batch,
                max_seq_len=self.config["model"]["max_seq_len"],
                shuffle=False,
                batch_divisibility_req=1,
                view_requirements=self.view_requirements,
            )
        return batch

    def log_ratios(self, batch: SampleBatch) -> NDArray[np.float64]:
        """New minus stored log-probability of the actions taken, a row that is no padding.

        Before any update every entry is 0, up to the rounding of a network evaluated at another
        batch size: the policy that samples and the one that learns are one function.
        """
        batch = self.prepared(batch)
        stored = np.asarray(dict.__getitem__(batch, SampleBatch.ACTION_LOGP), np.float64)
        log_prob, present = self._log_prob_and_present(batch)
        return (np.asarray(log_prob, np.float64) - stored)[np.asarray(present)]

    def _log_prob_tensors(self, batch: Any) -> tuple[Any, Any]:
        inputs, state = self.model(batch)
        log_prob = TFMaskedCategorical(inputs).logp(batch[SampleBatch.ACTIONS])
        return log_prob, present_rows(batch, state, inputs)

    def _check_masks(self, observations: Any) -> None:
        model = self.model
        if isinstance(observations, (np.ndarray, Mapping)) and not model.no_masking:
            masks = legal_entries(observations, model.where)
            if not np.array_equal(masks, masks != 0):  # In each step of a rollout: one comparison.
                as_bool(masks, name=f"the mask under {model.where.mask_key!r}")

    def _check_terms(self, parts: Parts, gradients_of: Any) -> None:
        """Raise for a term of the config that no trainable variable can change."""
        variables = self.model.trainable_variables()
        for name in self.loss_terms.terms:
            if all(g is None for g in gradients_of(parts[name][1], variables)):
                names = ", ".join(self.model.trainable_variables(as_dict=True))
                raise MaskError(
                    f"loss_terms[{name!r}] depends on none of the {len(variables)} trainable "
                    f"variables: {names} have no gradient from it. Expected a scalar computed "
                    "from the model's tensors: call the model or its layers inside the term, and "
                    "do not go through .numpy() or tf.stop_gradient."
                )
