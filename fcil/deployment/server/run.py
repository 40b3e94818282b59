"""A server's run in its directory: started or resumed, with a checkpoint after every round."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from fcil.core.errors import ConfigError, FcilError
from fcil.core.files import write_json, write_sealed
from fcil.core.messages import ModelState, encode
from fcil.deployment.agreement import agreed_columns
from fcil.deployment.epoch import new_epoch, when
from fcil.deployment.party_limits import PartyLimits
from fcil.deployment.retired_classes import without_rows
from fcil.deployment.server import audit_log
from fcil.deployment.server.live_settings import LiveSettings, Schedule
from fcil.deployment.server.live_status import LiveStatus
from fcil.deployment.server.release_store import ReleaseStore
from fcil.deployment.server.releases import RunFiles
from fcil.deployment.server.rounds import ServerRunner
from fcil.deployment.server.state import ServedCheckpoint, ServedState, serving
from fcil.deployment.transport.base import Transport
from fcil.deployment.transport.messages import Epoch, Retired, Terms
from fcil.experiment.build import make_server, recipe_of
from fcil.experiment.checkpoint import FILE, PREVIOUS, has_checkpoint, machine_facts, read_message
from fcil.experiment.config import OPEN, Config, differing_settings, with_weights_digest
from fcil.experiment.journal import Journal
from fcil.experiment.kinds import check_kind
from fcil.experiment.limits import check_served_memory
from fcil.experiment.model_file import named_model
from fcil.experiment.restore import newest_checkpoint, newest_whole, read_journal, tidy_results
from fcil.experiment.run_directory import CONFIG_FILE, StoredRun, check_same_settings, resumption, start_run
from fcil.experiment.summary import Summary
from fcil.federation.aggregation import AGGREGATORS
from fcil.federation.engines.base import Recipe
from fcil.federation.masking.fixed_point import MOST_PARTICIPANTS
from fcil.federation.masking.messages import least_in_sum
from fcil.federation.round_record import RoundRecord
from fcil.federation.server import FederationConfig
from fcil.methods import Setting
from fcil.methods.detection import DetectionConfig
from fcil.models.classifier import frozen_digest
from fcil.models.cost import cost_of

MOST_NEW = PartyLimits().new_classes  # default of federation.max_new_classes between real sites: the limit of sites
DROP = 50.0  # and of federation.max_drop
MEAN, DEVIATION = 0.5, 0.25  # of each channel by default: a server has no images to measure


def deployment_config(config: Config) -> Config:
    """Return the configuration of a federation between real sites, or refuse it."""
    if isinstance(config.method, DetectionConfig) and config.method.detector == "oracle":
        raise ConfigError(
            "method.detector: the oracle reads a simulation's schedule; with real sites use labels or entropy"
        )
    if config.attack.on:
        raise ConfigError(
            f"attack.name: found {config.attack.name!r}, should be absent: hostile clients are for simulations alone"
        )
    if config.privacy.on and config.privacy.unit == "client":
        raise ConfigError(
            "privacy.unit: found 'client', should be 'image': whole clients are hidden in simulations alone"
        )
    _check_masked(config)
    columns = agreed_columns(config)
    check_kind(config, columns.kind if columns else "image")
    if columns is not None:
        shape, middle, spread = columns.shape, 0.0, 1.0
    else:
        side = config.deployment.image_size
        shape, middle, spread = (config.deployment.channels, side, side), MEAN, DEVIATION
    channels = shape[0]
    for key in ("mean", "deviation"):
        given = getattr(config.model, key)
        if given is not None and len(given) != channels:
            raise ConfigError(
                f"model.{key}: found {len(given)} values, should be {channels}, as deployment.channels says"
            )
    cost_of(config.model, shape)  # raises if the network cannot take such images
    check_served_memory(config, channels)
    return config.model_copy(
        update={
            "model": config.model.agreed(shape, [middle] * channels, [spread] * channels),
            "federation": _between_sites(config.federation),
        }
    )


def _check_masked(config: Config) -> None:
    """Refuse a federation in which no masked sum has enough sites."""
    name, least = config.federation.aggregator, least_in_sum(config.federation.min_participants)
    if not AGGREGATORS[name].build.hides:
        return
    for key, found in (
        ("deployment.min_sites", config.deployment.min_sites),
        ("scenario.participants", config.scenario.participants),
    ):
        if found < least:
            raise ConfigError(
                f"{key}: found {found}, should be at least {least}: with federation.aggregator {name} every sum has so "
                "many sites at least"
            )
    if config.scenario.participants > MOST_PARTICIPANTS:
        raise ConfigError(
            f"scenario.participants: found {config.scenario.participants}, should be at most {MOST_PARTICIPANTS} with "
            f"federation.aggregator {name}"
        )


def _between_sites(federation: FederationConfig) -> FederationConfig:
    """Return the table with the values that a deployment needs, and its defaults for unset keys."""
    defaults = {"max_new_classes": MOST_NEW, "max_drop": DROP}
    absent = {key: value for key, value in defaults.items() if getattr(federation, key) is None}
    return federation.model_copy(update={"announce": "reply", **absent})  # sites cannot be asked beforehand


def server_recipe(config: Config) -> Recipe:
    """Return the recipe from which the parties build their halves; it has no secret, which the server must not know."""
    side, columns = config.deployment.image_size, agreed_columns(config)
    shape = columns.shape if columns else (config.deployment.channels, side, side)
    setting = Setting(config.scenario.memory, shape, None, columns=columns)
    return recipe_of(config, setting, config.model)


class ServedRun(StoredRun):
    """A server's run under way; make one with `start` or `resume`, serve it over a transport, and close it."""

    def __init__(self, config: Config, folder: Path) -> None:
        super().__init__(deployment_config(config), folder)
        self.given = config
        self.settings = LiveSettings(folder, config.deployment)
        torch.set_num_threads(config.run.threads)
        self.recipe = server_recipe(self.config)
        roles = self.recipe.roles()
        self.proxied = roles.proxy is not None
        self.server = make_server(self.config, self.recipe, roles, self.recipe.machine())
        self.federation = secrets.token_hex(16)
        self.epoch: Epoch | None = None
        self.reconfigured: dict[str, list[Any]] = {}  # settings that a resume has changed, before and after
        self.retired: Callable[[], Retired] = dict  # classes that operators have withdrawn or merged
        self.state = ServedState(self.server.start())

    @classmethod
    def start(cls, config: Config, folder: Path) -> ServedRun:
        """Return a run in a new or empty directory, or in one where it began but finished no round."""
        config = with_weights_digest(config)
        if _has_no_round(folder, config):
            return cls.resume(config, folder)
        return start_run(folder, config, lambda: cls(config, folder))

    @classmethod
    def resume(cls, config: Config, folder: Path) -> ServedRun:
        """Return the run in a directory, as it was after its last finished round."""
        config = with_weights_digest(config)
        with resumption(folder) as resumed:
            checkpoint, journal, warnings = _stored(folder)
            check_same_settings(folder, checkpoint.document, config)
            run = resumed.own(cls(config, folder))
            run.federation, run.state, run.journal = checkpoint.federation, checkpoint.state, journal
            run.epoch = checkpoint.epoch
            former, present = (one.get("deployment", {}) for one in (checkpoint.document, config.document()))
            changed = {key: [former.get(key), value] for key, value in present.items() if former.get(key) != value}
            run.reconfigured = changed
            run.warnings = [*warnings, *run.settings.told()]
            tidy_results(folder, journal, bool(warnings))
            write_json(folder / CONFIG_FILE, config.document())
        return run

    def begin_epoch(self, keys: Path | None) -> Epoch:
        """Begin a new epoch after a restore from a backup, and keep it before any party knows of it."""
        self.epoch = new_epoch(self.federation, self.state.round, self.epoch, keys)
        if keys is not None:
            began = when(self.epoch.began)
            audit_log.note(keys, "restored", federation=self.federation, round=self.state.round, epoch=began)
        self._save()
        return self.epoch

    @property
    def resume_command(self) -> str:
        return serving(self.folder)

    @property
    def finished(self) -> bool:
        """Say whether no round is left."""
        rounds = self.settings.now.rounds
        return rounds != OPEN and self.state.round >= rounds

    @property
    def terms(self) -> Terms:
        """Return the terms that each party has to accept."""
        shared = json.loads(self.recipe.text())
        shared["modules"] = []  # a party imports no module that the server names
        shared["device"], shared["threads"] = "cpu", 1  # each party chooses its own
        backbone = frozen_digest(self.state.server.model, self.config.model)
        return Terms(self.federation, json.dumps(shared), backbone, self._planned, self.epoch)

    @property
    def _planned(self) -> int:
        """The number of planned rounds; 0 if it is open."""
        rounds = self.config.deployment.rounds
        return 0 if rounds == OPEN else rounds

    def serve(self, transport: Transport, warn: Callable[[str], None], acts: Path | None = None) -> ServerRunner:
        """Return the server of this run over a transport; `acts` is the folder of the operators' journal."""
        began = self.epoch.began if self.epoch else 0
        live = LiveStatus.of(
            self.folder, self.federation, self.config.method_name, self._planned, self.state.round, began
        )
        live.members = transport.members

        def told(warning: str) -> None:
            live.warn(warning)
            warn(warning)

        self.settings.complain = told
        config, files = self.settings.now, self._files(acts or self.folder)
        runner = ServerRunner(self.server, self.terms, self.proxied, transport, config, told, live, files)
        runner.retired = runner.releases.retired = self.retired
        return runner

    def _files(self, acts: Path) -> RunFiles:
        def note(event: str, **facts: Any) -> None:
            audit_log.note(acts, event, **facts)

        return RunFiles(ReleaseStore(self.folder), self.settings, Schedule(self.folder), self.model_file, note)

    def rounds(self, server: ServerRunner) -> Iterator[RoundRecord]:
        """Run the remaining rounds; each is on disk, with its checkpoint, before it is yielded."""
        measured = {record.task for record in self.journal.records if record.correct}
        if self.journal.records:  # a kill may have come between the last round and its release
            server.release(self.state, self.journal.records[-1], self.journal.digest)
        for state, record in server.rounds(self.state, measured):
            self.state = state
            with self._storing(record.round):
                self._store(record, server.watch)
            server.release(state, record, self.journal.digest)
            yield record

    def finish(self) -> Summary:
        """Write the final model, whose classes are ids, and the summary."""
        known, predictor = self.state.server.catalogue.classes, self.server.predictor(self.state.server)
        return self._write_results(self._file_of(*without_rows(predictor, known, self.retired())) if known else None)

    def model_file(self, state: ServedState) -> tuple[ModelState, bytes]:
        """Return the model that predicts in a state, and its file, in which classes are ids."""
        model = self.server.predictor(state.server)
        return model, self._file_of(model, state.server.catalogue.classes)

    def _file_of(self, model: ModelState, ids: Sequence[str]) -> bytes:
        setting = self.recipe.setting
        return named_model(model, tuple(ids), self.config.model, setting.image_shape, columns=setting.columns)

    def _save(self) -> None:
        facts = machine_facts(self.config.run.threads, self.config.run.device)
        document = json.dumps(self.given.document())
        checkpoint = ServedCheckpoint(document, self.journal.digest, facts, self.federation, self.state, self.epoch)
        write_sealed(self.folder / FILE, encode(checkpoint), former=self.folder / PREVIOUS)


