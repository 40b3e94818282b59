"""A server's run in its directory: started or resumed, with a checkpoint after every round."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from fcil.core.errors import ConfigError, FcilError
from fcil.core.files import write_json, write_sealed
from fcil.core.messages import encode
from fcil.deployment.server.rounds import ServerRunner
from fcil.deployment.server.state import ServedCheckpoint, ServedState, serving
from fcil.deployment.transport.base import Transport
from fcil.deployment.transport.messages import Terms
from fcil.experiment.build import make_server, recipe_of
from fcil.experiment.checkpoint import FILE, PREVIOUS, has_checkpoint, machine_facts, read_message
from fcil.experiment.config import Config, differing_settings, with_weights_digest
from fcil.experiment.journal import Journal
from fcil.experiment.model_file import named_model
from fcil.experiment.restore import newest_checkpoint, newest_whole, read_journal, tidy_results
from fcil.experiment.run_directory import CONFIG_FILE, StoredRun, check_same_settings, resumption, start_run
from fcil.experiment.summary import Summary
from fcil.federation.engines.base import Recipe
from fcil.federation.round_record import RoundRecord
from fcil.methods import Setting
from fcil.methods.detection import DetectionConfig
from fcil.models.cost import cost_of

MEAN, DEVIATION = 0.5, 0.25  # of each channel by default: a server has no images to measure


def deployment_config(config: Config) -> Config:
    """Return the configuration of a federation between real sites, or refuse it."""
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
    cost_of(config.model, (channels, side, side))  # raises if the network cannot take such images
    return config.model_copy(
        update={
            "model": config.model.model_copy(update=normalisation),
            "federation": config.federation.model_copy(
                update={"announce": "reply"}
            ),  # sites cannot be asked beforehand
        }
    )


def server_recipe(config: Config) -> Recipe:
    """Return the recipe from which the parties build their halves; it has no secret, which the server must not know."""
    side = config.deployment.image_size
    setting = Setting(config.scenario.memory, (config.deployment.channels, side, side), None)
    return recipe_of(config, setting, config.model)


class ServedRun(StoredRun):
    """A server's run under way; make one with `start` or `resume`, serve it over a transport, and close it."""

    def __init__(self, config: Config, folder: Path) -> None:
        super().__init__(deployment_config(config), folder)
        self.given = config
        torch.set_num_threads(config.run.threads)
        self.recipe = server_recipe(self.config)
        roles = self.recipe.roles()
        self.proxied = roles.proxy is not None
        self.server = make_server(self.config, self.recipe, roles, self.recipe.machine())
        self.federation = secrets.token_hex(16)
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
            run.warnings = warnings
            tidy_results(folder, journal, bool(warnings))
            write_json(folder / CONFIG_FILE, config.document())
        return run

    @property
    def resume_command(self) -> str:
        return serving(self.folder)

    @property
    def finished(self) -> bool:
        """Say whether no round is left."""
        return self.state.round >= self.config.deployment.rounds

    def serve(self, transport: Transport, warn: Callable[[str], None]) -> ServerRunner:
        """Return the server of this run over a transport."""
        shared = json.loads(self.recipe.text())
        shared["modules"] = []  # a party imports no module that the server names
        shared["device"], shared["threads"] = "cpu", 1  # each party chooses its own
        terms = Terms(self.federation, json.dumps(shared))
        return ServerRunner(self.server, terms, self.proxied, transport, self.config.deployment, warn)

    def rounds(self, server: ServerRunner) -> Iterator[RoundRecord]:
        """Run the remaining rounds; each is on disk, with its checkpoint, before it is yielded."""
        measured = {record.task for record in self.journal.records if record.correct}
        for state, record in server.rounds(self.state, measured):
            self.state = state
            with self._storing(record.round):
                self._store(record, server.watch.drain())
            yield record

    def finish(self) -> Summary:
        """Write the final model, whose classes are ids, and the summary."""
        catalogue, shape = self.state.server.catalogue, self.recipe.setting.image_shape
        if not catalogue.classes:
            return self._write_results(None)
        model = self.server.predictor(self.state.server)
        return self._write_results(named_model(model, catalogue.classes, self.config.model, shape))

    def _save(self) -> None:
        facts = machine_facts(self.config.run.threads, self.config.run.device)
        document = json.dumps(self.given.document())
        checkpoint = ServedCheckpoint(document, self.journal.digest, facts, self.federation, self.state)
        write_sealed(self.folder / FILE, encode(checkpoint), former=self.folder / PREVIOUS)


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
