"""Reasons that several peers share for leaving rows of the contract out."""

from __future__ import annotations

EMPTY = {
    "*_empty_row": "no claim about rows without a legal action",
    "fault_b6_*": "no claim about rows without a legal action",
    "fault_b7_*": "no claim about rows without a legal action",
}
ACCURACY = {
    "*_accuracy": "no accuracy is claimed; see accuracy.md",
    "fault_a8_*": "no accuracy is claimed; see accuracy.md",
    "fault_a9_*": "no accuracy is claimed; see accuracy.md",
    "kl_divergence_equal_inputs": "no accuracy is claimed; see accuracy.md",
}
HALF = {
    "float16_accumulates_*": "no claim about half precision",
    "bfloat16_accumulates_*": "no claim about half precision",
    "float16_gradients": "no claim about half precision",
    "fault_a11_*": "no claim about half precision",
}
VALIDATION = {
    "mask_of_wrong_shape_is_refused": "masks are not validated",
    "logits_are_not_broadcast_over_actions": "masks are not validated",
    "fault_b4_*": "masks are not validated",
    "fault_b5_*": "masks are not validated",
    "mask_of_other_values_is_refused": "masks are not validated",
    "mask_that_is_additive_is_refused": "masks are not validated",
    "mask_as_lists": "masks are tensors",
    "mask_dtypes": "masks are bool",
    "fault_b1_*": "masks are bool",
    "fault_b2_*": "masks are not validated",
    "fault_b3_*": "masks are not validated",
}
NO_MINUS_INF = {"legal_minus_infinity": "no claim about legal logits of -inf"}
LOUD = {
    "legal_nan_*": "NaN logits raise for the whole batch, by validation",
    "fault_a12_*": "NaN logits raise for the whole batch, by validation",
}
SENTINEL = {
    "masked_log_softmax_ordinary_row": "illegal entries are a large negative number by design",
    "masked_log_softmax_forced_row": "illegal entries are a large negative number by design",
    "masked_log_softmax_equals_specification": "illegal entries are a large negative number",
    "log_prob_ordinary_row": "illegal actions have a large negative log_prob by design",
    "log_prob_forced_row": "illegal actions have a large negative log_prob by design",
    "fault_a18_*": "illegal actions have a large negative log_prob by design",
    "log_prob_of_illegal_action_*": "illegal actions have a large negative log_prob by design",
}
