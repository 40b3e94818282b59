"""The mean of reports whose sum alone the server learns (Bonawitz et al., 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from fcil.core.aggregate import Aggregate, Aggregator, Gathering, Layout, Need, Settings, Turn, register_aggregator
from fcil.core.errors import FederationError
from fcil.core.messages import ModelState, Report, RoundContext
from fcil.core.registry import Member
from fcil.core.settings_table import SettingsTable
from fcil.federation.masking.fixed_point import Bounds, Form, as_report, expected, of_report
from fcil.federation.masking.messages import Masks, row
from fcil.federation.masking.primitives import Ring, add_stream
from fcil.federation.reply_checks import ReportLimits, validate_claims, validate_update


class MaskedSettings(SettingsTable):
    """The table `[federation.masked]`."""

    range: float = Field(
        8.0,
        gt=0,
        le=2.0**20,
        description="largest change of a number of the model in a round; a larger one is clipped and counted",
    )


class Masked(Aggregator):
    """The weighted mean of models, of rows and of parts, in fixed point, of reports that are never seen alone."""

    serves: ClassVar[frozenset[Need]] = frozenset({"rows", "parts", "exact parts"})
    reads: ClassVar[frozenset[str]] = frozenset({"averaging"})
    inspects: ClassVar[bool] = False
    hides: ClassVar[bool] = True

    def __init__(self, settings: Settings, own: MaskedSettings) -> None:
        super().__init__(settings, own)
        self.limits: ReportLimits = settings  # type: ignore[assignment]  # the table has both
        self.bounds = Bounds(own.range, self.limits.max_samples, settings.averaging == "samples")

    def hide(self, layout: Layout, rows: bool) -> None:
        self.bounds.check(rows)
        super().hide(layout, rows)

    def _form(self, sent: ModelState, context: RoundContext) -> Form:
        layout = self.layout(sent, context) if self.layout else None
        if layout is None:
            raise FederationError("the method's reports have no fixed form, so they cannot be masked")
        return Form(layout, self.bounds)

    def stage(self, report: Report, sent: ModelState, turn: Turn) -> Report:
        if turn.context is None or not isinstance(turn.masks, Masks):
            raise FederationError("the report is to be masked, and this client has no masks for the round")
        if report.samples and report.model:
            most = self.limits.max_samples
            problem = validate_claims(report, most) or validate_update(report, sent, self.limits.max_update)
            if problem:  # the server cannot see it
                raise FederationError(f"the update is not sent: {problem}")
        return as_report(with_masks(self._form(sent, turn.context).numbers(report), turn.masks))

    def open(self, sent: ModelState, context: RoundContext, participants: Sequence[int]) -> Gathering:
        return MaskedSum(self._form(sent, context))

    def gather(self, sent: ModelState, round: int, participants: Sequence[int]) -> Gathering:
        return self.open(sent, RoundContext(round, (), (), 0), participants)


class MaskedSum(Gathering):
    """The sum of masked reports; no report is kept. It can be read once the masks of all of them are taken out."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.expected = expected(form)
        self.total: Ring = np.zeros(form.size, dtype=np.uint64)
        self.reports = 0
        self.opened = False

    def add(self, client: int, report: Report) -> None:
        np.add(self.total, of_report(report), out=self.total)
        self.reports += 1

    def unmask(self, masks: Masks) -> None:
        """Take out the masks that are left in the sum."""
        self.total = with_masks(self.total, masks, undo=True)
        self.opened = True

    def result(self) -> Aggregate:
        if self.reports and not self.opened:
            raise FederationError("the masked sum was not opened")
        return self.form.aggregate(self.total, self.reports)


def with_masks(numbers: Ring, masks: Masks, undo: bool = False) -> Ring:
    """Return an array with masks, or one that has them without them; the array itself is changed."""
    for seeds, negative in ((masks.added, undo), (masks.subtracted, not undo)):
        for place in range(len(seeds)):
            add_stream(numbers, row(seeds, place), negative)
    return numbers


register_aggregator(
    Member("masked", "the mean, of which the server learns the sum alone (masked sums)", Masked, MaskedSettings)
)
