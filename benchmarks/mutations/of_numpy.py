"""Mutations of the NumPy backend."""

from __future__ import annotations

from benchmarks.mutations.mutation import Mutation


def _m(file: str, name: str, old: str, new: str, survives: str | None = None) -> Mutation:
    return Mutation("numpy", f"_numpy_{file}.py", name, old, new, survives)


OF_NUMPY = (
    # inputs: masks, sentinels, dtypes
    _m(
        "inputs",
        "a finite sentinel",
        "np.full(x.shape, -np.inf, np.float32",
        "np.full(x.shape, -1e9, np.float32",
    ),
    _m(
        "inputs",
        "the mask is dropped from the logits",
        'np.copyto(z, x, where=legal, casting="unsafe")',
        'np.copyto(z, x, casting="unsafe")',
    ),
    _m(
        "inputs",
        "float32 is worked on as float64",
        "return is_floating(logits.dtype) and logits.dtype.itemsize <= 4",
        "return False",
        "more digits than asked for, at the price of speed; no value is wrong",
    ),
    _m(
        "inputs",
        "half precision is not widened",
        "np.float32 if narrow(x) and not wide else np.float64)",
        "x.dtype if narrow(x) and not wide else np.float64)",
    ),
    _m(
        "inputs",
        "results are float64",
        "dtype = x.dtype if is_floating(x.dtype) else np.dtype(np.float64)",
        "dtype = np.dtype(np.float64)",
    ),
    _m(
        "inputs",
        "a mask of any values is read as bool",
        "x, legal = _real(logits, names[0]), as_bool(mask, name=names[1])",
        "x, legal = _real(logits, names[0]), np.asarray(mask).astype(bool)",
    ),
    _m(
        "inputs",
        "actions out of range pass",
        "a = check_actions(actions, num_actions=x.shape[-1])",
        "a = np.asarray(actions)",
    ),
    # one row relative to its largest logit
    _m("rows", "the largest entry stays in the rest", "    e[at, k] = 0\n", ""),
    _m(
        "rows",
        "the lost part has the wrong sign",
        "part += part * lost_in",
        "part -= part * lost_in",
    ),
    _m("rows", "no exact exponent in sure rows", "DEEP = 1e-5", "DEEP = 0.0"),
    _m("rows", "loud rows are not NaN", "    rest[bad] = np.nan\n", ""),
    _m("rows", "an empty row has a largest entry", "e[at, k] = ~empty", "e[at, k] = 1"),
    _m("rows", "log instead of log1p", "np.log1p(rest), empty", "np.log(1 + rest), empty"),
    _m("rows", "the depth is not bounded", "return np.maximum(z, FLOOR, out=z)", "return z"),
    # quantities
    _m(
        "quantities",
        "illegal entries of a loud row are NaN",
        "z[r.bad] = np.where(legal[r.bad], np.nan, -np.inf)",
        "z[r.bad] = np.nan",
    ),
    _m("quantities", "an empty row has a log_prob", "    value[r.empty] = 0\n", ""),
    _m(
        "quantities",
        "the entropy's sign",
        "return r.log_total - row_dot(r.e, depth(z, r)) / r.total",
        "return r.log_total + row_dot(r.e, depth(z, r)) / r.total",
    ),
    _m(
        "quantities",
        "the mode of -inf is not legal",
        "return largest if ok.all() else np.where(ok, largest, legal.argmax(-1))",
        "return largest",
    ),
    _m(
        "quantities",
        "1 - p at the largest entry",
        "others = np.where(a == r.k, r.rest / r.total, 1 - p[row, a])",
        "others = 1 - p[row, a]",
    ),
    _m(
        "quantities",
        "an illegal action has a gradient",
        "        g[~(legal[row, a] | r.bad)] = 0\n",
        "",
    ),
    _m(
        "quantities",
        "the entropy's gradient's sign",
        "u /= -r.total[:, None]",
        "u /= r.total[:, None]",
    ),
    _m(
        "quantities",
        "the entropy's gradient without its mean",
        "        u -= (row_dot(r.e, u) / r.total)[:, None]\n",
        "",
    ),
    _m(
        "quantities",
        "the mask is dropped from the KL's gradient",
        "    np.copyto(gradient, 0, where=~legal)\n",
        "",
    ),
    _m("quantities", "sample does not refuse NaN", "        _refuse_bad(r, z)\n", ""),
    _m(
        "quantities",
        "sample compares the other way",
        "index = (cdf <= level[:, None]).sum(-1)",
        "index = (cdf > level[:, None]).sum(-1)",
    ),
    _m(
        "quantities",
        "sample's level may be the last weight",
        "level = np.minimum(rng.random(len(z)) * last, np.nextafter(last, -1))",
        "level = rng.random(len(z)) * last",
        "only a uniform that rounds to 1 shows it; the largest entry then stands in",
    ),
    # two policies
    _m(
        "divergence",
        "KL infinite by probabilities",
        "forbidden = ((zp > -np.inf) & (zq == -np.inf)).any(-1)",
        "forbidden = ((p.e > 0) & (q.e == 0)).any(-1)",
    ),
    _m("divergence", "mu is not taken off", "    t -= mu[:, None]\n", ""),
    _m("divergence", "no row is large", "LARGE = 1.0", "LARGE = np.inf"),
    _m("divergence", "every row is large", "LARGE = 1.0", "LARGE = -np.inf"),
    _m("divergence", "KL of an empty row", "    kl[p.empty] = 0\n", ""),
    _m("divergence", "KL of a NaN row", "    kl[bad] = np.nan\n", ""),
    _m(
        "divergence",
        "KL is not clipped at 0",
        "excess = np.maximum(terms.sum(-1) - _excess_of_mean(r, double=double), 0)",
        "excess = terms.sum(-1) - _excess_of_mean(r, double=double)",
        "a convex function's mean is not below its value at the mean; a lock against rounding",
    ),
    _m(
        "divergence",
        "an infinite KL has a gradient",
        "gradient[(value == np.inf) | p.empty] = 0",
        "gradient[p.empty] = 0",
    ),
    _m(
        "divergence",
        "the KL's gradient to p has the wrong sign",
        "dp = r.p * (r.r[:, None] - r.t)",
        "dp = r.p * (r.t - r.r[:, None])",
    ),
    _m(
        "divergence",
        "the KL's gradient to p without the mean of t",
        "dp = r.p * (r.r[:, None] - r.t)",
        "dp = r.p * -r.t",
    ),
    _m(
        "divergence",
        "the rounding of D is dropped",
        "    uq += lost\n",
        "",
    ),
    _m(
        "divergence",
        "the constant between two policies takes digits of D",
        "    uq -= up\n    uq += lost\n",
        "    uq = (zq - zp) - (zq_k - zp_k)[:, None]\n",
    ),
    _m(
        "divergence",
        "the far terms forget q's scale",
        "grown = q.e.reshape(-1)[far] * scale - far_p",
        "grown = q.e.reshape(-1)[far] - far_p",
    ),
    _m(
        "divergence",
        "cross-entropy is finite where q forbids",
        "    value[r.forbidden] = np.inf\n",
        "",
    ),
)
