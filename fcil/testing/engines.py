"""The contract of engines; a test class that names a registered engine is held to all of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, ClassVar

from fcil.experiment.config import parse_config
from fcil.federation.engines import ENGINES
from fcil.testing.recorded import SHORT, snapshot
from fcil.testing.trial import Trial, trial


class EngineContract:
    """Derive from it, name the engine, and pytest holds it to every contract.

    `settings` are values for its own table, `[run.NAME]`.
    """

    engine: ClassVar[str]
    settings: ClassVar[Mapping[str, Any]] = {}

    def trial(self, method: str) -> Trial:
        """Return a small federation on the engine."""
        return trial(method, engine=self.engine, scenario=SHORT)

    def test_a_run_gives_the_bits_of_the_serial_engine(self) -> None:
        """An engine changes no state and no record but the seconds; GLFC sends all kinds of messages."""
        ours, plain = self.trial("glfc"), trial("glfc", scenario=SHORT)
        with closing(ours.simulation.engine):
            state, records = ours.run()
        expected, plain_records = plain.run()
        assert snapshot(ours, state) == snapshot(plain, expected)
        assert [replace(record, seconds=0) for record in records] == [
            replace(record, seconds=0) for record in plain_records
        ]

    def test_closing_twice_or_before_a_round_is_harmless(self) -> None:
        """An engine can be closed at any time, and again."""
        made = self.trial("finetune")
        made.simulation.engine.close()
        made.simulation.engine.close()

    def test_its_settings_are_written_with_the_run(self) -> None:
        """A configuration gives itself back."""
        own = {self.engine: dict(self.settings)} if self.settings else {}
        config = parse_config({"run": {"engine": self.engine, **own}})
        assert parse_config(config.document()) == config
        assert set(config.document()["run"].get(self.engine, {})) == set(ENGINES[self.engine].settings.model_fields)
