"""Real sites with tables: sums that become agreed columns, rows that count once, and a model that all can use."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from support.command import fcil
from support.consortium import SITES, Consortium, Keyring, small_config

from fcil.core.errors import ConfigError, DataError, FileError
from fcil.core.files import read_json, write_json
from fcil.data.columns import Columns
from fcil.deployment.agreement import agreed_columns, sums_of, write_columns, write_sums
from fcil.deployment.client.class_consent import ClassConsent
from fcil.deployment.client.image_folder import SiteData
from fcil.deployment.party_limits import PartyLimits
from fcil.deployment.server.run import deployment_config, server_recipe, terms_of
from fcil.deployment.terms_in_words import in_words
from fcil.experiment.model_file import load_model

KINDS = ("calm", "fast", "wild")
COLORS = ("red", "green", "blue")
NONE = torch.empty(0, dtype=torch.int64)


def rows(kind: str, seed: int, count: int = 20) -> list[str]:
    """Return rows of a class: its numbers lie around one place, some are missing, and its colour is mostly one."""
    place = KINDS.index("fast" if kind == "swift" else kind)  # two spellings of one
    draw = np.random.default_rng([place, seed])
    lines = []
    for _ in range(count):
        height, weight = draw.normal([100 * place, 5 - 5 * place], [10, 1])
        cells = [f"{height:.3f}", "" if draw.random() < 0.1 else f"{weight:.3f}"]
        lines.append(",".join([*cells, COLORS[place if draw.random() < 0.8 else 0], kind]))
    return lines


def write(path: Path, *lines: str) -> Path:
    """Write a table that was last changed a minute ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["height,weight,colour,label", *lines]) + "\n")
    before = path.stat().st_mtime - 60
    os.utime(path, (before, before))
    return path


@pytest.fixture
def stocked(tmp_path: Path) -> Path:
    """Fill the folders of three sites, and write the columns that follow from their sums."""
    place = tmp_path / "consortium"
    files = []
    for seed, name in enumerate(SITES[:3]):
        folder = place / "data" / name
        write(folder / "2024.csv", *rows("calm", seed), *rows("fast", seed))
        write_sums(tmp_path / f"{name}.json", sums_of(folder, "label"))
        files.append(tmp_path / f"{name}.json")
    write_columns(tmp_path / "columns.json", files)
    return place


@pytest.mark.numeric
def test_sites_with_tables_train_a_model_that_knows_the_names_and_columns(stocked: Path, keyring: Keyring) -> None:
    columns = stocked.parent / "columns.json"
    settings = ["model.name=mlp", "model.width=16", f"deployment.columns={columns}", "train.epochs=4"]
    made = Consortium(stocked, keyring, small_config("mosaic", *settings, rounds=8), SITES[:3])
    try:
        acts = {3: lambda: [write(made.data(name) / "2025.csv", *rows("wild", 7)) for name in SITES[:2]]}
        records = made.play(acts)
        assert [record.failures for record in records] == [[]] * 8
        assert [record.classes for record in records] == [0, 2, 2, 2, 3, 3, 3, 3]
        model = load_model(made.state("aachen") / "model.safetensors")
    finally:
        made.close()
    assert model.columns is not None
    assert model.columns.names == ("height", "weight", "colour")
    new = [{"height": 100 * place, "weight": 5 - 5 * place, "colour": COLORS[place]} for place in range(3)]
    assert sorted(model.class_names) == sorted(KINDS)
    assert sum(found.name == kind for found, kind in zip(model.predict(new), KINDS, strict=True)) >= 2


def open_data(folder: Path, state: Path, columns: Columns, consent: ClassConsent | None = None) -> SiteData:
    return SiteData.open(state, folder, columns.shape, lambda name: f"id-{name}", 0.0, consent, columns)


def columns_of(folder: Path) -> Columns:
    sums = sums_of(folder, "label")
    write_sums(folder.parent / "sums.json", sums)
    return write_columns(folder.parent / "columns.json", [folder.parent / "sums.json"])