def terms_of(config: Config) -> Terms:
    """Return the terms that parties of a run with this configuration have to accept; the federation's name differs."""
    return ServedRun(with_weights_digest(config), Path()).terms


def catalogue_of(folder: Path) -> tuple[str, ...]:
    """Return the class ids of a run that may be under way, or refuse one whose classes cannot be retired."""
    kept = newest_checkpoint(folder)
    if not isinstance(kept, ServedCheckpoint):
        raise ConfigError(f"{folder} is no run of a server; name the --out of `fcil federation serve`")
    if kept.document["method"]["name"] == "analytic":
        raise ConfigError("method analytic has the sums of all classes; begin a new federation without the class")
    return kept.state.server.catalogue.classes


def _has_no_round(folder: Path, config: Config) -> bool:
    """Return True if a directory holds this very run, begun and ended before its first round."""
    try:
        kept = newest_checkpoint(folder) if has_checkpoint(folder) else None
    except FcilError:
        return False
    if not isinstance(kept, ServedCheckpoint) or kept.rounds:
        return False
    return not differing_settings(kept.document, config.document())


def _stored(folder: Path) -> tuple[ServedCheckpoint, Journal, list[str]]:
    """Return the newest whole checkpoint with its records, and a warning if that is the previous one."""

    def read(name: str) -> tuple[ServedCheckpoint, Journal]:
        checkpoint = read_message(folder / name, ServedCheckpoint)
        return checkpoint, read_journal(folder, checkpoint)

    (checkpoint, journal), warnings = newest_whole(folder, read, lambda found: found[0].rounds)
    return checkpoint, journal, warnings
