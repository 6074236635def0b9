"""Each quantity and its closed-form gradient, block by block (``_numpy_inputs.blocks``).

Every function here takes policies and gives flat results ``[N]`` or ``[N, A]`` in the caller's
dtype. NaN and infinities are results of the contract, so floating point warnings are off inside.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends import _numpy_divergence as divergence
from backends._numpy_inputs import Array, BoolArray, Policy, blocks, masked, narrow, output
from backends._numpy_rows import Rows, depth, probabilities, row_dot, rows
from maskcore.masks import MaskError

quiet = np.errstate(all="ignore")

Actions = NDArray[np.int64]


@quiet
def softmax(policy: Policy) -> Array:
    """``[N, A]``."""
    out = output(policy, entries=True)
    for at in blocks(policy):
        z, legal = masked(policy, at)
        out[at] = probabilities(rows(z, legal), legal)
    return out


@quiet
def log_softmax(policy: Policy) -> Array:
    """``[N, A]``."""
    out = output(policy, entries=True)
    for at in blocks(policy):
        z, legal = masked(policy, at)
        r = rows(z, legal)
        z -= r.top[:, None]
        z -= r.log_total[:, None]
        if r.bad.any():
            z[r.bad] = np.where(legal[r.bad], np.nan, -np.inf)
        out[at] = z
    return out


@quiet
def log_prob(policy: Policy, actions: Actions) -> Array:
    """``[N]``."""
    out = output(policy)
    for at in blocks(policy):
        z, legal = masked(policy, at)
        out[at] = _log_prob(z, rows(z, legal), actions[at])
    return out


@quiet
def entropy(policy: Policy) -> Array:
    """``[N]``."""
    out = output(policy)
    for at in blocks(policy):
        z, legal = masked(policy, at)
        out[at] = _entropy(z, rows(z, legal))
    return out


@quiet
def kl_divergence(p: Policy, q: Policy, dtype: Any) -> Array:
    """``[N]``."""
    out = output(p, dtype)
    for at in blocks(p):
        out[at] = _pair(p, q, at)[0].kl
    return out


@quiet
def cross_entropy(p: Policy, q: Policy, dtype: Any) -> Array:
    """``[N]``."""
    out = output(p, dtype)
    for at in blocks(p):
        both, rp, rq, zq = _pair(p, q, at)
        out[at] = divergence.cross_entropy(zq, both, rp, rq)[0]
    return out


@quiet
def evaluate(policy: Policy, actions: Actions, old: Policy | None, dtype: Any) -> list[Array]:
    """log_prob, entropy and KL(old, new), each ``[N]``; without the KL where there is no old."""
    values = [output(policy), output(policy)]
    if old is not None:
        values.append(output(policy, dtype))
    for at in blocks(policy):
        z, legal = masked(policy, at)
        r = rows(z, legal)
        values[0][at] = _log_prob(z, r, actions[at])
        values[1][at] = _entropy(z, r)
        if old is not None:
            values[2][at] = _pair(old, policy, at)[0].kl
    return values


@quiet
def mode(policy: Policy) -> Actions:
    """``[N]``: the first largest legal logit, a NaN counting as largest."""
    out = output(policy, np.int64)
    for at in blocks(policy):
        z, legal = masked(policy, at)
        out[at] = _mode(z.argmax(-1), legal)
    return out


@quiet
def sample(policy: Policy, rng: np.random.Generator) -> Actions:
    """``[N]``: the inverse of the cumulative distribution in float64, at one uniform a row.

    The level is below the last cumulative weight, so that the first entry above it exists, and its
    own weight is positive: an illegal entry adds exactly 0 to the sum before it. The largest entry
    stands in should that ever fail.
    """
    out = output(policy, np.int64)
    for at in blocks(policy):
        z, legal = masked(policy, at)
        r = rows(z, legal)
        _refuse_bad(r, z)
        cdf = np.cumsum(r.e, -1, dtype=np.float64)
        last = cdf[:, -1]
        level = np.minimum(rng.random(len(z)) * last, np.nextafter(last, -1))
        index = (cdf <= level[:, None]).sum(-1)
        index = np.minimum(index, z.shape[1] - 1)
        drawn = r.e[np.arange(len(z)), index] > 0
        out[at] = np.where(drawn, index, _mode(r.k, legal))
    return out


@quiet
def log_prob_grad(policy: Policy, actions: Actions) -> Array:
    """``1[a = b] - p_b`` ``[N, A]``; at the largest entry ``1 - p`` is the sum of the others."""
    out = output(policy, entries=True)
    for at in blocks(policy):
        z, legal = masked(policy, at)
        r = rows(z, legal)
        row, a = np.arange(len(z)), actions[at]
        p = probabilities(r, legal)
        others = np.where(a == r.k, r.rest / r.total, 1 - p[row, a])
        g = np.subtract(0, p, out=p)
        g[row, a] = others
        g[~(legal[row, a] | r.bad)] = 0
        if r.bad.any():
            g[r.bad] = np.where(legal[r.bad], np.nan, 0)
        out[at] = g
    return out


@quiet
def entropy_grad(policy: Policy) -> Array:
    """``-p (log p + H)`` ``[N, A]``, which is ``-p (u - sum p u)`` for ``u = z - z_k``."""
    out = output(policy, entries=True)
    for at in blocks(policy):
        z, legal = masked(policy, at)
        r = rows(z, legal)
        u = depth(z, r)
        u -= (row_dot(r.e, u) / r.total)[:, None]
        u *= r.e
        u /= -r.total[:, None]
        if r.bad.any():
            u[r.bad] = np.where(legal[r.bad], np.nan, 0)
        out[at] = u
    return out


@quiet
def kl_divergence_grad(p: Policy, q: Policy, dtype: Any) -> tuple[Array, Array]:
    """Gradients to both logits, ``[N, A]`` each."""
    out = output(p, dtype, entries=True), output(p, dtype, entries=True)
    for at in blocks(p):
        both, rp, rq, _ = _pair(p, q, at)
        dp, dq = divergence.kl_gradients(both, rp, rq)
        out[0][at], out[1][at] = _legal_only(dp, p.legal[at]), _legal_only(dq, q.legal[at])
    return out


@quiet
def cross_entropy_grad(p: Policy, q: Policy, dtype: Any) -> tuple[Array, Array]:
    """Gradients to both logits, ``[N, A]`` each."""
    out = output(p, dtype, entries=True), output(p, dtype, entries=True)
    for at in blocks(p):
        both, rp, rq, zq = _pair(p, q, at)
        dp = divergence.cross_entropy(zq, both, rp, rq)[1]
        dq = divergence.cross_entropy_gradient_to_q(both, rp, rq)
        out[0][at], out[1][at] = _legal_only(dp, p.legal[at]), _legal_only(dq, q.legal[at])
    return out


def _pair(p: Policy, q: Policy, at: slice) -> tuple[divergence.Pair, Rows, Rows, Array]:
    (zp, p_legal), (zq, q_legal) = masked(p, at, wide=True), masked(q, at, wide=True)
    rp, rq = rows(zp, p_legal), rows(zq, q_legal)
    double = not (narrow(p.logits) and narrow(q.logits))
    return divergence.pair(zp, zq, rp, rq, double=double), rp, rq, zq


def _log_prob(z: Array, r: Rows, actions: Actions) -> Array:
    value = (z[np.arange(len(z)), actions] - r.top) - r.log_total
    value[r.empty] = 0
    return value


def _entropy(z: Array, r: Rows) -> Array:
    """``log_total - sum p (z - z_k)``: two terms >= 0. Writes over ``z``."""
    return r.log_total - row_dot(r.e, depth(z, r)) / r.total


def _mode(largest: Actions, legal: BoolArray) -> Actions:
    """The largest entry, or the first legal one where everything legal is -inf; 0 if empty."""
    ok = legal[np.arange(len(legal)), largest]
    return largest if ok.all() else np.where(ok, largest, legal.argmax(-1))


def _legal_only(gradient: Array, legal: BoolArray) -> Array:
    np.copyto(gradient, 0, where=~legal)
    return gradient


def _refuse_bad(r: Rows, z: Array) -> None:
    if r.bad.any():
        raise MaskError(
            f"logits have no distribution in {int(r.bad.sum())} row(s); the first has the entries "
            f"{z[r.bad][0][:4]} (illegal ones shown as -inf). Expected finite numbers (or -inf "
            "beside finite ones). The network that made them has diverged."
        )