@pytest.mark.numeric
def test_sites_with_tables_follow_a_merge_and_a_withdrawal_of_classes(stocked: Path, keyring: Keyring) -> None:
    settings = ["model.name=mlp", "model.width=16", f"deployment.columns={stocked.parent / 'columns.json'}"]
    for seed, name in enumerate(SITES[:3]):
        write(stocked / "data" / name / "2025.csv", *rows("wild", seed), *rows("swift" if seed == 1 else "wild", 9))
    every = ["train.epochs=4", "deployment.evaluate_every=1"]
    made = Consortium(stocked, keyring, small_config("mosaic", *settings, *every, rounds=8), SITES[:3])
    try:
        rounds = made.rounds()
        before = [next(rounds) for _ in range(4)][-1]
        calm, fast, swift, wild = map(keyring.sites[SITES[0]].secret.class_id, ("calm", "fast", "swift", "wild"))
        assert set(before.per_class) == {calm, fast, swift, wild}
        assert made.server is not None
        assert made.run is not None
        retired = {swift: fast, wild: ""}
        made.server.retired = made.run.retired = lambda: retired
        after = list(rounds)
        made.run.finish()
        models = [load_model(place / "model.safetensors") for place in (made.run.folder, made.state(SITES[1]))]
    finally:
        made.close()
    assert [record.failures for record in after] == [[]] * 4
    assert set(after[-1].per_class) == {calm, fast}
    assert after[-1].per_class[fast][1] == before.per_class[fast][1] + before.per_class[swift][1]
    assert (after[-1].classes, after[-1].retired) == (4, 2)
    assert [len(model.class_names) for model in models] == [2, 2]
    assert set(models[1].class_names) == {"calm", "fast"}
    assert models[1].columns is not None


def test_each_row_is_one_sample_however_often_its_table_is_written(tmp_path: Path) -> None:
    folder, twin = tmp_path / "data", "1.0,2.0,red,calm"
    write(folder / "a.csv", *rows("calm", 1, 6), twin, twin)
    columns = columns_of(folder)
    data = open_data(folder, tmp_path / "state", columns)
    assert len(data.freeze(0, NONE)) == 8, "equal rows are samples of their own"
    (folder / "a.csv").rename(folder / "b.csv")
    write(folder / "c.csv", *rows("calm", 1, 6)[:3], *rows("fast", 1, 5))  # three of them are known already
    assert data.freeze(1, torch.arange(8)).tolist() == [8, 9, 10, 11, 12, 13, 14, 15]
    write(folder / "b.csv", twin, *rows("calm", 1, 6), twin, twin)
    again = open_data(folder, tmp_path / "state", columns)
    assert again.class_names == ("calm", "fast")
    assert again.freeze(2, torch.arange(16)).tolist() == [16]  # the third twin
    assert again.samples.pixels(torch.tensor([16])).shape == (1, *columns.shape)
    assert again.samples.pixels(NONE).dtype == torch.float32
    assert again.freeze(3, torch.arange(17)).tolist() == [16]  # nothing is new
    again.retire(NONE)
    assert again.freeze(4, torch.arange(17)).tolist() == [16]  # a retired row does not come again


