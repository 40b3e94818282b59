"""Findings of the fuzzer, each as a test of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fcil.core.errors import LONGEST, CheckpointError, ConfigError, DamagedError, DataError, FcilError
from fcil.core.files import SEAL, write_json, write_sealed
from fcil.core.messages import decode, encode
from fcil.data.datasets.dataset import Source
from fcil.data.datasets.digits import load_digits
from fcil.experiment.checkpoint import FILE, Checkpoint, Part, ProxyFile
from fcil.experiment.config import load_config, parse_config
from fcil.experiment.journal import FILE as RECORDS_FILE
from fcil.experiment.model_file import Facts, load_model, model_bytes
from fcil.experiment.restore import load_stored
from fcil.experiment.result_file import read_kept, write_kept
from fcil.experiment.run import Run, read_finished, read_summary
from fcil.experiment.run_directory import CONFIG_FILE, SUMMARY_FILE
from fcil.federation.class_catalogue import Catalogue
from fcil.models import ModelConfig, grow, initial_state
from fuzz.case import read_files

SCENARIO = {"tasks": 2, "rounds_per_task": 1, "initial_clients": 2, "joiners": 0, "participants": 1, "memory": 4}
DOCUMENT = {"scenario": SCENARIO, "model": {"width": 1}, "train": {"epochs": 1}, "method": {"name": "finetune"}}


@pytest.fixture(scope="module")
def digits() -> Source:
    return load_digits().reduced(2)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('"a-b" = 1', "'a-b': unknown key; known here: attack, data,"),
        ('"" = 1', "'': unknown key"),
        ('scenario."memory-size" = 1', "scenario.'memory-size': unknown key; did you mean memory?"),
        ('train.milestones = [{"an epoch" = 1}]', "train.milestones.0.'an epoch': unknown key; did you mean epoch?"),
    ],
)
def test_a_key_that_is_no_word_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(ConfigError, match=sentence.replace("?", r"\?")):
        load_config(str(tmp_path / "x.toml"))


def test_an_error_is_one_line_that_a_terminal_can_show_whatever_it_quotes() -> None:
    error = DataError("found a\r\n  b,\x1b[31m \ud800 and\0 the path  /a  b")
    assert str(error) == r"found a b,\x1b[31m \ud800 and\x00 the path  /a  b"
    long = str(FcilError(f"begin {'x' * 100_000} end"))
    assert long.startswith("begin xxx")
    assert long.endswith("xxx end")
    assert len(long) <= LONGEST + 5


@pytest.mark.parametrize("key", ["extends", "unset"])
def test_a_long_value_in_the_place_of_a_name_is_cut(tmp_path: Path, key: str) -> None:
    (tmp_path / "x.toml").write_text(f"{key} = {[0] * 1000}")
    with pytest.raises(ConfigError, match=rf"{key} in .*: found \[0, 0, .*\.\.\., should be") as refused:
        load_config(str(tmp_path / "x.toml"))
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("key", ["mean", "deviation"])
@pytest.mark.parametrize("values", [[], [0.5, 0.5], [0.5] * 3])
def test_a_normalisation_of_other_channels_is_refused(
    tmp_path: Path, digits: Source, key: str, values: list[float]
) -> None:
    config = parse_config({**DOCUMENT, "model": {"width": 1, key: values}})
    with pytest.raises(ConfigError, match=rf"model\.{key}: found {len(values)} values, should be 1, one per channel"):
        Run.start(config, tmp_path / "out", lambda _: digits)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"deviation": ()},
        {"deviation": (0.5, 0.5)},
        {"deviation": (0.0,)},
        {"image_shape": (1, 0, 8)},
        {"image_shape": (1, 1 << 40, 1 << 40)},
    ],
)
def test_a_model_whose_facts_do_not_fit_each_other_is_refused(
    tmp_path: Path, digits: Source, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    config = ModelConfig(width=1)
    dump = Facts.model_dump
    monkeypatch.setattr(Facts, "model_dump", lambda self, **options: {**dump(self, **options), **wrong})
    model = grow(initial_state(config, 1, 0), 2, 0)
    (tmp_path / "model").write_bytes(model_bytes(model, (0, 1), digits, config))
    with pytest.raises(DataError, match="is not a model that this version of fcil can use"):
        load_model(tmp_path / "model")


# --- a run's directory --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, digits: Source) -> dict[str, bytes]:
    """Return the files of a run that has finished."""
    folder = tmp_path_factory.mktemp("run")
    with Run.start(parse_config(DOCUMENT), folder, lambda _: digits) as run:
        for _ in run.rounds():
            pass
        write_kept(folder / "kept.json", run.config.document(), run.finish(), {})
    return read_files(folder)


@pytest.fixture
def folder(tmp_path: Path, whole: dict[str, bytes]) -> Path:
    for name, data in whole.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def rewrite(folder: Path, change: Callable[[Checkpoint], Checkpoint]) -> None:
    """Change the checkpoint of a folder, under a digest that is right."""
    content = (folder / FILE).read_bytes()[SEAL:]
    write_sealed(folder / FILE, encode(change(decode(content, Checkpoint))))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"correct": [1]}, r"line 2: correct and total should count the test images of 2 tasks, found \[1\] of \["),
        ({"total": [0, 0], "correct": [0, 0]}, "line 2: correct and total"),
        ({"correct": [10**6, 0]}, "line 2: correct and total"),
        ({"task": 5}, "line 2: task: found 5 after task 0"),
        ({"bytes_up": 10**400}, "line 2: bytes_up: Input should be less than"),
        ({"bytes_down": -1}, "line 2: bytes_down: Input should be greater than"),
        ({"seconds": 1e308}, "line 2: seconds: Input should be less than"),
    ],
)
def test_records_that_no_run_can_have_are_refused(folder: Path, change: dict[str, Any], sentence: str) -> None:
    change_record(folder, 1, change)
    with pytest.raises(CheckpointError, match=sentence):
        read_summary(folder)


def test_a_task_that_was_never_measured_before_a_later_one_is_refused(folder: Path) -> None:
    change_record(folder, 0, {"correct": [], "total": []})
    with pytest.raises(CheckpointError, match="line 2: task 1 was measured, but not every task before it"):
        read_summary(folder)


def change_record(folder: Path, number: int, change: dict[str, Any]) -> None:
    """Change the record of a round, under a digest that is right."""
    lines = (folder / RECORDS_FILE).read_text().splitlines()
    lines[number] = json.dumps({**json.loads(lines[number]), **change})
    data = "".join(f"{line}\n" for line in lines).encode()
    (folder / RECORDS_FILE).write_bytes(data)
    rewrite(folder, lambda checkpoint: replace(checkpoint, records=hashlib.sha256(data).hexdigest()))


@pytest.mark.parametrize(
    "change",
    [
        {"accuracy": []},
        {"accuracy": [50.0]},
        {"accuracy_matrix": [[50.0], [50.0]]},
        {"classes_seen": [5]},
        {"average": None},
        {"last": None},
    ],
)
def test_figures_that_contradict_each_other_are_refused(folder: Path, change: dict[str, Any]) -> None:
    figures = {**read_finished(folder), **change}
    write_json(folder / SUMMARY_FILE, figures)
    with pytest.raises(DamagedError, match=r"summary\.json does not hold the figures of a finished run: "):
        read_finished(folder)


@pytest.mark.parametrize("key", ["config", "machine"])
def test_a_kept_result_without_its_tables_is_refused(folder: Path, key: str) -> None:
    path = folder / "kept.json"
    kept = read_kept(path)
    write_json(path, {"config": kept.config, "summary": kept.summary, "machine": kept.machine, key: 5})
    with pytest.raises(DamagedError, match="its config and its machine should be tables"):
        read_kept(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"method": 5}, "method.name: found absent, should be text"),
        ({"method": {"name": "glfc"}}, "method.edition: found absent, should be text"),
        ({"data": []}, "data.source: found absent, should be text"),
        ({"seed": "x"}, "seed: found 'x', should be a whole number"),
    ],
)
def test_a_configuration_that_does_not_name_its_run_is_refused(
    folder: Path, change: dict[str, Any], sentence: str
) -> None:
    document = json.loads((folder / CONFIG_FILE).read_bytes())
    del document["digest"]
    write_json(folder / CONFIG_FILE, {**document, **change})
    with pytest.raises(CheckpointError, match=sentence):
        read_summary(folder)


def swapped(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    assert len(old) == len(new)
    return lambda content: content.replace(old, new)


@pytest.mark.parametrize(
    ("file", "change", "sentence"),
    [
        ("clients-*", swapped(b'{"dict":{"0":', b'{"dict":{"x":'), "'x' is no client's number"),
        (FILE, swapped(b'"clients-000', b'"clients/../'), "is no name of a file with states"),
        (FILE, swapped(b'"config":"{', b'"config":"['), "not a valid Checkpoint"),
    ],
)
def test_states_and_names_that_none_can_have_are_refused(
    folder: Path, file: str, change: Callable[[bytes], bytes], sentence: str
) -> None:
    path = next(iter(sorted(folder.glob(file))))
    content = path.read_bytes()[SEAL:]
    assert change(content) != content
    digest = write_sealed(path, change(content))
    if file != FILE:
        named = lambda part: replace(part, digest=digest) if part.name == path.name else part  # noqa: E731
        rewrite(folder, lambda found: replace(found, parts=tuple(map(named, found.parts))))
    with pytest.raises(CheckpointError, match=sentence):
        load_stored(folder)


def test_a_table_of_clients_fits_its_digests_and_the_states(folder: Path, whole: dict[str, bytes]) -> None:
    table = decode(whole[FILE][SEAL:], Checkpoint).table
    with pytest.raises(ValueError, match="a client holds a model that has no digest"):
        replace(table, held=table.held + 10)
    rewrite(folder, lambda found: replace(found, table=replace(table, clients=table.clients + 70)))
    with pytest.raises(CheckpointError, match="no file has the state of client 70"):
        load_stored(folder)


def test_no_checkpoint_is_of_a_round_below_zero(whole: dict[str, bytes]) -> None:
    checkpoint = decode(whole[FILE][SEAL:], Checkpoint)
    with pytest.raises(ValueError, match="it is of round -1"):
        replace(checkpoint, server=replace(checkpoint.server, round=-1))


def with_model(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Checkpoint], dict[str, Any]]:
    return lambda found: {"model": {name: change(tensor) for name, tensor in found.server.model.items()}}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda _: {"catalogue": Catalogue(("0", "0"), (2,))}, "classes that the data has not, or one twice"),
        (lambda _: {"catalogue": Catalogue(("0", "dog"), (2,))}, "classes that the data has not, or one twice"),
        (lambda _: {"catalogue": Catalogue(("0", "1"), (1,))}, r"has 2 classes in blocks that end at \(1,\)"),
        (lambda _: {"catalogue": Catalogue(("0", "1"), (1, 2))}, "its model is of another network"),
        (with_model(lambda tensor: tensor[..., None]), "its model is of another network"),
        (with_model(torch.Tensor.double), "its model is of another network"),
    ],
)
def test_a_checkpoint_that_the_run_cannot_continue_is_refused_and_nothing_is_changed(
    folder: Path, digits: Source, change: Callable[[Checkpoint], dict[str, Any]], sentence: str
) -> None:
    (folder / "checkpoint.previous.fcil").unlink()
    rewrite(folder, lambda found: replace(found, server=replace(found.server, **change(found))))
    before = read_files(folder)
    with pytest.raises(CheckpointError, match=sentence):
        Run.resume(folder, load=lambda _: digits)
    assert read_files(folder) == before


def test_a_proxy_s_state_in_a_run_without_a_proxy_is_refused(folder: Path, digits: Source) -> None:
    digest = write_sealed(folder / "proxy-000002.fcil", encode(ProxyFile(Catalogue())))
    rewrite(folder, lambda found: replace(found, proxy=Part("proxy-000002.fcil", 1, digest)))
    with pytest.raises(CheckpointError, match="a proxy's state where the method has no proxy"):
        Run.resume(folder, load=lambda _: digits)
