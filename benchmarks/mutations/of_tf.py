"""Mutations of the TensorFlow backend."""

from __future__ import annotations

from benchmarks.mutations.mutation import Mutation


def _m(file: str, name: str, old: str, new: str, survives: str | None = None) -> Mutation:
    return Mutation("tf", f"{file}.py", name, old, new, survives)


OF_TF = (
    _m(
        "_tf_inputs",
        "a finite sentinel",
        'NEG_INF = float("-inf")',
        "NEG_INF = -1e9",
    ),
    _m(
        "_tf_inputs",
        "a mask of any values is read as bool",
        "        return tf.convert_to_tensor(as_bool(tensor.numpy(), name=name))\n",
        "        pass\n",
    ),
    _m(
        "_tf_inputs",
        "half precision is not widened",
        "work = x if x.dtype in (tf.float32, tf.float64) else tf.cast(x, tf.float32)",
        "work = x",
    ),
    _m(
        "_tf_inputs",
        "shapes are not checked",
        "    if logits.is_fully_defined() and mask.is_fully_defined():\n",
        "    return\n    if logits.is_fully_defined() and mask.is_fully_defined():\n",
    ),
    _m(
        "_tf_inputs",
        "actions out of range pass",
        "        check_actions(a.numpy(), num_actions=num_actions)\n",
        "        pass\n",
    ),
    _m("_tf_rows", "the lost part has the wrong sign", "* (one + lost)", "* (one - lost)"),
    _m(
        "_tf_rows",
        "an empty row is divided by 0",
        "total = tf.where(empty, one, ties + rest)",
        "total = ties + rest",
    ),
    _m(
        "_tf_rows",
        "log instead of log1p",
        "tf.where(total < 2 * one, tf.math.log1p(rest), tf.math.log(total))",
        "tf.math.log(total)",
    ),
    _m(
        "_tf_rows",
        "the depth's sign",
        "return -tf.reduce_sum(p * r.tau, -1, keepdims=True)",
        "return tf.reduce_sum(p * r.tau, -1, keepdims=True)",
    ),
    _m(
        "_tf_quantities",
        "the mask is dropped from the softmax's gradient",
        "            return p * (g - tf.reduce_sum(p * g, -1, keepdims=True))\n",
        "            return p * g\n",
    ),
    _m(
        "_tf_quantities",
        "the entropy's gradient's sign",
        "return g[..., None] * -p * (r.tau + depth)",
        "return g[..., None] * p * (r.tau + depth)",
    ),
    _m(
        "_tf_quantities",
        "the entropy's gradient without its mean",
        "return g[..., None] * -p * (r.tau + depth)",
        "return g[..., None] * -p * r.tau",
    ),
    _m(
        "_tf_quantities",
        "log_prob of an illegal action is finite",
        "value = tf.where(tf.logical_or(legal, tf.math.is_nan(r.total)), value, NEG_INF)",
        "value = tf.where(tf.logical_or(legal, tf.math.is_nan(r.total)), value, -1e9)",
    ),
    _m(
        "_tf_quantities",
        "an illegal action has a gradient",
        "        g = tf.where(tf.logical_or(legal, tf.math.is_nan(r.total)), g, zero)\n",
        "",
    ),
    _m(
        "_tf_quantities",
        "an empty row has a log_prob",
        "    value = tf.where(policy.empty, zero, value)\n",
        "",
    ),
    _m(
        "_tf_quantities",
        "1 - p at the largest entry",
        "others = tf.where(dominant, r.rest / r.total, 1 - p_a)",
        "others = 1 - p_a",
    ),
    _m(
        "_tf_divergence",
        "KL infinite by probabilities",
        "    forbidden = tf.reduce_any(tf.logical_and(support, tf.equal(zq, -math.inf)), -1, "
        "keepdims=True)\n",
        "    forbidden = tf.reduce_any(tf.logical_and(p.e > 0, tf.equal(q.e, 0)), -1, "
        "keepdims=True)\n",
    ),
    _m(
        "_tf_divergence",
        "mu is not taken off",
        "    t = d - tf.where(bad, nan, mu)\n",
        "    t = d - tf.where(bad, nan, 0 * mu)\n",
    ),
    _m("_tf_divergence", "no row is large", "LARGE = 1.0", "LARGE = 1e30"),
    _m("_tf_divergence", "every row is large", "LARGE = 1.0", "LARGE = -1e30"),
    _m(
        "_tf_divergence",
        "KL of an empty row",
        "    kl = tf.where(p_empty, zero, kl)\n",
        "",
    ),
    _m(
        "_tf_divergence",
        "an infinite KL has a gradient",
        "    dead = tf.logical_or(p_empty, tf.equal(kl, math.inf))\n    carried",
        "    dead = p_empty\n    carried",
    ),
    _m(
        "_tf_divergence",
        "the KL's gradient to p has the wrong sign",
        "return tf.where(r.dead, tf.zeros([], r.p.dtype), -r.p * r.spread)",
        "return tf.where(r.dead, tf.zeros([], r.p.dtype), r.p * r.spread)",
    ),
    _m(
        "_tf_divergence",
        "the rounding of D is dropped",
        "(shifted - p.shifted) + lost, zero)",
        "shifted - p.shifted, zero)",
    ),
    _m(
        "_tf_fused",
        "ties are taken for near certainty",
        "sure = tf.logical_and(largest > 0.5, m.largest > 0.5)",
        "sure = m.largest > 0.5",
    ),
    _m(
        "_tf_fused",
        "logits that all move are taken as ordinary",
        "OFFSET = 1 / 64",
        "OFFSET = 0.0",
    ),
    _m(
        "_tf_fused",
        "a KL of deep entries alone is taken as ordinary",
        "TAIL = 1e-6",
        "TAIL = 0.0",
    ),
    _m(
        "_tf_fused",
        "log p from the largest p, whatever that is",
        "SURE = 0.75",
        "SURE = 2.0",
    ),
    _m(
        "_tf_fused",
        "the short series beyond its reach",
        "near = tf.reduce_all(size < NEAR)",
        "near = tf.constant(True)",
    ),
    _m(
        "_tf_fused",
        "no row is empty",
        "        tf.reduce_any(low),\n",
        "        tf.constant(False),\n",
    ),
    _m(
        "_tf_fused",
        "no digits of q - p where both are nearly 1",
        "growth = tf.where(large, _direct(before, new, m, p, q, largest), growth)",
        "growth = tf.where(large, q - p, growth)",
    ),
    _m(
        "_tf_inputs",
        "what is drawn in the same graph carries a gradient",
        "return tensor if can_look(tensor) else tf.stop_gradient(tensor)",
        "return tensor",
    ),
    _m(
        "_series",
        "the series' threshold",
        "SERIES_BELOW = 1.0",
        "SERIES_BELOW = 3.0",
    ),
    _m("_series", "no series", "SERIES_BELOW = 1.0", "SERIES_BELOW = 0.0"),
    _m("_series", "a wrong constant", "2.52884348994e-5", "2.53e-5"),
    _m("_series", "a term is left out", "for n in range(2, 19", "for n in range(3, 19"),
    _m(
        "_tf_sampling",
        "the weight of the index is not looked at",
        "hit = tf.logical_and(cdf > level, weights > 0)",
        "hit = cdf > level",
        "sums are monotone but in XLA, for which the second condition is",
    ),
    _m(
        "_tf_sampling",
        "the mode is looked for everywhere",
        "best = tf.where(nothing, first_legal, best)",
        "best = tf.where(nothing, tf.zeros_like(best), best)",
    ),
    _m(
        "_tf_sampling",
        "sample does not refuse NaN",
        "    _refuse_nan(z, r.total)\n",
        "",
        "the mode, a legal index, is drawn: in range, which is what the contract's row asks",
    ),
    # the fused step
    _m(
        "_tf_fused",
        "deep rows keep their rounding",
        "DEEP = 1e-5",
        "DEEP = 0.0",
    ),
    _m(
        "_tf_step",
        "the entropy's sign",
        "tf.where(new.empty, zero, m.total + m.mean)",
        "tf.where(new.empty, zero, m.total - m.mean)",
    ),
    _m(
        "_tf_step",
        "the taken action is not put back",
        "return tf.reshape(flat, self._shape)",
        "return array",
    ),
    _m(
        "_tf_step",
        "KL of an empty row",
        "    kl = tf.where(old.empty, zero, kl)\n",
        "",
    ),
    _m(
        "_tf_step",
        "masks are taken as equal",
        "        alike = tf.reduce_all(tf.equal(old.legal, new.legal))\n",
        "        alike = tf.constant(True)\n",
    ),
    _m(
        "_tf_step",
        "an infinite KL has a gradient",
        "    dead = tf.logical_or(old.empty, tf.equal(kl, math.inf))\n",
        "    dead = old.empty\n",
    ),
    _m(
        "_tf_step",
        "the mask is dropped from the gradient",
        "tf.where(policy.legal, tf.where(bad, nan, gradient), zero)",
        "tf.where(bad, nan, gradient)",
    ),
    _m(
        "_tf_compiled",
        "every row is taken as ordinary",
        "    special = tf.logical_not(tf.reduce_all(fits))\n",
        "    special = tf.constant(False)\n",
    ),
    _m(
        "_tf_compiled",
        "the rounding of t is dropped",
        "(rounding_error_if_finite(new.x, old.x, d) - c_lost)",
        "(0 - c_lost)",
    ),
    _m(
        "_tf_compiled",
        "q - p keeps what rounding leaves of its sum",
        "(both.growth - both.old.e * both.b) * scale",
        "both.growth * scale",
    ),
)
