from __future__ import annotations

import json
import types
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loops import for_each

from fcil.core.errors import ConfigError
from fcil.core.settings_table import SettingsTable
from fcil.data.datasets import DataConfig
from fcil.data.scenario.population import Event
from fcil.experiment.config import (
    Config,
    apply_settings,
    differing_keys,
    load_config,
    parse_config,
    setting_rows,
)
from fcil.experiment.presets import preset_names, read_document
from fcil.methods import methods

LATER = (
    "federation.max_",  # settings of parts that came after the limit
    *("scenario.partition", "scenario.shards", "scenario.shares", "attack."),
    *(
        "federation.clip.",
        "federation.cosine-krum.",
        "federation.geometric-median.",
        "federation.krum.",
        "federation.median.",
    ),
    *("federation.trimmed-mean.", "federation.masked.", "model.image_size", "train.augment.views", "data.table."),
    *("method.solver", "method.unit_columns", "method.shrinkage", "method.projection", "method.warm_start"),
    *(
        "method.adapt",
        "privacy.",
        "deployment.burst",
        "deployment.new_images",
        "deployment.every",
        "deployment.columns",
    ),
    "deployment.release_",
)
LATER_METHODS = ("lander: ", "mfcl: ", "lander, mfcl: ")  # what only they have
EVERY_METHOD_EDITION = [(name, edition) for name, method in methods().items() for edition in method.config.editions]


def refusal(*settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config("digits", settings)
    return str(caught.value)


def test_there_is_a_preset_of_the_digits() -> None:
    assert "digits" in preset_names()


def without_its_source(name: str) -> bool:
    known = typing.get_args(DataConfig.model_fields["source"].annotation)
    return bool(known) and read_document(name)["data"]["source"] not in known


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_parses_and_its_document_gives_it_back(name: str) -> None:
    if without_its_source(name):
        pytest.skip("the data source of this preset is not there yet")
    config = load_config(name)
    assert config.description
    document = config.document()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert parse_config(document) == config
    assert parse_config(document).document() == document


@for_each(EVERY_METHOD_EDITION)
def test_every_edition_of_every_method_round_trips(name: str, edition: str) -> None:
    config = parse_config({"method": {"name": name, "edition": edition}})
    assert (config.method_name, config.method_edition) == (name, edition)
    assert parse_config(config.document()) == config
    for key, value in methods()[name].config.editions[edition].items():
        assert getattr(config.method, key) == value


def test_values_that_the_edition_decides_are_no_settings_and_are_read_where_they_agree() -> None:
    rows = [key for key, _, what in setting_rows() if not key.startswith(LATER) and not what.startswith(LATER_METHODS)]
    assert len(rows) <= 130
    keys = {key for key, _, _ in setting_rows()}
    for name, method in methods().items():
        decided = method.config.model_fields.keys() - set(method.config.settings())
        assert not {key for key in decided if f"method.{key}" in keys} & set(method.config.settings()), name
        for edition in method.config.editions:
            config = parse_config({"method": {"name": name, "edition": edition}})
            assert not decided & config.document()["method"].keys(), (name, edition)
            earlier = {"name": name, "edition": edition, **config.method.model_dump(mode="json")}
            assert parse_config({"method": earlier}) == config, (name, edition)


def test_a_value_that_the_edition_decides_otherwise_is_refused() -> None:
    found = refusal("method.pool=by-label")
    assert "method.pool: found 'by-label', should be 'shuffled': it is no setting, and method.edition fcil" in found
    official: Any = load_config("digits", ["method.edition=official", "method.pool=by-label"]).method
    assert official.pool == "by-label"


def test_a_field_given_beats_the_edition_of_the_method() -> None:
    config = parse_config({"method": {"name": "glfc", "edition": "official", "perturb_steps": 7}})
    assert config.document()["method"]["perturb_steps"] == 7
    assert config.document()["method"]["perturb_noise"] == 0.0


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("scenario.partisipants=3", "scenario.partisipants: unknown key; did you mean participants?"),
        ("train.augment.flop=true", "train.augment.flop: unknown key; did you mean flip?"),
        ("method.detektor=labels", "method.detektor: unknown key; did you mean detector?"),
        (
            "method.bias_penalty_of_nobody=1",
            "method.bias_penalty_of_nobody: unknown key; known here:",
        ),
        (
            "method.alpha_penalty=1",
            "method.alpha_penalty: unknown key; it is a setting of bic, so write it under [method.bic]; known here:",
        ),
        ("scenaria.memory=3", "scenaria: unknown key; did you mean scenario?"),
        (
            "model.layers=3",
            "model.layers: unknown key; known here: deviation, freeze, head_scale, image_size",
        ),
        ("scenario.joins=[{rond=1, clients=2}]", "scenario.joins.0.rond: unknown key; did you mean round?"),
        ("train.milestones=[{epoch=1, diviser=2}]", "train.milestones.0.diviser: unknown key; did you mean divisor?"),
    ],
)
def test_an_unknown_key_is_named_with_what_was_meant(setting: str, hint: str) -> None:
    assert hint in refusal(setting)


