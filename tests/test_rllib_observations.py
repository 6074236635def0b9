"""Finding the mask and the network's observation in an RLlib observation space, by key."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import rllib_support
from gymnasium import spaces
from ray.rllib.models.modelv2 import restore_original_dimensions
from ray.rllib.models.preprocessors import get_preprocessor

from maskcore import MaskError
from rllib_integration.observations import find_masked_observation, legal_entries

pytestmark = rllib_support.RLLIB_MARKS

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
NESTED = spaces.Dict(
    {
        "cards": spaces.Discrete(5),
        "board": spaces.Box(-1.0, 1.0, (10, 10), np.float32),
        "more": spaces.Tuple([spaces.Discrete(2), spaces.Dict({"z": BOX, "a": BOX})]),
    }
)


def flattened(space: spaces.Dict) -> Any:
    """The space as RLlib's policies see it."""
    return get_preprocessor(space)(space).observation_space


def masked_space(num_actions: int, observed: Any = BOX, **more: Any) -> spaces.Dict:
    mask = spaces.MultiBinary(num_actions)
    return spaces.Dict({"action_mask": mask, "observations": observed, **more})


def restored(space: spaces.Dict, observation: Any) -> Any:
    """What a model is given: flattened by RLlib's preprocessor, then restored."""
    preprocessor = get_preprocessor(space)(space)
    flat = preprocessor.transform(observation)[None]
    return restore_original_dimensions(flat, preprocessor.observation_space, "numpy")


def network_input(where: Any, observation: Any) -> Any:
    return where.network_input(
        observation,
        flatten=lambda part: part.reshape(len(part), -1),
        concat=lambda parts: np.concatenate(parts, -1),
    )


@pytest.mark.parametrize("observed", [BOX, spaces.Discrete(5), NESTED])
def test_the_network_sees_what_rllib_would_show_it_without_the_mask(observed: Any) -> None:
    space = masked_space(4, observed)
    where = find_masked_observation(flattened(space), spaces.Discrete(4))
    space.seed(1)
    observation = space.sample()
    seen = network_input(where, restored(space, observation))
    alone = get_preprocessor(observed)(observed)
    np.testing.assert_array_equal(seen[0], alone.transform(observation["observations"]))
    assert where.network_space.shape == alone.observation_space.shape
    assert hasattr(where.network_space, "original_space") == hasattr(
        alone.observation_space, "original_space"
    )


def test_the_mask_is_found_by_key_wherever_it_stands() -> None:
    for mask_key in ("a_first", "z_last"):
        space = spaces.Dict({mask_key: spaces.MultiBinary(3), "m": BOX, "other": BOX})
        where = find_masked_observation(
            flattened(space), spaces.Discrete(3), mask_key=mask_key, obs_key="m"
        )
        observation = {**space.sample(), mask_key: np.array([0, 1, 1], np.int8)}
        np.testing.assert_array_equal(where.mask(restored(space, observation)), [[0, 1, 1]])
        flat = get_preprocessor(space)(space).transform(observation)[None]
        np.testing.assert_array_equal(legal_entries(flat, where), [[0, 1, 1]])


def test_obs_key_none_is_everything_but_the_mask() -> None:
    space = spaces.Dict({"action_mask": spaces.MultiBinary(3), "a": BOX, "b": spaces.Discrete(2)})
    where = find_masked_observation(flattened(space), spaces.Discrete(3), obs_key=None)
    observation = {"action_mask": np.ones(3, np.int8), "a": np.array([1, 2, 3]) / 4, "b": 1}
    seen = network_input(where, restored(space, {**observation, "a": np.float32([0.5, 0, 1])}))
    np.testing.assert_array_equal(seen, [[0.5, 0, 1, 0, 1]])


def test_a_mask_of_128_actions_survives_rllibs_atari_ram_preprocessor() -> None:
    """Ray 2.60 takes any component of shape (128,) for Atari RAM: x becomes (x - 128) / 128."""
    space = masked_space(128)
    mask = np.arange(128) % 3 == 0
    observation = {"action_mask": mask.astype(np.int8), "observations": np.zeros(3, np.float32)}
    seen = restored(space, observation)
    assert set(np.unique(seen["action_mask"])) == {-1.0, -127 / 128}  # The fact about Ray.
    where = find_masked_observation(flattened(space), spaces.Discrete(128))
    np.testing.assert_array_equal(where.mask(seen)[0], mask)


def test_without_preprocessing_the_observation_is_passed_on_as_it_is() -> None:
    space = masked_space(4, NESTED)
    where = find_masked_observation(space, spaces.Discrete(4))
    observation = space.sample()
    assert network_input(where, observation) is observation["observations"]
    assert where.network_space is space["observations"]


@pytest.mark.parametrize(
    ("space", "keys", "message"),
    [
        (BOX, {}, "needs a Dict observation space, found Box"),
        (masked_space(4), {"mask_key": "legal"}, r"no key 'legal'. Found \['action_mask', 'obs"),
        (masked_space(4), {"obs_key": "obs"}, r"no key 'obs'. Found \['action_mask', 'observ"),
        (masked_space(4), {"obs_key": "action_mask"}, "both 'action_mask'"),
        (masked_space(5), {}, r"shape \(5,\) for 4 actions"),
        (
            spaces.Dict({"action_mask": spaces.MultiDiscrete([2] * 4), "observations": BOX}),
            {},
            "one-hot encode",
        ),
        (
            spaces.Dict({"action_mask": spaces.Box(-1e9, 0, (4,)), "observations": BOX}),
            {},
            "additive",
        ),
        (spaces.Dict({"action_mask": spaces.MultiBinary(4)}), {"obs_key": None}, "see nothing"),
    ],
)
def test_what_cannot_be_masked_is_an_error_that_says_what_was_found(
    space: Any, keys: dict[str, Any], message: str
) -> None:
    """FAULTS C22 among them: the error lists the keys found and wanted."""
    with pytest.raises(MaskError, match=message):
        find_masked_observation(space, spaces.Discrete(4), **keys)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.MultiDiscrete([2, 2]), "supports Discrete"),
        (spaces.Discrete(4, start=3), "start=0"),
    ],
)
def test_action_spaces_that_rllib_would_misread_are_refused(space: Any, message: str) -> None:
    with pytest.raises(MaskError, match=message):
        find_masked_observation(masked_space(4), space)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict(observations=BOX, action_mask=spaces.MultiBinary(3)),
        spaces.Dict(OrderedDict(observations=BOX, action_mask=spaces.MultiBinary(3))),
        spaces.Dict(
            {
                "action_mask": spaces.MultiBinary(3),
                "observations": spaces.Dict(OrderedDict(b=BOX, a=BOX)),
            }
        ),
    ],
)
def test_unsorted_keys_are_refused_because_the_columns_of_the_mask_would_move(space: Any) -> None:
    """FAULTS B8; keys that are sorted in the space may come in any order: test_rllib_key_order."""
    with pytest.raises(MaskError, match="sorted order"):
        find_masked_observation(flattened(space), spaces.Discrete(3))


def test_rllib_moves_the_columns_of_a_dict_space_with_unsorted_keys() -> None:
    """Ray 2.60 writes a plain dict in sorted order and reads it in the order of the space."""
    space = spaces.Dict(observations=BOX, action_mask=spaces.Box(0, 1, (3,), np.float32))
    observation = {
        "observations": np.float32([0.1, 0.2, 0.3]),
        "action_mask": np.float32([1, 0, 1]),
    }
    np.testing.assert_allclose(restored(space, observation)["action_mask"][0], [0.1, 0.2, 0.3])
