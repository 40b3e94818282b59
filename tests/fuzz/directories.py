"""Directories of runs: files damaged as they lie, or changed behind digests that were put right again."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from support.command import fcil

from fcil.core.errors import FcilError
from fcil.core.files import DIGEST, MAGIC, SEAL, json_digest
from fcil.core.messages import Message, decode, encode
from fcil.data.datasets.dataset import Source
from fcil.data.datasets.digits import load_digits
from fcil.experiment.checkpoint import FILE, PART, PREVIOUS, PROXY, Checkpoint, ClientStates
from fcil.experiment.config import differing_settings, parse_config
from fcil.experiment.journal import FILE as RECORDS_FILE
from fcil.experiment.journal import as_line
from fcil.experiment.restore import Stored, load_stored
from fcil.experiment.result_file import KeptResult, read_kept, write_kept
from fcil.experiment.run import Run, read_finished, read_summary
from fcil.experiment.side_files import KINDS as KINDS_ATTACHED
from fcil.experiment.summary import Summary
from fcil.experiment.timings import FILE as TIMINGS_FILE
from fcil.reporting.compare.tables import compare, table_markdown
from fcil.reporting.load_runs import load_runs
from fcil.reporting.page import page
from fcil.reporting.run_facts import as_document
from fuzz.case import Damage, FindingError, Kind, all_of, check_same, read_files, write_files
from fuzz.configs import check_refusal
from fuzz.damage import changed, damaged, json_bytes
from fuzz.messages import forged, put_together, take_apart

Files = dict[str, bytes]
KEPT = "kept.json"
METHOD = "method"  # in the place of a file: whose run it is
METHODS = {"glfc": {"rebuild_evaluations": 5, "rebuild_restarts": 0, "perturb_steps": 2}, "podnet": {}}


@cache
def _source() -> Source:
    return load_digits().reduced(3)


@contextmanager
def _no_time() -> Iterator[None]:
    """Let a round take no time: its seconds are written down, and all draws of damage depend on what is written."""
    clock, time.perf_counter = time.perf_counter, lambda: 0.0
    try:
        yield
    finally:
        time.perf_counter = clock


@dataclass(frozen=True)
class Sample:
    """The files of a run, and what they say while they are whole."""

    files: Files
    newest: tuple[bytes, ...]  # of the newest checkpoint
    previous: tuple[bytes, ...]
    restored: list[list[bytes]]  # from either
    figures: list[tuple[Summary, dict[str, Any]]]  # from either
    kept: KeptResult


@cache
def _samples() -> dict[str, Sample]:
    """Return finished runs of two tasks, by method."""
    return {method: _sample(_played(method, fields)) for method, fields in METHODS.items()}


def _sample(files: Files) -> Sample:
    with tempfile.TemporaryDirectory(prefix="fcil-fuzz-") as place:
        folder = Path(place)
        write_files(folder, files, Damage({}))
        newest, figures, kept = _told(load_stored(folder)), [read_summary(folder)], read_kept(folder / KEPT)
        (folder / FILE).unlink()  # as a kill may leave it
        previous = _told(load_stored(folder))
        figures.append(read_summary(folder))
    checkpoints = [decode(files[name][SEAL:], Checkpoint) for name in (FILE, PREVIOUS)]
    restored = [[encode(checkpoint.server), encode(checkpoint.table)] for checkpoint in checkpoints]
    return Sample(files, newest, previous, restored, figures, kept)


def _played(method: str, fields: dict[str, Any]) -> Files:
    scenario = {"tasks": 2, "rounds_per_task": 1, "initial_clients": 2, "joiners": 1, "participants": 2, "memory": 4}
    document = {
        "scenario": scenario,
        "model": {"width": 1},
        "train": {"epochs": 1, "batch_size": 16},
        "run": {"engine": "serial"},
        "method": {"name": method, **fields},
    }
    with tempfile.TemporaryDirectory(prefix="fcil-fuzz-") as place, _no_time():
        folder = Path(place)
        with Run.start(parse_config(document), folder, lambda _: _source()) as run:
            for _ in run.rounds():
                pass
            write_kept(folder / KEPT, run.config.document(), run.finish(), {"processor": "any"})
        return {name: data for name, data in read_files(folder).items() if name != ".lock"}


# --- damage -------------------------------------------------------------------------------------------------------


def _undamaged() -> Damage:
    return Damage({METHOD: next(iter(_samples())).encode()})


def _draw(random: Random) -> Damage:
    method = random.choice([*METHODS])
    files = _samples()[method].files
    name = random.choice([name for name in files if not name.endswith(".safetensors")])
    match random.randrange(10):
        case 0:
            return Damage({METHOD: method.encode(), name: None})
        case 1 | 2 | 3:
            return Damage({METHOD: method.encode(), name: damaged(files[name], random, [*files.values()])})
    return Damage({METHOD: method.encode(), **_forge(files, name, random)}, forged=True)


def _forge(files: Files, name: str, random: Random) -> Files:
    """Return a file with another content, and the files that hold a digest of it with the digest that is right."""
    if name.startswith((PART, PROXY)):
        content = forged(files[name][SEAL:], random)
        checkpoint = decode(files[FILE][SEAL:], Checkpoint)
        digest = hashlib.sha256(content).hexdigest()
        parts = tuple(replace(part, digest=digest) if part.name == name else part for part in checkpoint.parts)
        proxy = checkpoint.proxy
        if proxy is not None and proxy.name == name:
            proxy = replace(proxy, digest=digest)
        return {name: _sealed(content), FILE: _sealed(encode(replace(checkpoint, parts=parts, proxy=proxy)))}
    if name == RECORDS_FILE:
        lines = files[name].splitlines(keepends=True)
        place = random.randrange(len(lines))
        line = json_bytes(changed(json.loads(lines[place]), random)) if random.random() < 3 / 4 else lines[place][:-1]
        lines[place] = line if random.random() < 3 / 4 else damaged(line, random).replace(b"\n", b"")
        lines[place] += b"\n"
        checkpoint = decode(files[FILE][SEAL:], Checkpoint)
        digest = hashlib.sha256(b"".join(lines)).hexdigest()
        return {name: b"".join(lines), FILE: _sealed(encode(replace(checkpoint, records=digest)))}
    kind = name.partition("-")[0]
    if kind in KINDS_ATTACHED:
        return _forge_attached(files, kind, name, random)
    if name == TIMINGS_FILE:
        return {name: damaged(files[name], random)}
    if name in (FILE, PREVIOUS):
        return {name: _sealed(_forged_checkpoint(files[name][SEAL:], random))}
    return {name: forged_json(files[name], random)}


def _forge_attached(files: Files, kind: str, name: str, random: Random) -> Files:
    """Return a side file with another content, and records and checkpoint with the digests that are right."""
    content = forged(files[name][SEAL:], random)
    lines = [json.loads(line) for line in files[RECORDS_FILE].splitlines()]
    place = int(name.partition("-")[2].removesuffix(".fcil")) - 1  # names count from 1
    lines[place]["attached"][kind] = hashlib.sha256(content).hexdigest()
    records = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    checkpoint = replace(decode(files[FILE][SEAL:], Checkpoint), records=hashlib.sha256(records).hexdigest())
    return {name: _sealed(content), RECORDS_FILE: records, FILE: _sealed(encode(checkpoint))}


def _forged_checkpoint(content: bytes, random: Random) -> bytes:
    """Return a checkpoint with a change anywhere, or in the configuration that it holds as text."""
    if random.random() < 3 / 4:
        return forged(content, random)
    header, table, rest = take_apart(content)
    document = json.loads(header)
    fields = document["fields"]
    fields["config"] = json_bytes(changed(json.loads(fields["config"]), random)).decode()
    return put_together(json_bytes(document), table, rest)


def forged_json(data: bytes, random: Random) -> bytes:
    """Return a sealed document with a change and the digest of what it says now."""
    document = json.loads(data)
    del document[DIGEST]
    text = json_bytes(changed(document, random))
    try:
        found = json.loads(text)
        return json_bytes({**found, DIGEST: json_digest(found)})
    except (TypeError, ValueError, RecursionError):  # no object, or with what is no number, or too deep
        return text


def _sealed(content: bytes) -> bytes:
    return MAGIC + hashlib.sha256(content).digest() + content


# --- what may come of it ------------------------------------------------------------------------------------------


def _told(stored: Stored) -> tuple[bytes, ...]:
    """Return all that was read of a run, as bytes."""
    clients = ClientStates({str(client): state for client, state in sorted(stored.clients.items())})
    messages: list[Message] = [stored.checkpoint, clients, *([stored.proxy] if stored.proxy else [])]
    return (*map(encode, messages), *map(as_line, stored.journal.records))


def _begin(damage: Damage, folder: Path) -> Sample:
    """Write the damaged directory, and return what it was."""
    files = dict(damage.files)
    sample = _samples()[(files.pop(METHOD) or b"").decode()]
    write_files(folder, sample.files, Damage(files))
    return sample


def _read(damage: Damage, folder: Path) -> None:
    """Read the directory as `resume`, `show` and `compare` do."""
    whole = _begin(damage, folder)

    def check(found: Any, *wanted: Any) -> None:
        if not damage.forged:
            check_same(found, *wanted)

    def stored() -> None:
        found = load_stored(folder)
        check(_told(found), whole.previous if found.warnings else whole.newest)

    all_of(
        stored,
        lambda: check(read_summary(folder), whole.figures[not (folder / FILE).exists()]),
        lambda: check(_compared(read_finished(folder)), whole.figures[0][0]),
        lambda: check(_kept(folder / KEPT), whole.kept),
        lambda: _paged(folder),
        lambda: _paged(folder / KEPT),
    )


def _paged(place: Path) -> None:
    """Make a page of whatever can be read; what cannot is a note or a sentence."""
    runs = load_runs([place])
    page(runs, "fuzz", b"")
    json.dumps(as_document(runs[0]), allow_nan=False)


def _compared(summary: Summary) -> Summary:
    """Return a summary of which a table can be made."""
    table_markdown(compare({"row": {1: summary}}))
    return summary


def _kept(path: Path) -> KeptResult:
    """Return a kept result that can be compared with others."""
    kept = read_kept(path)
    _compared(kept.summary)
    differing_settings(kept.config, kept.config)
    return kept


def _show(damage: Damage, folder: Path) -> None:
    """Let `fcil show` show the run, or refuse it in one sentence."""
    _begin(damage, folder)
    try:
        read_summary(folder)
    except FcilError:
        check_refusal("show", folder)
        raise
    ended = fcil("show", folder)
    if ended.returncode or not ended.stdout or ended.stderr:
        raise FindingError(f"exit code {ended.returncode}, output {ended.stdout!r}, errors {ended.stderr!r}")


def _resume(damage: Damage, folder: Path) -> None:
    """Resume the run; what is refused must stay as it is."""
    whole = _begin(damage, folder)
    before = read_files(folder)
    try:
        with Run.resume(folder, load=lambda _: _source()) as run:
            found = [encode(message) for message in (run.state.server, run.simulation.clients.table())]
            run.summary()
    except FcilError:
        if {name: data for name, data in read_files(folder).items() if name != ".lock"} != before:
            raise FindingError("a directory that could not be resumed was changed") from None
        raise
    if not damage.forged:
        check_same(found, *whole.restored)


KINDS = (
    Kind("directory", 16, _undamaged, _draw, _read),
    Kind("show", 3, _undamaged, _draw, _show),
    Kind("resume", 4, _undamaged, _draw, _resume),
)
