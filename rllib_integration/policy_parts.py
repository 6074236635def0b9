"""What the masked policies of every framework share: their config, their model, their data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from ray.rllib.models.preprocessors import get_preprocessor
from ray.rllib.policy.sample_batch import SampleBatch
from ray.tune.registry import RLLIB_MODEL, _global_registry

from maskcore import MaskError, check_mask
from rllib_integration.config import check_policy_settings
from rllib_integration.observations import legal_entries

__all__ = [
    "accept_raw_observations",
    "check_sampled_masks",
    "masked_model_arguments",
    "prepare_policy_config",
]

Model = TypeVar("Model")


def prepare_policy_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's config with the defaults of ``MaskedPPOConfig`` filled in, checked.

    Raises:
        MaskError: For settings of this policy that alter or bypass the mask.
    """
    from rllib_integration.ppo import MaskedPPOConfig

    config = {**MaskedPPOConfig().to_dict(), **config}
    check_policy_settings(
        observation_filter=config["observation_filter"],
        exploration=config["exploration_config"],
        model=config["model"],
    )
    return config


def masked_model_arguments(
    config: Mapping[str, Any], masked_model: type[Model]
) -> tuple[type[Model], dict[str, Any]]:
    """The masked model's class, and its keyword arguments, for the network a config describes.

    ``custom_model`` is a subclass of ``masked_model`` (which is then the model itself), any other
    model class (which becomes the network inside the mask), a registered name of either, or None
    (RLlib's own choice becomes the network inside).

    Returns:
        ``(class, keyword arguments)``; ``custom_model_config`` goes to the user's class.
    """
    masking = dict(config["action_masking"])
    arguments = {name: masking[name] for name in ("mask_key", "obs_key", "no_masking")}
    custom = config["model"].get("custom_model")
    custom_config = dict(config["model"].get("custom_model_config") or {})
    if custom is None:
        return masked_model, arguments
    if isinstance(custom, str):
        custom = _class_of(custom)
    if issubclass(custom, masked_model):
        return custom, {**arguments, **custom_config}
    return masked_model, {**arguments, "network": custom, "network_config": custom_config}


def check_sampled_masks(policy: Any, batch: Any, episode: Any = None) -> None:
    """Check the masks of one sampled trajectory, where data enters.

    Args:
        policy: A masked policy.
        batch: One agent's trajectory, NumPy, without padding.
        episode: RLlib's episode, if there is one.

    Raises:
        MaskError: For values other than 0/1 and, unless ``empty_masks="drop"``, for a row without
            a legal action: with the environment, the agent and the step.
    """
    model = policy.model
    where = model.where
    masks = legal_entries(dict.__getitem__(batch, SampleBatch.OBS), where)
    allow_empty = policy.config["action_masking"]["empty_masks"] == "drop"
    if model.no_masking:
        return
    step = batch.get(SampleBatch.T)
    source = {
        "env": policy.config.get("env"),
        "agent": _first(batch.get(SampleBatch.AGENT_INDEX)),
        "step": _first(step),
    }
    name = f"the mask under {where.mask_key!r}"
    legal = check_mask(masks, num_actions=where.num_actions, allow_empty=True, name=name, **source)
    empty = np.flatnonzero(~legal.any(-1))
    if len(empty) and not allow_empty:
        row = int(empty[0])
        source["step"] = row if step is None else int(np.asarray(step)[row])
        check_mask(legal[row], num_actions=where.num_actions, name=name, **source)


def accept_raw_observations(policy: Any, observations: Any) -> Any:
    """Flatten the environment's own Dict observations as RLlib does; others pass as they are.

    Args:
        policy: A policy whose ``observation_space`` has the ``original_space``.
        observations: ``[B, n]`` flattened; or a dict of arrays ``[B, ...]``, nested like the space;
            or a list of B observations.
    """
    space: Any = getattr(policy.observation_space, "original_space", None)
    if space is None:
        return observations
    if isinstance(observations, np.ndarray) and observations.dtype == object:
        observations = list(observations)  # Algorithm.compute_actions stacks dicts so.
    if isinstance(observations, Mapping):
        rows = _rows(observations)
    elif isinstance(observations, (list, tuple)) and observations:
        if not isinstance(observations[0], Mapping):
            return observations
        rows = list(observations)
    else:
        return observations
    preprocessor = get_preprocessor(space)(space)
    missing = [key for key in space.spaces if key not in rows[0]]
    if missing:
        raise MaskError(
            f"the observation has no key {missing[0]!r}. Found {sorted(rows[0])}. Expected the "
            f"keys of the observation space, {sorted(space.spaces)}."
        )
    return np.stack([preprocessor.transform(_as_arrays(row)) for row in rows])


def _rows(observations: Any) -> list[Any]:
    """A batched nested observation as a list of single ones."""
    if isinstance(observations, Mapping):
        columns = {key: _rows(value) for key, value in observations.items()}
        size = len(next(iter(columns.values())))
        return [{key: column[i] for key, column in columns.items()} for i in range(size)]
    if isinstance(observations, tuple):
        return list(zip(*(_rows(value) for value in observations), strict=True))
    return list(np.asarray(observations))


def _as_arrays(observation: Any) -> Any:
    """Plain dicts, which RLlib sorts: their keys may come in any order."""
    if isinstance(observation, Mapping):
        return {key: _as_arrays(value) for key, value in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_as_arrays(value) for value in observation)
    return np.asarray(observation)


def _class_of(name: str) -> Any:
    """A registered model, or a class path."""
    if _global_registry.contains(RLLIB_MODEL, name):
        return _global_registry.get(RLLIB_MODEL, name)
    from ray.rllib.utils.serialization import deserialize_type

    return deserialize_type(name, error=True)


def _first(column: Any) -> Any:
    return None if column is None or not len(column) else np.asarray(column)[0].item()
