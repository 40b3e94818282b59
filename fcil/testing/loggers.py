"""The contract of loggers; a test class that names a registered logger is held to all of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from fcil.experiment.config import parse_config
from fcil.experiment.logger import LOGGERS, Logger
from fcil.experiment.summary import summarise
from fcil.federation.round_record import RoundRecord
from fcil.testing.recorded import LONGER
from fcil.testing.trial import trial


class LoggerContract:
    """Derive from it, name the logger, and pytest holds it to every contract.

    `settings` are values for its own table, `[log.NAME]`.
    """

    logger: ClassVar[str]
    settings: ClassVar[Mapping[str, Any]] = {}

    def built(self) -> Logger:
        """Return a new logger."""
        member = LOGGERS[self.logger]
        return member.build(member.settings(**self.settings))

    def log(self, folder: Path, rounds: int, ends: bool) -> list[Path]:
        """Log the first rounds of a run, and return the files that are then in its folder."""
        records, logger = _records(), self.built()
        logger.begin(parse_config({}).document(), folder)
        for record in records[:rounds]:
            logger.round(record)
        if ends:
            logger.end(summarise(records[:rounds], "finetune", "fcil", 1))
        logger.close()
        return sorted(path for path in folder.rglob("*") if path.is_file())

    def test_writes_into_the_folder_of_the_run(self, tmp_path: Path) -> None:
        """A log is a file of the run that is not empty."""
        folder = tmp_path / "run"
        folder.mkdir()
        written = self.log(folder, len(_records()), ends=True)
        assert any(path.stat().st_size for path in written)
        assert [path.name for path in tmp_path.iterdir()] == ["run"]

    def test_a_resumed_run_is_given_all_rounds_again(self, tmp_path: Path) -> None:
        """After an interruption a new logger takes the rounds from the first on."""
        assert self.log(tmp_path, 2, ends=False)
        assert self.log(tmp_path, len(_records()), ends=True)

    def test_is_closed_twice_and_without_having_begun(self, tmp_path: Path) -> None:
        """Closing works at any time."""
        self.built().close()
        logger = self.built()
        logger.begin(parse_config({}).document(), tmp_path)
        logger.close()
        logger.close()

    def test_its_settings_are_written_with_the_run(self) -> None:
        """A configuration gives itself back."""
        config = parse_config({"log": {self.logger: dict(self.settings)}})
        assert parse_config(config.document()) == config
        assert config.log.of(self.logger) == LOGGERS[self.logger].settings(**self.settings)


@cache
def _records() -> list[RoundRecord]:
    return trial("finetune", scenario=LONGER).run()[1]
