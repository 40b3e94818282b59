"""The presets as rows for people: description and size."""

from __future__ import annotations

from dataclasses import dataclass

from fcil.data.scenario.scenario import ScenarioConfig
from fcil.experiment.presets.documents import preset_names, read_document

LISTED = ("preset", "data set", "classes", "tasks x rounds", "clients", "memory", "what it is")
CLASSES = {"digits": 10, "cifar100": 100, "imagenet-subset": 100, "tinyimagenet": 200}  # before anything is loaded


@dataclass(frozen=True, order=True)
class Listing:
    """One preset; listings sort by data set, tasks and memory."""

    source: str
    tasks: int
    memory: int
    name: str
    classes: int
    rounds: int | tuple[int, ...]  # of each task
    first_clients: int
    last_clients: int
    description: str

    def row(self) -> tuple[str, ...]:
        """Return the cells under the headings of LISTED."""
        each = "+".join(map(str, self.rounds)) if isinstance(self.rounds, tuple) else self.rounds
        tasks, clients = f"{self.tasks} x {each}", f"{self.first_clients} to {self.last_clients}"
        return (self.name, self.source, str(self.classes), tasks, clients, f"{self.memory:,}", self.description)


def listings() -> list[Listing]:
    """Return every preset that comes with the package, sorted."""
    return sorted(_listing(name) for name in preset_names())


def _listing(name: str) -> Listing:
    document = read_document(name)
    scenario = ScenarioConfig(**document["scenario"])
    source = document["data"]["source"]
    tasks = scenario.task_count
    late = sum(len(arrival.classes) for arrival in scenario.arrivals)
    growth = (tasks - 1) * (scenario.joiners - scenario.leavers)
    growth += sum(event.clients for event in scenario.joins) - sum(event.clients for event in scenario.leaves)
    return Listing(
        source=source,
        tasks=tasks,
        memory=scenario.memory,
        name=name,
        classes=CLASSES[source] if isinstance(scenario.tasks, int) else sum(scenario.tasks) + late,
        rounds=scenario.rounds_per_task,
        first_clients=scenario.initial_clients,
        last_clients=scenario.initial_clients + growth,
        description=document["description"],
    )
