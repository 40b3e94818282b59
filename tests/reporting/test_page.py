"""The report as data: what is gathered, what each section says, and what is refused."""

from __future__ import annotations

import colorsys
import json
import os
import re
import shutil
import struct
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.command import fcil
from support.pages import SMALL, small_run
from support.records import record

from fcil.core.errors import DamagedError
from fcil.core.toml import as_toml
from fcil.experiment.config import load_config
from fcil.experiment.journal import FILE as RECORDS_FILE
from fcil.experiment.journal import Journal
from fcil.experiment.result_file import write_kept
from fcil.reporting.colours import COLOURS, METHODS, looks
from fcil.reporting.curves import curves
from fcil.reporting.load_runs import kept_facts, load_runs, repeating, run_facts
from fcil.reporting.page import page, plotly_code
from fcil.reporting.page.accuracy import accuracy_section, printed
from fcil.reporting.page.classes import classes_section
from fcil.reporting.page.clients import GROUPS, memberships
from fcil.reporting.page.costs import costs_section
from fcil.reporting.page.detection import of_client
from fcil.reporting.page.html import Html, table, tag
from fcil.reporting.page.proxy import origins
from fcil.reporting.page.shell import TITLES
from fcil.reporting.page.tasks import tasks_section
from fcil.reporting.paper_figures import paper_figures

pytestmark = pytest.mark.xdist_group("pages")
KEPT = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("page") / "run")


def figure_of(body: str, key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        body.partition(f'<script type="application/json" data-for="{key}">')[2].partition("</script>")[0]
    )
    return found


def refused(*arguments: str | Path) -> str:
    ended = fcil(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    return ended.stderr


def test_text_is_escaped_and_html_is_not() -> None:
    assert tag("p", "<b>", tag("i", "&"), title='"') == '<p title="&quot;">&lt;b&gt;<i>&amp;</i></p>'
    assert tag("option", "all", value="", selected=False) == '<option value="">all</option>'
    assert "<td>&lt;</td>" in table(["x"], [["<"]])
    assert isinstance(tag("p"), Html)


def test_an_old_line_without_the_new_facts_is_read_and_shown(run: Path, tmp_path: Path) -> None:
    new = ("model", "teachers", "members", "entropies", "per_class", "attached")
    lines = [json.loads(line) for line in (run / RECORDS_FILE).read_text().splitlines()]
    old = [json.dumps({key: value for key, value in line.items() if key not in new}) + "\n" for line in lines]
    journal = Journal(tmp_path, [line.encode() for line in old])
    assert [one.correct for one in journal.records] == [line["correct"] for line in lines]
    facts = run_facts(run)
    bare = type(facts)("old", "simulation", facts.summary, facts.config, tuple(journal.records))
    text = page([bare], "old", b"")
    for what in ("figures by class", "members of groups", "entropies by client", "names of the models on offer"):
        assert f"This run has no {what}: only newer versions write them down." in text


def test_more_right_than_there_are_is_refused(tmp_path: Path) -> None:
    line = json.dumps({**record(0).__dict__, "per_class": {"0": [3, 2]}}).encode() + b"\n"
    with pytest.raises(DamagedError, match="line 1: per_class: more images are right than there are"):
        Journal(tmp_path, [line])


def test_a_teacher_comes_from_the_round_that_sent_it_or_from_the_end_of_a_block() -> None:
    records = [
        record(0, classes=2, model="a"),
        record(1, classes=2, model="b"),
        record(2, classes=4, model="c", teachers={"last": "z"}),  # averaged in round 1, and grown before it was sent
        record(3, classes=4, model="d", teachers={"current": "c", "last": "z"}),
        record(4, classes=6, model="e", teachers={"last": "z", "current": "y"}),
    ]
    assert origins(records) == [{}, {}, {"last": 2}, {"current": 2, "last": 2}, {"last": 2, "current": 4}]


def test_a_record_without_members_is_as_the_one_before() -> None:
    first, second = {"S_n": [0, 1]}, {"S_o": [1], "S_b": [0], "S_n": [2]}
    found = memberships((record(0, members=first), record(1), record(2, members=second)))
    assert found == [{0: "S_n", 1: "S_n"}, {0: "S_n", 1: "S_n"}, {1: "S_o", 0: "S_b", 2: "S_n"}]
    assert memberships((record(0),)) == memberships(()) == []


def test_detection_of_one_client_is_that_of_its_own_alarms() -> None:
    records = [record(0, arrivals=[0, 1], alarms=[0]), record(1, alarms=[1, 2])]
    assert [of_client(records, client)["hits"] for client in (0, 1, 2)] == [1, 1, 0]
    assert of_client(records, 1)["mean_delay"] == 1.0
    assert of_client(records, 2)["false_alarms"] == 1


def test_the_papers_row_is_drawn_where_the_experiment_is_the_same() -> None:
    facts = load_runs([KEPT / "digits" / "glfc-2021.json"])[0]
    assert printed(facts) is None
    classes = list(range(10, 101, 10))
    config = {**facts.config, "data": {"source": "cifar100"}, "scenario": {"memory": 2000}}
    summary = {**facts.summary, "accuracy": [50.0] * 10, "classes_seen": classes}
    same = type(facts)("x", "kept", summary, config)  # type: ignore[arg-type]
    row = printed(same)
    assert row is not None
    assert row.classes == tuple(classes)
    assert "as printed in the paper" in accuracy_section([same]).body
    begun = replace(same, summary={**summary, "accuracy": [50.0] * 2, "classes_seen": classes[:2]})  # type: ignore[arg-type]
    assert printed(begun) is None, "two tasks of ten classes each are not in the paper"
    ten = {**config, "scenario": {"memory": 2000, "tasks": 10}}
    assert printed(replace(begun, config=ten)) == row, "ten tasks, of which two are over, are"
    assert printed(type(facts)("x", "server", summary, config)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        ([], "fcil run digits --method glfc --seed 2021"),
        (["method.name=icarl", "seed=7"], "fcil run digits --method icarl --seed 7"),
        (["scenario.memory=20"], "fcil run digits --method glfc --seed 2021 --set scenario.memory=20"),
        (["method.edition=paper"], "fcil run digits --method glfc --seed 2021 --set method.edition=paper"),
        (
            ["scenario.joins=[{round = 1, clients = 2}]"],
            "fcil run digits --method glfc --seed 2021 --set 'scenario.joins=[{ round = 1, clients = 2 }]'",
        ),
    ],
)
def test_the_command_repeats_the_run(settings: list[str], command: str) -> None:
    assert repeating(load_config("digits", settings).document()) == command


