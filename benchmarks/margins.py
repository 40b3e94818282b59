"""How far the contract's learning figures stay from their bounds, over seeds and kinds of processor.

    python -m benchmarks.margins                   # all methods, five seeds, every setting
    python -m benchmarks.margins icarl ewc --seeds 3

Training is chaotic in the last bits, which depend on the instructions that the libraries use. Each setting below makes
them use others, so a bound that holds under all of them can be expected to hold on another processor. One line of JSON
per run: {method, seed, setting, first, old, new}; at the end one per figure, with the worst run and the bound.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from fcil.testing.learning import FIRST, NEW, OLD, learn
from fcil.testing.own import contracts

SETTINGS = (  # those of .ci/portable, and each library's lowest alone
    "",
    "ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2",
    "ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2",
    "ATEN_CPU_CAPABILITY=default",
    "ONEDNN_MAX_CPU_ISA=SSE41",
    "MKL_ENABLE_INSTRUCTIONS=SSE4_2",
)
CONTRACTS = contracts()
BOUNDS = {"first": FIRST, "old": OLD, "new": NEW}


def under(setting: str, names: list[str], seeds: int) -> Iterator[dict[str, Any]]:
    """Yield the figures under a setting, measured in a process of its own: libraries read it when they are loaded."""
    command = [sys.executable, "-m", "benchmarks.margins", *names, "--seeds", str(seeds), "--here", setting]
    chosen = dict(each.split("=") for each in setting.split())
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **chosen}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        yield from map(json.loads, process.stdout)
    if process.returncode:
        raise SystemExit(process.returncode)


def here(setting: str, names: list[str], seeds: int) -> Iterator[dict[str, Any]]:
    """Yield the figures in this process."""
    torch.set_num_threads(1)
    for name in names:
        for seed in range(1, 1 + seeds):
            contract = CONTRACTS[name]
            learned = learn(contract.method, {**contract.variant, **contract.settings}, seed)
            yield {"method": name, "seed": seed, "setting": setting or "none", **asdict(learned)}


def worst(found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield, per figure, the lowest value and its bound; what a forgetful method still knows has no bound."""
    for figure, bound in BOUNDS.items():
        bounded = [row for row in found if figure != "old" or CONTRACTS[row["method"]].keeps != "nothing"]
        if bounded:
            yield {"figure": figure, "bound": bound, **min(bounded, key=lambda row: float(row[figure]))}


def main() -> None:
    """Print all figures, then the worst."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.margins")
    parser.add_argument("methods", nargs="*", default=list(CONTRACTS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--here", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    found = []
    settings = SETTINGS if asked.here is None else (asked.here,)
    for setting in settings:
        for row in (under if asked.here is None else here)(setting, asked.methods, asked.seeds):
            found.append(row)
            print(json.dumps(row), flush=True)
    if asked.here is None:
        for row in worst(found):
            print(json.dumps(row))


if __name__ == "__main__":
    main()