@pytest.mark.parametrize("key", ["method_name", "method_edition"])
def test_names_of_the_inner_fields_are_not_keys(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key"):
        parse_config({key: "glfc"})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("scenario.class_fraction=1.5", "scenario.class_fraction: found 1.5, should be at most 1"),
        ("train.epochs=0", "train.epochs: found 0, should be at least 1"),
        ("train.learning_rate=nan", "train.learning_rate: found nan, should be a finite number"),
        ("scenario.split=random", "scenario.split: found 'random', should be 'shared' or 'disjoint'"),
        ("scenario.tasks=many", "scenario.tasks: found 'many', should be a whole number or a list"),
        ("seed=-1", "seed: found -1, should be at least 0"),
        ("model=3", "model: found 3, should be a table"),
        ("method=3", "method: found 3, should be a table"),
        ("method.name=3", "method.name: found 3, should be text"),
        ("method.edition=[1]", "method.edition: found [1], should be text"),
        ("method.icarl=3", "method.icarl: found 3, should be a table of the settings of icarl"),
        ("train.augment=3", "train.augment: found 3, should be a table"),
        ("scenario.memory=1e99", "scenario.memory: found 1e+99, should be a whole number"),
        (
            "scenario.memory=1" + "0" * 30,
            "scenario.memory: found a number of 31 digits, should be a number that fits into 64 bits",
        ),
        ("scenario.memory=0x" + "f" * 5000, "found a number of 6021 digits, should be a number that fits into 64 bits"),
        ("scenario.memory=1" + "0" * 5000, "should be a whole number"),
        ("scenario.joins=3", "scenario.joins: found 3, should be a list"),
        ("scenario.tasks=[2, true]", "scenario.tasks.1: found true, should be a whole number"),
        ("scenario.tasks=[2, 1.5]", "scenario.tasks.1: found 1.5, should be a whole number"),
        ("train.milestones=[{epoch=1, divisor=true}]", "train.milestones.0.divisor: found true, should be a number"),
        ("train.epochs=2.0", "train.epochs: found 2.0, should be a whole number"),
        ('train.epochs="2"', "train.epochs: found '2', should be a whole number"),
        ("train.learning_rate=fast", "train.learning_rate: found 'fast', should be a number"),
        ("train.augment.flip=1", "train.augment.flip: found 1, should be true or false"),
        ("description=1979-05-27", "description: found 1979-05-27, should be text"),
        ("data.source=imagefolder", "data.image_size: absent, should be the pixels"),
        ("method.glfc={perturb_steps=-1}", "method.glfc.perturb_steps: found -1, should be at least 0"),
        ("train.momentum=1", "train.momentum: found 1, should be below 1"),
        ("train.learning_rate=1e99", "train.learning_rate: found 1e+99, should be a number of single precision"),
        (
            "train.milestones=[{epoch=4, divisor=2}, {epoch=4, divisor=3}]",
            "should be a list without two milestones at epoch 4",
        ),
        ("train.milestones=[{epoch=4, divisor=1e-40}]", "should be a list that keeps the learning rate below 3.4e+38"),
        ("method.perturb_steps=-1", "method.perturb_steps: found -1, should be at least 0"),
    ],
    ids=lambda text: text[:60],
)
def test_a_value_out_of_range_is_told_what_would_be_right(setting: str, message: str) -> None:
    assert message in refusal(setting)


