"""Registering the masked models and distributions with RLlib's ModelCatalog, by name.

``with_action_masking`` needs no names: its policies build their model themselves, on every worker.
The names are for configs written by hand for other algorithms of the ModelV2 stack::

    register()
    config.training(model={
        "custom_model": "maskcore_torch_model",
        "custom_action_dist": "maskcore_torch_masked_categorical",
        "custom_model_config": {"mask_key": "action_mask", "obs_key": "observations"},
    })
"""

from __future__ import annotations

import importlib.util

__all__ = ["DISTRIBUTION_NAMES", "MODEL_NAMES", "register"]

MODEL_NAMES = {"torch": "maskcore_torch_model", "tf": "maskcore_tf_model"}
DISTRIBUTION_NAMES = {
    "torch": "maskcore_torch_masked_categorical",
    "tf": "maskcore_tf_masked_categorical",
}


def register() -> tuple[str, ...]:
    """Register the models and distributions of every installed framework in ModelCatalog.

    Idempotent. RLlib hands the registered classes on to its workers itself, whether ``register``
    is called before or after ``ray.init``.

    Returns:
        The names registered, models first.
    """
    from ray.rllib.models import ModelCatalog

    registered: list[str] = []
    distributions: list[str] = []
    if importlib.util.find_spec("torch") is not None:
        from rllib_integration.torch_distribution import TorchMaskedCategorical
        from rllib_integration.torch_model import MaskedTorchModel

        ModelCatalog.register_custom_model(MODEL_NAMES["torch"], MaskedTorchModel)
        ModelCatalog.register_custom_action_dist(
            DISTRIBUTION_NAMES["torch"], TorchMaskedCategorical
        )
        registered.append(MODEL_NAMES["torch"])
        distributions.append(DISTRIBUTION_NAMES["torch"])
    if importlib.util.find_spec("tensorflow") is not None:
        from rllib_integration.tf_distribution import TFMaskedCategorical
        from rllib_integration.tf_model import MaskedTFModel

        ModelCatalog.register_custom_model(MODEL_NAMES["tf"], MaskedTFModel)
        ModelCatalog.register_custom_action_dist(DISTRIBUTION_NAMES["tf"], TFMaskedCategorical)
        registered.append(MODEL_NAMES["tf"])
        distributions.append(DISTRIBUTION_NAMES["tf"])
    return (*registered, *distributions)
