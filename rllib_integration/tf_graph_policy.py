"""PPO's policy under a mask on TensorFlow's static graph: ``framework="tf"``."""

from __future__ import annotations

from typing import Any

from rllib_integration.keras_setup import setup_keras

setup_keras()

import tensorflow as tf  # noqa: E402
from ray.rllib.algorithms.ppo.ppo_tf_policy import PPOTF1Policy  # noqa: E402
from ray.rllib.policy.sample_batch import SampleBatch  # noqa: E402

from rllib_integration.policy_parts import accept_raw_observations  # noqa: E402
from rllib_integration.tf_loss import Parts  # noqa: E402
from rllib_integration.tf_policy import MaskedPPOTFPolicy  # noqa: E402
from rllib_integration.tf_session import PreparedSession  # noqa: E402

__all__ = ["MaskedPPOTF1Policy"]

tf1 = tf.compat.v1


class MaskedPPOTF1Policy(MaskedPPOTFPolicy, PPOTF1Policy):
    """PPO on TensorFlow's static graph whose model, distribution and loss carry the mask."""

    _prepared_session: PreparedSession | None = None

    def maybe_initialize_optimizer_and_loss(self) -> None:
        super().maybe_initialize_optimizer_and_loss()
        self.gradient_ops: Any = None
        self._coeff_updates = {}
        for name, variable in self._coeffs.items():
            placeholder = tf1.placeholder(tf.float32, ())
            update = variable.assign(placeholder, read_value=False)
            self._coeff_updates[name] = (placeholder, update)

    def get_session(self) -> Any:
        """The session, which prepares each kind of run once."""
        session = super().get_session()
        if session is None:
            return None
        if self._prepared_session is None or self._prepared_session.session is not session:
            self._prepared_session = PreparedSession(session)
        return self._prepared_session

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
