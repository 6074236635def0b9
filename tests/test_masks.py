"""What is accepted as a mask, what is refused, and the message a user sees. FAULTS B1-B7, B9."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from maskcore import MaskError, as_bool, check_mask, check_shapes, spec

NAN, INF = np.nan, np.inf
DTYPES = ["bool", "int8", "int32", "int64", "uint8", "float16", "float32", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_b1_every_numeric_dtype_is_accepted_where_exactly_0_or_1(dtype):
    mask = np.array([[1, 0, 1], [0, 1, 0]], dtype=dtype)
    assert as_bool(mask).tolist() == [[True, False, True], [False, True, False]]
    checked = check_mask(mask, num_actions=3)
    assert checked.dtype == np.bool_
    assert checked.tolist() == as_bool(mask).tolist()


def test_b1_lists_are_accepted():
    assert check_mask([1, 0, True], num_actions=3).tolist() == [True, False, True]


@given(hnp.arrays(np.float64, (4,), elements=st.floats(width=64)))
def test_anything_that_is_not_exactly_0_or_1_is_refused(values):
    if np.isin(values, [0.0, 1.0]).all():
        assert as_bool(values).tolist() == (values == 1).tolist()
    else:
        with pytest.raises(MaskError, match="Expected exactly 0"):
            as_bool(values)


def test_b2_a_normalised_mask_names_the_filter():
    with pytest.raises(MaskError, match=r"holds -0.447, 0.447.*MeanStdFilter"):
        as_bool([0.447, -0.447, 0.0])


@pytest.mark.parametrize("low", [-INF, -1e9, -3.4e38])
def test_b3_an_additive_mask_gets_the_hint(low):
    with pytest.raises(MaskError, match="pass `mask == 0`"):
        as_bool([0.0, low, 0.0])


def test_nan_and_other_numbers_are_refused_with_their_own_words():
    with pytest.raises(MaskError, match="NaN in a mask"):
        as_bool([0.0, NAN])
    with pytest.raises(MaskError, match=r"holds 255.*boolean"):
        as_bool(np.array([0, 255], np.uint8))
    with pytest.raises(MaskError, match="dtype <U1"):
        as_bool(["a", "b"])
    with pytest.raises(MaskError, match="dtype complex"):
        as_bool([1j, 0])
    with pytest.raises(MaskError, match="ragged"):
        as_bool([[1, 0], [1]])


def test_b4_a_mask_that_would_have_to_be_reshaped_is_refused():
    with pytest.raises(MaskError, match="reshape would scramble"):
        check_shapes((2, 3), (3, 2))
    with pytest.raises(MaskError, match="not broadcast over the action axis"):
        check_shapes((2, 3), (2, 1))
    with pytest.raises(MaskError, match="batch axes that broadcast"):
        check_shapes((2, 3), (4, 3))
    with pytest.raises(MaskError, match="same length A = 3"):
        spec.entropy(np.zeros((2, 3)), np.ones((2, 4)))
    with pytest.raises(MaskError, match="at least the action axis"):
        check_shapes((), (3,))
    with pytest.raises(MaskError, match="at least one action"):
        check_shapes((2, 0), (2, 0))


def test_b4_the_padded_layout_only_when_asked_for():
    padded = [[1, 1, 0], [0, 1, 1]]
    with pytest.raises(MaskError, match=r'"padded".*"joint"'):
        check_mask(padded, num_actions=(2, 3))
    flat = check_mask(padded, num_actions=(2, 3), layout="padded")
    assert flat.tolist() == [True, True, False, True, True]
    with pytest.raises(MaskError, match="allows action 2 of component 0"):
        check_mask([[1, 1, 1], [0, 1, 1]], num_actions=(2, 3), layout="padded")


def test_b5_a_square_mask_names_both_readings():
    with pytest.raises(MaskError, match=r"Nothing is guessed") as caught:
        check_mask(np.ones((5, 5)), num_actions=(5, 5))
    assert 'layout="padded"' in str(caught.value)
    assert 'layout="joint"' in str(caught.value)
    assert check_mask(np.ones((5, 5)), num_actions=(5, 5), layout="joint").shape == (5, 5)
    assert check_mask(np.ones((2, 5)), num_actions=(5, 5), layout="padded").shape == (10,)


def test_b6_an_empty_mask_names_environment_agent_step_and_row():
    with pytest.raises(MaskError) as caught:
        check_mask([[1, 0], [0, 0]], num_actions=2, env="Chain-v0", agent="red", step=17)
    message = str(caught.value)
    for part in ("'Chain-v0'", "'red'", "17", "(1,)", "no-op"):
        assert part in message
    with pytest.raises(MaskError, match="component 1 of mask allows no action"):
        check_mask([1, 1, 0, 0, 0], num_actions=(2, 3))
    with pytest.raises(MaskError, match="no combination"):
        check_mask(np.zeros((2, 3)), num_actions=(2, 3), layout="joint")


def test_b7_padding_may_be_empty_where_it_is_allowed():
    assert not check_mask(np.zeros((3, 4)), num_actions=4, allow_empty=True).any()


def test_b9_the_checked_mask_is_a_copy():
    mask = np.array([True, False])
    checked = check_mask(mask, num_actions=2)
    mask[:] = [False, True]
    assert checked.tolist() == [True, False]


def test_wrong_lengths_and_layouts_are_refused():
    with pytest.raises(MaskError, match=r"Expected \[..., 3\]"):
        check_mask([1, 1], num_actions=3)
    with pytest.raises(MaskError, match=r"Expected \[..., 5\]"):
        check_mask([1, 1, 1], num_actions=(2, 3))
    with pytest.raises(MaskError, match=r"Expected \[..., 5\]"):
        check_mask([1, 1, 1], num_actions=(2, 3), layout="flat")
    with pytest.raises(MaskError, match="needs the sizes"):
        check_mask([1, 1, 1], num_actions=3, layout="joint")
    with pytest.raises(MaskError, match="joint mask"):
        check_mask([1, 1, 1], num_actions=(2, 3), layout="joint")
    with pytest.raises(MaskError, match="padded mask"):
        check_mask([1, 1, 1], num_actions=(2, 3), layout="padded")


@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3))
def test_shapes_broadcast_as_numpy_does(shapes):
    left, right = shapes.input_shapes
    assert check_shapes((*left, 4), (*right, 4)) == shapes.result_shape