def test_small_and_unapproved_classes_wait_and_what_is_broken_is_named(tmp_path: Path) -> None:
    folder, approved = tmp_path / "data", tmp_path / "approved"
    approved.write_text("calm\nwild\n")
    write(folder / "a.csv", *rows("calm", 1, 6), *rows("fast", 1, 6), *rows("wild", 1, 4), "1,2,red", "x,2,red,calm")
    write(folder / "b.csv").write_text("height,label\n1,calm\n")
    os.mkfifo(folder / "pipe.csv")
    columns = Columns(**columns_of(write(tmp_path / "other" / "a.csv", *rows("calm", 1)).parent).model_dump())
    data = open_data(folder, tmp_path / "state", columns, ClassConsent(5, approved))
    assert len(data.freeze(0, NONE)) == 6
    told = "\n".join(data.drain_warnings())
    for sentence in (
        r"fast is no class yet: nobody has approved it",
        r"wild is no class yet: it has 4 of the 5 images",
        r"a.csv: row 17 has 3 cells under 4 names; it is left out",
        r"a.csv: row 18 has 'x' in column height, which holds finite numbers; it is left out",
        r"b.csv is left out: .* has no column weight",
        r"pipe.csv is left out: it is not a file",
    ):
        assert re.search(sentence, told), (sentence, told)
    for broken in ("b.csv", "pipe.csv"):  # which would be looked at again, and all tables with them
        (folder / broken).unlink()
    approved.write_text("calm\nwild\nfast\n")
    assert len(data.freeze(1, torch.arange(6))) == 6, "the rows that waited come without a change of their table"
    write(folder / "c.csv", *rows("wild", 2, 3))
    assert len(data.freeze(2, torch.arange(12))) == 7
    assert not data.drain_warnings(), "each warning is told once"


def test_a_state_begun_under_other_columns_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write(folder / "a.csv", *rows("calm", 1))
    columns = columns_of(folder)
    open_data(folder, tmp_path / "state", columns).freeze(0, NONE)
    moved = columns.model_copy(update={"each": tuple(one.model_copy(update={"mean": 9.0}) for one in columns.each)})
    with pytest.raises(FileError, match=r"was begun with columns of digest \w+, not \w+; use that, or another state"):
        open_data(folder, tmp_path / "state", moved)


def test_the_owner_of_a_site_reads_the_columns_on_one_line(stocked: Path, keyring: Keyring) -> None:
    path = stocked.parent / "columns.json"
    columns = Columns(**read_json(path)["columns"])
    odd = columns.each[0].model_copy(update={"name": "height\nfederation  another, accepted by all"})
    write_json(path, {"columns": columns.model_copy(update={"each": (odd, *columns.each[1:])}).model_dump(mode="json")})
    config = small_config("mosaic", "model.name=mlp", f"deployment.columns={path}")
    recipe = server_recipe(deployment_config(config))
    lines = in_words(terms_of(config), recipe, PartyLimits())
    assert "another" in lines[1]
    assert all("\n" not in line for line in lines)


def test_a_site_tells_sums_alone_and_no_rare_text(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.csv", *rows("calm", 1), "1,2,only one,calm")
    told = fcil("federation", "columns", tmp_path / "data", "--out", tmp_path / "north.json")
    assert told.returncode == 0, told.stderr
    assert "only one" not in (tmp_path / "north.json").read_text()
    assert read_json(tmp_path / "north.json")["sums"]["columns"][0]["count"] == 21
    agreed = fcil("federation", "columns", tmp_path / "north.json", "--out", tmp_path / "columns.json")
    assert agreed.returncode == 0, agreed.stderr
    assert "height" in agreed.stdout
    refused = fcil("federation", "columns", tmp_path / "columns.json", "--out", tmp_path / "c.json")
    assert (refused.returncode, "is not a site's sums" in refused.stderr) == (2, True)


def test_a_federation_needs_a_network_for_its_samples_and_whole_columns(stocked: Path, tmp_path: Path) -> None:
    columns = tmp_path / "columns.json"
    with pytest.raises(ConfigError, match=r"model.name: found resnet18, which takes images, should be mlp for rows"):
        Consortium(stocked, Keyring.__new__(Keyring), small_config("icarl", f"deployment.columns={columns}"), ())
    with pytest.raises(ConfigError, match=r"deployment.columns: .*aachen.json is not a file of agreed columns"):
        agreed_columns(small_config("icarl", f"deployment.columns={tmp_path / 'aachen.json'}"))
    with pytest.raises(DataError, match=r"holds no table; it should hold files ending in .csv"):
        sums_of(write(tmp_path / "none" / "readme.md").parent, "label")
