"""The gradient of each term of a Torch policy's loss, variable by variable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rllib_integration.gradient_report import GradientReport, VariableGradients

__all__ = ["collect"]


def collect(policy: Any, batch: Any) -> GradientReport:
    """The report of ``gradient_report`` for a Torch policy."""
    model = policy.model
    training = model.training
    model.train()
    try:
        batch = policy.prepared(batch)
        parts = policy.loss_parts(model, policy.dist_class, batch)
        total = sum(coeff * value for coeff, value in parts.values() if coeff != 0.0)
        given = [total]
        result = model.custom_loss(given, batch)
        if result is not given:
            after = sum(result) if isinstance(result, (list, tuple)) else result
            parts["custom_loss"] = (1.0, after - total)
        named = {name: (p, True) for name, p in model.named_parameters()}
        named.update({name: (p, False) for name, p in _unregistered(model)})
        norms = {name: _norms(named, *part) for name, part in parts.items()}
    finally:
        model.train(training)
    optimized = {id(p) for o in policy._optimizers for g in o.param_groups for p in g["params"]}
    return GradientReport(
        terms={name: float(coeff) for name, (coeff, _) in parts.items()},
        variables=tuple(
            VariableGradients(
                name=name,
                shape=tuple(parameter.shape),
                trainable=parameter.requires_grad,
                registered=registered,
                in_optimizer=id(parameter) in optimized,
                norms={term: values[name] for term, values in norms.items()},
            )
            for name, (parameter, registered) in named.items()
        ),
    )


def _norms(
    named: dict[str, tuple[nn.Parameter, bool]], coeff: float, value: Tensor
) -> dict[str, float]:
    """L2 norm of the gradient of ``coeff * value`` to each parameter; 0.0 where there is none."""
    result = dict.fromkeys(named, 0.0)
    wanted = {name: p for name, (p, _) in named.items() if p.requires_grad}
    if coeff == 0.0 or not value.requires_grad or not wanted:
        return result
    gradients = torch.autograd.grad(
        coeff * value.reshape(()), list(wanted.values()), retain_graph=True, allow_unused=True
    )
    for name, gradient in zip(wanted, gradients, strict=True):
        if gradient is not None:
            result[name] = float(gradient.norm())
    return result


def _unregistered(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters that Torch does not see because they are in a plain list, tuple or dict."""
    seen = {id(p) for p in model.parameters()}
    for path, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute.startswith("_") or not isinstance(value, (list, tuple, dict)):
                continue
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                name = ".".join(filter(None, (path, attribute, str(key))))
                found = [("", item)] if isinstance(item, nn.Parameter) else []
                if isinstance(item, nn.Module):
                    found = list(item.named_parameters())
                for inner, parameter in found:
                    if id(parameter) not in seen:
                        seen.add(id(parameter))
                        yield ".".join(filter(None, (name, inner))), parameter
