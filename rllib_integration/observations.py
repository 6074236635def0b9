"""Where the mask is in an observation, and what the network sees: found once, at build, by key.

RLlib flattens a Dict observation into one vector and restores it before the model runs. This module
reads the *space* of that observation, checks everything that can go wrong while nothing has been
trained yet, and gives the models of every framework the same two answers: the mask entries, and the
observation without them. It imports neither torch nor tensorflow; tensors pass through as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from ray.rllib.models.preprocessors import ATARI_RAM_OBS_SHAPE, get_preprocessor
from ray.rllib.utils.spaces.repeated import Repeated

from maskcore import MaskError

__all__ = ["MaskedObservation", "find_masked_observation", "flat_parts", "legal_entries"]


@dataclasses.dataclass(frozen=True)
class MaskedObservation:
    """How one policy's observations divide into a mask and what the network sees.

    Attributes:
        mask_key: Key of the mask in the Dict observation.
        obs_key: Key of the network's observation; ``None`` means everything but the mask.
        num_actions: Length ``A`` of the mask and of the network's logits.
        observation_space: The space under ``obs_key``, as the environment declares it.
        network_space: The space handed to the network, as RLlib would hand it over: preprocessed,
            with ``original_space`` set where RLlib sets it.
        preprocessed: Whether RLlib's preprocessors flatten observations before the model.
        mask_columns: Where the mask is in a flattened observation; None without preprocessing.
        mask_scale, mask_offset: What undoes RLlib's preprocessing of the mask itself (it takes any
            component of shape (128,) for Atari RAM and maps x to (x - 128) / 128).
    """

    mask_key: str
    obs_key: str | None
    num_actions: int
    observation_space: gym.Space[Any]
    network_space: gym.Space[Any]
    preprocessed: bool
    mask_columns: slice | None = None
    mask_scale: float = 1.0
    mask_offset: float = 0.0

    def mask(self, observation: Mapping[str, Any]) -> Any:
        """The mask ``[B, A]`` of a restored Dict observation, 1 legal, 0 illegal.

        The values are what the environment sent, not checked here: inside a graph they cannot be
        looked at, and a batch of zeros at policy construction is a batch of empty masks.
        """
        mask = self._under(observation, self.mask_key)
        if self.mask_scale != 1.0:
            mask = mask * self.mask_scale + self.mask_offset
        return mask

    def network_parts(self, observation: Mapping[str, Any]) -> Any:
        """The part of a restored Dict observation that the network sees; never the mask.

        Returns:
            The sub-observation as restored: a tensor, or nested dicts and tuples of tensors.
        """
        if self.obs_key is not None:
            return self._under(observation, self.obs_key)
        return {key: value for key, value in observation.items() if key != self.mask_key}

    def network_input(
        self,
        observation: Mapping[str, Any],
        *,
        flatten: Callable[[Any], Any],
        concat: Callable[[Sequence[Any]], Any],
    ) -> Any:
        """The network's observation in the form in which RLlib hands it to a model.

        Args:
            observation: A restored Dict observation.
            flatten: ``[B, ...]`` -> ``[B, n]`` in the model's framework.
            concat: List of ``[B, n_i]`` -> ``[B, sum n_i]`` in the model's framework.

        Returns:
            The tensor itself where the space has one component, ``[B, n]`` flattened where it is
            a Dict or Tuple, and the nested structure where preprocessing is switched off.
        """
        parts = self.network_parts(observation)
        if not self.preprocessed or not isinstance(
            self.observation_space, (spaces.Dict, spaces.Tuple)
        ):
            return parts
        flat = [flatten(part) for part in flat_parts(self.observation_space, parts)]
        return flat[0] if len(flat) == 1 else concat(flat)

    def _under(self, observation: Mapping[str, Any], key: str) -> Any:
        if not isinstance(observation, Mapping) or key not in observation:
            raise MaskError(_missing(key, observation, "the observation given to the model"))
        return observation[key]


def find_masked_observation(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    *,
    mask_key: str = "action_mask",
    obs_key: str | None = "observations",
) -> MaskedObservation:
    """Find the mask and the network's observation in an RLlib observation space, or say why not.

    Args:
        observation_space: A policy's space: RLlib's flattened Box with ``original_space`` (the Dict
            of the environment), or the Dict itself where preprocessing is switched off.
        action_space: ``Discrete(A)``.
        mask_key: Key under which the environment puts the mask.
        obs_key: Key under which it puts what the network sees, nested as it likes; ``None`` for
            everything but the mask.

    Returns:
        A ``MaskedObservation``, checked.

    Raises:
        MaskError: If the space is no Dict, a key is missing (listing the keys found), the mask's
            space cannot hold a mask of the action space, the keys stand in an order in which RLlib
            would scramble the columns, or the action space is not supported.

    >>> import numpy as np
    >>> from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
    >>> space = Dict({"action_mask": MultiBinary(4), "observations": Box(-1, 1, (3,), np.float32)})
    >>> find_masked_observation(space, Discrete(4)).network_space.shape
    (3,)
    """
    num_actions = _num_actions(action_space)
    preprocessed = hasattr(observation_space, "original_space")
    declared: Any = getattr(observation_space, "original_space", observation_space)
    if not isinstance(declared, spaces.Dict):
        raise MaskError(
            f"action masking needs a Dict observation space, found {_short(declared)}. Expected "
            f"Dict({{{mask_key!r}: MultiBinary({num_actions}), {obs_key!r}: ...}}): let the "
            "environment put the mask into its observation (a gymnasium.ObservationWrapper does)."
        )
    for key in (mask_key,) if obs_key is None else (mask_key, obs_key):
        if key not in declared.spaces:
            raise MaskError(_missing(key, declared.spaces, "the observation space"))
    if obs_key == mask_key:
        raise MaskError(
            f"mask_key and obs_key are both {mask_key!r}: the network would see the mask. "
            "Expected two keys of the Dict observation."
        )
    _check_mask_space(declared.spaces[mask_key], num_actions, mask_key)
    if preprocessed:
        _check_key_order(declared, "observation space")
    observed: gym.Space[Any] = (
        spaces.Dict({key: space for key, space in declared.spaces.items() if key != mask_key})
        if obs_key is None
        else declared.spaces[obs_key]
    )
    if isinstance(observed, spaces.Dict) and not observed.spaces:
        raise MaskError(
            f"the observation space holds only the mask {mask_key!r}: the network would see "
            "nothing. Give the environment an observation beside it (a constant will do)."
        )
    if preprocessed:
        _check_no_repeated(observed)
    network_space = get_preprocessor(observed)(observed).observation_space
    atari_ram = preprocessed and declared.spaces[mask_key].shape == ATARI_RAM_OBS_SHAPE
    return MaskedObservation(
        mask_key=mask_key,
        obs_key=obs_key,
        num_actions=num_actions,
        observation_space=observed,
        network_space=network_space if preprocessed else observed,
        preprocessed=preprocessed,
        mask_columns=_columns(declared, mask_key) if preprocessed else None,
        mask_scale=128.0 if atari_ram else 1.0,
        mask_offset=128.0 if atari_ram else 0.0,
    )


def flat_parts(space: gym.Space[Any], value: Any) -> list[Any]:
    """The leaves of a nested observation in the order in which RLlib flattens ``space``.

    >>> from gymnasium.spaces import Dict, Discrete, Tuple
    >>> space = Dict({"b": Discrete(2), "a": Tuple([Discrete(3), Discrete(4)])})
    >>> flat_parts(space, {"b": 0, "a": (1, 2)})
    [1, 2, 0]
    """
    if isinstance(space, spaces.Dict):
        return [leaf for key, sub in space.spaces.items() for leaf in flat_parts(sub, value[key])]
    if isinstance(space, spaces.Tuple):
        return [
            leaf
            for sub, item in zip(space.spaces, value, strict=True)
            for leaf in flat_parts(sub, item)
        ]
    return [value]


def legal_entries(observations: Any, where: MaskedObservation) -> np.ndarray[Any, Any]:
    """The masks ``[B, A]`` in a column of a NumPy batch, as the environment sent them.

    Args:
        observations: The ``obs`` column: flattened ``[B, n]``, or a dict of arrays.
        where: What ``find_masked_observation`` found for the policy's space.

    Returns:
        ``[B, A]`` in the column's dtype, not checked. A view, never written to.
    """
    if not isinstance(observations, Mapping):
        if where.mask_columns is None:
            raise MaskError(_missing(where.mask_key, observations, "the batch of observations"))
        observations = {where.mask_key: observations[..., where.mask_columns]}
    return np.asarray(where.mask(observations))


def _columns(space: spaces.Dict, mask_key: str) -> slice:
    """Where RLlib puts the mask when it flattens a Dict whose keys are sorted."""
    keys = list(space.spaces)
    before = keys[: keys.index(mask_key)]
    start = sum(int(np.prod(get_preprocessor(s)(s).shape)) for s in map(space.__getitem__, before))
    return slice(start, start + int(np.prod(space[mask_key].shape)))


def _num_actions(action_space: gym.Space[Any]) -> int:
    if not isinstance(action_space, spaces.Discrete):
        raise MaskError(
            f"action masking in RLlib supports Discrete action spaces, found "
            f"{_short(action_space)}. Expected Discrete(A); enumerate the combinations, or let "
            "the environment take the components one after the other."
        )
    if int(action_space.start) != 0:
        raise MaskError(
            f"the action space is {action_space!r}. RLlib's ModelV2 stack sends actions counted "
            f"from 0, off by {action_space.start} here. Expected start=0: declare "
            f"Discrete({action_space.n}) and add {action_space.start} inside the environment."
        )
    return int(action_space.n)


def _check_mask_space(space: gym.Space[Any], num_actions: int, key: str) -> None:
    expected = f"Expected MultiBinary({num_actions}) or Box(0, 1, ({num_actions},))."
    if not isinstance(space, (spaces.Box, spaces.MultiBinary)):
        raise MaskError(
            f"the space of the mask {key!r} is {_short(space)}, which RLlib would one-hot encode "
            f"or flatten away. {expected}"
        )
    if space.shape != (num_actions,):
        raise MaskError(
            f"the space of the mask {key!r} has shape {space.shape} for {num_actions} actions. "
            f"{expected} A mask is never reshaped."
        )
    if isinstance(space, spaces.Box) and (np.any(space.low > 0) or np.any(space.high < 1)):
        raise MaskError(
            f"the space of the mask {key!r} runs from {space.low.min():g} to {space.high.max():g} "
            f"and so excludes a mask of exact zeros and ones. {expected} If this is an additive "
            "0/-inf mask, send `mask == 0`."
        )


def _check_key_order(space: gym.Space[Any], name: str) -> None:
    """Refuse Dict spaces whose keys are not sorted.

    RLlib 2.60 writes a plain dict into the flat vector in sorted order and reads it back in the
    order of the space; where the two differ the columns move and the mask is read elsewhere.
    """
    if isinstance(space, spaces.Dict):
        keys = list(space.spaces)
        if keys != sorted(keys):
            raise MaskError(
                f"the {name} has its keys in the order {keys}. RLlib flattens observations in "
                f"sorted order, so the columns of the mask would move. Expected {sorted(keys)}: "
                "build it from a plain dict, gymnasium.spaces.Dict({...}), which sorts them "
                "(keyword arguments and OrderedDict do not)."
            )
        for key, sub in space.spaces.items():
            _check_key_order(sub, f"space under {key!r}")
    elif isinstance(space, spaces.Tuple):
        for i, sub in enumerate(space.spaces):
            _check_key_order(sub, f"space at position {i} of a Tuple in the {name}")


def _check_no_repeated(space: gym.Space[Any]) -> None:
    if isinstance(space, Repeated):
        raise MaskError(
            "the network's observation holds a Repeated space, which is not supported under "
            "action masking. Pad it to a Box of fixed size."
        )
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        subs = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        for sub in subs:
            _check_no_repeated(sub)


def _missing(key: str, found: Any, where: str) -> str:
    keys = sorted(found) if isinstance(found, Mapping) else f"no Dict but {type(found).__name__}"
    return (
        f"{where} has no key {key!r}. Found {keys}. Expected the mask and the network's "
        "observation under their keys: name them with with_action_masking(config, mask_key=..., "
        "obs_key=...)."
    )


def _short(space: object) -> str:
    text = repr(space)
    return text if len(text) <= 120 else text[:117] + "..."
