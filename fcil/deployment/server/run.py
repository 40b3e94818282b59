"""A server's run in its directory: begun or resumed, played round by round, with a checkpoint after each."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import torch

from fcil.core.errors import CheckpointError, ConfigError, FcilError
from fcil.core.files import write_atomically, write_json, write_sealed
from fcil.core.lock import Lock
from fcil.core.messages import encode
from fcil.deployment.server.rounds import ServerRunner
from fcil.deployment.server.state import ServedCheckpoint, ServedState
from fcil.deployment.transport.base import Transport
from fcil.deployment.transport.messages import Terms
from fcil.experiment.checkpoint import FILE, PREVIOUS, has_checkpoint, machine_facts, read_message, require_checkpoint
from fcil.experiment.config import Config, differing_settings, with_weights_digest
from fcil.experiment.journal import Journal
from fcil.experiment.model_file import FILE as MODEL_FILE
from fcil.experiment.model_file import named_model
from fcil.experiment.restore import newest_checkpoint, newest_whole, read_journal, tidy_results
from fcil.experiment.run import CONFIG_FILE, RESULTS, SUMMARY_FILE
from fcil.experiment.run_directory import LOCK_FILE, check_free, lock_folder, make_folder
from fcil.experiment.summary import Summary, summarise
from fcil.experiment.timings import append_timing
from fcil.federation.engines.base import Recipe
from fcil.federation.round_record import RoundRecord
from fcil.federation.server import Server, ServerSeeds
from fcil.methods import Setting
from fcil.methods.detection import DetectionConfig
from fcil.models.cost import cost_of

MEAN, DEVIATION = 0.5, 0.25  # of each channel, where the configuration names none: a server has no images to measure


def deployment_config(config: Config) -> Config:
    """Return a configuration as a federation between real sites plays it, or refuse it."""
    if isinstance(config.method, DetectionConfig) and config.method.detector == "oracle":
        raise ConfigError(
            "method.detector: the oracle knows a simulation's truth; use labels or entropy with real sites"
        )
    channels = config.deployment.channels
    normalisation = {}
    for key, value in (("mean", MEAN), ("deviation", DEVIATION)):
        given = getattr(config.model, key)
        if given is not None and len(given) != channels:
            raise ConfigError(
                f"model.{key}: found {len(given)} values, should be {channels}, as deployment.channels says"
            )
        normalisation[key] = given or (value,) * channels
    side = config.deployment.image_size
    cost_of(config.model, (channels, side, side))  # says so if the network cannot take such images
    return config.model_copy(
        update={
            "model": config.model.model_copy(update=normalisation),
            "federation": config.federation.model_copy(update={"announce": "reply"}),  # nobody is asked beforehand
        }
    )


def server_recipe(config: Config) -> Recipe:
    """Return how the parties build their halves, without the secret, which the server does not know."""
    side = config.deployment.image_size
    return Recipe(
        method=config.method_name,
        config=config.method,
        setting=Setting(config.scenario.memory, (config.deployment.channels, side, side), None),
        model=config.model,
        train=config.train,
        federation=config.federation,
        device=config.run.device,
        threads=config.run.threads,
    )


class ServedRun:
    """A server's run under way; make one with `start` or `resume`, give it a carrier, and close it."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.given = config
        self.config = deployment_config(config)
        self.folder = folder
        torch.set_num_threads(config.run.threads)
        self.recipe = server_recipe(self.config)
        roles = self.recipe.roles()
        self.proxied = roles.proxy is not None
        self.server = Server(
            role=self.recipe.server(),
            aggregator=self.recipe.aggregator(),
            config=self.config.federation,
            machine=self.recipe.machine(),
            participants=config.scenario.participants,
            teaches=roles.teaches,
            seeds=ServerSeeds.of(config.seed),
        )
        self.journal = Journal(folder)
        self.federation = secrets.token_hex(16)
        self.state = ServedState(self.server.start())
        self.warnings: list[str] = []
        self._lock: Lock | None = None

    @classmethod
    def start(cls, config: Config, folder: Path) -> ServedRun:
        """Return a run that begins in an empty or new directory, or in one where it never came to a round."""
        config = with_weights_digest(config)
        if _is_unplayed(folder, config):
            return cls.resume(config, folder)
        check_free(folder, config, RESULTS)
        with ExitStack() as undo:
            run = cls(config, folder)
            made = make_folder(folder, undo)
            run._lock = lock = lock_folder(folder)
            undo.callback(lock.release)
            check_free(folder, config, RESULTS)  # nobody can begin one any more
            if made:
                undo.callback((folder / LOCK_FILE).unlink, missing_ok=True)
            undo.callback((folder / CONFIG_FILE).unlink, missing_ok=True)
            write_json(folder / CONFIG_FILE, config.document())
            run._save()
            undo.pop_all()
        return run

    @classmethod
    def resume(cls, config: Config, folder: Path) -> ServedRun:
        """Return the run that a directory holds, as it was after its last finished round."""
        config = with_weights_digest(config)
        require_checkpoint(folder)
        with ExitStack() as undo:
            lock = lock_folder(folder)
            undo.callback(lock.release)
            checkpoint, journal, warnings = _stored(folder)
            differing = differing_settings(checkpoint.document, config.document())
            if differing:
                raise CheckpointError(f"{folder} was begun with another configuration: {'; '.join(differing)}")
            run = cls(config, folder)
            run._lock = lock
            run.federation, run.state, run.journal = checkpoint.federation, checkpoint.state, journal
            run.warnings = warnings
            tidy_results(folder, journal, bool(warnings))
            write_json(folder / CONFIG_FILE, config.document())
            undo.pop_all()
        return run

    @property
    def finished(self) -> bool:
        """Say whether no round is left."""
        return self.state.round >= self.config.deployment.rounds

    def serve(self, transport: Transport, warn: Callable[[str], None]) -> ServerRunner:
        """Return the server of this run over a carrier."""
        shared = json.loads(self.recipe.text())
        shared["modules"] = []  # parties import nothing because the server says so
        shared["device"], shared["threads"] = "cpu", 1  # each party's own affair
        terms = Terms(self.federation, json.dumps(shared))
        return ServerRunner(self.server, terms, self.proxied, transport, self.config.deployment, warn)

    def rounds(self, server: ServerRunner) -> Iterator[RoundRecord]:
        """Play the rounds that are left; each is on disk, with its checkpoint, before it is yielded."""
        measured = {record.task for record in self.journal.records if record.correct}
        for state, record in server.rounds(self.state, measured):
            self.state = state
            append_timing(self.folder, record.round, server.watch.drain())
            self.journal.append(record)
            self._save()
            yield record

    def summary(self) -> Summary:
        """Return the figures of the rounds played so far."""
        return summarise(self.journal.records, self.config.method_name, self.config.method_edition, self.config.seed)

    def finish(self) -> Summary:
        """Write the final model, whose classes have the names that the server knows, and the summary."""
        state = self.state.server
        if state.catalogue.classes:
            model, shape = self.server.predictor(state), self.recipe.setting.image_shape
            data = named_model(model, state.catalogue.classes, self.config.model, shape)
            write_atomically(self.folder / MODEL_FILE, data)
        summary = self.summary()
        write_json(self.folder / SUMMARY_FILE, {**summary})
        return summary

    def _save(self) -> None:
        facts = machine_facts(self.config.run.threads, self.config.run.device)
        document = json.dumps(self.given.document())
        checkpoint = ServedCheckpoint(document, self.journal.digest, facts, self.federation, self.state)
        write_sealed(self.folder / FILE, encode(checkpoint), former=self.folder / PREVIOUS)

    def close(self) -> None:
        """Let go of the directory."""
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> ServedRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_unplayed(folder: Path, config: Config) -> bool:
    """Say whether a directory holds this very run, begun and then ended before its first round."""
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