def test_a_slip_is_said_once() -> None:
    assert refusal("method.glfc={perturb_steps=-1}").count("perturb_steps") == 1


def test_a_fixed_switch_is_named_as_toml_has_it() -> None:
    assert refusal("method.name=glfc-wo-prs", "method.proxy=true") == "method.proxy: found true, should be false"


def test_milestones_are_sorted() -> None:
    config = load_config("digits", ["train.milestones=[{epoch=9, divisor=4}, {epoch=3, divisor=2}]"])
    assert [milestone.epoch for milestone in config.train.milestones] == [3, 9]


@pytest.mark.parametrize(
    "key",
    [
        "train.learning_rate",
        "train.weight_decay",
        "scenario.concentration",
        "method.entropy_jump",
        "method.relation_weight",
    ],
)
def test_infinity_is_refused(key: str) -> None:
    assert f"{key}: found inf" in refusal(f"{key}=inf")


def number_settings(model: type[SettingsTable], prefix: str) -> list[str]:
    found = []
    for key in model.settings():
        kind = model.model_fields[key].annotation
        if isinstance(kind, type) and issubclass(kind, SettingsTable):
            found += number_settings(kind, f"{prefix}{key}.")
        elif {int, float} & {kind, *typing.get_args(kind)}:
            found.append(f"{prefix}{key}")
    return found


EVERY_NUMBER = sorted(
    {
        *((key, "glfc") for key in number_settings(Config, "")),
        *((key, name) for name, method in methods().items() for key in number_settings(method.config, "method.")),
    }
)


def test_true_is_no_number_anywhere() -> None:
    for key, method in EVERY_NUMBER:
        found = refusal(f"method.name={method}", f"{key}=true")
        assert f"{key}: found true, should be a " in found, (key, method)


def test_a_long_value_is_cut_to_what_fits_a_sentence() -> None:
    message = refusal(f"scenario.split={'x' * 10_000}", f"model={list(range(5000))}")
    assert len(message) < 400


def test_all_that_is_wrong_is_said_at_once() -> None:
    message = refusal("train.epochs=0", "scenario.participents=1", "method.detector=maybe")
    for part in ("train.epochs", "scenario.participents", "method.detector"):
        assert part in message


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("method.name=glcf", ["method.name", "'glcf' is unknown", "finetune", "did you mean glfc?"]),
        ("method.edition=papr", ["method.edition", "'papr' is unknown", "official", "did you mean paper?"]),
        ("run.engine=seriel", ["run.engine", "found 'seriel'", "processes", "did you mean serial?"]),
        ("method.name=zzz", ["method.name", "'zzz' is unknown"]),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(setting: str, parts: list[str]) -> None:
    message = refusal(setting)
    assert all(part in message for part in parts)


def test_an_unknown_preset_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"digitz is neither a file nor a preset; did you mean digits\?"):
        load_config("digitz")
    with pytest.raises(ConfigError, match=r"zzz is neither a file nor a preset; the presets are afl-cifar100.*digits"):
        load_config("zzz")


def test_a_file_is_read_like_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('seed = 7\n[scenario]\ntasks = [3, 2]\n[method]\nname = "icarl"\n')
    config = load_config(str(path), ["scenario.memory=5"])
    assert (config.seed, config.scenario.tasks, config.method_name, config.scenario.memory) == (7, (3, 2), "icarl", 5)


