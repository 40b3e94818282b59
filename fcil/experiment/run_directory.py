"""A run in its directory: started in a free one, locked for one process, resumed, and stored after every round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from fcil.core.errors import CheckpointError, DamagedError, DataError, FileError, reason
from fcil.core.files import exists, write_atomically, write_json
from fcil.core.lock import Lock
from fcil.core.stopwatch import Stopwatch
from fcil.experiment.checkpoint import has_checkpoint, require_checkpoint, resuming
from fcil.experiment.config import Config, differing_settings
from fcil.experiment.journal import FILE as RECORDS_FILE
from fcil.experiment.journal import Journal
from fcil.experiment.model_file import FILE as MODEL_FILE
from fcil.experiment.restore import newest_checkpoint
from fcil.experiment.summary import Summary, summarise
from fcil.experiment.timings import append_timing
from fcil.federation.round_record import RoundRecord

CONFIG_FILE, SUMMARY_FILE, LOCK_FILE = "config.json", "summary.json", ".lock"
RESULTS = (RECORDS_FILE, SUMMARY_FILE, MODEL_FILE)


class StoredRun(ABC):
    """A run under way in its directory; close it or use it in a `with`."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.journal = Journal(folder)
        self.warnings: list[str] = []
        self._lock: Lock | None = None

    @abstractmethod
    def _save(self) -> None:
        """Replace the checkpoint."""

    @property
    @abstractmethod
    def resume_command(self) -> str:
        """Return the command that continues this run."""

    def _store(self, record: RoundRecord, watch: Stopwatch) -> None:
        """Write the record of a round, then the checkpoint after it, and the seconds that all of it took."""
        with watch.phase("saving"):
            self.journal.append(record)
            self._save()
        append_timing(self.folder, record.round, watch.drain())

    @contextmanager
    def _storing(self, round: int) -> Iterator[None]:
        """Add to the error of a file that cannot be written how to continue."""
        try:
            yield
        except FileError as error:
            raise FileError(
                f"{error}; the rounds before round {round} are kept, continue with: {self.resume_command}"
            ) from error

    def summary(self) -> Summary:
        """Return the figures of the finished rounds."""
        return summarise(self.journal.records, self.config.method_name, self.config.method_edition, self.config.seed)

    def _write_results(self, model: bytes | None) -> Summary:
        """Write the final model, if there is one, and the summary, and return the summary."""
        if model is not None:
            write_atomically(self.folder / MODEL_FILE, model)
        summary = self.summary()
        write_json(self.folder / SUMMARY_FILE, {**summary})
        return summary

    def close(self) -> None:
        """Release the directory."""
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


R = TypeVar("R", bound=StoredRun)


def start_run(folder: Path, config: Config, build: Callable[[], R]) -> R:
    """Return a new run in a new or empty directory, with its configuration and first checkpoint written.

    If a step fails, nothing is left behind.
    """
    try:
        check_free(folder, config, RESULTS)
    except CheckpointError:
        with suppress(DataError, FileError, OSError):  # of the data, which the directory's refusal comes before
            build().close()  # a wrong value, which comes before both
        raise
    with ExitStack() as undo:
        run = build()
        undo.callback(run.close)
        made = make_folder(folder, undo)
        run._lock = lock = lock_folder(folder)
        undo.callback(lock.release)
        if made:
            undo.callback((folder / LOCK_FILE).unlink, missing_ok=True)
        check_free(folder, config, RESULTS)  # nobody can begin one any more
        undo.callback((folder / CONFIG_FILE).unlink, missing_ok=True)
        write_json(folder / CONFIG_FILE, config.document())
        run._save()
        undo.pop_all()
    return run


class Resumption:
    """A locked directory whose run is being resumed."""

    def __init__(self, lock: Lock, undo: ExitStack) -> None:
        self.lock = lock
        self.undo = undo

    def own(self, run: R) -> R:
        """Hand the lock over to the run, which is closed if a later step fails."""
        run._lock = self.lock
        self.undo.callback(run.close)
        return run


@contextmanager
def resumption(folder: Path) -> Iterator[Resumption]:
    """Lock a directory while its run is read, built and restored; if a step fails, it is released."""
    require_checkpoint(folder)  # before the lock, which would make a file
    with ExitStack() as undo:
        lock = lock_folder(folder)
        undo.callback(lock.release)
        yield Resumption(lock, undo)
        undo.pop_all()


def check_same_settings(folder: Path, begun: Mapping[str, Any], config: Config, differing: Sequence[str] = ()) -> None:
    """Refuse to resume with a configuration other than the one that the run began with."""
    found = [*differing_settings(dict(begun), config.document()), *differing]
    if found:
        raise CheckpointError(f"{folder} was begun with another configuration: {'; '.join(found)}")


# --- the directory -----------------------------------------------------------------------------------------------


def lock_folder(folder: Path) -> Lock:
    """Return the lock of a run's directory, or raise CheckpointError if another process has it."""
    path = folder / LOCK_FILE
    try:
        return Lock(path, wait=False)
    except BlockingIOError as error:
        raise CheckpointError(f"{folder} is in use by another process; wait, or name another directory") from error
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written to: {path}: {reason(error)}") from error


def check_free(folder: Path, config: Config, results: Sequence[str]) -> None:
    """Refuse a directory in which a run was begun, that has results of one, or that cannot be made."""
    try:
        if not exists(folder):
            return
    except FileError as error:
        raise CheckpointError(f"the run's directory cannot be made: {error}") from error
    if not folder.is_dir():
        raise CheckpointError(f"{folder} cannot be made a directory: it is a file")
    if has_checkpoint(folder):
        try:
            kept = newest_checkpoint(folder)
            differing = differing_settings(kept.document, config.document())
        except DamagedError as error:
            raise CheckpointError(
                f"{folder} holds a run, and {error}; try `{resuming(folder)}` or name another directory"
            ) from error
        if differing:
            raise CheckpointError(
                f"{folder} holds another run ({'; '.join(differing)}); name another directory, or continue that run "
                f"with {kept.advice(folder)}"
            )
        raise CheckpointError(
            f"{folder} holds this run already; continue it with {kept.advice(folder)} or name another directory"
        )
    left = [name for name in results if exists(folder / name)]
    if left:
        raise CheckpointError(
            f"{folder} holds {', '.join(left)} of a run without its checkpoint; move them away or name another one"
        )


def make_folder(folder: Path, undo: ExitStack) -> bool:
    """Make the directory, and say whether it is new; it is removed if a later step fails."""
    missing = [place for place in (folder, *folder.parents) if not exists(place)]
    for place in reversed(missing):
        try:
            place.mkdir(exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{folder} cannot be made a directory: {reason(error)}") from error
        undo.callback(_remove_folder, place)
    return bool(missing)


def _remove_folder(folder: Path) -> None:
    with suppress(OSError):  # somebody else may have put something there
        folder.rmdir()
