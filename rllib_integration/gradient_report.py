"""Which variables train, and by which term of the loss: a table for people, a dict for programs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from maskcore import MaskError

__all__ = ["GradientReport", "VariableGradients", "gradient_report"]

TRAINS = "trains"
NO_GRADIENT = "no gradient from any term"
FROZEN = "frozen"
NOT_REGISTERED = "not registered"


@dataclasses.dataclass(frozen=True)
class VariableGradients:
    """One variable of a policy's model.

    Attributes:
        name: Its path in the model.
        shape: Its shape.
        trainable: Whether it may be trained (``requires_grad``, ``trainable``).
        registered: Whether the model knows of it, so that it is saved and handed to workers.
        in_optimizer: Whether the policy's optimizer would update it.
        norms: L2 norm of the gradient of each term of the loss, its coefficient included; 0.0 where
            the term does not depend on the variable.
    """

    name: str
    shape: tuple[int, ...]
    trainable: bool
    registered: bool
    in_optimizer: bool
    norms: Mapping[str, float]

    @property
    def verdict(self) -> str:
        """``"trains"``, ``"no gradient from any term"``, ``"frozen"`` or ``"not registered"``."""
        if not self.trainable:
            return FROZEN
        if not (self.registered and self.in_optimizer):
            return NOT_REGISTERED
        return TRAINS if any(norm != 0.0 for norm in self.norms.values()) else NO_GRADIENT


@dataclasses.dataclass(frozen=True)
class GradientReport:
    """The report of one policy on one batch; ``print`` it, or take ``as_dict()``."""

    terms: Mapping[str, float]
    variables: tuple[VariableGradients, ...]

    def as_dict(self) -> dict[str, Any]:
        """``{"terms": {name: coefficient}, "variables": {name: {...}}}``, plain Python values."""
        return {
            "terms": dict(self.terms),
            "variables": {
                v.name: {
                    "shape": v.shape,
                    "trainable": v.trainable,
                    "registered": v.registered,
                    "in_optimizer": v.in_optimizer,
                    "norms": dict(v.norms),
                    "verdict": v.verdict,
                }
                for v in self.variables
            },
        }

    def verdict(self, name: str) -> str:
        """The verdict on all variables whose name contains ``name``, if it is one.

        Raises:
            MaskError: If no variable has it in its name, or their verdicts differ.
        """
        found = {v.name: v.verdict for v in self.variables if name in v.name}
        if len(set(found.values())) != 1:
            known = [v.name for v in self.variables]
            raise MaskError(
                f"variables named {name!r} have the verdicts {found}. Expected one verdict; the "
                f"variables are {known}."
            )
        return next(iter(found.values()))

    def __str__(self) -> str:
        rows = [["variable", "shape", *self.terms, "verdict"]]
        rows.append(["coefficient", "", *(f"{c + 0.0:g}" for c in self.terms.values()), ""])
        rows += [
            [v.name, "x".join(map(str, v.shape)) or "-"]
            + [_short(v.norms.get(term, 0.0)) for term in self.terms]
            + [v.verdict]
            for v in self.variables
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = []
        for row in rows:
            left = [row[0].ljust(widths[0]), row[1].rjust(widths[1])]
            middle = [
                cell.rjust(width) for cell, width in zip(row[2:-1], widths[2:-1], strict=True)
            ]
            lines.append("  ".join([*left, *middle, row[-1]]).rstrip())
        return "\n".join(lines)


def gradient_report(policy: Any, batch: Any) -> GradientReport:
    """Evaluate every term of ``policy``'s loss on ``batch`` and say which variable it reaches.

    Nothing is updated.

    Args:
        policy: A policy of ``MaskedPPO``, on any framework.
        batch: A train batch: postprocessed, NumPy.

    Returns:
        Every variable of the model with the gradient norm of each term and a verdict.

    Raises:
        MaskError: For a policy that is not a masked one.
    """
    framework = policy.config["framework"] if hasattr(policy, "loss_terms") else None
    if framework == "torch":
        from rllib_integration.torch_gradients import collect
    elif framework in ("tf", "tf2"):
        from rllib_integration.tf_gradients import collect
    else:
        raise MaskError(
            f"policy is a {type(policy).__name__}. Expected a policy of MaskedPPO: "
            "algorithm.get_policy() after with_action_masking."
        )
    return collect(policy, batch)


def _short(norm: float) -> str:
    if norm == 0.0:
        return "."
    return f"{norm:.2g}" if math.isfinite(norm) else str(norm)
