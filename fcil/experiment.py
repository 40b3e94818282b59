"""One run in its own directory: built from a configuration, played round by round, resumed after any kill."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fcil.checkpoint import (
    Checkpoint,
    dump_json,
    has_checkpoint,
    load_checkpoint,
    load_clients,
    machine_facts,
    save_checkpoint,
    write_atomically,
)
from fcil.config import Config, apply_settings, differing_keys, parse_config
from fcil.data.foresight import foresee
from fcil.data.scenario import Scenario
from fcil.data.source import Source
from fcil.data.sources import DataConfig, load_source
from fcil.engines import WORTH_WORKERS, Recipe, Workplace, default_workers, make_engine
from fcil.errors import CheckpointError, ConfigError
from fcil.federation.client import ClientStore
from fcil.federation.rounds import Federation, FederationState, RoundRecord
from fcil.limits import check_memory, check_processor
from fcil.methods import Setting
from fcil.models import multiply_adds
from fcil.results.model import FILE as MODEL_FILE
from fcil.results.model import model_bytes
from fcil.results.records import FILE as RECORDS_FILE
from fcil.results.records import append_record, read_records
from fcil.results.summary import summarise
from fcil.wire import derive_seed

CONFIG_FILE, SUMMARY_FILE = "config.json", "summary.json"
Loader = Callable[[DataConfig], Source]  # for callers that show progress while images are decoded


class Run:
    """A run under way; make one with `Run.start` or `Run.resume`, and close it or use it in a `with`."""

    def __init__(
        self, config: Config, folder: Path, checkpoint: Checkpoint | None = None, load: Loader | None = None
    ) -> None:
        self.config = config
        self.folder = folder
        self._lock: int | None = None
        self._parts: tuple[str, ...] = ()  # files with client states, as the last checkpoint names them
        self._part_sizes: tuple[int, ...] = ()
        check_processor(config)
        torch.set_num_threads(config.run.threads)
        _check_device(config.run.device)
        self.source = (load or load_source)(config.data)
        self.warnings = list(self.source.warnings)
        self.scenario = Scenario(config.scenario, self.source.train.labels, self.source.classes, config.seed)
        check_memory(config, self.source, self.scenario)
        self.warnings += foresee(self.scenario, config.federation.min_participants)
        setting = Setting(
            memory=config.scenario.memory,
            image_shape=self.source.image_shape,
            averaging=config.federation.averaging,
            secret=derive_seed(config.seed, "secret"),
            block_epochs=config.scenario.rounds_per_task * config.train.epochs,
        )
        recipe = Recipe(
            config.method_name,
            config.method,
            setting,
            config.model,
            config.train,
            config.run.device,
            config.run.threads,
        )
        self.roles, self.local = recipe.roles(), recipe.local(self.source)
        self.store = ClientStore(self.roles.client)
        place = Workplace(self.store, self.scenario.holding, self.local, recipe, config.run.workers, config.run.address)
        self.engine = make_engine(chosen_engine(config, self.source, len(self.scenario.tasks)), place)
        self.federation = Federation(self.roles, self.scenario, self.engine, self.local, config.federation, config.seed)
        self.state: FederationState = self.federation.start()
        if checkpoint is not None:
            self._restore(checkpoint)

    @classmethod
    def start(cls, config: Config, folder: Path, load: Loader | None = None) -> Run:
        """Return a run that begins in an empty or new directory."""
        if has_checkpoint(folder):
            other = json.loads(load_checkpoint(folder).config)
            differing = differing_keys(other, config.document())
            what = f"another run ({'; '.join(differing)})" if differing else "this run already"
            raise CheckpointError(
                f"{folder} holds {what}; continue it with `fcil resume {folder}` or name another --out"
            )
        results = [name for name in (RECORDS_FILE, SUMMARY_FILE, MODEL_FILE) if (folder / name).exists()]
        if results:
            raise CheckpointError(
                f"{folder} holds {', '.join(results)} of a run without its checkpoint; "
                "move them away or name another --out"
            )
        run = cls(config, folder, load=load)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"--out {folder} cannot be made a directory: {error}") from error
        with run._owning():
            write_atomically(folder / CONFIG_FILE, dump_json(config.document()))
            run._save()
        return run

    @classmethod
    def resume(cls, folder: Path, settings: list[str] | None = None, load: Loader | None = None) -> Run:
        """Return the run that a directory holds, as it was after its last finished round."""
        checkpoint = load_checkpoint(folder)
        stored = json.loads(checkpoint.config)
        config = parse_config(apply_settings(_read_config(folder), settings or []))
        differing = [key for key in differing_keys(stored, config.document()) if not key.startswith("run.")]
        if differing:
            raise CheckpointError(f"{folder} was begun with another configuration: {'; '.join(differing)}")
        run = cls(config, folder, checkpoint, load)
        with run._owning():
            kept = [record for record in read_records(folder) if record["round"] < run.state.round]
            lines = "".join(json.dumps(record, allow_nan=False) + "\n" for record in kept)
            write_atomically(folder / RECORDS_FILE, lines.encode())
        return run

    @property
    def finished(self) -> bool:
        """Say whether no round is left."""
        return self.state.round >= self.scenario.rounds

    def rounds(self) -> Iterator[RoundRecord]:
        """Play the rounds that are left; each is on disk, with its checkpoint, before it is yielded."""
        every_round = self.config.run.evaluate == "round"
        for state, played in self.federation.rounds(self.state):
            record = played
            if every_round or self.scenario.ends_task(record.round):
                correct, total = self.federation.evaluate(state)
                record = replace(record, correct=correct, total=total)
            self.state = state
            append_record(self.folder, record)
            self._save()
            yield record

    def summary(self) -> dict[str, Any]:
        """Return the figures of the rounds played so far."""
        return summarise(
            read_records(self.folder), self.config.method_name, self.config.method_preset, self.config.seed
        )

    def finish(self) -> dict[str, Any]:
        """Write the final model and the summary, and return the summary."""
        model = self.roles.server.predictor(self.state.server, self.state.model)
        data = model_bytes(model, self.state.catalogue.classes, self.source, self.config.model)
        write_atomically(self.folder / MODEL_FILE, data)
        summary = self.summary()
        write_atomically(self.folder / SUMMARY_FILE, dump_json(summary))
        return summary

    def _save(self) -> None:
        config = json.dumps(self.config.document())
        machine = machine_facts(self.config.run.threads, self.config.run.device)
        checkpoint = Checkpoint(
            config,
            self.source.digest,
            machine,
            self.state,
            torch.from_numpy(self.store.entropy),
            self._parts,
            self._part_sizes,
        )
        written = save_checkpoint(self.folder, checkpoint, self.store.states, self.store.changed)
        self._parts, self._part_sizes = written.parts, written.part_sizes
        self.store.changed.clear()

    def _restore(self, checkpoint: Checkpoint) -> None:
        if checkpoint.data != self.source.digest:
            raise CheckpointError(
                f"the data set {self.source.name} is not the one the run began with "
                f"(digest {self.source.digest} here, {checkpoint.data} there)"
            )
        now = machine_facts(self.config.run.threads, self.config.run.device)
        changed = [
            f"{key} {was} then, {now.get(key)} now" for key, was in checkpoint.machine.items() if was != now.get(key)
        ]
        if changed:
            self.warnings.append(f"resuming will not be bit-exact: {'; '.join(changed)}")
        self.state = checkpoint.federation
        self.store.states = load_clients(self.folder, checkpoint)
        self.store.entropy = checkpoint.entropy.numpy().copy()
        self._parts, self._part_sizes = checkpoint.parts, checkpoint.part_sizes

    @contextmanager
    def _owning(self) -> Iterator[None]:
        """Take the directory for this process, and let go of it again if setting it up fails.

        The system lets go of it when the process ends, however it ends.
        """
        try:
            self._lock = os.open(self.folder / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be written to: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise CheckpointError(
                f"{self.folder} is in use by another process; wait for it or name another --out"
            ) from error
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the workers and let go of the directory."""
        self.engine.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_summary(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the figures and the configuration of the run in a directory, finished or not, without continuing it."""
    config = _read_config(folder)
    method = config["method"]
    return summarise(read_records(folder), method["name"], method["preset"], config["seed"]), config


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder / CONFIG_FILE} cannot be read; is {folder} a run's directory? ({error})"
        ) from error
    return document


def chosen_engine(config: Config, source: Source, tasks: int) -> str:
    """Return the engine to use; without a wish, worker processes where a round's training is worth them."""
    if config.run.engine != "auto":
        return config.run.engine
    spare = config.run.workers or default_workers(config.run.device)
    participants = min(config.scenario.participants, config.scenario.initial_clients)
    if os.name != "posix" or min(spare, participants) < 2:
        return "serial"
    samples = len(source.train) // tasks
    if config.scenario.split == "disjoint":
        samples //= config.scenario.initial_clients
    images = participants * config.train.epochs * samples
    training = 3 * images * multiply_adds(config.model, source.image_shape)
    return "processes" if training > WORTH_WORKERS else "serial"


def device_is_there(device: str) -> bool:
    """Say whether networks can run on a device of this machine."""
    return {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}[device]


def _check_device(device: str) -> None:
    if not device_is_there(device):
        usable = ", ".join(name for name in ("cpu", "cuda", "mps") if device_is_there(name))
        raise ConfigError(f"run.device: {device} is not available on this machine; use {usable}")
