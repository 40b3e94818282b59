"""Warnings from a run's records, each once: losses that are not finite, accuracy at chance."""

from __future__ import annotations

from collections.abc import Sequence

from fcil.federation.round_record import RoundRecord

NEAR = 1.1  # classes are not equally frequent among the test images
REMEDY = "a lower train.learning_rate may help"


class Watch:
    """Looks at one record after the other, and speaks when it sees something for the first time."""

    def __init__(self) -> None:
        self.diverged = False
        self.at_chance = False

    def see(self, record: RoundRecord) -> list[str]:
        """Return what is to be said about a round."""
        found = []
        lost = record.diverged
        if lost and not self.diverged:
            self.diverged = True
            clients = f"client {lost[0]}" if len(lost) == 1 else f"{len(lost)} clients"
            found.append(f"the loss of {clients} in round {record.round + 1} is not finite; {REMEDY}")
        if not self.at_chance and _is_chance(record):
            self.at_chance = True
            accuracy = 100 * sum(record.correct) / sum(record.total)
            found.append(
                f"the accuracy after round {record.round + 1} is {accuracy:.1f} %, no better than chance "
                f"with {record.classes_seen} classes; train.learning_rate may be too high, or the training too short"
            )
        return found


def remarks(records: Sequence[RoundRecord]) -> list[str]:
    """Return all that is to be said about a run."""
    watch = Watch()
    return [sentence for record in records for sentence in watch.see(record)]


def _is_chance(record: RoundRecord) -> bool:
    """Say whether, at the end of a task, guessing would have been as good; of a single class every guess is right."""
    if record.classes_seen < 2 or not record.correct or not record.ends_task:
        return False  # early in a task it says nothing
    return bool(sum(record.correct) * record.classes_seen <= NEAR * sum(record.total))
