"""Mutations of the Torch backend."""

from __future__ import annotations

from benchmarks.mutations.mutation import Mutation


def _m(file: str, name: str, old: str, new: str, survives: str | None = None) -> Mutation:
    return Mutation("torch", f"_torch_{file}.py", name, old, new, survives)


OF_TORCH = (
    # inputs: masks, dtypes
    _m(
        "inputs",
        "a mask of any values is read as bool",
        "if can_look(mask) and not bool(((mask == 1) | ~legal).all()):",
        "if False:",
    ),
    _m(
        "inputs",
        "half precision is not widened",
        "    return logits.float()\n",
        "    return logits\n",
    ),
    _m(
        "inputs",
        "logits that are not floating stay so",
        "    return tensor.to(torch.float64)\n",
        "    return tensor.to(torch.float32)\n",
        "the kit passes floating logits",
    ),
    _m(
        "inputs",
        "shapes are not checked",
        "return check_shapes(tuple(logits.shape), tuple(legal.shape), name=name)",
        "return torch.broadcast_shapes(logits.shape, legal.shape)[:-1]",
    ),
    # the plain formulas
    _m(
        "plain",
        "a finite sentinel",
        "    top = torch.where(legal, logits.detach(), -torch.inf)\n",
        "    top = torch.where(legal, logits.detach(), -1e9)\n",
    ),
    _m(
        "plain",
        "the mask is dropped from the support",
        "    support = usable & (logits != -torch.inf)\n",
        "    support = ok & (logits != -torch.inf)\n",
    ),
    _m(
        "plain",
        "a legal -inf keeps its place in the support",
        "    support = usable & (logits != -torch.inf)\n",
        "    support = usable\n",
    ),
    _m(
        "plain",
        "an empty row is NaN",
        "    nan = ~empty & ~torch.isfinite(top)\n",
        "    nan = ~torch.isfinite(top)\n",
    ),
    _m(
        "plain",
        "illegal entries of masked_log_softmax are 0",
        "torch.where(legal & ~r.empty[..., None], log_probabilities(r), -torch.inf)",
        "torch.where(legal & ~r.empty[..., None], log_probabilities(r), 0)",
    ),
    _m(
        "plain",
        "the mode is looked for everywhere",
        "    top, k = torch.where(legal, logits, -torch.inf).max(-1)\n",
        "    top, k = logits.max(-1)\n",
    ),
    _m(
        "plain",
        "the mode of -inf is not legal",
        "return torch.where(top == -torch.inf, first_legal, k)",
        "return k",
    ),
    _m(
        "plain",
        "the cross-entropy's sign",
        "torch.where(forbidden(p, q), torch.inf, -(probabilities(p) * log_q).sum(-1))",
        "torch.where(forbidden(p, q), torch.inf, (probabilities(p) * log_q).sum(-1))",
    ),
    _m(
        "plain",
        "KL infinite by probabilities",
        "    return (p.support & ~q.support).any(-1)\n",
        "    return ((probabilities(p) > 0) & (probabilities(q) == 0)).any(-1)\n",
    ),
    _m(
        "plain",
        "a NaN in q is forgotten where p is not",
        "    nan = (p.nan | q.nan) & ~p.empty\n    pain = poison(nan, p_logits, p_legal) + poison("
        "nan, q_logits, q_legal)\n    return torch.where(p.empty, 0, torch.where(nan, pain, value)"
        ")\n\n\ndef cross",
        "    nan = p.nan & ~p.empty\n    pain = poison(nan, p_logits, p_legal) + poison("
        "nan, q_logits, q_legal)\n    return torch.where(p.empty, 0, torch.where(nan, pain, value)"
        ")\n\n\ndef cross",
    ),
    _m(
        "plain",
        "the series' threshold",
        "    small = t.abs() < 0.3\n",
        "    small = t.abs() < 3.0\n",
    ),
    _m(
        "plain",
        "no series",
        "    small = t.abs() < 0.3\n",
        "    small = t.abs() < 0.0\n",
    ),
    _m(
        "plain",
        "the mass outside is forgotten",
        "- torch.log1p(-outside)\n",
        "\n",
    ),
    # the closed-form gradients
    _m(
        "gradients",
        "an illegal action has a gradient",
        "return _finish(torch.where(alive, direction, 0), legal, g, r.nan)",
        "return _finish(direction, legal, g, r.nan)",
    ),
    _m(
        "gradients",
        "the cross-entropy's gradient's sign",
        "to_p = _balanced(two.p * (mean - relative), p)",
        "to_p = _balanced(two.p * (relative - mean), p)",
    ),
    _m(
        "gradients",
        "an infinite KL has a gradient",
        "    dead = (p.empty | plain.forbidden(p, q))[..., None]\n",
        "    dead = p.empty[..., None]\n",
    ),
    _m(
        "gradients",
        "0 times an infinite incoming gradient",
        "return torch.where(direction == 0, 0, direction * g[..., None])",
        "return direction * g[..., None]",
        "the rows weight with finite numbers; a NaN row's NaN stays NaN either way",
    ),
    _m(
        "gradients",
        "q - p without expm1",
        "    close = two.shared & two.small[..., None] & (s.abs() < 1)\n",
        "    close = two.shared & False\n",
    ),
    # the fused formulas
    _m(
        "fused",
        "the entropy's sign",
        "block.entropy = constant(0.0, z.dtype) - (log_top + block.mean)",
        "block.entropy = constant(0.0, z.dtype) + (log_top + block.mean)",
    ),
    _m(
        "fused",
        "log_prob without the normaliser",
        "block.log_prob = t.gather(-1, actions).add_(log_top)",
        "block.log_prob = t.gather(-1, actions)",
    ),
    _m(
        "fused",
        "mu is not taken off",
        "        s.sub_(mu)\n",
        "        s.sub_(0 * mu)\n",
    ),
    _m(
        "fused",
        "rows without a distribution are taken as right",
        "    if worst.amax().item() <= 1e-20 and certain is None:\n        return\n",
        "    return\n",
    ),
    _m(
        "fused",
        "the entropy's gradient's sign",
        "        on_p = g_entropy * block.mean\n",
        "        on_p = -g_entropy * block.mean\n",
    ),
    _m(
        "fused",
        "log_prob's gradient without the action taken",
        "        out.scatter_add_(-1, index, g_log_prob)\n",
        "        pass\n",
    ),
    _m(
        "fused",
        "the KL's gradient forgets its total",
        "        on_old = on_w * total.neg_()\n",
        "        on_old = on_w * 0\n",
    ),
    _m(
        "fused",
        "the largest entry is not balanced",
        "    return out.addcmul_(heavy, out.sum(-1, keepdim=True), value=-1)\n",
        "    return out\n",
    ),
    _m(
        "fused",
        "nearly certain rows are taken as right",
        "    if p_max.amax().item() <= 1 - CERTAIN:\n",
        "    if True:\n",
    ),
    _m(
        "fused",
        "what rounding of D lost is not looked into",
        "        ((lost * size).sum(-1, keepdim=True) > 30 * eps * kl)\n        | (",
        "        (",
        "the second look, at the gradient, finds the same rows",
    ),
    _m(
        "fused",
        "what rounding of D lost does to the gradient is not looked into",
        "        | ((lost * (size + p)).amax(-1, keepdim=True) > 3 * eps * largest_w)\n",
        "",
    ),
    _m(
        "fused",
        "what rounding of z_old - max lost is not looked into",
        "        | ((lost_of_p * size).amax(-1, keepdim=True) > 3 * eps * largest_w)\n",
        "",
    ),
    _m(
        "fused",
        "the mean of s is not looked into",
        "        | (mean.square() > 1e-6 * kl)\n        | (mean.abs() > 25 * eps)\n",
        "",
    ),
    _m(
        "fused",
        "a large KL with an offset is taken as right",
        "return torch.where(kl > TEXTBOOK, mu.abs() > OFFSET, shows)",
        "return torch.where(kl > TEXTBOOK, mu.abs() > 1e9, shows)",
    ),
    _m(
        "fused",
        "far entries of a small KL are taken as right",
        "value = torch.where(far, torch.nan, value)",
        "value = value",
    ),
    _m(
        "fused",
        "a small KL is not looked into",
        "    return torch.maximum(doubt, some - value)\n",
        "    return doubt\n",
    ),
    _m(
        "autograd",
        "the fused formulas see what is under the old mask",
        "        flat = _with_one_mask(whole)\n",
        "        flat = whole\n",
    ),
    _m("loops", "flags are dropped", "kl, numbers, bad.to(z.dtype)", "kl, numbers, 0 * rest"),
    _m(
        "loops",
        "illegal entries count",
        "e = torch.where(legal, torch.exp(t), 0.0)",
        "e = torch.exp(t)",
    ),
    _m(
        "loops",
        "what the differences lose is left out",
        "return (d - c) + (lost - lost_of_c)",
        "return d - c",
    ),
    _m(
        "compiled",
        "rows with two masks are taken as right",
        "differ if wrong is None else differ | (wrong > 0)",
        "wrong",
    ),
    _m(
        "compiled",
        "flagged rows keep the gradient of the loops",
        "                out[other] = right.to(out.dtype)\n",
        "",
    ),
    _m(
        "plain",
        "what rounding of u lost is left out",
        "torch.exp(u) * (1 + lost), 0)",
        "torch.exp(u), 0)",
    ),
    _m(
        "block",
        "illegal bits are not cleared",
        "    torch.bitwise_and(z.view(integer), select, out=bits[0])\n",
        "    bits[0].copy_(z.view(integer))\n",
        "in blocks of more than 4,096 entries alone: the kit's rows are small",
    ),
    _m(
        "block",
        "a small block is not masked",
        "return torch.where(legal, both, constant(-torch.inf, z.dtype)), legal, None",
        "return both.clone(), legal, None",
    ),
    _m(
        "block",
        "1 - p is not a sum of the others",
        "return torch.where(p_max > half, others.neg_().log1p_(), p_max.log()), heavy",
        "return p_max.log(), heavy",
    ),
    _m(
        "excess",
        "the series' second coefficient",
        "alpha=-1 / 12",
        "alpha=-1 / 13",
    ),
    _m(
        "excess",
        "the series' threshold",
        "NEAR = 1.0 ",
        "NEAR = 3.0 ",
    ),
    _m(
        "autograd",
        "wrong rows keep what the fused formulas gave",
        '    result[other] = cast("Tensor", right[k]).unsqueeze(-1).to(result.dtype)\n',
        "    pass\n",
    ),
    _m(
        "autograd",
        "empty rows keep what the fused formulas gave",
        "            result[empty] = 0\n",
        "            pass\n",
    ),
    _m(
        "autograd",
        "the old mask is taken for the new one",
        "plain.kl_divergence(old, z, legal if old_legal is None else old_legal, legal)",
        "plain.kl_divergence(old, z, legal, legal)",
    ),
    # small batches
    _m(
        "small",
        "illegal entries count",
        "x = torch.where(legal, logits.double(), constant(FILL, torch.float64))",
        "x = logits.double()",
    ),
    _m(
        "small",
        "the largest counts twice",
        "    e = (t * _LOG2E).exp2_().scatter_(-1, k, 0.0)\n",
        "    e = (t * _LOG2E).exp2_()\n",
    ),
    _m(
        "small",
        "entropy with a sign wrong",
        "entropy = log_total - mean",
        "entropy = log_total + mean",
    ),
    _m(
        "small",
        "the mean difference stays in",
        "        s.sub_((p_old * s).sum(-1, keepdim=True))\n",
        "",
    ),
    _m(
        "small",
        "the offset stays in",
        "        s.sub_(shift)\n",
        "",
    ),
    _m(
        "small",
        "KL may be negative",
        ".sum(-1, keepdim=True).clamp_min_(0.0)\n",
        ".sum(-1, keepdim=True)\n",
        "expm1(s) is below s by its last bit at most, where |s| < 1e-15; a lock against rounding",
    ),
    _m(
        "small",
        "rows without a result are not named",
        "good = check.amin().item() > FILL / 2",
        "good = True",
    ),
    _m(
        "small",
        "policies too far apart are not named",
        " and most.item() < math.inf",
        "",
    ),
    _m(
        "small",
        "a KL below the rounding of the offset is not named",
        "least.item() >= 0 and ",
        "",
    ),
    _m(
        "small",
        "the largest entry keeps its own rounding",
        "    return _balanced(out, k)\n",
        "    return out.float()\n",
    ),
    _m(
        "small",
        "the gradient is not centred",
        "torch.addcmul(w, p_old, growth, value=-1)",
        "w.clone()",
    ),
    _m(
        "small",
        "the old gradient has the wrong sign",
        "(small.p_old * small.s).mul_(-g_kl)",
        "(small.p_old * small.s).mul_(g_kl)",
    ),
    # drawing
    _m(
        "sampling",
        "the uniform number is not reversed",
        "(1 - uniform) * total",
        "uniform * total",
        "in a graph alone; u = 0 would draw the first index, which the check below replaces",
    ),
)
