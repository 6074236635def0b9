"""``make bench-train``: RLlib training with our masked policy and with RLlib's own masked model.

Both train PPO on the same environment with the same config, in one process of one thread, taking
turns iteration by iteration. What is compared is environment steps (sampling and update) a second
of CPU time. Ratios only; writes docs/bench_train.md. ``--profile`` shows where our time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import dataclasses
import json
import os
import platform
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.local_ray import local_ray, set_environment

PAGE = Path(__file__).parent.parent / "docs" / "bench_train.md"
FRAMEWORKS = {"torch": ("torch",), "tf2": ("tensorflow-cpu", "tf-keras"), "tf": ()}
ACTIONS = (8, 64, 1024)
MUST, AIM = 1.0, 1.2
BATCH, MINIBATCH, EPOCHS, ENVS = 2048, 128, 8, 8


@dataclasses.dataclass
class Cost:
    """CPU seconds an environment step, an entry an iteration."""

    sampling: list[float] = dataclasses.field(default_factory=list)
    learning: list[float] = dataclasses.field(default_factory=list)

    @property
    def total(self) -> list[float]:
        return [a + b for a, b in zip(self.sampling, self.learning, strict=True)]


class Trainer:
    """An algorithm whose iterations are timed, sampling apart from the rest."""

    def __init__(self, config: Any) -> None:
        self.algorithm = config.build_algo()
        self._sampling = 0.0
        worker = self.algorithm.env_runner
        sample = worker.sample

        def timed_sample(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            batch = sample(*args, **kwargs)
            self._sampling += time.process_time() - start
            return batch

        worker.sample = timed_sample
        self._steps = 0

    def iterate(self, cost: Cost) -> None:
        self._sampling = 0.0
        start = time.process_time()
        result = self.algorithm.train()
        seconds = time.process_time() - start
        steps = int(result["num_env_steps_sampled"]) - self._steps
        self._steps += steps
        cost.sampling.append(self._sampling / steps)
        cost.learning.append((seconds - self._sampling) / steps)


def base_config(framework: str, num_actions: int) -> Any:
    """What both sides share: half of the actions are legal, another half in each position."""
    from ray.rllib.algorithms.ppo import PPOConfig

    from rllib_integration.envs import MaskedChainEnv

    one_thread = {"intra_op_parallelism_threads": 1, "inter_op_parallelism_threads": 1}
    return (
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
        .environment(
            MaskedChainEnv,
            env_config={"num_actions": num_actions, "num_legal": num_actions // 2},
        )
        .framework(framework, tf_session_args=one_thread, local_tf_session_args=one_thread)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=ENVS)
        .training(
            lr=3e-4,
            train_batch_size=BATCH,
            minibatch_size=MINIBATCH,
            num_epochs=EPOCHS,
            model={"fcnet_hiddens": [64, 64]},
        )
        .debugging(seed=0)
    )


def our_config(framework: str, num_actions: int) -> Any:
    from rllib_integration import with_action_masking

    return with_action_masking(base_config(framework, num_actions))


def their_config(framework: str, num_actions: int) -> Any:
    from ray.rllib.examples._old_api_stack.models import action_mask_model as example

    model = example.TorchActionMaskModel if framework == "torch" else example.ActionMaskModel
    return base_config(framework, num_actions).training(model={"custom_model": model})


def _one_thread(framework: str) -> None:
    if framework == "torch":
        import torch

        torch.set_num_threads(1)
    else:
        from rllib_integration.keras_setup import setup_keras

        setup_keras()
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)


def compare(framework: str, num_actions: int, pairs: int) -> dict[str, Any]:
    """Ratios of one pair of trainings: theirs over ours, so that above 1 we are faster."""
    trainers = [
        Trainer(our_config(framework, num_actions)),
        Trainer(their_config(framework, num_actions)),
    ]
    costs = [Cost(), Cost()]
    for trainer in trainers:
        trainer.iterate(Cost())  # builds graphs, fills caches
    for pair in range(pairs):
        for side in (0, 1) if pair % 2 == 0 else (1, 0):
            trainers[side].iterate(costs[side])
    for trainer in trainers:
        trainer.algorithm.stop()
    ours, theirs = costs
    return {
        "framework": framework,
        "num_actions": num_actions,
        "total": _ratio(ours.total, theirs.total),
        "sampling": _ratio(ours.sampling, theirs.sampling),
        "learning": _ratio(ours.learning, theirs.learning),
    }


def _ratio(ours: list[float], theirs: list[float]) -> list[float]:
    """Median and quartiles of the pairs' ratios."""
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return [middle, low, high]


