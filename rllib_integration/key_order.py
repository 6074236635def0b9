"""Observations by key, in whatever order an environment puts the keys.

Ray 2.60 sorts the keys of a plain dict before it flattens an observation, and takes an OrderedDict
in the order in which it comes. Where that is not the order of the space the columns move: the mask
is read elsewhere, without an error if what stands there is 0 and 1 as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.rllib.connectors.agent.obs_preproc import ObsPreprocessorConnector
from ray.rllib.models.preprocessors import DictFlatteningPreprocessor

__all__ = ["ByKeyPreprocessor", "FlattensByKey", "by_key"]


def by_key(observation: Any) -> Any:
    """An observation with a plain dict in place of every mapping: RLlib sorts those.

    >>> from collections import OrderedDict
    >>> by_key(OrderedDict(b=1, a=(OrderedDict(d=2), 3)))
    {'b': 1, 'a': ({'d': 2}, 3)}
    """
    if isinstance(observation, Mapping):
        return {key: by_key(value) for key, value in observation.items()}
    if isinstance(observation, tuple):
        return tuple(by_key(value) for value in observation)
    return observation


class ByKeyPreprocessor(DictFlatteningPreprocessor):
    """RLlib's, whose keys may come in any order."""

    def transform(self, observation: Any) -> Any:
        """The flat observation ``[n]``, components in sorted order of their keys."""
        return super().transform(by_key(observation))


class FlattensByKey:
    """Mixin in front of RLlib's policies: what env runners sample is flattened by key."""

    @property
    def agent_connectors(self) -> Any:
        """What RLlib does with an observation before it reaches the policy."""
        return self._agent_connectors

    @agent_connectors.setter
    def agent_connectors(self, pipeline: Any) -> None:
        for connector in getattr(pipeline, "connectors", ()):
            if isinstance(connector, ObsPreprocessorConnector):
                preprocessor = connector._preprocessor
                if type(preprocessor) is DictFlatteningPreprocessor:
                    preprocessor.__class__ = ByKeyPreprocessor  # It adds no state.
        self._agent_connectors = pipeline
