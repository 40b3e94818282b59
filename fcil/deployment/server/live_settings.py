"""Settings of a server that operators change while it runs, and rounds that an open federation still has to run.

settings.json   what `fcil federation set` has changed, by key of [deployment]; a running server follows
schedule.json   the round up to which an open federation runs
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fcil.core.errors import ConfigError, DamagedError, FcilError
from fcil.core.files import exists, read_json, write_json
from fcil.core.settings_table import explain, shown
from fcil.experiment.config import FIXED, OPEN, DeploymentConfig, apply_settings

FILE, SCHEDULE = "settings.json", "schedule.json"
TABLE = "deployment"


class LiveSettings:
    """The settings of [deployment] of a run, with the changes that operators have made since it began."""

    def __init__(self, run: Path, begun: DeploymentConfig) -> None:
        """Take the settings that the server was started with."""
        self.path = run / FILE
        self.begun = begun
        self.complain: Callable[[str], None] = lambda _: None
        self._seen = self._stamp()
        self._now = changed(begun, read_changes(run))

    @property
    def now(self) -> DeploymentConfig:
        """Return the present settings; a file that cannot be used any more is told of, and changes nothing."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._now = changed(self.begun, read_changes(self.path.parent))
            except FcilError as error:
                self.complain(f"the settings stay as they are: {error}")
        return self._now

    def told(self) -> list[str]:
        """Return a warning if operators have changed settings, which come before those that a server starts with."""
        changes = read_changes(self.path.parent)
        return (
            [f"changed in operation: {in_words(changes)}; `fcil federation set --clear` undoes it"] if changes else []
        )

    def _stamp(self) -> tuple[int, int] | None:
        if not exists(self.path):
            return None
        found = self.path.stat()
        return found.st_ino, found.st_mtime_ns


def read_changes(run: Path) -> dict[str, Any]:
    """Return the settings that operators have changed, by key."""
    return read_json(run / FILE) if exists(run / FILE) else {}


def wanted(run: Path, begun: DeploymentConfig, settings: list[str]) -> dict[str, Any]:
    """Return all changes with further ones, each KEY=VALUE; wrong ones are refused."""
    table = apply_settings({}, settings)
    for name in table:
        if name != TABLE or not isinstance(table[name], dict):
            raise ConfigError(f"{name}: it cannot change while a federation runs; {_allowed()}")
    changes = {**read_changes(run), **table.get(TABLE, {})}
    changed(begun, changes)
    return changes


def store(run: Path, changes: dict[str, Any]) -> None:
    """Store all changes; none means that the settings hold that the server was started with."""
    write_json(run / FILE, changes)


def changed(begun: DeploymentConfig, changes: dict[str, Any]) -> DeploymentConfig:
    """Return settings with changes, once each of them may change and fits."""
    for key in changes:
        if key in FIXED or key not in DeploymentConfig.model_fields:
            raise ConfigError(f"{TABLE}.{key}: it cannot change while a federation runs; {_allowed()}")
    try:
        return DeploymentConfig(**{**begun.model_dump(), **changes})
    except ValidationError as error:
        raise ConfigError("; ".join(explain(error, DeploymentConfig, f"{TABLE}."))) from error


def _allowed() -> str:
    return f"these can: {', '.join(f'{TABLE}.{key}' for key in DeploymentConfig.settings() if key not in FIXED)}"


def in_words(changes: dict[str, Any]) -> str:
    """Return changes as a line.

    >>> in_words({"rounds": "open", "deadline": 60.0})
    "deployment.rounds='open', deployment.deadline=60.0"
    """
    return ", ".join(f"{TABLE}.{key}={shown(value)}" for key, value in changes.items())


class Schedule:
    """The round up to which an open federation runs; it survives a restart."""

    def __init__(self, run: Path) -> None:
        self.path = run / SCHEDULE
        self._until: int | None = None

    @property
    def until(self) -> int:
        """Return the round, 0 if none was ever planned; a damaged file means that nothing is planned."""
        if self._until is None:
            try:
                self._until = int(read_json(self.path)["until"]) if exists(self.path) else 0
            except (DamagedError, KeyError, TypeError, ValueError):
                self._until = 0
        return self._until

    def plan(self, until: int) -> None:
        """Plan rounds up to this one."""
        if until > self.until:
            write_json(self.path, {"until": until})
            self._until = until

    def pauses(self, round: int, config: DeploymentConfig) -> bool:
        """Return whether no round is planned after so many."""
        return round >= self.until if config.rounds == OPEN else round == config.rounds