def profile(framework: str, num_actions: int) -> None:
    """Print where two of our iterations spend their time."""
    algorithm = our_config(framework, num_actions).build_algo()
    algorithm.train()
    profiler = cProfile.Profile()
    profiler.enable()
    algorithm.train()
    algorithm.train()
    profiler.disable()
    algorithm.stop()
    for order in ("tottime", "cumulative"):
        pstats.Stats(profiler).sort_stats(order).print_stats(40)


def row(result: dict[str, Any]) -> str:
    middle, low, high = result["total"]
    verdict = " **aim**" if middle >= AIM else "" if middle >= MUST else f" BELOW {MUST:g}"
    return (
        f"| {result['framework']} | {result['num_actions']:,} | "
        f"{middle:.2f} ({low:.2f}-{high:.2f}){verdict} | "
        f"{result['sampling'][0]:.2f} | {result['learning'][0]:.2f} |"
    )


def run_framework(framework: str, sizes: list[int], pairs: int) -> list[dict[str, Any]]:
    set_environment(framework)
    _one_thread(framework)
    results: list[dict[str, Any]] = []
    with local_ray():
        for num_actions in sizes:
            results.append(compare(framework, num_actions, pairs))
            print(row(results[-1]), flush=True)
    return results


def _in_process_of_its_own(framework: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """TensorFlow's graph and eager modes cannot share a process."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "benchmarks.train", "--framework", framework]
        command += ["--pairs", str(arguments.pairs), "--results", file.name]
        command += ["--actions", *map(str, arguments.actions)]
        subprocess.run(command, check=True)
        return json.loads(Path(file.name).read_text())


def page(results: list[dict[str, Any]], pairs: int) -> str:
    packages = ["ray", *(name for names in FRAMEWORKS.values() for name in names), "numpy"]
    missed = [result for result in results if result["total"][0] < MUST]
    lines = [
        "# RLlib training, paired",
        "",
        "Written by `make bench-train`. PPO with `with_action_masking` against PPO with RLlib's",
        "own example masked model (`ray.rllib.examples._old_api_stack.models.action_mask_model`):",
        f"same environment (half of the actions legal), batches of {BATCH:,} steps from {ENVS}",
        f"environments, {EPOCHS} epochs of minibatches of {MINIBATCH}, network 64 x 64, one",
        f"process, one thread, {pairs} pairs of iterations in turn. The ratio is how many times",
        "more environment steps (sampled and learned from) we make a CPU second: median of the",
        f"pairs, quartiles in brackets. It has to be {MUST:g}; {AIM:g} is the aim.",
        "",
        f"Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in packages)
        + f"; {os.cpu_count()} cores.",
        "",
        *HEAD,
        *map(row, results),
        "",
        *(
            f"- missed: {result['framework']}, {result['num_actions']} actions: "
            f"{result['total'][0]:.2f}, must be {MUST:g}"
            for result in missed
        ),
        *([] if missed else ["Every ratio is at least what it has to be."]),
    ]
    return "\n".join(lines) + "\n"


HEAD = (
    "| framework | actions | sampling and update | sampling alone | update alone |",
    "|---|---|---|---|---|",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train", description=__doc__)
    parser.add_argument("--framework", choices=FRAMEWORKS, help="one alone; writes no page")
    parser.add_argument("--actions", type=int, nargs="+", default=list(ACTIONS))
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="torch, three pairs; writes no page")
    parser.add_argument("--profile", action="store_true", help="where our time goes; no comparison")
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.pairs = 3
    framework = arguments.framework or ("torch" if arguments.quick or arguments.profile else None)
    if arguments.profile:
        set_environment(framework)
        _one_thread(framework)
        with local_ray():
            for num_actions in arguments.actions:
                profile(framework, num_actions)
        return 0
    if arguments.results is None:
        print("\n".join(HEAD), flush=True)
    if framework is not None:
        results = run_framework(framework, arguments.actions, arguments.pairs)
        if arguments.results is not None:
            arguments.results.write_text(json.dumps(results))
        return 0
    results = [r for name in FRAMEWORKS for r in _in_process_of_its_own(name, arguments)]
    PAGE.write_text(page(results, arguments.pairs))
    print(f"\nwrote docs/{PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
