"""The contract of aggregators; a test class that names a registered aggregator is held to all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch

from fcil.core.aggregate import AGGREGATORS, READABLE, Aggregate, Aggregator, ReportLayout, Turn
from fcil.core.errors import ConfigError
from fcil.core.messages import ModelState, Report, RoundContext, generator, model_digest
from fcil.experiment.config import load_config, parse_config
from fcil.federation.aggregation.masked import MaskedSum
from fcil.federation.masking.simulated import SimulatedMasking
from fcil.federation.server import FederationConfig
from fcil.testing.apart import Apart
from fcil.testing.recorded import SHORT, snapshot
from fcil.testing.robustness import is_finite
from fcil.testing.trial import trial

OTHER = {"averaging": "samples"}  # a value of each common setting that is not its default
SENDING = {"parts": "ewc", "rows": "podnet"}  # a method that sends each


class AggregatorContract:
    """Derive from it, name the aggregator, and pytest holds it to every contract.

    `settings` are values for its own table, `[federation.NAME]`.
    """

    aggregator: ClassVar[str]
    settings: ClassVar[Mapping[str, Any]] = {}

    def chosen(self, **common: Any) -> dict[str, Any]:
        """Return the table [federation] that chooses the aggregator."""
        own = {self.aggregator: dict(self.settings)} if self.settings else {}
        return {"aggregator": self.aggregator, **common, **own}

    @property
    def scenario(self) -> dict[str, Any]:
        """Return a short scenario, with enough participants for a sum."""
        return {**SHORT, "participants": 3} if AGGREGATORS[self.aggregator].build.hides else SHORT

    def built(self) -> Aggregator:
        """Return the aggregator."""
        config = FederationConfig(**self.chosen())
        return AGGREGATORS[self.aggregator].build(config, config.own)

    def gathered(self, *models: ModelState, lent: bool = False) -> Aggregate:
        """Return the aggregate of reports with these models; `lent` overwrites each once it was added."""
        return self.summed([Report(state, client + 1) for client, state in enumerate(models)], lent)

    def summed(self, reports: Sequence[Report], lent: bool = False, rows: tuple[str, ...] = ()) -> Aggregate:
        """Return the aggregate of these reports, which leave their clients as the aggregator wants them to."""
        aggregator, context, sent = self.built(), RoundContext(0, (), (), 0), model(9)
        aggregator.hide(lambda sent, context: ReportLayout(sent, rows), bool(rows))
        clients, masking = range(len(reports)), SimulatedMasking(7, 3, 1)
        server, masks = masking.begin(0, "", clients, None) if aggregator.hides else (None, {})
        gathering = aggregator.open(sent, context, clients)
        for client, report in enumerate(reports):
            turn = Turn(0, client, client, context, masks.get(client))
            staged = aggregator.stage(report, sent, turn)
            gathering.add(client, staged)
            for tensor in (*staged.model.values(), *report.model.values()) if lent else ():
                tensor.zero_()
        if server is not None:
            assert isinstance(gathering, MaskedSum)
            for client, answer in masking.shares(server.ask(clients), None):
                server.take_shares(client, answer)
            gathering.unmask(server.masks())
        return gathering.result()

    def test_equal_models_have_themselves_as_their_aggregate(self) -> None:
        """Participants that agree are not changed."""
        found = self.gathered(*(model(1) for _ in range(3)))
        assert found.reports + len(found.excluded) == 3
        for name, value in model(1).items():
            assert found.model[name].dtype == value.dtype
            torch.testing.assert_close(found.model[name], value)

    def test_without_a_report_the_model_that_was_sent_stays(self) -> None:
        """A round without reports changes nothing."""
        found = self.gathered()
        assert (model_digest(found.model), found.reports) == (model_digest(model(9)), 0)

    def test_a_report_is_only_lent(self) -> None:
        """The memory of a report may be used again once it was added."""
        kept, lent = self.gathered(*map(model, range(4))), self.gathered(*map(model, range(4)), lent=True)
        assert model_digest(kept.model) == model_digest(lent.model)

    def test_each_report_is_in_the_aggregate_or_excluded_with_a_reason(self) -> None:
        """Nobody is left out without a word."""
        found = self.gathered(*map(model, range(10)))
        assert found.reports + len(found.excluded) == 10
        assert found.excluded.keys() <= set(range(10))
        assert all(found.excluded.values())

    def test_a_row_without_a_holder_stays_as_it_was_sent(self) -> None:
        """A class that no participant holds is not changed by their other classes."""
        if "rows" not in AGGREGATORS[self.aggregator].build.serves:
            return
        held = torch.tensor([2.0, 1.0, 0.0]).double()
        found = self.summed([Report(model(1), 3, rows={"weight": held}) for _ in range(3)], rows=("weight",))
        torch.testing.assert_close(found.model["weight"], torch.cat([model(1)["weight"][:2], model(9)["weight"][2:]]))
        assert (found.rows["weight"] > 0).tolist() == [True, True, False]

    def test_a_setting_that_it_ignores_is_refused(self) -> None:
        """Each common setting is read, or refused where it is not the default."""
        reads = AGGREGATORS[self.aggregator].build.reads
        for key in sorted(READABLE):
            document = {"federation": self.chosen(**{key: OTHER[key]})}
            if key in reads:
                assert parse_config(document).document()["federation"][key] == OTHER[key]
            else:
                with pytest.raises(ConfigError, match=f"federation.{key}: .* its default"):
                    parse_config(document)

    def test_its_settings_are_written_with_the_run(self) -> None:
        """A configuration gives itself back."""
        config = parse_config({"federation": self.chosen()})
        assert parse_config(config.document()) == config
        assert set(config.document()["federation"].get(self.aggregator, {})) == set(
            AGGREGATORS[self.aggregator].settings.model_fields
        )
        for key in AGGREGATORS[self.aggregator].settings.model_fields:
            with pytest.raises(ConfigError, match=rf"federation\.{self.aggregator}\.{key}x: unknown key"):
                load_config(
                    "digits", [f"federation.aggregator={self.aggregator}", f"federation.{self.aggregator}.{key}x=1"]
                )

    def test_trains_to_the_same_bits_at_a_worker(self) -> None:
        """Both its halves are built from the configuration alone."""
        plain = trial("finetune", scenario=self.scenario, federation=self.chosen())
        ours = trial("finetune", engine=Apart, scenario=self.scenario, federation=self.chosen())
        state, records = ours.run()
        assert is_finite(state)
        assert [record.failures for record in records] == [[]] * len(records)
        assert snapshot(ours, state) == snapshot(plain, plain.run()[0])

    def test_serves_what_it_declares_and_no_more(self) -> None:
        """A method that sends parts or rows trains with it, or is refused by both names."""
        for need, method in SENDING.items():
            if need in AGGREGATORS[self.aggregator].build.serves:
                state, _ = trial(method, scenario=self.scenario, federation=self.chosen()).run()
                assert is_finite(state)
            else:
                with pytest.raises(
                    ConfigError, match=f"{self.aggregator} cannot sum the {need} that method.name {method}"
                ):
                    trial(method, scenario=self.scenario, federation=self.chosen())


def model(seed: int) -> ModelState:
    """Return a small model: a matrix, a vector and a counter."""
    draw = generator(seed)
    return {"weight": torch.rand(3, 2, generator=draw), "bias": torch.rand(3, generator=draw), "steps": torch.tensor(4)}
