"""Many runs of one experiment: missing runs are started, finished ones skipped, interrupted ones continued."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from fcil.core.errors import CheckpointError, ConfigError, DamagedError, FcilError, system_words
from fcil.core.files import read_json
from fcil.core.subprocesses import FINISHING, start_child, stop_children, stopped
from fcil.experiment.checkpoint import has_checkpoint, load_checkpoint
from fcil.experiment.config import Config, differing_keys, differing_settings, load_config, of_the_machine
from fcil.experiment.result_file import read_kept, write_kept
from fcil.experiment.run import device_is_there, read_finished
from fcil.experiment.run_directory import CONFIG_FILE, SUMMARY_FILE
from fcil.experiment.summary import Summary
from fcil.reporting.compare.cells import Case, check_free
from fcil.reporting.compare.output import FILES
from fcil.reporting.published import PublishedRow, published_row
from fcil.reporting.terminal.multi_progress import POLL, Bars
from fcil.reporting.terminal.progress import Course

EXPERIMENT = ("data", "scenario", "model", "train")  # the tables that make an experiment what it is, for any method
REFUSED = 2  # what a run ends with if its settings or its data are not right
Content = TypeVar("Content")


@dataclass
class Planned:
    """One run of the grid."""

    case: Case
    seed: int
    config: Config
    folder: Path
    log: Path
    child: subprocess.Popen[bytes] | None = None
    began: float = 0.0

    @property
    def name(self) -> str:
        """Return the name of the run."""
        return f"{self.case.name}-{self.seed}"


@dataclass
class Grid:
    """The runs of an experiment under one directory; `keep` is where their small results are kept as well.

    `run` runs them as processes of their own; a program that runs them itself calls `prepare` and `finished`.
    """

    config: str
    cases: Sequence[Case]
    seeds: Sequence[int]
    out: Path
    settings: Sequence[str] = ()
    keep: Path | None = None
    log: Sequence[str] = ()  # names of loggers for every run
    failed: dict[str, Path] = field(default_factory=dict)  # name of a run -> its log
    refused: set[str] = field(default_factory=set)  # those of them whose settings or data were not right
    processors: dict[str, dict[int, str]] = field(default_factory=dict)  # of the finished runs, by label and seed
    configure: Callable[[str, list[str]], Config] = load_config  # the run of that experiment with these settings

    def __post_init__(self) -> None:
        for setting in self.settings:
            check_free(setting)

    def run(self, jobs: int, tell: Callable[[str], None], bars: Bars | None = None) -> dict[str, dict[int, Summary]]:
        """Run the missing runs, `jobs` at a time, and return the figures of all finished runs by label and seed."""
        planned, missing = self.prepare()
        tell(f"{len(planned)} runs, {len(planned) - len(missing)} finished before; into {self.out}")
        try:
            self._run_missing(missing, jobs, tell, bars or Bars(Console(quiet=True)))
        except KeyboardInterrupt as interrupt:
            done = sum(self._finished(run) is not None for run in planned)
            raise stopped(done, len(planned)) from interrupt
        return self.finished(planned)

    def prepare(self) -> tuple[list[Planned], list[Planned]]:
        """Return all runs and the missing ones; impossible ones are refused before any directory is made."""
        planned = [self._planned(case, seed) for case in self.cases for seed in self.seeds]
        names = [run.name for run in planned]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"two runs would be called {twice}; name each method, seed and value once")
        for run in planned:
            if any((run.folder / name).is_file() for name in (CONFIG_FILE, SUMMARY_FILE)):
                self._check_same(run, _read(_read_config, run.folder), run.folder)
            kept = self._kept(run)
            if kept is not None and kept.is_file():
                self._check_same(run, _read(read_kept, kept).config, kept)
        missing = [run for run in planned if self._finished(run) is None]
        if missing and not device_is_there(missing[0].config.run.device):
            raise ConfigError(f"run.device: there is no {missing[0].config.run.device} here; set run.device=cpu")
        folders = {self.out: [*FILES, *(f"logs/{run.log.name}" for run in missing)]}
        if self.keep is not None:
            folders[self.keep] = [*folders.get(self.keep, []), *(f"{run.name}.json" for run in planned)]
        make_folders(folders)
        return planned, missing

    def finished(self, planned: Sequence[Planned]) -> dict[str, dict[int, Summary]]:
        """Return the figures of the runs that have ended, by label and seed."""
        found: dict[str, dict[int, Summary]] = {case.label: {} for case in self.cases}
        for run in planned:
            summary = self._finished(run)
            if summary is not None:
                found[run.case.label][run.seed] = summary
                self._keep(run, summary)
                self.processors.setdefault(run.case.label, {})[run.seed] = self._processor(run)
        return found

    def _processor(self, run: Planned) -> str:
        """Return the processor of a finished run, from its kept result or its checkpoint."""
        kept = self._kept(run)
        is_kept = kept is not None and kept.is_file()
        if not is_kept and not has_checkpoint(run.folder):
            return "an unknown processor"
        machine = _read(read_kept, kept).machine if is_kept and kept else _read(load_checkpoint, run.folder).machine
        return machine.get("processor", "an unknown processor")

    def published(self) -> tuple[dict[str, PublishedRow], list[str]]:
        """Return the paper's figures for cases on its data sets, by our labels, and the differences in settings."""
        found: dict[str, PublishedRow] = {}
        differing: dict[str, None] = {}
        for case in self.cases:
            config = self.configure(self.config, [*self.settings, *case.settings])
            source, scenario, tasks = config.data.source, config.scenario, config.scenario.task_count
            row = published_row(source, tasks, config.method_name, scenario.memory)
            if row is not None:
                found[case.label] = row
                theirs = load_config(f"{source}-t{tasks}", [f"scenario.memory={scenario.memory}"])
                ours, paper = ({key: side.document()[key] for key in EXPERIMENT} for side in (config, theirs))
                ours["data"]["path"] = paper["data"]["path"]  # where it lies is nobody's experiment
                differing |= dict.fromkeys(differing_keys(paper, ours))
        return found, list(differing)

    def _planned(self, case: Case, seed: int) -> Planned:
        config = self.configure(self.config, [*self.settings, *case.settings, f"seed={seed}"])
        name = f"{case.name}-{seed}"
        return Planned(case, seed, config, self.out / name, self.out / "logs" / f"{name}.log")

    def _finished(self, run: Planned) -> Summary | None:
        """Return the figures of a finished run, from its directory or its kept result."""
        kept = self._kept(run)
        if (run.folder / SUMMARY_FILE).is_file():
            return _read(read_finished, run.folder)
        return _read(read_kept, kept).summary if kept is not None and kept.is_file() else None

    def _kept(self, run: Planned) -> Path | None:
        """Return where a run's small result is kept, if any is."""
        return self.keep / f"{run.name}.json" if self.keep else None

    def _check_same(self, run: Planned, found: dict[str, Any], place: Path) -> None:
        """Refuse a result that was made with other settings."""
        differing = differing_settings(found, run.config.document())
        if differing:
            raise CheckpointError(
                f"{place} holds a run with other settings: {'; '.join(differing)}; name another directory"
            )

    def _keep(self, run: Planned, summary: Summary) -> None:
        path = self._kept(run)
        if path is not None and not path.is_file():
            stored = _read(load_checkpoint, run.folder)  # where and how it was, not what this command would do
            write_kept(path, stored.document, summary, stored.machine)

    def _run_missing(self, missing: Sequence[Planned], jobs: int, tell: Callable[[str], None], bars: Bars) -> None:
        waiting, running, done = list(missing), list[Planned](), 0
        bars.plan(len(missing))
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    run = waiting.pop(0)
                    running.append(run)  # first, so that an interrupt finds it
                    self._start(run, alone=jobs == 1)
                    tell(f"{run.name} begins")
                    bars.begin(Course.planned(run.config, run.name), run.folder)
                time.sleep(POLL)
                bars.look()
                for run in [run for run in running if run.child is not None and run.child.poll() is not None]:
                    running.remove(run)
                    done += 1
                    bars.end(run.name)
                    tell(f"{self._ended(run)} ({done} of {len(missing)})")
        except KeyboardInterrupt:
            tell(FINISHING)
            raise
        finally:
            stop_children(run.child for run in running if run.child is not None)

    def _start(self, run: Planned, alone: bool) -> None:
        run.log.parent.mkdir(parents=True, exist_ok=True)
        chosen = any(setting.replace(" ", "").startswith("run.engine=") for setting in self.settings)
        options = [] if alone or chosen else ["--engine", "serial"]  # the cores are taken by the other runs
        options += [part for name in self.log for part in ("--log", name)]
        if has_checkpoint(run.folder):
            command = ["resume", str(run.folder), *_flags(of_the_machine(self.settings)), *options]
        else:
            settings = [*self.settings, *run.case.settings, f"seed={run.seed}"]
            command = ["run", self.config, *_flags(settings), "--out", str(run.folder), *options]
        with run.log.open("ab") as log:
            run.child = start_child(command, log)
        run.began = time.monotonic()

    def _ended(self, run: Planned) -> str:
        """Return a line on a run that has just ended; a failure is noted and the others go on."""
        assert run.child is not None
        seconds, code = time.monotonic() - run.began, run.child.returncode
        try:
            summary = self._finished(run)
        except FcilError:  # damaged as soon as it was written
            summary = None
        if code or summary is None:
            self.failed[run.name] = run.log
            self.refused |= {run.name} if code == REFUSED else set()
            killed = f" (killed by signal {-code})" if code < 0 else ""
            return f"{run.name} failed after {seconds:.0f} s{killed}: {_last_line(run.log)}"
        self._keep(run, summary)
        lost = f", {len(summary['failures'])} failures of clients" if summary["failures"] else ""
        return f"{run.name}: average {summary['average']:.1f}, {seconds:.0f} s{lost}"


def make_folders(folders: Mapping[Path, Sequence[str]]) -> None:
    """Make directories; none of them if one, or a file to be written in it, is blocked."""
    for folder, files in folders.items():
        there = next(place for place in (folder, *folder.parents) if place.exists())
        if not there.is_dir():
            raise ConfigError(f"{folder}: {there} is a file, should be a directory; name another place")
        blocked = next((name for name in files if (folder / name).is_dir()), None)
        if blocked is not None:
            raise ConfigError(f"{folder}: {blocked} in it is a directory, should be a file")
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be made a directory ({system_words(error)})") from error


def _read(reader: Callable[[Path], Content], place: Path) -> Content:
    try:
        return reader(place)
    except DamagedError as error:
        raise CheckpointError(f"{error}; remove {place} to run again") from error


def _read_config(folder: Path) -> dict[str, Any]:
    return read_json(folder / CONFIG_FILE)


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _flags(settings: Sequence[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]
