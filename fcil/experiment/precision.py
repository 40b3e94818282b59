"""Whether this processor can train in bfloat16, found out in a child process, which a wrong instruction may kill."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import cache

from fcil.core.errors import ConfigError

SECONDS = 120  # far more than the trial takes; a child that hangs must not hang the run
TRIAL = """
import torch
from torch import nn
torch.set_num_threads(1)
net = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 64))
images = torch.rand(32, 3, 8, 8).contiguous(memory_format=torch.channels_last)
with torch.autocast("cpu", torch.bfloat16):
    loss = net(images).square().mean()
loss.backward()
assert all(bool(torch.isfinite(parameter.grad).all()) for parameter in net.parameters())
"""


def check_bfloat16(command: tuple[str, ...] = (sys.executable, "-c", TRIAL)) -> None:
    """Refuse mixed precision where a trial of it fails.

    Some processors name instructions that the system does not let a process use; trying them ends the process, so the
    trial has one of its own.
    """
    problem = _problem(command)
    if problem is not None:
        raise ConfigError(
            f"train.mixed_precision: found true, should be false on this machine: a trial on the processor {problem}"
        )


@cache
def _problem(command: tuple[str, ...]) -> str | None:
    """Return how the trial failed, or None; it is made once per process."""
    try:
        trial = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"did not end within {SECONDS} seconds"
    if trial.returncode < 0:
        return f"was killed by {signal.Signals(-trial.returncode).name}"
    if trial.returncode > 0:
        lines = trial.stderr.strip().splitlines()
        return f"failed ({lines[-1] if lines else f'exit code {trial.returncode}'})"
    return None
