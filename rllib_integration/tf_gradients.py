"""The gradient of each term of a TensorFlow policy's loss, variable by variable."""

from __future__ import annotations

from typing import Any

import numpy as np

from rllib_integration.gradient_report import GradientReport, VariableGradients
from rllib_integration.keras_setup import setup_keras

setup_keras()

import tensorflow as tf  # noqa: E402
from ray.rllib.utils import force_list  # noqa: E402

from rllib_integration.tf_loss import Parts, sum_of_parts  # noqa: E402
from rllib_integration.tf_variables import model_variables  # noqa: E402

__all__ = ["collect"]


def collect(policy: Any, batch: Any) -> GradientReport:
    """The report of ``gradient_report`` for a TensorFlow policy, static graph or eager."""
    found = model_variables(policy.model)
    known = {entry.variable.ref() for entry in found}
    entries = [(entry.name, entry.variable, entry.trainable, True) for entry in found]
    for variable in policy.created_variables:
        # Keras counts its steps in integer variables.
        if variable.ref() not in known and variable.dtype.is_floating:
            name = f"{variable.name} ({len(known)})" if _taken(entries, variable) else variable.name
            known.add(variable.ref())
            entries.append((name, variable, bool(variable.trainable), False))
    wanted = [variable for _, variable, trainable, _ in entries if trainable]
    in_graph = policy.get_session() is not None
    coeffs, norms = (_from_graph if in_graph else _from_tape)(policy, batch, wanted)
    position = {variable.ref(): i for i, variable in enumerate(wanted)}
    return GradientReport(
        terms=coeffs,
        variables=tuple(
            VariableGradients(
                name=name,
                shape=tuple(variable.shape),
                trainable=trainable,
                registered=registered,
                in_optimizer=variable.ref() in policy.optimized,
                norms={
                    term: values[position[variable.ref()]] if trainable else 0.0
                    for term, values in norms.items()
                },
            )
            for name, variable, trainable, registered in entries
        ),
    )


def _from_tape(
    policy: Any, batch: Any, variables: list[Any]
) -> tuple[dict[str, float], dict[str, list[float]]]:
    batch = policy.prepared(batch)
    with tf.GradientTape(persistent=True) as tape:
        parts = policy.loss_parts(policy.model, policy.dist_class, batch)
        given = [sum_of_parts(parts)]
        after = force_list(policy.model.custom_loss(given, batch))
        parts = _with_custom_loss(parts, given[0], after[0])
        scaled = {name: _scaled(*part) for name, part in parts.items()}
    norms = {
        name: [float(n) for n in _norms(tape.gradient(value, variables))]
        for name, value in scaled.items()
    }
    return {name: float(coeff) for name, (coeff, _) in parts.items()}, norms


def _from_graph(
    policy: Any, batch: Any, variables: list[Any]
) -> tuple[dict[str, float], dict[str, list[float]]]:
    session = policy.get_session()
    with session.graph.as_default():
        # Built once: every call would add its operations to the graph.
        if policy.gradient_ops is None:
            parts = _with_custom_loss(*policy.built_loss)
            coeffs = {name: tf.cast(coeff, tf.float32) for name, (coeff, _) in parts.items()}
            norms = {
                name: _norms(tf.gradients(_scaled(*part), variables))
                for name, part in parts.items()
            }
            policy.gradient_ops = (coeffs, norms)
        coeffs, norms = session.run(policy.gradient_ops, policy.feed_of(batch))
    return (
        {name: float(coeff) for name, coeff in coeffs.items()},
        {name: [float(np.asarray(n)) for n in values] for name, values in norms.items()},
    )


def _taken(entries: list[Any], variable: Any) -> bool:
    return any(name == variable.name for name, *_ in entries)


def _with_custom_loss(parts: Parts, before: Any, after: Any) -> Parts:
    return parts if after is before else {**parts, "custom_loss": (1.0, after - before)}


def _scaled(coeff: Any, value: Any) -> Any:
    return sum_of_parts({"": (coeff, value)})


def _norms(gradients: list[Any]) -> list[Any]:
    """The L2 norm of each; 0 where there is none."""
    return [tf.constant(0.0) if g is None else tf.norm(tf.convert_to_tensor(g)) for g in gradients]
