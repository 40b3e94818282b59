"""Many runs of one experiment: what is missing is run, what is finished is skipped, what was cut is continued."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fcil.checkpoint import has_checkpoint, machine_facts
from fcil.children import FINISHING, start_child, stop_children, stopped
from fcil.config import Config, differing_keys, differing_settings, load_config
from fcil.errors import CheckpointError, ConfigError, DamagedError, FcilError, system_words
from fcil.experiment import CONFIG_FILE, SUMMARY_FILE, device_is_there, read_finished
from fcil.files import read_json, write_atomically
from fcil.results.comparison import (
    Comparison,
    compare,
    curves,
    published_markdown,
    table_csv,
    table_latex,
    table_markdown,
)
from fcil.results.kept import read_kept, write_kept
from fcil.results.published import PublishedRow, published_row
from fcil.results.summary import Summary

EXPERIMENT = ("data", "scenario", "model", "train")  # the tables that make an experiment what it is, for any method
GIVEN = ("seed", "method.name")  # settings that belong to the rows and columns of a grid
REFUSED = 2  # what a run ends with if its settings or its data are not right
Content = TypeVar("Content")
POLL = 0.2  # seconds between looks at the children
FILES = ("table.md", "table.tex", "table.csv", "curves.png", "curves.svg")


@dataclass(frozen=True)
class Case:
    """One row of the table: its label, and the settings that make it what it is."""

    label: str
    settings: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the label as a part of a file's name."""
        return re.sub(r"[^A-Za-z0-9._=-]+", "-", self.label).strip("-")


def cases_of_methods(names: Sequence[str]) -> list[Case]:
    """Return a row for each method."""
    return [Case(name, (f"method.name={name}",)) for name in names]


def cases_of_sweep(over: str, names: Sequence[str]) -> list[Case]:
    """Return a row for each value in `key.path=value,value,...`, and for each of the methods if there are several."""
    key, equals, text = over.partition("=")
    values = split_values(text)
    if not equals or not key.strip() or not values:
        raise ConfigError(f"--over {over}: write it as key.path=value,value, for instance scenario.memory=500,1000")
    _check_free(key.strip(), f"--over {over}")
    if key.strip().startswith("run."):
        raise ConfigError(f"--over {over}: where a run is played does not change its figures; `fcil bench` times it")
    short = key.rsplit(".", 1)[-1].strip()
    return [
        Case(
            f"{short}={value}" if len(names) < 2 else f"{name} {short}={value}",
            (*([f"method.name={name}"] if name else []), f"{key.strip()}={value}"),
        )
        for name in (names or [""])
        for value in values
    ]


