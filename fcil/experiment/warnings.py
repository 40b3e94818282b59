"""Warnings from a run's records: rounds not applied, clipped reports, losses that are not finite, chance accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fcil.federation.round_record import RoundRecord

MOST_NAMED = 10  # rounds in a sentence
NEAR = 1.1  # classes are not equally frequent among the test images
REMEDY = "a lower train.learning_rate may help"


class Watch:
    """Looks at one record after the other; it names every round that was not applied, and all else once."""

    def __init__(self) -> None:
        self.diverged = False
        self.at_chance = False
        self.clipped = False

    def see(self, record: RoundRecord) -> list[str]:
        """Return the warnings about a round."""
        found = []
        if record.not_applied:
            found.append(f"round {record.round} is not applied, an earlier model stays: {record.not_applied}")
        lost = record.diverged
        if lost and not self.diverged:
            self.diverged = True
            clients = f"client {lost[0]}" if len(lost) == 1 else f"{len(lost)} clients"
            found.append(f"the loss of {clients} in round {record.round} is not finite; {REMEDY}")
        if record.clipped and not self.clipped:
            self.clipped = True
            found.append(
                f"{record.clipped} numbers of the reports of round {record.round} were clipped, since a masked sum has "
                "no room for them; a larger federation.masked.range has more for updates"
            )
        if not self.at_chance and _is_chance(record):
            self.at_chance = True
            accuracy = 100 * sum(record.correct) / sum(record.total)
            found.append(
                f"the accuracy after round {record.round} is {accuracy:.1f} %, no better than chance "
                f"with {record.classes_seen} classes; train.learning_rate may be too high, or the training too short"
            )
        return found


def remarks(records: Sequence[RoundRecord]) -> list[str]:
    """Return all warnings about a run."""
    watch = Watch()
    lost = [record for record in records if record.not_applied]
    found = [sentence for record in records for sentence in watch.see(replace(record, not_applied=""))]
    if not lost:
        return found
    numbers = ", ".join(str(record.round) for record in lost[:MOST_NAMED]) + (", ..." if lost[MOST_NAMED:] else "")
    return [
        f"{len(lost)} of {len(records)} rounds are not applied ({numbers}); the first: {lost[0].not_applied}",
        *found,
    ]


def _is_chance(record: RoundRecord) -> bool:
    """Say whether, at the end of a task, guessing would have been as good; of a single class every guess is right."""
    if record.classes_seen < 2 or not record.correct or not record.ends_task:
        return False  # early in a task it says nothing
    return bool(sum(record.correct) * record.classes_seen <= NEAR * sum(record.total))
