"""PPO's policy under a mask on eager TensorFlow, traced or not: ``framework="tf2"``."""

from __future__ import annotations

from typing import Any

from rllib_integration.keras_setup import setup_keras

setup_keras()

import tensorflow as tf  # noqa: E402
from ray.rllib.algorithms.ppo.ppo_tf_policy import PPOTF2Policy  # noqa: E402
from ray.rllib.policy.sample_batch import SampleBatch  # noqa: E402
from ray.rllib.utils import force_list  # noqa: E402
from ray.rllib.utils.metrics.learner_info import LEARNER_STATS_KEY  # noqa: E402

from rllib_integration.tf_function import PreparedFunction  # noqa: E402
from rllib_integration.tf_loss import Parts  # noqa: E402
from rllib_integration.tf_policy import MaskedPPOTFPolicy  # noqa: E402

__all__ = ["MaskedPPOTF2Policy"]


class MaskedPPOTF2Policy(MaskedPPOTFPolicy, PPOTF2Policy):
    """PPO on eager TensorFlow, traced or not, whose model, distribution and loss carry the mask."""

    _learning = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_compute_actions_helper", "_learn_on_batch_helper"):
            value = PreparedFunction(value)  # RLlib traces them at their first call.
        super().__setattr__(name, value)

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

    def learn_on_batch(self, samples: Any) -> Any:
        self._learning = True
        try:
            return super().learn_on_batch(samples)
        finally:
            self._learning = False

    def _lazy_tensor_dict(self, postprocessed_batch: Any) -> Any:
        """RLlib's; while learning, without the columns that the loss does not read.

        RLlib leaves them out of a static graph. Here it would make tensors of them, a third of the
        time that a small minibatch takes.
        """
        batch = postprocessed_batch
        if self._learning and self._columns_read:
            model = self.model.view_requirements
            batch = SampleBatch(
                {
                    key: column
                    for key, column in dict.items(batch)
                    if key in self._columns_read
                    or key in model
                    or key == SampleBatch.SEQ_LENS
                    or key.startswith("state_in_")
                },
                _time_major=batch.time_major,
                _zero_padded=batch.zero_padded,
                _max_seq_len=batch.max_seq_len,
                _num_grad_updates=batch.num_grad_updates,
            )
        return super()._lazy_tensor_dict(batch)

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
