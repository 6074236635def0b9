"""``tune.Tuner`` over MaskedPPO: a search over kl_coeff and a loss coefficient, two trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rllib_support
from ray import tune
from rllib_support import learner_stats, masked, old_stack, ray_session

__all__ = ["ray_session"]  # A fixture, imported for the tests below.

pytestmark = [*rllib_support.RLLIB_MARKS, pytest.mark.usefixtures("ray_session")]


def torch_small_values(model: Any, batch: Any) -> Any:
    return (model.value_function() ** 2).mean()


def tf_small_values(model: Any, batch: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_mean(model.value_function() ** 2)


TERMS = {"torch": torch_small_values, "tf2": tf_small_values}


@pytest.mark.parametrize("framework", TERMS)
def test_tune_searches_over_the_kl_coefficient_and_a_loss_coefficient(
    framework: str, tmp_path: Path
) -> None:
    """Each trial trains with its own pair, and its metrics say so."""
    config = masked(
        old_stack(framework=framework),
        loss_terms={"small_values": TERMS[framework]},
        kl_coeff=tune.grid_search([0.1, 0.4]),
        # RLlib resolves the search before it builds: a function of the other one is a search too.
        loss_coeffs={"small_values": tune.sample_from(lambda spec: 10 * spec.config.kl_coeff)},
    )
    results = tune.Tuner(
        config.algo_class,
        param_space=config,
        run_config=tune.RunConfig(
            stop={"training_iteration": 2}, storage_path=str(tmp_path), verbose=0
        ),
    ).fit()
    assert not results.errors
    assert {result.config["kl_coeff"] for result in results} == {0.1, 0.4}
    losses = set()
    for result in results:
        stats = learner_stats(result.metrics)
        assert stats["loss_coeffs/small_values"] == pytest.approx(10 * result.config["kl_coeff"])
        assert np.isfinite([stats["kl"], stats["max_kl"], stats["total_loss"]]).all()
        assert result.metrics["training_iteration"] == 2
        losses.add(float(stats["loss_terms/small_values"]))
    assert len(losses) == 2  # The coefficients were used, not only reported.
