"""Dict observations whose keys come in another order than RLlib flattens them in. FAULTS B8, C9."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import rllib_support
from gymnasium import spaces
from ray.rllib.models.preprocessors import get_preprocessor
from ray.rllib.policy.sample_batch import SampleBatch
from rllib_support import MaskedChainEnv, illegal_steps, masked, sampled, worker_of
from rllib_tf_support import FRAMEWORKS, TF_MARKS, A, change_weights, config_of

import maskcore
from maskcore import MaskError

pytestmark = TF_MARKS


class Scrambled(MaskedChainEnv):
    """Sends its keys in reverse, as an OrderedDict, which Ray 2.60 takes as it comes.

    What the network sees is as long as the mask and 0/1 as well: nothing would notice.
    """

    def _space(self) -> Any:
        bits = spaces.MultiBinary(self.num_actions)
        return spaces.Dict({"a": bits, "b": spaces.Discrete(3)})

    def _view(self) -> Any:
        bits = np.eye(self.num_actions, dtype=np.int8)[self._position]
        return OrderedDict(b=self._position % 3, a=bits)

    def _observation(self) -> Any:
        return OrderedDict(reversed(super()._observation().items()))


class Unsorted(MaskedChainEnv):
    """Declares its space as an OrderedDict in another order."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        ordered = OrderedDict(reversed(self.observation_space.spaces.items()))
        self.observation_space = spaces.Dict(ordered)


def raw_observations() -> list[Any]:
    """One in each position."""
    env = Scrambled(dict(rllib_support.SMALL))
    raw = []
    for position in range(4):
        env.reset()
        env._position = position
        raw.append(env._observation())
    return raw


def config_for(name: str, env: Any) -> Any:
    return masked(rllib_support.old_stack(env) if name == "torch" else config_of(name, env))


def test_ray_2_60_moves_the_columns_of_an_ordered_dict() -> None:
    observation = raw_observations()[1]
    space = Scrambled(dict(rllib_support.SMALL)).observation_space
    flat = get_preprocessor(space)(space)
    assert list(observation) == ["observations", "action_mask"]
    mask = observation["action_mask"]
    with pytest.raises((ValueError, AttributeError, AssertionError)):
        # Nested, it falls over the Dict where the mask should be; ...
        flat.transform(observation)
    inside = space["observations"]
    one_level = spaces.Dict({"action_mask": space["action_mask"], "observations": inside["a"]})
    flat = get_preprocessor(one_level)(one_level)
    swapped = OrderedDict(observations=observation["observations"]["a"], action_mask=mask)
    moved = flat.transform(swapped)  # ... on one level it says nothing.
    np.testing.assert_array_equal(moved[A:], mask)
    assert (moved[:A] != mask).any()


@pytest.mark.parametrize("name", ["torch", *FRAMEWORKS])
def test_keys_in_any_order_give_the_same_masked_argmax(name: str) -> None:
    """Sampled, and in all forms of inference: raw, flattened, batched, single."""
    worker = worker_of(config_for(name, Scrambled))
    batch, policy = sampled(worker), worker.get_policy()
    assert illegal_steps(batch) == 0
    assert (batch["obs"][:, :A].sum(-1) == rllib_support.SMALL["num_legal"]).all()
    assert (batch["obs"][:, A : 2 * A].sum(-1) == 1).all()
    if name == "torch":
        policy.set_weights({k: 5 * w for k, w in policy.get_weights().items()})
    else:
        change_weights(policy, lambda _, w: 5 * w)
    raw = raw_observations()
    sorted_rows = [
        {
            "action_mask": row["action_mask"],
            "observations": dict(sorted(row["observations"].items())),
        }
        for row in raw
    ]
    space = policy.observation_space.original_space
    preprocessor = get_preprocessor(space)(space)
    flat = np.stack([preprocessor.transform(row) for row in sorted_rows])
    expected, _, extra = policy.compute_actions(flat, explore=False)
    logits, mask = np.split(extra[SampleBatch.ACTION_DIST_INPUTS], 2, -1)
    np.testing.assert_array_equal(mask, [row["action_mask"] for row in raw])
    np.testing.assert_array_equal(expected, maskcore.mode(logits, mask))
    batched = OrderedDict(
        observations=OrderedDict(
            b=np.array([row["observations"]["b"] for row in raw]),
            a=np.stack([row["observations"]["a"] for row in raw]),
        ),
        action_mask=np.stack([row["action_mask"] for row in raw]),
    )
    for actions in (
        [policy.compute_single_action(row, explore=False)[0] for row in raw],
        [policy.compute_single_action(row, explore=False)[0] for row in flat],
        policy.compute_actions(raw, explore=False)[0],
        policy.compute_actions(batched, explore=False)[0],
        policy.compute_actions_from_input_dict({"obs": batched}, explore=False)[0],
    ):
        np.testing.assert_array_equal(actions, expected)


@pytest.mark.parametrize("name", ["torch", "tf", "tf2"])
def test_a_space_whose_keys_are_not_sorted_is_an_error_at_build(name: str) -> None:
    with pytest.raises(MaskError, match=r"\['observations', 'action_mask'\].*sorted order"):
        worker_of(config_for(name, Unsorted))
