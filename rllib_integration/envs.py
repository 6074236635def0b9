"""A small environment in which masking decides whether anything is learned."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

__all__ = ["MaskedChainEnv"]


class MaskedChainEnv(gym.Env[dict[str, Any], int]):
    """A chain of positions; in each, a few of many actions are legal and one of those is right.

    The right action moves one position on and pays ``1 / length``; another legal action only costs
    the step; an illegal one ends the episode. The episode is a success when the end is reached
    within ``2 * length`` steps. Which actions are legal, and which is right, differs from position
    to position and is drawn once from ``seed``: it has to be learned, it cannot be seen.

    Config keys (all optional):
        length: Positions in the chain (16).
        num_actions, num_legal: Actions in all (64), and legal in each position (4).
        seed: Of the puzzle (0).
        observation: What is under ``obs_key``: ``"vector"`` (one-hot position), ``"image"`` (the
            position as a bright column of a picture), or ``"nested"`` (a Dict with a Discrete and
            a Tuple in it).
        mask_key, obs_key: Names of the keys.

    Every ``info`` has ``position``, ``illegal`` (whether this action was) and ``success``.

    >>> env = MaskedChainEnv({"length": 3, "num_actions": 5, "num_legal": 2})
    >>> observation, info = env.reset()
    >>> int(observation["action_mask"].sum()), info["position"]
    (2, 0)
    """

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        config = dict(config or {})
        self.length: int = config.get("length", 16)
        self.num_actions: int = config.get("num_actions", 64)
        self.num_legal: int = config.get("num_legal", 4)
        self.kind: str = config.get("observation", "vector")
        self.mask_key: str = config.get("mask_key", "action_mask")
        self.obs_key: str = config.get("obs_key", "observations")
        rng = np.random.default_rng(config.get("seed", 0))
        legal = np.array(
            [
                rng.choice(self.num_actions, self.num_legal, replace=False)
                for _ in range(self.length)
            ]
        )
        self.right: NDArray[np.int64] = legal[:, 0]
        self._masks = np.zeros((self.length + 1, self.num_actions), np.int8)
        self._masks[np.arange(self.length)[:, None], legal] = 1
        self._masks[self.length] = 1  # Past the end nothing is chosen any more.
        self.action_space = spaces.Discrete(self.num_actions)
        self.observation_space = spaces.Dict(
            {
                self.mask_key: spaces.MultiBinary(self.num_actions),
                self.obs_key: self._space(),
            }
        )
        self._position = 0
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Back to position 0."""
        super().reset(seed=seed)
        self._position = 0
        self._steps = 0
        return self._observation(), self._info(illegal=False)

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take ``action`` in the current position."""
        illegal = not self._masks[self._position, action]
        right = int(action) == self.right[self._position]
        self._steps += 1
        self._position += int(right)
        done = illegal or self._position == self.length
        truncated = not done and self._steps >= 2 * self.length
        reward = 1.0 / self.length if right else 0.0
        return self._observation(), reward, done, truncated, self._info(illegal=illegal)

    def _space(self) -> gym.Space[Any]:
        if self.kind == "vector":
            return spaces.Box(0.0, 1.0, (self.length + 1,), np.float32)
        if self.kind == "image":
            return spaces.Box(0.0, 1.0, (42, 42, 1), np.float32)
        if self.kind == "nested":
            position = spaces.Discrete(self.length + 1)
            grid = spaces.Box(0.0, 1.0, (4, (self.length + 4) // 4), np.float32)
            return spaces.Dict({"position": position, "parts": spaces.Tuple([grid, position])})
        raise ValueError(f"observation is {self.kind!r}. Expected 'vector', 'image' or 'nested'.")

    def _observation(self) -> dict[str, Any]:
        return {
            self.mask_key: self._masks[self._position].copy(),
            self.obs_key: self._view(),
        }

    def _view(self) -> Any:
        if self.kind == "vector":
            return np.eye(self.length + 1, dtype=np.float32)[self._position]
        if self.kind == "image":
            picture = np.zeros((42, 42, 1), np.float32)
            left = self._position * 42 // (self.length + 1)
            picture[:, left : left + 2] = 1.0
            return picture
        grid = np.zeros(self.observation_space[self.obs_key]["parts"][0].shape, np.float32)
        grid.flat[self._position] = 1.0
        return {"position": self._position, "parts": (grid, self._position)}

    def _info(self, *, illegal: bool) -> dict[str, Any]:
        success = self._position == self.length
        return {"position": self._position, "illegal": illegal, "success": success}
