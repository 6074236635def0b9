"""One output, several parts: name the parts once, and hand them to the losses by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from maskcore import MaskError

__all__ = ["SplitHeads"]


class SplitHeads:
    """The parts of a vector along its last axis, by name and size, in order.

    >>> import numpy as np
    >>> heads = SplitHeads(context=2, structure=3, mask=4)
    >>> parts = heads.split(np.arange(9.0))
    >>> parts["structure"].tolist(), heads.size
    ([2.0, 3.0, 4.0], 9)
    """

    def __init__(self, **sizes: int) -> None:
        wrong = {name: size for name, size in sizes.items() if not _is_size(size)}
        if wrong or not sizes:
            raise MaskError(
                f"the sizes are {sizes}. Expected a whole number >= 1 for each part, e.g. "
                "SplitHeads(context=3, structure=5, mask=4)."
            )
        self.sizes = {name: int(size) for name, size in sizes.items()}
        self.size = sum(self.sizes.values())

    def split(self, output: Any) -> dict[str, Any]:
        """``[..., a + b + c]`` -> ``{name: [..., size]}``, views in the output's framework.

        Raises:
            MaskError: If the last axis is not as long as the parts together.
        """
        shape = tuple(output.shape)
        if not shape or shape[-1] != self.size:
            parts = " + ".join(f"{name}={size}" for name, size in self.sizes.items())
            raise MaskError(
                f"the output has shape {shape}. Expected [..., {self.size}] for the parts {parts}."
            )
        parts, start = {}, 0
        for name, size in self.sizes.items():
            parts[name] = output[..., start : start + size]
            start += size
        return parts

    def loss_terms(
        self,
        output_of: Callable[[Any], Any],
        losses: Mapping[str, Callable[[Any, Any], Any]],
    ) -> dict[str, Callable[[Any, Any], Any]]:
        """Loss terms for a config, one a part.

        Args:
            output_of: ``fn(model) -> [..., size]``: where the model keeps the output.
            losses: ``{part: fn(part, batch) -> scalar}``.

        Returns:
            ``{part: fn(model, batch) -> scalar}``, for ``config.training(loss_terms=...)``.

        Raises:
            MaskError: For a loss of a part that does not exist.
        """
        unknown = sorted(set(losses) - set(self.sizes))
        if unknown:
            raise MaskError(
                f"losses are given for {unknown}. Expected parts of {sorted(self.sizes)}."
            )
        return {name: self._term(name, output_of, loss) for name, loss in losses.items()}

    def _term(
        self, name: str, output_of: Callable[[Any], Any], loss: Callable[[Any, Any], Any]
    ) -> Callable[[Any, Any], Any]:
        def term(model: Any, batch: Any) -> Any:
            return loss(self.split(output_of(model))[name], batch)

        return term


def _is_size(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 1
