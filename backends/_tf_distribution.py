"""``MaskedCategorical``: the functions of the TensorFlow backend, held together with their mask."""

from __future__ import annotations

from collections.abc import Sequence

from backends import _tf_quantities as quantities
from backends import _tf_sampling as sampling
from backends._tf_api import Tensor, outside_autograph, tf
from backends._tf_inputs import TensorLike, as_actions, as_policy, one_batch, same_pair


class MaskedCategorical:
    """A categorical policy over the legal actions, for eager code, ``tf.function`` and TF1 graphs.

    Args:
        logits: ``[..., A]`` unnormalised log-probabilities.
        mask: ``[..., A]``, True is legal; broadcasts with ``logits``.

    Raises:
        MaskError: For a mask that is not exactly 0/1 (where values can be looked at) or does not
            fit the logits.

    >>> d = MaskedCategorical([1.0, 5.0, 3.0], [True, False, True])
    >>> round(float(d.entropy()), 6)
    0.365334
    """

    @outside_autograph
    def __init__(self, logits: TensorLike, mask: TensorLike) -> None:
        self._policy = as_policy(logits, mask)

    @property
    def dtype(self) -> Tensor:
        """The dtype of the logits and of every result."""
        return self._policy.dtype

    @property
    def batch_shape(self) -> Tensor:
        """Static batch shape, a ``tf.TensorShape``."""
        return self._policy.shape[:-1]

    @property
    def num_actions(self) -> int | None:
        """``A``, None where it is not known."""
        return self._policy.shape[-1]

    @property
    def mask(self) -> Tensor:
        """``[..., A]`` bool, True is legal."""
        return self._policy.legal

    @property
    @outside_autograph
    def probs(self) -> Tensor:
        """``[..., A]``; illegal entries are exactly 0."""
        return tf.cast(quantities.softmax(self._policy), self.dtype)

    @property
    @outside_autograph
    def logits(self) -> Tensor:
        """``[..., A]`` log-probabilities in nats; illegal entries are -inf."""
        return tf.cast(quantities.log_softmax(self._policy), self.dtype)

    @outside_autograph
    def log_prob(self, actions: TensorLike) -> Tensor:
        """``[...]`` in nats; -inf where an action is illegal, 0 in an empty row."""
        actions, policy = one_batch(as_actions(self._policy, actions), self._policy)
        return tf.cast(quantities.log_prob(policy, actions), self.dtype)

    @outside_autograph
    def entropy(self) -> Tensor:
        """``[...]`` in nats."""
        return tf.cast(quantities.entropy(self._policy), self.dtype)

    @outside_autograph
    def kl_divergence(self, other: MaskedCategorical) -> Tensor:
        """``[...]`` KL(self, other) in nats; +inf where other forbids what self may do."""
        dtype = same_pair(self._policy, other._policy)
        return tf.cast(quantities.kl_divergence(self._policy, other._policy), dtype)

    @outside_autograph
    def cross_entropy(self, other: MaskedCategorical) -> Tensor:
        """``[...]`` ``-sum p log q`` in nats, p being self."""
        dtype = same_pair(self._policy, other._policy)
        return tf.cast(quantities.cross_entropy(self._policy, other._policy), dtype)

    @outside_autograph
    def mode(self) -> Tensor:
        """``[...]`` int64: the most probable legal action, the lowest index on a tie."""
        return sampling.mode(self._policy)

    @outside_autograph
    def sample(
        self, sample_shape: Sequence[int] | Tensor = (), *, seed: Tensor | int | None = None
    ) -> Tensor:
        """``[*sample_shape, ...]`` int64 draws, never illegal; ``seed`` as in ``sample``."""
        policy = self._policy
        if not tf.is_tensor(sample_shape) and not len(tuple(sample_shape)):
            return sampling.sample(policy, seed)
        z = policy.masked()
        shape = tf.concat([tf.cast(sample_shape, tf.int32), tf.shape(z)], 0)
        return sampling.sample(policy.at(tf.broadcast_to(z, shape)), seed)
