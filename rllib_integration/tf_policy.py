"""PPO's policies under a mask, TensorFlow: one for static graphs (``tf``), one for eager (``tf2``).

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
from ray.rllib.algorithms.ppo.ppo_tf_policy import PPOTF1Policy, PPOTF2Policy  # noqa: E402
from ray.rllib.policy.rnn_sequencing import pad_batch_to_sequences_of_same_size  # noqa: E402
from ray.rllib.policy.sample_batch import SampleBatch  # noqa: E402
from ray.rllib.utils import force_list  # noqa: E402
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

__all__ = ["MaskedPPOTF1Policy", "MaskedPPOTF2Policy"]

tf1 = tf.compat.v1


class _MaskedPPO(FlattensByKey):
    """What both policies share; mixed in front of RLlib's.

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
            parts = self._checked_parts(model, dist_class, train_batch)
        else:
            parts = self.loss_parts(model, dist_class, train_batch)
        total = sum_of_parts(parts)
        self._parts, self._total = parts, total
        stats = self._kept_stats
        stats["total_loss"] = total
        for name in self.loss_terms.terms:
            stats[f"loss_terms/{name}"] = tf.reshape(parts[name][1], [])
        return self._with_custom_loss(model, train_batch, total)

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


class MaskedPPOTF1Policy(_MaskedPPO, PPOTF1Policy):
    """PPO on TensorFlow's static graph whose model, distribution and loss carry the mask."""

    def maybe_initialize_optimizer_and_loss(self) -> None:
        super().maybe_initialize_optimizer_and_loss()
        self.gradient_ops: Any = None
        self._coeff_updates = {}
        for name, variable in self._coeffs.items():
            placeholder = tf1.placeholder(tf.float32, ())
            update = variable.assign(placeholder, read_value=False)
            self._coeff_updates[name] = (placeholder, update)

    def compute_actions(self, obs_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """As RLlib's; takes flattened observations, or the environment's own, batched."""
        obs_batch = accept_raw_observations(self, obs_batch)
        self._check_masks(obs_batch)
        return super().compute_actions(obs_batch, *args, **kwargs)

    def grad_stats_fn(self, train_batch: Any, grads: Any) -> dict[str, Any]:
        """Gradient statistics, and the loss with ``custom_loss`` in it.

        RLlib calls ``custom_loss`` between ``stats_fn`` and here, so these entries replace those.
        """
        names = self._named_trainable()
        gradients = {names[v.ref()]: g for g, v in self._grads_and_vars}
        return {
            **self._gradient_stats(gradients),
            "custom_loss": self._losses[0] - self._total,
            "total_loss": self._losses[0],
        }

    def _log_prob_and_present(self, batch: Any) -> Any:
        session = self.get_session()
        with session.graph.as_default():
            if not hasattr(self, "_log_prob_ops"):
                self._log_prob_ops = self._log_prob_tensors(SampleBatch(self._loss_input_dict))
            return session.run(self._log_prob_ops, self.feed_of(batch))

    def feed_of(self, batch: SampleBatch) -> dict[Any, Any]:
        """What a session is fed for the tensors of the loss."""
        return self._get_loss_inputs_dict(self.prepared(batch), shuffle=False)

    @property
    def built_loss(self) -> tuple[Parts, Any, Any]:
        """The parts of the loss in the graph, their sum, and it with ``custom_loss``."""
        return self._parts, self._total, self._losses[0]

    def _building(self) -> bool:
        return not self.loss_initialized()

    def _with_custom_loss(self, model: Any, train_batch: Any, total: Any) -> Any:
        return total  # RLlib's TFPolicy adds it.

    def _checked_parts(self, model: Any, dist_class: Any, train_batch: Any) -> Parts:
        parts = self.loss_parts(model, dist_class, train_batch)
        self._check_terms(parts, tf.gradients)
        return parts

    def _set_coeff(self, name: str, value: float) -> None:
        placeholder, assign = self._coeff_updates[name]
        self.get_session().run(assign, feed_dict={placeholder: value})


class MaskedPPOTF2Policy(_MaskedPPO, PPOTF2Policy):
    """PPO on eager TensorFlow, traced or not, whose model, distribution and loss carry the mask."""

    def maybe_initialize_optimizer_and_loss(self) -> None:
        super().maybe_initialize_optimizer_and_loss()
        # RLlib leaves this to the first update, so a restored optimizer has nowhere to put its
        # moments, and starts again from zero.
        self._optimizer.build(self.model.trainable_variables())

    def compute_actions(
        self,
        obs_batch: Any,
        state_batches: Any = None,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        info_batch: Any = None,
        episodes: Any = None,
        explore: Any = None,
        timestep: Any = None,
        **kwargs: Any,
    ) -> Any:
        """As RLlib's, whose own loses the recurrent state (every key is "state_in_{i}")."""
        columns = {
            SampleBatch.OBS: obs_batch,
            SampleBatch.PREV_ACTIONS: prev_action_batch,
            SampleBatch.PREV_REWARDS: prev_reward_batch,
            **{f"state_in_{i}": state for i, state in enumerate(state_batches or [])},
        }
        input_dict = SampleBatch({k: v for k, v in columns.items() if v is not None})
        return self.compute_actions_from_input_dict(
            input_dict, explore=explore, timestep=timestep, episodes=episodes, **kwargs
        )

    def stats_fn(self, train_batch: Any) -> dict[str, Any]:
        return {**super().stats_fn(train_batch), "model": dict(self.model.metrics())}

    def grad_stats_fn(self, train_batch: Any, grads: Any) -> dict[str, Any]:
        names = self.model.trainable_variables(as_dict=True)
        pairs = zip(names, grads, strict=True)
        return self._gradient_stats({name: g for name, g in pairs if g is not None})

    def get_state(self) -> Any:
        state = super().get_state()
        # RLlib puts the variables themselves into the checkpoint.
        state["_optimizer_variables"] = [v.numpy() for v in self._optimizer.variables]
        return state

    def _stats(self, samples: Any, grads: Any) -> dict[str, Any]:
        """RLlib's, with the gradient statistics among the learner's instead of beside them."""
        fetches = {LEARNER_STATS_KEY: self.stats_fn(samples), **self.extra_learn_fetches_fn()}
        fetches[LEARNER_STATS_KEY].update(self.grad_stats_fn(samples, grads))
        return fetches

    def prepared(self, batch: SampleBatch) -> SampleBatch:
        """A copy of a NumPy batch, padded and lazily converted as RLlib does before it learns."""
        return self._lazy_tensor_dict(super().prepared(batch))

    def _log_prob_and_present(self, batch: Any) -> Any:
        return self._log_prob_tensors(batch)

    def _apply_gradients_helper(self, grads_and_vars: Any) -> None:
        """RLlib's, given the variables themselves.

        Once ``compute_gradients`` was called on a traced policy of Ray 2.60, ``learn_on_batch``
        gets copies of them out of the traced function, which cannot be assigned to.
        """
        gradients = [gradient for gradient, _ in grads_and_vars]
        pairs = zip(gradients, self.model.trainable_variables(), strict=True)
        super()._apply_gradients_helper(list(pairs))

    def _building(self) -> bool:
        return bool(getattr(self, "_no_tracing", False))

    def _with_custom_loss(self, model: Any, train_batch: Any, total: Any) -> Any:
        """RLlib 2.60 never calls the hook on this framework."""
        loss = force_list(model.custom_loss([total], train_batch))[0]
        self._kept_stats["custom_loss"] = loss - total
        self._kept_stats["total_loss"] = loss
        return loss

    def _checked_parts(self, model: Any, dist_class: Any, train_batch: Any) -> Parts:
        with tf.GradientTape(persistent=True) as tape:
            parts = self.loss_parts(model, dist_class, train_batch)
        self._check_terms(parts, tape.gradient)
        return parts

    def _set_coeff(self, name: str, value: float) -> None:
        self._coeffs[name].assign(value)