def split_values(text: str) -> list[str]:
    """Return the values between commas; commas inside brackets or braces belong to a value.

    >>> split_values("500, [2, 3], {a = 1, b = 2}")
    ['500', '[2, 3]', '{a = 1, b = 2}']
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _check_free(key: str, option: str) -> None:
    if key in GIVEN:
        raise ConfigError(f"{option}: methods and seeds are given by --methods and --seeds")


@dataclass
class Job:
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
        """Return what the run is called."""
        return f"{self.case.name}-{self.seed}"


@dataclass
class Grid:
    """The runs of an experiment under one directory; `keep` is where their small results are kept as well."""

    config: str
    cases: Sequence[Case]
    seeds: Sequence[int]
    out: Path
    settings: Sequence[str] = ()
    keep: Path | None = None
    failed: dict[str, Path] = field(default_factory=dict)  # name of a run -> its log
    refused: set[str] = field(default_factory=set)  # those of them whose settings or data were not right

    def play(self, jobs: int, tell: Callable[[str], None]) -> dict[str, dict[int, Summary]]:
        """Run what is missing, `jobs` at a time, and return the figures of all finished runs by label and seed."""
        for setting in self.settings:
            _check_free(setting.partition("=")[0].strip(), f"--set {setting}")
        planned = [self._job(case, seed) for case in self.cases for seed in self.seeds]
        names = [job.name for job in planned]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"two runs would be called {twice}; name each method, seed and value once")
        for job in planned:
            if any((job.folder / name).is_file() for name in (CONFIG_FILE, SUMMARY_FILE)):
                _check_same(job, _read(_read_config, job.folder), job.folder, "--out")
        missing = [job for job in planned if self._finished(job) is None]
        if missing and not device_is_there(missing[0].config.run.device):
            raise ConfigError(f"run.device: there is no {missing[0].config.run.device} here; --set run.device=cpu")
        folders = {"--out": (self.out, [*FILES, *(f"logs/{job.log.name}" for job in missing)])}
        if self.keep is not None:
            folders["--results"] = (self.keep, [f"{job.name}.json" for job in planned])
        make_folders(folders)
        tell(f"{len(planned)} runs, {len(planned) - len(missing)} finished before; into {self.out}")
        try:
            self._run(missing, jobs, tell)
        except KeyboardInterrupt as interrupt:
            done = sum(self._finished(job) is not None for job in planned)
            raise stopped(done, len(planned)) from interrupt
        found: dict[str, dict[int, Summary]] = {case.label: {} for case in self.cases}
        for job in planned:
            summary = self._finished(job)
            if summary is not None:
                found[job.case.label][job.seed] = summary
                self._keep(job, summary)
        return found

    def published(self) -> tuple[dict[str, PublishedRow], list[str]]:
        """Return what the paper prints for cases on its data sets, by our labels, and what is not as it was there."""
        found: dict[str, PublishedRow] = {}
        differing: dict[str, None] = {}
        for case in self.cases:
            config = load_config(self.config, [*self.settings, *case.settings])
            source, scenario = config.data.source, config.scenario
            tasks = scenario.tasks if isinstance(scenario.tasks, int) else len(scenario.tasks)
            row = published_row(source, tasks, config.method_name, scenario.memory)
            if row is not None:
                found[case.label] = row
                theirs = load_config(f"{source}-t{tasks}", [f"scenario.memory={scenario.memory}"])
                ours, paper = ({key: side.document()[key] for key in EXPERIMENT} for side in (config, theirs))
                ours["data"]["path"] = paper["data"]["path"]  # where it lies is nobody's experiment
                differing |= dict.fromkeys(differing_keys(paper, ours))
        return found, list(differing)

    def _job(self, case: Case, seed: int) -> Job:
        config = load_config(self.config, [*self.settings, *case.settings, f"seed={seed}"])
        name = f"{case.name}-{seed}"
        return Job(case, seed, config, self.out / name, self.out / "logs" / f"{name}.log")

    def _finished(self, job: Job) -> Summary | None:
        """Return the figures of a run that has ended, from its directory or from what was kept of it."""
        kept = self.keep / f"{job.name}.json" if self.keep else None
        if (job.folder / SUMMARY_FILE).is_file():
            return _read(read_finished, job.folder)
        if kept is not None and kept.is_file():
            content = _read(read_kept, kept)
            _check_same(job, content.config, kept, "--results")
            return content.summary
        return None

    def _keep(self, job: Job, summary: Summary) -> None:
        path = self.keep / f"{job.name}.json" if self.keep else None
        if path is not None and not path.is_file():
            machine = machine_facts(job.config.run.threads, job.config.run.device)
            write_kept(path, job.config.document(), summary, machine)

    def _run(self, missing: Sequence[Job], jobs: int, tell: Callable[[str], None]) -> None:
        waiting, running, done = list(missing), list[Job](), 0
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    job = waiting.pop(0)
                    running.append(job)  # first, so that an interrupt finds it
                    self._start(job, alone=jobs == 1)
                    tell(f"{job.name} begins")
                time.sleep(POLL)
                for job in [job for job in running if job.child is not None and job.child.poll() is not None]:
                    running.remove(job)
                    done += 1
                    tell(f"{self._ended(job)} ({done} of {len(missing)})")
        except KeyboardInterrupt:
            tell(FINISHING)
            raise
        finally:
            stop_children(job.child for job in running if job.child is not None)

    def _start(self, job: Job, alone: bool) -> None:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        chosen = any(setting.replace(" ", "").startswith("run.engine=") for setting in self.settings)
        engine = [] if alone or chosen else ["--engine", "serial"]  # the cores are taken by the other runs
        if has_checkpoint(job.folder):
            command = ["resume", str(job.folder), *engine]
        else:
            settings = [*self.settings, *job.case.settings, f"seed={job.seed}"]
            flags = [part for setting in settings for part in ("--set", setting)]
            command = ["run", self.config, *flags, "--out", str(job.folder), *engine]
        with job.log.open("ab") as log:
            job.child = start_child(command, log)
        job.began = time.monotonic()

    def _ended(self, job: Job) -> str:
        """Return a line on a run that has just ended; a failure is noted and the others go on."""
        assert job.child is not None
        seconds, code = time.monotonic() - job.began, job.child.returncode
        try:
            summary = self._finished(job)
        except FcilError:  # damaged as soon as it was written
            summary = None
        if code or summary is None:
            self.failed[job.name] = job.log
            self.refused |= {job.name} if code == REFUSED else set()
            killed = f" (killed by signal {-code})" if code < 0 else ""
            return f"{job.name} failed after {seconds:.0f} s{killed}: {_last_line(job.log)}"
        self._keep(job, summary)
        lost = f", {len(summary['failures'])} failures of clients" if summary["failures"] else ""
        return f"{job.name}: average {summary['average']:.1f}, {seconds:.0f} s{lost}"


def write_comparison(
    runs: dict[str, dict[int, Summary]],
    title: str,
    out: Path,
    ours: str | None,
    published: tuple[Mapping[str, PublishedRow], Sequence[str]] = ({}, ()),
) -> Comparison:
    """Write table.md, table.tex, table.csv, curves.png and curves.svg, and return what they show.

    The rows of `published`, by our labels, stand below ours in table.md, with what differs from their experiment.
    """
    comparison = compare(runs, ours)
    beside = published_markdown(comparison, *published)
    lost = "".join(
        f"{label}, seed {seed}: {len(summary['failures'])} failures of clients, the first: "
        f"{summary['failures'][0]['reason']}\n\n"
        for label, by_seed in runs.items()
        for seed, summary in by_seed.items()
        if summary["failures"]
    )
    seeds = ", ".join(map(str, comparison.seeds))
    page = (
        f"# {title}\n\nAccuracy (%) over all classes seen so far, by the number of classes; mean over the seeds "
        f"{seeds}; Avg. with its standard deviation over seeds; p of a paired t-test on the averages.\n\n"
        f"{table_markdown(comparison)}\n\n{lost}{beside}![accuracy by classes seen](curves.svg)\n"
    )
    contents = (  # all of them before the first is written
        page.encode(),
        table_latex(comparison).encode(),
        table_csv(comparison).encode(),
        curves(comparison, "png"),
        curves(comparison, "svg"),
    )
    for name, content in zip(FILES, contents, strict=True):
        write_atomically(out / name, content)
    return comparison


def make_folders(folders: Mapping[str, tuple[Path, Sequence[str]]]) -> None:
    """Make the directory that each option names; none of them if one, or a file to be written in it, is blocked."""
    for option, (folder, files) in folders.items():
        there = next(place for place in (folder, *folder.parents) if place.exists())
        if not there.is_dir():
            raise ConfigError(f"{option} {folder}: {there} is a file, should be a directory; name another {option}")
        blocked = next((name for name in files if (folder / name).is_dir()), None)
        if blocked is not None:
            raise ConfigError(f"{option} {folder}: {blocked} in it is a directory, should be a file")
    for option, (folder, _) in folders.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{option} {folder}: cannot be made a directory ({system_words(error)})") from error


def _read(reader: Callable[[Path], Content], place: Path) -> Content:
    try:
        return reader(place)
    except DamagedError as error:
        raise CheckpointError(f"{error}; remove {place} to run again") from error


def _read_config(folder: Path) -> dict[str, Any]:
    return read_json(folder / CONFIG_FILE)


def _check_same(job: Job, found: dict[str, Any], place: Path, option: str) -> None:
    """Refuse a result that was made with other settings."""
    differing = differing_settings(found, job.config.document())
    if differing:
        raise CheckpointError(f"{place} holds a run with other settings: {'; '.join(differing)}; name another {option}")


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
