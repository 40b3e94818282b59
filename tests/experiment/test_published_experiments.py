"""The presets against the published protocol and the published tables."""

from __future__ import annotations

import pytest

from fcil.data.datasets import DataConfig, load_source
from fcil.experiment.config import Config, parse_config
from fcil.experiment.presets import LISTED, Listing, listings, read_document
from fcil.experiment.presets.listing import CLASSES
from fcil.reporting.published import PublishedTable, published_tables

LISTINGS = {listing.name: listing for listing in listings()}
REDUCED = ("digits", "-lite", "-mid")
LATER = ("-pre", "lander-", "mfcl-", "lorm-", "stsa-", "afl-", "resource-")  # protocols of later papers
PUBLISHED = [name for name in LISTINGS if not any(part in name for part in (*REDUCED, *LATER))]


def config_of(name: str) -> Config:
    """Return the configuration on a data set that is always there."""
    document = read_document(name)
    return parse_config({**document, "data": {**document["data"], "source": "cifar100"}})


def test_every_published_experiment_has_a_preset() -> None:
    plain = {f"{data}-t{tasks}" for data in ("cifar100", "imagenet-subset", "tinyimagenet") for tasks in (5, 10, 20)}
    assert set(PUBLISHED) == plain


@pytest.mark.parametrize(
    ("name", "classes_a_task", "rounds", "joiners", "last"),
    [
        ("cifar100-t5", 20, 20, 20, 110),
        ("cifar100-t10", 10, 10, 10, 120),
        ("cifar100-t20", 5, 10, 5, 125),
        ("imagenet-subset-t5", 20, 20, 20, 110),
        ("imagenet-subset-t10", 10, 10, 10, 120),
        ("imagenet-subset-t20", 5, 10, 5, 125),
        ("tinyimagenet-t5", 40, 20, 20, 110),
        ("tinyimagenet-t10", 20, 10, 10, 120),
        ("tinyimagenet-t20", 10, 10, 5, 125),
    ],
)
def test_tasks_rounds_and_clients_are_the_published_ones(
    name: str, classes_a_task: int, rounds: int, joiners: int, last: int
) -> None:
    listing, scenario = LISTINGS[name], config_of(name).scenario
    assert scenario.tasks == listing.tasks == int(name.rpartition("-t")[2])
    assert (listing.classes, listing.source) == (classes_a_task * listing.tasks, name.rpartition("-t")[0])
    assert (scenario.rounds_per_task, scenario.joiners) == (rounds, joiners)
    assert (listing.rounds, listing.first_clients, listing.last_clients, listing.memory) == (rounds, 30, last, 2000)


@pytest.mark.parametrize("name", LISTINGS)
def test_schedules_are_made_for_blocks_as_long_as_a_task(name: str) -> None:
    config = config_of(name)
    assert config.train.block_epochs == config.scenario.rounds_per_task * config.train.epochs


@pytest.mark.parametrize("name", LISTINGS)
def test_a_task_never_joins_the_block_of_the_one_before(name: str) -> None:
    config = config_of(name)
    assert config.federation.window < config.scenario.rounds_per_task


@pytest.mark.parametrize("name", ["lander-cifar100-t10-b05", "mfcl-cifar100-t10"])
def test_protocols_named_after_a_method_train_it_with_its_own_optimiser(name: str) -> None:
    config = config_of(name)
    assert config.method_name == name.partition("-")[0]
    assert config.method.model_dump()["optimiser"] == "native"
    own, train = config.method.native, config.train
    assert own == own.over(train.block_epochs), "the schedule is made for blocks of this length"
    assert (own.learning_rate, own.momentum, own.weight_decay) == (
        train.learning_rate,
        train.momentum,
        train.weight_decay,
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_all_published_experiments_share(name: str) -> None:
    config = config_of(name)
    scenario, train = config.scenario, config.train
    assert (scenario.initial_clients, scenario.participants) == (30, 10)
    assert (scenario.class_fraction, scenario.both_share, scenario.split) == (0.6, 0.9, "shared")
    assert (train.epochs, train.batch_size, train.learning_rate, train.momentum) == (20, 128, 2.0, 0.0)
    assert [(drop.epoch, drop.divisor) for drop in train.milestones] == [(100, 5), (150, 25), (180, 125)]
    assert (config.model.width, config.seed, config.method_name) == (64, 2021, "glfc")


@pytest.mark.parametrize(
    ("source", "image_size", "order", "stem"),
    [
        ("cifar100", None, "icarl", "cifar"),
        ("imagenet-subset", 224, "icarl", "imagenet"),
        ("tinyimagenet", 64, "shuffle-1993", "cifar"),
    ],
)
def test_what_a_data_set_brings_with_it(source: str, image_size: int | None, order: str, stem: str) -> None:
    for name in (name for name in PUBLISHED if LISTINGS[name].source == source):
        config = config_of(name)
        assert (config.data.image_size, config.scenario.class_order, config.model.stem) == (image_size, order, stem)


def test_the_study_of_memory_is_one_setting_and_the_list_says_so() -> None:
    studied = {table.tasks for table in published_tables() for row in table.rows if row.memory != 2000}
    assert studied == {5, 10}
    for tasks in studied:
        assert "--set scenario.memory=500, 1000 or 1500" in LISTINGS[f"cifar100-t{tasks}"].description


@pytest.mark.parametrize("table", published_tables(), ids=lambda table: str(table.number))
def test_every_printed_row_has_a_preset_of_its_size(table: PublishedTable) -> None:
    for row in table.rows:
        listing = LISTINGS[f"{table.dataset}-t{table.tasks}"]
        assert (listing.source, listing.tasks, listing.memory) == (table.dataset, table.tasks, 2000)
        assert row.memory == 2000 or f"{row.memory}" in listing.description
        assert table.classes[1] - table.classes[0] == listing.classes // listing.tasks


def test_a_listing_knows_the_classes_without_the_data() -> None:
    assert load_source(DataConfig()).classes == CLASSES["digits"]
    assert max(table.classes[-1] for table in published_tables() if table.dataset == "tinyimagenet") == 200


def test_a_listing_is_a_row_under_the_headings() -> None:
    row = dict(zip(LISTED, LISTINGS["cifar100-t5"].row(), strict=True))
    assert row.pop("what it is").startswith("CIFAR-100 in five tasks as published")
    assert row == {
        "preset": "cifar100-t5",
        "data set": "cifar100",
        "classes": "100",
        "tasks x rounds": "5 x 20",
        "clients": "30 to 110",
        "memory": "2,000",
    }


def test_listings_go_by_data_set_tasks_and_memory() -> None:
    def size(listing: Listing) -> tuple[str, int, int]:
        return listing.source, listing.tasks, listing.memory

    assert [size(listing) for listing in listings()] == sorted(size(listing) for listing in listings())
