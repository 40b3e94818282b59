"""The demonstration: GLFC and plain federated averaging on the digits, side by side, one process each."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import deque
from itertools import count, repeat, takewhile
from pathlib import Path

from rich.console import Console

from fcil.checkpoint import has_checkpoint
from fcil.errors import FederationError
from fcil.experiment import CONFIG_FILE, SUMMARY_FILE, read_finished
from fcil.files import write_atomically
from fcil.progress import print_rows
from fcil.results.report import CURVES_FILE, REPORT_FILE, curves_png, report_text
from fcil.results.summary import average_of

METHODS = ("glfc", "finetune")
PRESET = "digits"


def run_demo(console: Console, out: Path, seed: int) -> None:
    """Run what is missing, print both rows and say where everything is; a demo that was cut is continued."""
    folder = next(place for place in _places(out) if _is_open(place, seed))
    console.print(
        f"{' and '.join(METHODS)} on the same federation of the ten digits, one core each, into {folder}",
        soft_wrap=True,
    )
    folders = [folder / method for method in METHODS]
    children = [_start(method, place, seed) for method, place in zip(METHODS, folders, strict=True)]
    tails: list[deque[str]] = [deque(maxlen=20) for _ in children]
    relays = [
        threading.Thread(target=_relay, args=pair) for pair in zip(children, repeat(console), tails, strict=False)
    ]
    try:
        for relay in relays:
            relay.start()
        for relay in relays:
            relay.join()
        codes = [child.wait() for child in children]
    except KeyboardInterrupt:
        for child in children:  # the terminal has sent them the same signal; they finish their round
            child.wait()
        console.print(f"stopped; the same command continues in {folder}")
        raise
    for code, tail in zip(codes, tails, strict=True):
        if code:
            console.print("".join(tail).rstrip(), markup=False, soft_wrap=True)
    if any(codes):
        failed = ", ".join(method for method, code in zip(METHODS, codes, strict=True) if code)
        raise FederationError(f"the run of {failed} ended with an error, see above; the same command continues it")
    summaries = [read_finished(place) for place in folders]
    write_atomically(folder / CURVES_FILE, curves_png(summaries))
    write_atomically(
        folder / REPORT_FILE, report_text("GLFC and plain federated averaging", summaries, folders).encode()
    )
    print_rows(console, f"digits, seed {seed}", summaries)
    gain = average_of(summaries[0]) - average_of(summaries[1])
    console.print(f"GLFC is {gain:+.1f} points from plain averaging on average over the tasks.")
    console.print(f"report: {folder / REPORT_FILE}", soft_wrap=True)


def _places(out: Path) -> list[Path]:
    """Return the directory asked for and numbered ones after it, so that a finished demo is never overwritten."""
    taken = takewhile(Path.exists, (out.with_name(f"{out.name}-{number}") for number in count(2)))
    known = list(taken)
    return [out, *known, out.with_name(f"{out.name}-{len(known) + 2}")]


def _is_open(folder: Path, seed: int) -> bool:
    """Say whether a demo of this seed can begin or go on in a directory."""
    configs = [folder / method / CONFIG_FILE for method in METHODS if (folder / method / CONFIG_FILE).is_file()]
    if any(json.loads(config.read_text("utf-8"))["seed"] != seed for config in configs):
        return False
    return not all((folder / method / SUMMARY_FILE).is_file() for method in METHODS)


def _start(method: str, folder: Path, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fcil"]
    if has_checkpoint(folder):
        command += ["resume", str(folder)]
    else:
        command += ["run", PRESET, "--method", method, "--seed", str(seed), "--out", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _relay(child: subprocess.Popen[str], console: Console, tail: deque[str]) -> None:
    """Pass on the child's progress and warnings, and keep its last lines in case it fails."""
    assert child.stdout is not None
    with child.stdout as lines:
        for line in lines:
            tail.append(line)
            if "  round " in line or line.startswith(
                ("error", "warning", "the federation", "finishing", "interrupted")
            ):
                console.print(line.rstrip(), markup=False, soft_wrap=True)
