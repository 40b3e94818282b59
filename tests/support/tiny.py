"""A run of a few seconds by settings, for what is not about the run itself."""

from __future__ import annotations

TINY = (
    "data.samples_per_class=6",
    "scenario.tasks=2",
    "scenario.rounds_per_task=2",
    "scenario.initial_clients=2",
    "scenario.joiners=0",
    "scenario.participants=1",
    "model.width=2",
    "train.epochs=1",
    "method.name=finetune",
)
