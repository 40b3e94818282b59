"""One run in its own directory: built from a configuration, trained round by round, resumed after any kill."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fcil.core.errors import CheckpointError, ConfigError, DamagedError, DataError, FileError
from fcil.core.files import exists, read_json, write_json
from fcil.core.messages import Message
from fcil.core.registry import SCRIPT
from fcil.core.settings_table import shown
from fcil.data.datasets import DataConfig, load_source
from fcil.data.datasets.dataset import Source
from fcil.data.scenario.checks import foresee, other_blocks
from fcil.data.scenario.scenario import Scenario
from fcil.experiment.build import Maker, assemble
from fcil.experiment.checkpoint import Checkpoint, machine_facts, require_checkpoint, resuming, save_checkpoint
from fcil.experiment.config import Config, apply_settings, parse_config, with_weights_digest
from fcil.experiment.kinds import prepared
from fcil.experiment.limits import check_memory, check_processor
from fcil.experiment.model_file import model_bytes
from fcil.experiment.private_images import privacy_notes
from fcil.experiment.restore import Stored, check_fit, load_stored, newest_checkpoint, read_journal, tidy
from fcil.experiment.run_directory import (
    CONFIG_FILE,
    SUMMARY_FILE,
    StoredRun,
    check_same_settings,
    resumption,
    start_run,
)
from fcil.experiment.side_files import CONFUSION, MOST_CLASSES, PROTOTYPES, attach, fitting
from fcil.experiment.summary import Summary, as_summary, summarise
from fcil.federation.diagnostics import Confusion, ModelEvaluation, PrototypeComparisons
from fcil.federation.engines import WORTH_WORKERS, default_workers
from fcil.federation.round_record import RoundRecord
from fcil.federation.simulation import SimulationState
from fcil.methods import get_method
from fcil.methods.detection import FitConfig
from fcil.models.config import IMAGENET
from fcil.models.cost import multiply_adds, training_adds

Loader = Callable[[DataConfig], Source]  # for callers that show progress while images are decoded


def default_folder(name: str, config: Config) -> Path:
    """Return the default directory of a run."""
    return Path("runs") / f"{Path(name).stem}-{config.method_name}-{config.seed}"


class Run(StoredRun):
    """A simulation under way; make one with `Run.start` or `Run.resume`, and close it or use it in a `with`."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        load: Loader | None = None,
        engine: Maker | None = None,
        resumed: bool = False,
    ) -> None:
        super().__init__(config, folder)
        self._saved: Checkpoint | None = None  # the last one
        check_processor(config)
        torch.set_num_threads(config.run.threads)
        _check_device(config.run.device)
        self.source = (load or load_source)(config.data)
        self.warnings += self.source.warnings
        self.scenario = Scenario(config.scenario, self.source.train.labels, self.source.classes, config.seed)
        self.source = prepared(config, self.source, self.scenario)
        check_memory(config, self.source, self.scenario)
        self.warnings += foreseen(config, self.scenario)
        self.warnings += privacy_notes(config, self.scenario, self.source.train.labels)
        maker = engine or chosen_engine(config, self.source)
        self.assembly = assemble(without_file(config) if resumed else config, self.source, maker, self.scenario)
        self.simulation = self.assembly.simulation
        self.engine = self.simulation.engine
        self.state = self.simulation.start()

    @classmethod
    def start(cls, config: Config, folder: Path, load: Loader | None = None, engine: Maker | None = None) -> Run:
        """Return a run that begins in an empty or new directory; an engine given by its maker is used in any case."""
        config = _located(with_weights_digest(config))
        return start_run(folder, config, lambda: cls(config, folder, load, engine))

    @classmethod
    def resume(cls, folder: Path, settings: list[str] | None = None, load: Loader | None = None) -> Run:
        """Return the run that a directory holds, as it was after its last finished round."""
        require_checkpoint(folder)
        _require_simulation(folder)
        with resumption(folder) as resumed:
            stored = load_stored(folder)
            begun = stored.checkpoint.document
            document, warnings = _read_config(folder), list(stored.warnings)
            if document is None:
                warnings.append(f"{folder / CONFIG_FILE} is missing; it is written anew from the checkpoint")
            config = _located(parse_config(apply_settings(document or begun, settings or [])))
            check_same_settings(folder, begun, config, _new_weights(begun, config))
            run = resumed.own(cls(config, folder, _following(load), resumed=True))
            run._restore(stored)
            run.warnings += warnings
            tidy(folder, stored)
            placed = {**(document or begun), **{key: config.document()[key] for key in ("data", "model")}}
            if placed != document:
                write_json(folder / CONFIG_FILE, placed)
        return run

    @property
    def resume_command(self) -> str:
        return resuming(self.folder)

    @property
    def finished(self) -> bool:
        """Say whether no round is left."""
        return self.state.round >= self.scenario.rounds

    def rounds(self) -> Iterator[RoundRecord]:
        """Run the remaining rounds; each is on disk, with its checkpoint, before it is yielded."""
        every_round = self.config.run.evaluate == "round"
        for state, simulated in self.simulation.rounds(self.state):
            record, found = simulated, None
            if every_round or record.ends_task:
                with self.simulation.diagnostics.watch.phase("evaluate"):
                    found = self.simulation.evaluate_fully(state)
                record = replace(record, correct=found.correct, total=found.total, per_class=found.per_class)
                record = replace(record, backdoor=found.backdoor, calibration=found.calibration)
            self.state = state
            with self._storing(record.round):
                record = replace(record, attached=self._attach(record, found))
                self._store(record, self.simulation.diagnostics.watch)
            yield record

    def _attach(self, record: RoundRecord, found: ModelEvaluation | None) -> dict[str, str]:
        """Write the side files of a round, and return their digests: a confusion matrix per task, and prototypes."""
        number, contents = record.round, dict[str, Message]()
        if found is not None and record.ends_task and len(found.classes) <= MOST_CLASSES:
            names = dict(zip(self.simulation.clients.samples.ids, self.source.class_names, strict=True))
            called = tuple(names[identity] for identity in found.classes)
            contents[CONFUSION] = Confusion(found.classes, called, found.counts.to(torch.int32))
        kept = any(PROTOTYPES in one.attached for one in self.journal.records if one.task == record.task)
        shown = fitting(
            PrototypeComparisons(tuple(self.simulation.diagnostics.prototype_comparisons[: self.config.run.prototypes]))
        )
        if shown.items and not kept:
            contents[PROTOTYPES] = shown
        return {kind: attach(self.folder, kind, number, content) for kind, content in contents.items()}

    def finish(self) -> Summary:
        """Write the final model and the summary, and return the summary."""
        state, ids = self.state.server, self.simulation.clients.samples.ids
        labels = tuple(ids.index(name) for name in state.catalogue.classes)
        model = self.simulation.server.predictor(state)
        calibration = self.journal.records[-1].calibration if self.journal.records else None
        return self._write_results(model_bytes(model, labels, self.source, self.assembly.recipe.model, calibration))

    def _save(self) -> None:
        sites, saved = self.simulation.clients, self._saved
        checkpoint = Checkpoint(
            json.dumps(self.config.document()),
            self.journal.digest,
            self.source.digest,
            machine_facts(self.config.run.threads, self.config.run.device),
            self.state.server,
            sites.table(),
            saved.parts if saved else (),
            saved.proxy if saved else None,
        )
        self._saved = save_checkpoint(self.folder, checkpoint, sites.states(), sites.changed, self.state.proxy)
        sites.changed.clear()

    def _restore(self, stored: Stored) -> None:
        checkpoint = stored.checkpoint
        if checkpoint.data != self.source.digest:
            raise CheckpointError(
                f"the data set {self.config.data.path or self.source.name} is not the one the run began with "
                f"(digest {self.source.digest} here, {checkpoint.data} there)"
            )
        check_fit(stored, self.state, self.simulation.clients.samples.ids)
        now = machine_facts(self.config.run.threads, self.config.run.device)
        changed = [
            f"{key} {was} then, {now.get(key)} now" for key, was in checkpoint.machine.items() if was != now.get(key)
        ]
        if changed:
            self.warnings.append(f"resuming will not be bit-exact: {'; '.join(changed)}")
        self.state = SimulationState(checkpoint.server, stored.proxy)
        self.simulation.clients.restore(stored.clients, checkpoint.table)
        self._saved = checkpoint
        self.journal = stored.journal

    def close(self) -> None:
        """Stop the workers and release the directory."""
        self.engine.close()
        super().close()


