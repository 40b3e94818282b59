"""The demonstration: GLFC, plain averaging, Mosaic and pre-trained features on the digits, one process each."""

from __future__ import annotations

import io
import subprocess
import threading
import time
from collections import deque
from itertools import count, takewhile
from pathlib import Path

from rich.console import Console

from fcil.core.errors import ConfigError, FederationError
from fcil.core.files import read_json, write_atomically
from fcil.core.subprocesses import FINISHING, start_child, stop_children, stopped
from fcil.experiment.checkpoint import has_checkpoint
from fcil.experiment.config import load_config
from fcil.experiment.run import read_finished
from fcil.experiment.run_directory import CONFIG_FILE, SUMMARY_FILE
from fcil.experiment.summary import average_of
from fcil.models.config import IMAGENET
from fcil.models.registry import networks
from fcil.models.weights import installed_file
from fcil.reporting.compare.runner import make_folders
from fcil.reporting.load_runs import load_runs
from fcil.reporting.page import FILE as PAGE_FILE
from fcil.reporting.page import page, plotly_code
from fcil.reporting.terminal.multi_progress import POLL, Bars
from fcil.reporting.terminal.progress import Course
from fcil.reporting.terminal.report import CURVES_FILE, REPORT_FILE, as_markdown, curves_png, print_report, report_on

METHODS = ("glfc", "finetune", "mosaic")
TITLE = "GLFC, plain averaging and Mosaic"
QUICK, NETWORK = "analytic", "efficientnet-lite0"  # shown too where its weights are installed
PRETRAINED = (f"model.name={NETWORK}", f"model.weights={IMAGENET}", "model.freeze=true", "model.width=64")
APART = f"{QUICK} has ImageNet pre-training; the others begin with random weights."
AT_ONCE = 2  # as many as the cores of a small machine
PRESET = "digits"
SHOWN = ("error", "warning", "the federation")  # how a child's lines begin that are for the user


def run_demo(console: Console, out: Path, seed: int) -> None:
    """Run the missing runs, print all rows and name the files; an interrupted demo is continued."""
    folder = next(place for place in _places(out) if _is_open(place, seed))
    make_folders({folder: [CURVES_FILE, REPORT_FILE, PAGE_FILE]})
    chosen = methods()
    console.print(
        f"{TITLE} on the same federation of the ten digits, two at a time, one core each, into {folder}",
        soft_wrap=True,
    )
    if QUICK in chosen:
        console.print(APART, soft_wrap=True)
    folders = [folder / method for method in chosen]
    codes = _run(console, folders, seed)
    if any(codes):
        failed = ", ".join(method for method, code in zip(chosen, codes, strict=True) if code)
        raise FederationError(f"the run of {failed} ended with an error, see above; the same command continues it")
    summaries = [read_finished(place) for place in folders]
    beside = f", beside {QUICK} with ImageNet pre-training" if QUICK in chosen else ""
    report = report_on(f"{TITLE}{beside}, digits, seed {seed}", summaries)
    write_atomically(folder / CURVES_FILE, curves_png(report))
    write_atomically(folder / REPORT_FILE, as_markdown(report, folders).encode())
    print_report(console, report)
    glfc, plain, mosaic, *_ = map(average_of, summaries)
    console.print(
        f"On average over the tasks, GLFC is {glfc - plain:+.1f} points from plain averaging, and Mosaic, a method of "
        f"our own, {mosaic - plain:+.1f}.",
        soft_wrap=True,
    )
    console.print(f"report: {folder / REPORT_FILE}", soft_wrap=True)
    _write_page(console, folder, folders, report.title)


def methods() -> tuple[str, ...]:
    """Return the methods that are shown, with pre-trained features where these are installed."""
    released = networks()[NETWORK].pretrained
    return (*METHODS, QUICK) if released is not None and installed_file(released) is not None else METHODS


def _settings(method: str) -> list[str]:
    """Return the changes to the preset for a method."""
    return [f"method.name={method}", *(PRETRAINED if method == QUICK else ())]


def _write_page(console: Console, folder: Path, folders: list[Path], title: str) -> None:
    """Write the page to look at, beside the report; without plotly the demo is none the worse."""
    try:
        code = plotly_code()
    except ConfigError as error:
        console.print(f"no page to look at: {error}", soft_wrap=True)
        return
    write_atomically(folder / PAGE_FILE, page(load_runs(folders), title, code).encode())
    console.print(f"page to look at: {folder / PAGE_FILE}", soft_wrap=True)


def _run(console: Console, folders: list[Path], seed: int) -> list[int]:
    """Run each method in its folder, two at a time, and return their exit codes."""
    children: list[subprocess.Popen[bytes]] = []
    hidden: list[deque[str]] = [deque(maxlen=20) for _ in folders]
    waiting = deque(zip((place.name for place in folders), folders, hidden, strict=True))
    relays: list[threading.Thread] = []
    with Bars(console) as bars:
        try:
            while waiting or any(relay.is_alive() for relay in relays):
                if waiting and sum(relay.is_alive() for relay in relays) < AT_ONCE:
                    method, folder, lines = waiting.popleft()
                    children.append(_start(method, folder, seed))
                    relays.append(threading.Thread(target=_relay, args=(children[-1], console, lines), daemon=True))
                    relays[-1].start()
                    bars.begin(Course.planned(load_config(PRESET, _settings(method)), method), folder)
                    continue
                time.sleep(POLL)
                bars.look()
            codes = [child.wait() for child in children]
        except KeyboardInterrupt as interrupt:
            console.print(FINISHING)
            stop_children(children)
            raise stopped(sum((folder / SUMMARY_FILE).is_file() for folder in folders), len(folders)) from interrupt
        finally:
            stop_children(children)
    for code, lines in zip(codes, hidden, strict=True):
        if code:
            console.print("".join(lines).rstrip(), soft_wrap=True)
    return codes


def _places(out: Path) -> list[Path]:
    """Return the directory asked for and numbered ones after it, so that a finished demo is never overwritten."""
    named = out if out.name not in ("", "..") else out.resolve()
    numbered = (named.parent / f"{named.name}-{number}" for number in count(2))
    known = list(takewhile(Path.exists, numbered))
    return [out, *known, named.parent / f"{named.name}-{len(known) + 2}"]


def _is_open(folder: Path, seed: int) -> bool:
    """Say whether a demo of this seed can begin or go on in a directory."""
    configs = [folder / method / CONFIG_FILE for method in methods() if (folder / method / CONFIG_FILE).is_file()]
    if any(read_json(config).get("seed") != seed for config in configs):
        return False
    return not all((folder / method / SUMMARY_FILE).is_file() for method in methods())


def _start(method: str, folder: Path, seed: int) -> subprocess.Popen[bytes]:
    if has_checkpoint(folder):
        command = ["resume", str(folder)]
    else:
        changes = [word for change in _settings(method) for word in ("--set", change)]
        command = ["run", PRESET, *changes, "--seed", str(seed), "--out", str(folder)]
    return start_child(command, subprocess.PIPE)


def _relay(child: subprocess.Popen[bytes], console: Console, hidden: deque[str]) -> None:
    """Pass on the child's warnings, errors and, where no bar shows it, progress; keep the last other lines."""
    assert child.stdout is not None
    with io.TextIOWrapper(child.stdout, "utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith(SHOWN) or ("  round " in line and not console.is_terminal):
                console.print(line.rstrip(), soft_wrap=True)
            else:
                hidden.append(line)