def test_a_run_far_from_any_preset_is_repeated_by_its_file(run: Path, tmp_path: Path) -> None:
    facts = run_facts(run)
    assert facts.command == "fcil run run.toml  # the file below"
    path = tmp_path / "run.toml"
    path.write_text(facts.document)
    assert load_config(str(path)).document() == facts.config


def test_toml_is_what_its_reader_reads() -> None:
    document = {"a": 'x\n"\u00fc\x7f', "b": [1, {"c": True, "d": None}], "e": {"f": 1.5, "g h": {"i": []}}, "j": None}
    assert tomllib.loads(as_toml(document)) == {
        "a": 'x\n"\u00fc\x7f',
        "b": [1, {"c": True}],
        "e": {"f": 1.5, "g h": {"i": []}},
    }


@pytest.mark.parametrize("character", ["\N{HONEYBEE}", "\u007f", "\u2028", '"'])
def test_toml_takes_any_character(character: str) -> None:
    document = {character: {"description": character}}
    assert tomllib.loads(as_toml(document)) == document


def test_show_prints_all_that_is_known_as_json(run: Path) -> None:
    ended = fcil("show", run, "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    told = json.loads(ended.stdout)
    assert told["summary"]["method"] == "glfc"
    assert [line["round"] for line in told["records"]] == [1, 2, 3, 4] == [line["round"] for line in told["timings"]]
    assert [found["round"] for found in told["confusions"]] == [2, 4]
    assert told["prototypes"][0]["to_original"] > 0
    assert told["kind"] == "simulation"
    assert told["config"]["scenario"]["tasks"] == SMALL["scenario"]["tasks"]


def test_a_directory_of_kept_results_makes_one_page(tmp_path: Path) -> None:
    folder = KEPT / "tiny-lite"
    ended = fcil("report", folder, "--out", tmp_path / "page.html")
    assert ended.returncode == 0, ended.stderr
    text = (tmp_path / "page.html").read_text("utf-8")
    assert f"{len(list(folder.glob('*-20*.json')))} runs side by side" in text
    assert "A kept result has no figures by class; the directory of a run does." in text


def test_a_report_lies_beside_what_it_is_about(run: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    facts = run_facts(run)
    write_kept(kept, facts.config, facts.summary, {"processor": "any"})
    asked = fcil("report", kept)
    assert (asked.returncode, "nothing is written beside them; name --out FILE" in asked.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == [kept]
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    assert fcil("report", folder).stdout == f"report: {folder / 'report.html'}\n"
    assert fcil("resume", folder, "--quiet").returncode == 0


def test_directories_of_comparisons_are_gathered_and_each_number_of_tasks_has_a_panel(tmp_path: Path) -> None:
    shutil.copytree(KEPT / "cifar100-lite-t10", tmp_path / "runs" / "ten")
    (tmp_path / "runs" / "five").mkdir()
    for seed in (2021, 2022):
        shutil.copy(KEPT / "cifar100-lite" / f"glfc-{seed}.json", tmp_path / "runs" / "five")
    (tmp_path / "runs" / "five" / "sweep").mkdir()
    shutil.copy(KEPT / "digits" / "glfc-2021.json", tmp_path / "runs" / "five" / "sweep")
    found = load_runs([tmp_path / "runs"])
    ten = len(list((KEPT / "cifar100-lite-t10").glob("*-20*.json")))
    assert [run.planned_tasks for run in found] == [5] * 2 + [10] * ten, "what lies deeper is another matter"
    apart = [tmp_path / "runs" / name for name in ("five", "ten")]
    pictures = []
    for places in ([tmp_path / "runs"], apart):
        assert fcil("report", *places, "--figures", "--out", tmp_path / "out").returncode == 0
        pictures.append((tmp_path / "out" / "curves-cifar100.png").read_bytes())
    assert pictures[0] == pictures[1]
    width, _ = struct.unpack(">II", pictures[0][16:24])
    assert width == 7.0 * 300, "the width of a page: two panels"


def test_runs_of_one_name_are_told_apart_by_the_directory_around_them(tmp_path: Path) -> None:
    for folder, memory in (("small", 120), ("large", 240)):
        place = tmp_path / folder / "memory"
        place.parent.mkdir()
        shutil.copy(KEPT / "cifar100-lite" / "scenario.memory" / f"memory={memory}-2021.json", f"{place}-2021.json")
    shutil.copy(KEPT / "digits" / "glfc-2021.json", tmp_path / "small")
    found = load_runs([tmp_path / "small", tmp_path / "large"])
    assert [run.name for run in found] == ["glfc-2021", "small/memory-2021", "large/memory-2021"]
    labels = [curve.label for curve in curves(found)]
    assert len(set(labels)) == 3


def test_a_class_that_is_called_like_a_formula_has_its_prototype_drawn(run: Path) -> None:
    facts = run_facts(run)
    confusions = {place: replace(one, names=("a$x_$ b",) * len(one.names)) for place, one in facts.confusions.items()}
    assert "prototypes.png" in paper_figures([replace(facts, confusions=confusions)])


def test_a_directory_whose_name_is_no_text_has_a_report(run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / os.fsdecode(b"na\xff")))
    assert fcil("report", folder).returncode == 0
    assert (folder / "report.html").is_file()


def test_a_run_on_data_of_a_program_is_repeated_by_a_program() -> None:
    config = load_config("digits", ["data.source=python", "data.test_fraction=0.2"]).document()
    assert repeating(config).startswith('fcil.run("run.toml", data=...)')


def test_an_unfinished_run_says_so_and_a_finished_one_does_not(run: Path, tmp_path: Path) -> None:
    begun = run_facts(small_run(tmp_path / "run", rounds=1, method={"name": "finetune"}))
    said = "1 of 4 rounds are done; more may follow."
    assert (begun.planned_tasks, begun.planned_rounds, begun.is_under_way) == (2, 4, True)
    assert said in page([begun], "begun", b"")
    listed = replace(begun, config={**begun.config, "scenario": {"tasks": 2, "rounds_per_task": [2, 5]}})
    assert listed.planned_rounds == 7
    whole = run_facts(run)
    assert not whole.is_under_way
    assert "more may follow" not in page([whole], "whole", b"")
    served = replace(begun, kind="server", config={**begun.config, "deployment": {"rounds": 3}})
    assert (served.planned_tasks, served.planned_rounds, served.data) == (None, 3, "the sites' own")


def test_bytes_are_shown_by_phase_and_of_older_runs_by_direction(run: Path) -> None:
    facts = run_facts(run)
    text = costs_section(facts, "x").body
    assert all(f'"name":"{name}"' in text for name in ("announce, up", "train, down", "train, up", "proxy, up"))
    assert '"name":"announce, down"' not in text
    older = replace(facts, records=tuple(replace(record, traffic={}) for record in facts.records))
    assert all(f'"name":"{name}"' in costs_section(older, "x").body for name in ("down", "up"))


def test_a_phase_has_one_colour_whatever_other_phases_a_run_has(run: Path) -> None:
    facts = run_facts(run)

    def colours(left_out: str) -> dict[str, str]:
        timings = {
            number: {phase: value for phase, value in seconds.items() if phase != left_out}
            for number, seconds in facts.timings.items()
        }
        drawn = figure_of(costs_section(replace(facts, timings=timings), "x").body, "x-seconds")
        return {trace["name"]: trace["marker"]["color"] for trace in drawn["data"]}

    every = colours(left_out="")
    assert {"train", "aggregate"} <= every.keys()
    assert len(set(every.values())) == len(every)
    assert colours(left_out="announce") == {phase: colour for phase, colour in every.items() if phase != "announce"}


def test_a_method_has_the_same_colour_whatever_stands_beside_it() -> None:
    alone = looks({"icarl": "icarl"})["icarl"]
    every = looks({name: name for name in (*METHODS, "mine", "yours")})
    assert every["icarl"] == alone
    assert len(set(every.values())) == len(every)
    assert looks({"mine": "mine"})["mine"] == looks({"glfc": "glfc", "mine": "mine"})["mine"]
    twice = looks({"glfc (5 tasks)": "glfc", "glfc (10 tasks)": "glfc"})
    assert len(set(twice.values())) == 2
    many = looks({f"method {number}": f"method {number}" for number in range(100)})
    assert len(many) == 100


def test_no_two_colours_of_a_legend_are_orange() -> None:
    def is_orange(colour: str) -> bool:
        hue, saturation, value = colorsys.rgb_to_hsv(*(int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)))
        return 15 / 360 <= hue <= 50 / 360 and saturation > 0.4 and value > 0.4

    assert sum(map(is_orange, COLOURS)) == 1
    every = looks({name: name for name in (*METHODS, *(f"method {number}" for number in range(50)))})
    assert [label for label, look in every.items() if is_orange(look.colour)] == ["mosaic"]
    assert len(set(every.values())) == len(every)
    assert len({every[name].colour for name in METHODS}) == len(METHODS)
    assert not any(is_orange(colour) for _, colour in GROUPS.values())  # beside the orange of failures


def test_the_scale_of_the_accuracy_matrix_follows_its_values(run: Path) -> None:
    facts = run_facts(run)
    for matrix, ends in (([[71.4], [62.3, 80.2]], (62, 81)), ([[50.0]], (50, 51))):
        body = tasks_section(replace(facts, summary={**facts.summary, "accuracy_matrix": matrix}), "x").body
        (heat,) = figure_of(body, "x-matrix")["data"]
        assert (heat["zmin"], heat["zmax"]) == ends


def test_the_loss_is_drawn_over_the_rounds(run: Path) -> None:
    facts = run_facts(run)
    (line,) = figure_of(tasks_section(facts, "x").body, "x-loss")["data"]
    assert line["x"] == [1, 2, 3, 4]
    assert line["y"] == [record.loss for record in facts.records]
    silent = replace(facts, records=tuple(replace(record, loss=None) for record in facts.records))
    assert "x-loss" not in tasks_section(silent, "x").body


def test_long_names_of_classes_are_shortened_on_the_axes_and_whole_elsewhere(run: Path) -> None:
    facts = run_facts(run)
    named = {
        number: replace(found, names=tuple(f"{name} is a class with a very long name" for name in found.names))
        for number, found in facts.confusions.items()
    }
    body = classes_section(replace(facts, confusions=named), "x").body
    for key, sides in (("x-bars", ("xaxis",)), ("x-confusion", ("xaxis", "yaxis"))):
        drawn = figure_of(body, key)
        for side in sides:
            axis = drawn["layout"][side]
            assert axis["tickvals"] == drawn["data"][0]["x"]
            assert axis["tickvals"][0] == "0 is a class with a very long name"
            assert axis["ticktext"][0] == "0 is a class with…"
    assert "tickvals" not in figure_of(classes_section(facts, "x").body, "x-bars")["layout"]["xaxis"]


def test_the_menu_names_no_section_that_a_run_lacks(run: Path) -> None:
    whole, kept = run_facts(run), kept_facts(KEPT / "digits" / "glfc-2021.json")
    links = {facts.name: re.findall(r'<a href="#run0-(\w+)">', page([facts], "title", b"")) for facts in (whole, kept)}
    assert links[whole.name] == [key for key in TITLES if key != "sites"], "only a server has sites"
    assert links[kept.name] == ["tasks", "detection", "settings"]
    text = page([kept], "title", b"")
    assert text.count("A kept result has no") >= 4
    assert all(f'id="run0-{key}"' in text for key in ("tasks", "detection", "settings", "absent"))


def test_a_task_that_became_better_has_gained_and_nothing_of_it_is_forgotten(run: Path) -> None:
    facts = run_facts(run)
    matrix = [[50.0], [40.0, 90.0], [80.0, 60.0, 70.0]]  # 80 - 50 gained, 90 - 60 forgotten
    body = tasks_section(replace(facts, summary={**facts.summary, "accuracy_matrix": matrix}), "x").body
    drawn = json.loads(body.partition('data-for="x-forgetting">')[2].partition("</script>")[0])
    assert {bar["name"]: bar["y"] for bar in drawn["data"]} == {
        "kept at the end": [50.0, 60.0],
        "forgotten": [0.0, 30.0],
        "gained at the end": [30.0, 0.0],
    }


def test_accuracy_is_drawn_round_by_round_where_it_was_measured(run: Path) -> None:
    facts = run_facts(run)
    assert "Round by round" not in tasks_section(facts, "x").body
    often = tuple(replace(record, correct=[1], total=[4]) for record in facts.records[:1]) + facts.records[1:]
    body = tasks_section(replace(facts, records=often), "x").body
    assert '"name":"all classes seen","x":[1,2,4],"y":[25.0,' in body


def test_bad_places_are_refused_in_a_sentence_and_leave_nothing(run: Path, tmp_path: Path) -> None:
    assert "does not exist" in refused("report", tmp_path / "none")
    assert "holds no run" in refused("report", tmp_path)
    assert "it is a directory; name a file" in refused("report", run, "--out", tmp_path)
    assert "does not exist; make it" in refused("report", run, "--out", tmp_path / "no" / "page.html")
    (tmp_path / "file").write_text("x")
    assert "is damaged" in refused("report", tmp_path / "file")
    assert "it is a file; name a directory" in refused("report", run, "--figures", "--out", tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_damaged_result_among_others_is_named(tmp_path: Path) -> None:
    (tmp_path / "glfc-2021.json").write_text("{")
    (tmp_path / "notes.json").write_text("{")
    assert "glfc-2021.json is damaged" in refused("report", tmp_path)


def test_without_plotly_a_sentence_names_the_extra(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert "install fcil with its extra `report`" in refused("report", run, "--out", tmp_path / "page.html")


def test_plotly_comes_with_its_package() -> None:
    pytest.importorskip("plotly", reason="plotly is not installed")
    assert b"plotly.js" in plotly_code()[:200]


def test_figures_like_the_papers(run: Path, tmp_path: Path) -> None:
    ended = fcil("report", run, "--figures", "--out", tmp_path)
    assert ended.returncode == 0, ended.stderr
    names = ["curves-digits.png", "curves-digits.svg", "prototypes.png", "prototypes.svg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for name in names:
        begin = (tmp_path / name).read_bytes()[:200]
        assert begin.startswith(b"\x89PNG") if name.endswith("png") else b"<?xml" in begin
    before = {name: (tmp_path / name).read_bytes() for name in names}
    assert fcil("report", run, "--figures", "--out", tmp_path).returncode == 0
    assert before == {name: (tmp_path / name).read_bytes() for name in names}


def test_a_run_without_a_task_has_no_figures_and_a_page_of_notes(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run", rounds=1, method={"name": "finetune"})
    assert "neither accuracy nor prototypes" in refused("report", folder, "--figures")
    assert not (folder / "figures").exists()
    assert "No accuracy has been measured yet." in page([run_facts(folder)], "early", b"")


@pytest.mark.parametrize(
    "config", [{"scenario": 7}, {"method": {"name": "glfc", "detector": []}}, {"description": [1]}]
)
def test_a_configuration_of_another_hand_makes_a_page_all_the_same(run: Path, config: dict[str, Any]) -> None:
    facts = run_facts(run)
    odd = replace(facts, config={**facts.config, **config})
    assert "<main>" in page([odd], "odd", b"")