def _new_weights(begun: Mapping[str, Any], config: Config) -> list[str]:
    """Return the difference of a run that began without a file of weights and now has one."""
    there = begun["model"].get("weights") is not None or config.model.weights is None
    return [] if there else [f"model.weights (none there, {config.model.weights} here)"]


def _require_simulation(folder: Path) -> None:
    """Refuse the directory of a server, which another command continues."""
    try:
        kept = newest_checkpoint(folder)
    except FileError:
        return  # damage is told of where it is looked at closely
    if not isinstance(kept, Checkpoint):
        raise CheckpointError(f"{folder} holds a server's run; continue it with {kept.advice(folder)}")


def configuration_of(folder: Path) -> Config:
    """Return the configuration of the simulation in a directory."""
    require_checkpoint(folder)
    _require_simulation(folder)
    document = _read_config(folder)
    return parse_config(newest_checkpoint(folder).document if document is None else document)


def read_summary(folder: Path) -> tuple[Summary, dict[str, Any]]:
    """Return the figures and the configuration of the run in a directory, finished or not, without continuing it."""
    records, config = read_records(folder)
    method = config["method"]
    return summarise(records, method["name"], method["edition"], config["seed"]), config


def read_records(folder: Path) -> tuple[list[RoundRecord], dict[str, Any]]:
    """Return the records and timings of the run in a directory, and its configuration."""
    config = _read_config(folder)
    if config is None:
        raise CheckpointError(f"{folder / CONFIG_FILE} is missing; is {folder} a run's directory?")
    require_checkpoint(folder)
    try:
        records = read_journal(folder, newest_checkpoint(folder)).records
    except DamagedError as error:
        raise CheckpointError(f"{error}; `{resuming(folder)}` tries the checkpoint before it") from error
    _check_names(config, folder / CONFIG_FILE)
    return records, config


