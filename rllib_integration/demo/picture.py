"""The demo's picture: success and KL over steps, the three runs together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from rllib_integration.demo.training import Run

__all__ = ["draw"]

# Distinguishable in black and white and to colour-blind readers (Okabe and Ito).
STYLES = {
    "masked": {"color": "#0072B2", "linestyle": "-", "linewidth": 2.6},
    "naive": {"color": "#D55E00", "linestyle": "--", "linewidth": 2.2},
    "unmasked": {"color": "#6b6b6b", "linestyle": ":", "linewidth": 2.4},
}
KL_TARGET = 0.01


def draw(runs: list[Run], path: Path) -> None:
    """Write the picture to ``path``."""
    figure, (success, kl) = plt.subplots(1, 2, figsize=(11, 4.9), dpi=150)
    for run in runs:
        steps = [step / 1000 for step in run.steps]
        label = _label(run)
        success.plot(steps, run.success, label=label, **STYLES[run.name])
        kl.plot(steps, run.kl, **STYLES[run.name])
    success.set_title("Does it reach the end of the chain?", loc="left", fontsize=11)
    success.set_ylabel("episodes that reach the end")
    success.set_ylim(-0.03, 1.03)
    success.legend(loc="center right", bbox_to_anchor=(1.0, 0.45), frameon=False, fontsize=9)
    success.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
    kl.set_title("How far does each update move the policy?", loc="left", fontsize=11)
    kl.set_ylabel("KL(old, new) that PPO measures, nats")
    kl.set_yscale("log")
    kl.axhline(KL_TARGET, color="black", linewidth=0.8, alpha=0.5)
    kl.annotate(
        "PPO's\ntarget",
        (1.0, KL_TARGET),
        xycoords=("axes fraction", "data"),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        color="#333333",
    )
    naive = next(run for run in runs if run.name == "naive")
    kl.annotate(
        f"mask forgotten in the update:\nKL {naive.kl[0]:.1f} in the first iteration,\n"
        f"{naive.kl[0] / KL_TARGET:.0f} times the target",
        (naive.steps[0] / 1000, naive.kl[0]),
        xytext=(26, -4),
        textcoords="offset points",
        va="top",
        fontsize=9,
        color=STYLES["naive"]["color"],
        arrowprops={"arrowstyle": "-", "color": STYLES["naive"]["color"], "linewidth": 0.8},
    )
    for axes in (success, kl):
        axes.set_xlabel("environment steps (thousands)")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        "PPO where 60 of 64 actions are illegal in each of 16 positions",
        x=0.012,
        ha="left",
        fontsize=14,
        fontweight="bold",
    )
    figure.text(
        0.0125,
        0.905,
        "Three runs of the same environment, seed and settings; they differ in the mask alone.",
        fontsize=10,
        color="#333333",
    )
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    figure.savefig(path)
    plt.close(figure)


def _label(run: Run) -> str:
    from rllib_integration.demo.training import NAIVE_OVER_SEEDS, RUNS

    luck = f"\n({NAIVE_OVER_SEEDS})" if run.name == "naive" else ""
    return f"{run.name}: {run.final_success:.0%} at the end\n{RUNS[run.name]}{luck}"
