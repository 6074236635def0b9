"""Peak memory of one Torch step beyond its inputs, in logits buffers.

Run as ``python -m benchmarks.memory NAME ROWS ACTIONS``: each candidate in a process of its own,
whose resident size is read from the kernel (Linux only: the peak is reset before the step).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_buffers(name: str, rows: int, actions: int) -> float:
    """Measure a candidate of ``run.STEPS`` in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.memory", name, str(rows), str(actions)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def _kilobytes(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+)", STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{STATUS} has no {field}: peak memory is measured on Linux only")
    return int(found[1])


def _main(name: str, rows: int, actions: int) -> None:
    import torch

    from benchmarks import torch_candidates as candidates
    from benchmarks.run import torch_steps

    torch.set_num_threads(1)
    small = candidates.Batch.random(rows, 64)  # enough for the compiled path
    candidates.step(small, torch_steps(small)[name])()
    batch = candidates.Batch.random(rows, actions)
    run = candidates.step(batch, torch_steps(batch)[name])
    CLEAR.write_text("5")
    before = _kilobytes("VmRSS")
    run()
    print((_kilobytes("VmHWM") - before) * 1024 / (rows * actions * 4))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