def _check_names(config: Mapping[str, Any], path: Path) -> None:
    """Raise a CheckpointError unless a configuration names its run."""
    for key, kind in (("method.name", str), ("method.edition", str), ("seed", int), ("data.source", str)):
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if not isinstance(value, kind):
            right = "text" if kind is str else "a whole number"
            raise CheckpointError(f"{path}: {key}: found {shown(value)}, should be {right}")


def read_finished(folder: Path) -> Summary:
    """Return the figures that a finished run has written."""
    return as_summary(read_json(folder / SUMMARY_FILE), folder / SUMMARY_FILE)


def _read_config(folder: Path) -> dict[str, Any] | None:
    """Return the configuration in a run's directory as a document, or none if there is none."""
    path = folder / CONFIG_FILE
    if not exists(path):
        return None
    try:
        return read_json(path)
    except DamagedError as error:
        raise CheckpointError(
            f"{error}; settings are changed where a run is begun or resumed, not in this file: remove it, and "
            f"`{resuming(folder)}` writes it anew"
        ) from error


def _located(config: Config) -> Config:
    """Return the configuration with places of its data and weights that do not depend on the working directory."""
    data, model = config.data, config.model
    if data.place is not None:
        data = data.model_copy(update={"path": str(data.place.absolute())})
    if model.weights is not None and model.weights != IMAGENET:
        model = model.model_copy(update={"weights": str(Path(model.weights).expanduser().absolute())})
    return config.model_copy(update={"data": data, "model": model})


def without_file(config: Config) -> Config:
    """Return the configuration of a run under way, whose model no longer needs the file that it started from."""
    return config.model_copy(update={"model": config.model.without_file()})


def _following(load: Loader | None) -> Loader:
    """Return a loader that says what to do if the data of a run is no longer where it was."""

    def follow(config: DataConfig) -> Source:
        try:
            return (load or load_source)(config)
        except DataError as error:
            if config.path is None:
                raise
            raise DataError(f"{error}; if the data has moved, resume with the setting data.path=NEW") from error

    return follow


def foreseen(config: Config, scenario: Scenario) -> list[str]:
    """Return the warnings about a run that are known before its first round."""
    found = foresee(scenario, config.federation.min_participants)
    if config.model.freeze and config.model.weights is None:
        found.append(f"model.freeze is {shown(config.model.freeze)} without model.weights: what is frozen is random")
    augmented = config.train.augment
    if config.model.freeze and augmented.changes and not augmented.views:
        found.append("train.augment does nothing where model.freeze is set and train.augment.views is 0")
    if isinstance(config.method, FitConfig) and config.method.optimiser != "train":
        found += other_blocks(scenario, config.train.epochs, config.train.block_epochs)
    return found


def chosen_engine(config: Config, source: Source) -> str:
    """Return the engine to use; without a wish, worker processes where a round's training is worth them.

    Workers cannot import what a script or a notebook defines, so a run on a method or network of one does without.
    """
    if config.run.engine != "auto":
        return config.run.engine
    if SCRIPT in (get_method(config.method_name).module, config.model.network.module):
        return "serial"
    spare = config.run.workers or default_workers(config.run.device)
    participants = min(config.scenario.participants, config.scenario.initial_clients)
    if os.name != "posix" or min(spare, participants) < 2:
        return "serial"
    samples = len(source.train) // max(config.scenario.task_count, 1)
    if not config.scenario.is_shared:
        samples //= config.scenario.initial_clients
    each = config.train.epochs * training_adds(config.model, source.image_shape)
    training = participants * samples * (each or multiply_adds(config.model, source.image_shape))
    return "processes" if training > WORTH_WORKERS else "serial"


def device_is_there(device: str) -> bool:
    """Say whether networks can run on a device of this machine."""
    return {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}[device]


def _check_device(device: str) -> None:
    if not device_is_there(device):
        usable = ", ".join(name for name in ("cpu", "cuda", "mps") if device_is_there(name))
        raise ConfigError(f"run.device: {device} is not available on this machine; use {usable}")