@pytest.mark.parametrize("content", [b"seed = \n", b"[scenario\n", b"\xff\xfe", b"seed = 1\nseed = 2\n"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"broken\.toml is not TOML"):
        read_document(str(path))


def test_a_date_in_a_file_is_refused_by_its_key(tmp_path: Path) -> None:
    path = tmp_path / "dated.toml"
    path.write_text("seed = 1979-05-27\n")
    with pytest.raises(ConfigError, match="seed"):
        load_config(str(path), ["scenario.memory=5"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-0.25", -0.25),
        ("1e-3", 0.001),
        ("true", True),
        ("[1, 2, 3]", [1, 2, 3]),
        ('"quoted text"', "quoted text"),
        ("plain text", "plain text"),
        ("shuffle-1993", "shuffle-1993"),
        ("a=b", "a=b"),
        ("", ""),
        (" 7 ", 7),
        ("{round = 1, clients = 2}", {"round": 1, "clients": 2}),
        ("1\nother = 2", "1\nother = 2"),
        ("[" * 100_000, "[" * 100_000),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_setting_is_a_toml_value_or_else_text(text: str, value: object) -> None:
    changed = apply_settings({"one": {"two": {"other": 0}}}, [f"one.two.three={text}"])
    assert changed == {"one": {"two": {"other": 0, "three": value}}}
    assert type(changed["one"]["two"]["three"]) is type(value)


def test_settings_make_tables_and_the_last_one_wins() -> None:
    original: dict[str, Any] = {"one": {"kept": 1}}
    assert apply_settings(original, ["a.b.c=1", "a.b.c=2", " one.kept =3"]) == {
        "a": {"b": {"c": 2}},
        "one": {"kept": 3},
    }
    assert original == {"one": {"kept": 1}}


@pytest.mark.parametrize("setting", ["seed", "=5", ".seed=5", "scenario..memory=5", "scenario.=5", ""])
def test_a_malformed_setting_shows_how_to_write_it(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"setting .*key\.path=value"):
        apply_settings({}, [setting])


def test_a_value_has_no_keys_below_it() -> None:
    assert "seed is a value, not a table" in refusal("seed.deep=1")


documents = st.recursive(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=3),
    lambda children: st.dictionaries(st.sampled_from("abc"), st.integers(0, 3) | children, max_size=3),
    max_leaves=6,
)


def flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in document.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return found


@given(documents, documents)
def test_differing_keys_are_empty_exactly_for_equal_documents(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert differing_keys(ours, ours) == []
    assert bool(differing_keys(ours, theirs)) == (flat(ours) != flat(theirs))


def test_differing_keys_are_dotted_and_show_both_values() -> None:
    ours = {"seed": 1, "scenario": {"memory": 5, "tasks": [1, 2]}, "same": {"x": 1}}
    theirs = {"seed": 2, "scenario": {"memory": 5, "tasks": [1, 3]}, "same": {"x": 1}, "extra": "yes"}
    assert differing_keys(ours, theirs) == [
        "extra (absent there, 'yes' here)",
        "scenario.tasks ([1, 2] there, [1, 3] here)",
        "seed (1 there, 2 here)",
    ]


def sections_within(annotation: Any) -> set[type[SettingsTable]]:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return {annotation} if issubclass(annotation, SettingsTable) else set()
    return {section for part in typing.get_args(annotation) for section in sections_within(part)}


def all_sections() -> list[type[SettingsTable]]:
    found: set[type[SettingsTable]] = set()
    waiting: set[type[SettingsTable]] = {Config, *(method.config for method in methods().values())}
    while waiting:
        section = waiting.pop()
        found.add(section)
        for field in section.model_fields.values():
            waiting |= sections_within(field.annotation) - found
    return sorted(found, key=lambda section: section.__name__)


def test_the_sections_are_all_found() -> None:
    names = {section.__name__ for section in all_sections()}
    assert {"ScenarioConfig", "TrainConfig", "AugmentConfig", "Milestone", "Event", "GLFCConfig"} <= names
    assert Event in all_sections()


@for_each(all_sections())
def test_every_field_says_what_it_is(section: type[SettingsTable]) -> None:
    assert section.__doc__
    for name in section.settings():
        field = section.model_fields[name]
        if section is Config and (sections_within(field.annotation) or name.startswith("method_")):
            continue
        assert field.description, f"{section.__name__}.{name}"


@for_each(all_sections())
def test_every_section_refuses_unknown_keys_and_cannot_be_changed(section: type[SettingsTable]) -> None:
    assert section.model_config["extra"] == "forbid"
    assert section.model_config["frozen"]
