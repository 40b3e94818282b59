from __future__ import annotations

from pathlib import Path

import pytest

from fcil.core.errors import ConfigError
from fcil.experiment.config import load_config
from fcil.experiment.presets import preset_names, read_document


def write(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text)
    return str(path)


def refusal(path: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_document(path)
    return str(caught.value)


def test_tables_are_merged_and_values_and_lists_replaced(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", "seed = 1\n[one]\nkept = 1\nchanged = 2\nlist = [1, 2]\n[one.deep]\na = 1\nb = 2\n")
    own = 'extends = "base.toml"\n[one]\nchanged = 3\nlist = [4]\n[one.deep]\nb = 5\n[two]\nnew = 6\n'
    assert read_document(write(tmp_path / "own.toml", own)) == {
        "seed": 1,
        "one": {"kept": 1, "changed": 3, "list": [4], "deep": {"a": 1, "b": 5}},
        "two": {"new": 6},
    }


def test_a_table_takes_the_place_of_a_value_and_a_value_that_of_a_table(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", "value = 1\n[table]\na = 1\n")
    own = write(tmp_path / "own.toml", 'extends = "base.toml"\ntable = 2\n[value]\nb = 3\n')
    assert read_document(own) == {"value": {"b": 3}, "table": 2}


def test_a_file_extends_a_preset(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.toml", 'extends = "digits"\n[scenario]\nmemory = 7\n')
    mine, digits = load_config(path, ["seed=5"]), load_config("digits", ["seed=5"])
    assert mine.scenario.memory == 7
    assert mine == digits.model_copy(update={"scenario": digits.scenario.model_copy(update={"memory": 7})})


def test_a_path_is_relative_to_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "base.toml", "seed = 1\nname = 1\n")
    write(tmp_path / "below" / "middle.toml", 'extends = "../base.toml"\nname = 2\n')
    write(tmp_path / "own.toml", 'extends = "below/middle.toml"\nother = 3\n')
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert read_document("../own.toml") == {"seed": 1, "name": 2, "other": 3}


def test_the_place_of_the_data_is_seen_from_the_file_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "base.toml", '[data]\nsource = "npz"\npath = "data/own.npz"\n')
    own = write(tmp_path / "below" / "own.toml", 'extends = "../base.toml"\n')
    other = write(tmp_path / "below" / "other.toml", 'extends = "own.toml"\ndata.path = "other.npz"\n')
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name, place in ((own, "data/own.npz"), ("../below/other.toml", "below/other.npz")):
        path = Path(load_config(name).data.path or "")
        assert path.is_absolute()
        assert path.resolve() == tmp_path / place
    assert load_config(other, ["data.path=third.npz"]).data.path == "third.npz"  # from the working directory


@pytest.mark.parametrize("path", ["~/data.npz", "/data.npz"])
def test_a_place_that_is_not_relative_stays(tmp_path: Path, path: str) -> None:
    own = write(tmp_path / "own.toml", f'[data]\nsource = "npz"\npath = "{path}"\n')
    assert load_config(own).data.path == path


@pytest.mark.parametrize("value", ["3", '""'])
def test_a_place_that_is_none_is_told_so(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.path: found"):
        load_config(write(tmp_path / "own.toml", f'[data]\nsource = "npz"\npath = {value}\n'))


def test_a_document_is_its_own_even_if_the_base_is_read_again(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", "[one]\na = 1\n")
    own = write(tmp_path / "own.toml", 'extends = "base.toml"\n[one]\nb = 2\n')
    read_document(own)["one"]["a"] = 9
    assert read_document(own) == {"one": {"a": 1, "b": 2}}


def test_an_unknown_base_is_named_with_the_file_that_names_it(tmp_path: Path) -> None:
    message = refusal(write(tmp_path / "own.toml", 'extends = "digitz"\n'))
    assert message.startswith(f"extends in {tmp_path / 'own.toml'}: ")
    assert "digitz is neither a file nor a preset" in message
    assert message.endswith("did you mean digits?")


@pytest.mark.parametrize("value", ["3", "true", '["digits"]', '{ preset = "digits" }'])
def test_a_base_that_is_no_text_is_told_what_would_be_right(tmp_path: Path, value: str) -> None:
    message = refusal(write(tmp_path / "own.toml", f"extends = {value}\n"))
    assert "own.toml: found" in message
    assert message.endswith("should be a preset's name or a path")


def test_a_base_that_is_no_toml_is_named(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", "seed = \n")
    assert "base.toml is not TOML" in refusal(write(tmp_path / "own.toml", 'extends = "base.toml"\n'))


def test_a_document_that_extends_itself_is_refused(tmp_path: Path) -> None:
    own = write(tmp_path / "own.toml", 'extends = "own.toml"\n')
    assert refusal(own) == f"extends: {own} extends {own}; a document cannot extend itself"


def test_a_cycle_is_refused_and_shown(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    write(one, 'extends = "two.toml"\n')
    write(two, 'extends = "./one.toml"\n')
    assert refusal(str(one)) == f"extends: {one} extends {two} extends {one}; a document cannot extend itself"


def test_a_key_of_the_base_can_be_unset(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", "seed = 1\n[one]\na = 1\nb = 2\n[one.deep]\nc = 3\n[two]\nd = 4\n")
    own = 'extends = "base.toml"\nunset = ["seed", "one.a", "one.deep", "two"]\n[two]\ne = 5\n'
    middle = write(tmp_path / "middle.toml", own)
    assert read_document(middle) == {"one": {"b": 2}, "two": {"e": 5}}
    last = write(tmp_path / "last.toml", 'extends = "middle.toml"\nunset = ["two.e"]\n')
    assert read_document(last) == {"one": {"b": 2}, "two": {}}


def test_what_is_unset_has_its_default(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.toml", 'extends = "digits"\nunset = ["scenario.memory"]\n')
    assert load_config(path).scenario.memory == 2000 != load_config("digits").scenario.memory


@pytest.mark.parametrize("key", ["one.z", "zero", "one.a.b", "zero.a", "", "one.", "."])
def test_what_the_base_does_not_set_cannot_be_unset(tmp_path: Path, key: str) -> None:
    write(tmp_path / "base.toml", "[one]\na = 1\n")
    own = write(tmp_path / "own.toml", f'extends = "base.toml"\nunset = ["{key}"]\n')
    assert refusal(own).startswith(f"unset in {own}: ")
    assert refusal(own).endswith(f"base.toml does not set {key}")


@pytest.mark.parametrize("value", ['"seed"', "3", "[3]", "{ a = 1 }"])
def test_unset_is_a_list_of_keys(tmp_path: Path, value: str) -> None:
    message = refusal(write(tmp_path / "own.toml", f'extends = "digits"\nunset = {value}\n'))
    assert "own.toml: found" in message
    assert "should be a list of keys like ['scenario.joins']" in message


def test_without_a_base_there_is_nothing_to_unset(tmp_path: Path) -> None:
    assert "without extends there is nothing to unset" in refusal(write(tmp_path / "own.toml", 'unset = ["seed"]\n'))


@pytest.mark.parametrize("text", [f"a = {'[' * 100_000}", f"a = 1{'0' * 5000}"], ids=["deep", "long"])
def test_a_file_that_the_reader_gives_up_on_is_no_toml(tmp_path: Path, text: str) -> None:
    assert "own.toml is not TOML" in refusal(write(tmp_path / "own.toml", text))


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_whole_once_read(name: str) -> None:
    document = read_document(name)
    assert "extends" not in document
    assert {"description", "data", "scenario", "model", "train", "method"} <= document.keys()
