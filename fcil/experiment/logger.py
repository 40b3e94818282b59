"""The seam for loggers: the interface, the registry, and the tables `[log.NAME]` of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from pydantic import (
    BaseModel,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from fcil.core.member_table import details, parsed_table, problem
from fcil.core.registry import Member, Registry
from fcil.core.settings_table import SettingsTable
from fcil.experiment.summary import Summary
from fcil.federation.round_record import RoundRecord


class Logger(Protocol):
    """Writes the figures of a run for another program; if it raises, it is left out and the run goes on.

    After `begin` every round so far is given again, also to the logger of a run that is resumed. A logger begins its
    log anew, or ignores the rounds that it has.
    """

    def begin(self, config: Mapping[str, Any], folder: Path) -> None:
        """Open the log of the run in a folder."""

    def round(self, record: RoundRecord) -> None:
        """Take in a finished round."""

    def end(self, summary: Summary) -> None:
        """Take in the figures of the finished run; an interrupted run does not come to this."""

    def close(self) -> None:
        """Release everything; it may be called more than once, and without `begin`."""


LOGGERS: Registry[Member[Callable[[Any], Logger]]] = Registry("logger", "fcil.reporting.loggers", "fcil.loggers")


def register_logger(member: Member[Callable[[Any], Logger]]) -> None:
    """Make a logger known, under a name that no other one has; `build` is given its table `[log.NAME]`."""
    LOGGERS.register(member)


class LogConfig(SettingsTable):
    """The tables of loggers, each read where `--log NAME` asks for it."""

    _tables: dict[str, SettingsTable] = PrivateAttr(default_factory=dict)

    def of(self, name: str) -> SettingsTable:
        """Return the table of a logger."""
        return self._tables.get(name) or LOGGERS[name].settings()

    @classmethod
    def table(cls, key: str) -> type[BaseModel] | None:
        return LOGGERS[key].settings if key in LOGGERS else None

    @classmethod
    def keys(cls) -> list[str]:
        return [name for name, member in LOGGERS.items() if member.settings.model_fields]

    @model_validator(mode="wrap")
    @classmethod
    def _with_tables(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(given, Mapping):
            return handler(given)
        problems, tables = [], dict[str, SettingsTable]()
        known = {name: table for name, table in given.items() if name in LOGGERS}
        for name, table in known.items():
            if isinstance(table, Mapping):
                found, wrong = parsed_table(LOGGERS[name].settings, table, name)
                problems += wrong
                tables |= {name: found} if found and table else {}
            else:
                problems.append(problem(name, table, f"a table of the settings of {name}"))
        made: Self | None = None
        try:
            made = handler({key: value for key, value in given.items() if key not in known})
        except ValidationError as error:
            problems += details(error)
        if problems or made is None:
            raise ValidationError.from_exception_data(cls.__name__, problems)
        made._tables = tables
        return made

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: table.model_dump(mode="json") for name, table in self._tables.items()}
