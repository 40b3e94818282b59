"""Loggers: the figures of each round for other programs, written beside a run and never part of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fcil.core.errors import ConfigError, FcilError, reason
from fcil.experiment.logger import LOGGERS, LogConfig, Logger, register_logger
from fcil.experiment.summary import Summary
from fcil.federation.round_record import RoundRecord


def check_loggers(names: Sequence[str]) -> None:
    """Raise a ConfigError unless every name is that of a logger whose package is installed."""
    for name in names:
        if name not in LOGGERS:
            raise ConfigError(f"--log {name}: it is unknown; it should be {LOGGERS.one_of(name)}")
        LOGGERS[name].require(f"--log {name}")


def make_logger(name: str, tables: LogConfig) -> Logger:
    """Return a logger by its name, which `check_loggers` has accepted."""
    return LOGGERS[name].build(tables.of(name))


class Log:
    """The loggers of one run; one that fails is left out with a warning, and everything else goes on."""

    def __init__(self, names: Sequence[str], warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._names = tuple(dict.fromkeys(names))
        self._loggers: dict[str, Logger] = {}

    def begin(self, config: Mapping[str, Any], folder: Path, records: Sequence[RoundRecord]) -> None:
        """Open all logs, with the records of earlier rounds."""
        tables = LogConfig(**config.get("log", {}))
        self._loggers = {name: make_logger(name, tables) for name in self._names}

        def catch_up(logger: Logger) -> None:
            logger.begin(config, folder)
            for record in records:
                logger.round(record)

        self._tell(catch_up)

    def round(self, record: RoundRecord) -> None:
        """Pass on a finished round."""
        self._tell(lambda logger: logger.round(record))

    def end(self, summary: Summary) -> None:
        """Pass on the figures of the finished run."""
        self._tell(lambda logger: logger.end(summary))

    def close(self) -> None:
        """Close all logs."""
        self._tell(lambda logger: logger.close())

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, act: Callable[[Logger], None]) -> None:
        for name, logger in list(self._loggers.items()):
            with _same_generators():
                try:
                    act(logger)
                except (Exception, SystemExit) as error:  # a package may also try to end the program
                    del self._loggers[name]
                    with suppress(Exception, SystemExit):
                        logger.close()
                    self._warn(f"--log {name} is left out from here on: {_what(error)}")


def _what(error: BaseException) -> str:
    """Return an error of a logger in words, with the file that it is about."""
    if isinstance(error, FcilError):
        return str(error)
    place = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
    return f"{type(error).__name__}: {place}{reason(error)}"


@contextmanager
def _same_generators() -> Iterator[None]:
    """Restore the global random generators after a package has drawn from them."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


__all__ = ["LOGGERS", "Log", "Logger", "check_loggers", "make_logger", "register_logger"]
