"""Which variables a TFModelV2 has, and which train: all of them, once, and never a frozen one.

RLlib 2.60's own answers lead to faults without an error message. ``register_variables``
*replaces* the list found automatically, so registering one extra layer freezes the rest of the
model. A variable that is reachable by two attributes is listed twice, and its gradient applied
twice. Of two variables of the same name (its attention network has some) one is lost, neither
trained nor saved. ``layer.trainable = False`` has no effect, because Keras leaves
``variable.trainable`` at True. The class here is mixed into every masked model and into the user's
network inside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from maskcore import MaskError
from rllib_integration.keras_setup import setup_keras

setup_keras()

import tensorflow as tf  # noqa: E402
from ray.rllib.models.tf.tf_modelv2 import TFModelV2  # noqa: E402

__all__ = ["AllVariables", "ModelVariable", "check_layers_are_built", "model_variables"]


class ModelVariable(NamedTuple):
    """A variable of a model: the name RLlib gives it, and whether it is frozen."""

    name: str
    variable: Any
    trainable: bool


class AllVariables:
    """Mixin for a TFModelV2: every variable trains unless it is frozen; registering only adds."""

    def register_variables(self, variables: Any) -> None:
        """Add variables, or layers, that no attribute of the model leads to.

        Args:
            variables: A list of variables or Keras layers; what is known already is ignored.

        Raises:
            MaskError: If there is nothing to register: the layer is not built yet.
        """
        registered = self.__dict__.setdefault("_registered", [])
        items = list(variables) if isinstance(variables, (list, tuple)) else [variables]
        if not items:
            raise MaskError(
                "register_variables was given an empty list: a layer has no variables before it "
                "is built. Expected a built layer. Build it first: layer.build((None, n)) with n "
                "the length of its input, or call it once on tf.zeros((1, n)). A layer that is an "
                "attribute of the model needs no registering at all."
            )
        for item in items:
            if isinstance(item, tf.keras.layers.Layer) and not item.built:
                raise MaskError(_unbuilt(f"layer {item.name!r}"))
            if not isinstance(item, (tf.Variable, tf.Module)):
                raise MaskError(
                    f"register_variables was given a {type(item).__name__}. Expected tf.Variable "
                    "or a Keras layer."
                )
            registered.append(item)

    def variables(self, as_dict: bool = False) -> Any:
        """Every variable once, frozen ones included: what is saved and sent to workers."""
        found = model_variables(self)
        if as_dict:
            return {entry.name: entry.variable for entry in found}
        return [entry.variable for entry in found]

    def trainable_variables(self, as_dict: bool = False) -> Any:
        """Every variable that is not frozen, once: what the optimizer is given."""
        found = [entry for entry in model_variables(self) if entry.trainable]
        if as_dict:
            return {entry.name: entry.variable for entry in found}
        return [entry.variable for entry in found]


def model_variables(model: Any) -> list[ModelVariable]:
    """Every variable that a model's attributes lead to, once, under RLlib's name for it.

    Args:
        model: A TFModelV2.

    Returns:
        In the order of the attributes. A variable is trainable only if every way to it says so.
    """
    found: dict[Any, ModelVariable] = {}
    names: dict[str, int] = {}
    for name, variable, trainable in _walk("", model.__dict__, seen={id(model)}):
        known = found.get(variable.ref())
        if known is None:
            names[name] = names.get(name, 0) + 1
            unique = name if names[name] == 1 else f"{name}#{names[name]}"
            found[variable.ref()] = ModelVariable(unique, variable, trainable)
        elif known.trainable and not trainable:
            found[variable.ref()] = known._replace(trainable=False)
    return list(found.values())


def check_layers_are_built(model: Any) -> None:
    """Raise for a Keras layer among a model's attributes that has no variables yet.

    Raises:
        MaskError: Naming the attribute and how to build it.
    """
    for path, layer in _layers("", model.__dict__, seen={id(model)}):
        if not layer.built and not _has_no_weights(layer):
            raise MaskError(_unbuilt(f"layer {layer.name!r} (attribute {path!r} of the model)"))


def _walk(path: str, value: Any, *, seen: set[int]) -> Iterator[tuple[str, Any, bool]]:
    if isinstance(value, tf.Variable):
        # A registered one has a place in a list, which says nothing.
        name = f"registered.{_dotted(value)}" if "_registered_" in path else path
        yield name, value, bool(value.trainable)
    elif isinstance(value, tf.Module):  # Every Keras layer and model is one.
        trainable = {variable.ref() for variable in value.trainable_variables}
        for variable in value.variables:
            yield f"{path}.{_dotted(variable)}", variable, variable.ref() in trainable
    elif isinstance(value, TFModelV2):
        if id(value) not in seen:
            seen.add(id(value))
            for name, variable, trainable in _walk("", value.__dict__, seen=seen):
                yield f"{path}.{name}", variable, trainable
    else:
        for sub, item in _items(path, value, seen):
            yield from _walk(sub, item, seen=seen)


def _dotted(variable: Any) -> str:
    return re.sub("/", ".", variable.name)


def _layers(path: str, value: Any, *, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, tf.keras.layers.Layer):
        yield path, value
        for sub in value.submodules:
            if isinstance(sub, tf.keras.layers.Layer):
                yield path, sub
    elif isinstance(value, TFModelV2):
        if id(value) not in seen:
            seen.add(id(value))
            yield from _layers(path, value.__dict__, seen=seen)
    else:
        for sub, item in _items(path, value, seen):
            yield from _layers(sub, item, seen=seen)


def _items(path: str, value: Any, seen: set[int]) -> Iterable[tuple[str, Any]]:
    """What a list, tuple or dict holds, named as RLlib's ``_find_sub_modules`` names it."""
    if not isinstance(value, (list, tuple, dict)) or id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, dict):
        prefix = f"{path}_" if path else ""
        return [(f"{prefix}{key}", item) for key, item in value.items()]
    return [(f"{path}_{i}", item) for i, item in enumerate(value)]


def _has_no_weights(layer: Any) -> bool:
    """Dropout, activations and the like never have variables, built or not."""
    kind = type(layer)
    return kind.build is tf.keras.layers.Layer.build or kind in _WEIGHTLESS


_WEIGHTLESS = (
    tf.keras.layers.Dropout,
    tf.keras.layers.GaussianNoise,
    tf.keras.layers.GaussianDropout,
    tf.keras.layers.AlphaDropout,
)


def _unbuilt(what: str) -> str:
    return (
        f"{what} is not built yet, so it has no variables for the optimizer to train. Expected a "
        "built layer. Build it where it is created, in __init__ or build_training_layers: "
        "layer.build((None, n)) with n the length of its input (self.feature_size for what "
        "self.features() returns), or call it once on tf.zeros((1, n))."
    )
