"""What is NumPy's own: dtypes, blocks of rows, silence, fresh results, draws."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from backends import _numpy_inputs, numpy_backend
from maskcore import MaskError, spec
from maskcore.conformance import exact

RNG = np.random.default_rng(5)
LOGITS, OLD = RNG.normal(size=(2, 7, 5)).astype(np.float32) * 3
MASK = RNG.random((7, 5)) < 0.6
MASK[:, 1] = True
ACTIONS = RNG.integers(0, 5, 7)


def everything(z: Any, mask: Any, a: Any, old: Any, old_mask: Any) -> dict[str, Any]:
    pair = {"p_mask": old_mask, "q_mask": mask}
    one = ("masked_softmax", "masked_log_softmax", "entropy", "entropy_grad", "mode")
    results = {name: getattr(numpy_backend, name)(z, mask) for name in one}
    for name in ("log_prob", "log_prob_grad"):
        results[name] = getattr(numpy_backend, name)(z, mask, a)
    for name in ("kl_divergence", "cross_entropy"):
        results[name] = getattr(numpy_backend, name)(old, z, **pair)
        both = getattr(numpy_backend, f"{name}_grad")(old, z, **pair)
        results[f"{name}_grad_p"], results[f"{name}_grad_q"] = both
    evaluation = numpy_backend.evaluate_actions(z, mask, a, old_logits=old, old_mask=old_mask)
    return {**results, **evaluation._asdict()}


@pytest.mark.parametrize("block", [1, 10, 12, 1 << 16])
def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    whole = everything(LOGITS, MASK, ACTIONS, OLD, MASK)
    monkeypatch.setattr(_numpy_inputs, "BLOCK", block)
    for name, value in everything(LOGITS, MASK, ACTIONS, OLD, MASK).items():
        np.testing.assert_array_equal(value, whole[name], err_msg=name)


@pytest.mark.parametrize("name", ["entropy", "log_prob", "kl_divergence", "evaluate_actions"])
def test_memory_beyond_the_result_is_a_few_blocks(name: str) -> None:
    z = RNG.normal(size=(4096, 512)).astype(np.float32)
    mask, a = np.ones(z.shape, bool), np.zeros(4096, np.int64)
    call = {
        "entropy": lambda: numpy_backend.entropy(z, mask),
        "log_prob": lambda: numpy_backend.log_prob(z, mask, a),
        "kl_divergence": lambda: numpy_backend.kl_divergence(z, z, p_mask=mask, q_mask=mask),
        "evaluate_actions": lambda: numpy_backend.evaluate_actions(z, mask, a, old_logits=z),
    }[name]
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < z.nbytes


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_results_are_in_the_dtype_of_logits(dtype: str) -> None:
    results = everything(LOGITS.astype(dtype), MASK, ACTIONS, OLD.astype(dtype), MASK)
    assert {n: r.dtype.name for n, r in results.items() if n != "mode"} == dict.fromkeys(
        (n for n in results if n != "mode"), dtype
    )


def test_integer_logits_become_float64() -> None:
    assert numpy_backend.entropy([[1, 2, 3]], [[1, 0, 1]]).dtype == np.float64


def test_dtypes_of_two_policies_are_promoted() -> None:
    kl = numpy_backend.kl_divergence(LOGITS, OLD.astype(float), p_mask=MASK, q_mask=MASK)
    assert kl.dtype == np.float64
    exact = spec.kl_divergence(LOGITS, OLD.astype(float), p_mask=MASK, q_mask=MASK)
    np.testing.assert_allclose(kl, exact, rtol=1e-12)


def test_no_warning_and_no_change_of_errstate() -> None:
    z, mask = LOGITS.copy(), MASK.copy()
    z[0, 1], z[1, 1], z[2], mask[3] = np.nan, np.inf, -np.inf, False
    z[~mask] = 3e38
    far = OLD * np.float32(1e30)
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        before = np.geterr()
        everything(z, mask, ACTIONS, far, MASK)
        assert np.geterr() == before


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def test_arguments_are_not_written_to_and_results_are_fresh() -> None:
    arguments = [read_only(a) for a in (LOGITS, MASK, ACTIONS, OLD, MASK)]
    for name, value in everything(*arguments).items():
        assert not any(np.shares_memory(value, a) for a in arguments), name
        assert value.flags.writeable, name


def test_memory_order_and_strides_do_not_matter() -> None:
    exact = everything(LOGITS, MASK, ACTIONS, OLD, MASK)
    strided = np.repeat(LOGITS, 2, axis=1)[:, ::2]
    found = everything(np.asfortranarray(strided), MASK[::-1][::-1], ACTIONS, OLD, MASK)
    for name, value in found.items():
        np.testing.assert_array_equal(value, exact[name], err_msg=name)


def test_the_mask_of_a_distribution_is_copied() -> None:
    mask = MASK.copy()
    policy = numpy_backend.MaskedCategorical(LOGITS, mask)
    before = policy.entropy()
    mask[:] = False
    np.testing.assert_array_equal(policy.entropy(), before)


def test_masked_categorical_equals_the_functions() -> None:
    p = numpy_backend.MaskedCategorical(OLD, MASK)
    q = numpy_backend.MaskedCategorical(LOGITS, MASK)
    exact = everything(LOGITS, MASK, ACTIONS, OLD, MASK)
    found = {
        "masked_softmax": q.probs,
        "masked_log_softmax": q.logits,
        "log_prob": q.log_prob(ACTIONS),
        "entropy": q.entropy(),
        "mode": q.mode(),
        "kl_divergence": p.kl_divergence(q),
        "cross_entropy": p.cross_entropy(q),
    }
    for name, value in found.items():
        np.testing.assert_array_equal(value, exact[name], err_msg=name)
    assert (q.batch_shape, q.num_actions, q.dtype) == ((7,), 5, np.float32)


@pytest.mark.parametrize("size", [(), 4, (3, 2)])
def test_sample_size_and_legality(size: Any) -> None:
    drawn = numpy_backend.MaskedCategorical(LOGITS, MASK).sample(np.random.default_rng(0), size)
    shape = (size,) if isinstance(size, int) else size
    assert drawn.shape == (*shape, 7)
    wide = np.broadcast_to(MASK, (*drawn.shape, 5))
    assert np.take_along_axis(wide, drawn[..., None], -1).all()


class Extreme(np.random.Generator):
    """A generator whose uniform numbers are all the largest or all the smallest there is."""

    def __init__(self, value: float) -> None:
        super().__init__(np.random.PCG64())
        self._value = value

    def random(self, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        return np.full(() if size is None else size, self._value)


@pytest.mark.parametrize("value", [0.0, np.nextafter(1.0, 0.0)], ids=["lowest", "highest"])
def test_extreme_uniform_numbers_give_legal_actions(value: float) -> None:
    z = np.full((3, 6), -200.0, np.float32)
    z[:, 2] = 0.0
    z[1, 4] = np.float32(-60)
    mask = np.array([[0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 1]], bool)
    drawn = numpy_backend.sample(z, mask, Extreme(value))
    assert mask[np.arange(3), drawn].all()
    assert drawn[2] == 5


def test_draws_follow_the_probabilities_of_a_long_tail() -> None:
    n, z = 200_000, np.float32([0.0, -9.0, 5.0, -3.0])
    mask = np.array([True, True, False, True])
    drawn = numpy_backend.MaskedCategorical(z, mask).sample(np.random.default_rng(1), n)
    p = spec.masked_softmax(z.astype(float), mask)
    frequency = np.bincount(drawn, minlength=4) / n
    np.testing.assert_array_less(np.abs(frequency - p), 6 * np.sqrt(p * (1 - p) / n) + 1e-12)


def test_a_row_without_a_distribution_is_named() -> None:
    with pytest.raises(MaskError, match=r"no distribution in 1 row\(s\)"):
        numpy_backend.sample([[np.nan, 1.0], [0.0, 1.0]], [[1, 1], [1, 1]], RNG)


def test_a_constant_of_thousands_takes_no_digit_of_the_gradients() -> None:
    # (1 - exp(-d)) / (2 (1 + exp(-d))) in 60-digit arithmetic, d = q[1] - q[0] = 2.590410e-7.
    p = np.array([4504.1206, 4504.1206], np.float32)
    q = np.array([-1.2931510e-07, 1.2972593e-07], np.float32)
    mask = np.ones(2, bool)
    dp, dq = numpy_backend.kl_divergence_grad(p, q, p_mask=mask, q_mask=mask)
    exact = np.array([-6.4760258e-08, 6.4760258e-08])
    np.testing.assert_allclose(dq, exact, rtol=3e-7)
    np.testing.assert_allclose(dp, -exact, rtol=3e-7)


def test_the_divergence_of_float64_logits_has_their_digits() -> None:
    p = RNG.normal(scale=8, size=(200, 6)) - 20
    q = p + RNG.normal(scale=1e-9, size=p.shape) + 3
    mask = np.ones(p.shape, bool)
    found = numpy_backend.kl_divergence(p, q, p_mask=mask, q_mask=mask)
    expected = [exact.kl_divergence(*pair) for pair in zip(p, q, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_only_numpy_is_needed() -> None:
    code = (
        "import sys, backends.numpy_backend;"
        "assert not {'torch', 'tensorflow', 'ray', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
