from __future__ import annotations

import io
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

from rich.console import Console

from fcil.reporting.tables import headings, markdown, row
from fcil.reporting.terminal.report import (
    CURVES_FILE,
    Overview,
    Panel,
    as_markdown,
    curves_png,
    fitting,
    print_report,
    report_on,
)


def summary(method: str, accuracy: list[float], **fields: Any) -> dict[str, Any]:
    return {
        "method": method,
        "edition": "fcil",
        "seed": 2021,
        "accuracy": accuracy,
        "average": sum(accuracy) / len(accuracy) if accuracy else None,
        "accuracy_matrix": [accuracy[: task + 1] for task in range(len(accuracy))],
        "forgetting": 12.345,
        "backward_transfer": -5.0,
        "detection": {"hits": 3, "misses": 1, "false_alarms": 2, "mean_delay": 0.5},
        "bytes_up": 1_500_000,
        "bytes_down": 22_340_000,
        "failures": [{"client": 1}],
        "seconds": 61.7,
        **fields,
    }


TWO = [summary("glfc", [90.0, 75.25]), summary("finetune", [90.0, 40.0])]


def test_a_row_has_one_cell_a_heading() -> None:
    assert headings(2) == ["method", "task 1", "task 2", "average", "forgetting", "hits / misses / false"]
    assert row(TWO[0]) == ["glfc", "90.0", "75.2", "82.6", "12.3", "3 / 1 / 2"]


def test_what_a_run_does_not_have_is_a_dash() -> None:
    assert row(summary("glfc", [], forgetting=None)) == ["glfc", "-", "-", "3 / 1 / 2"]
    assert row(summary("glfc", [90.0], forgetting=None)) == ["glfc", "90.0", "90.0", "-", "3 / 1 / 2"]


def test_a_markdown_table_has_a_rule_under_its_headings() -> None:
    table = markdown(["method", "average"], [["glfc", "70.0"], ["icarl", "60.0"]])
    assert table.splitlines() == ["| method | average |", "|---|---|", "| glfc | 70.0 |", "| icarl | 60.0 |"]


def test_a_report_shows_every_run_its_figures_and_its_folder() -> None:
    text = as_markdown(report_on("Digits", TWO), [Path("runs/demo/glfc"), Path("runs/demo/finetune")])
    assert text.startswith("# Digits\n")
    assert "| glfc | 90.0 | 75.2 | 82.6 | 12.3 | 3 / 1 / 2 |" in text
    assert "| finetune | 90.0 | 40.0 | 65.0 | 12.3 | 3 / 1 / 2 |" in text
    assert f"({CURVES_FILE})" in text
    facts = "backward transfer -5.0, mean delay of alarms 0.5 rounds, 1.5 MB up, 22.3 MB down, 1 failures, 62 s"
    assert f"- `glfc/`: {facts}\n- `finetune/`: {facts}\n" in text


def lines(report: Overview) -> list[str]:
    console = Console(file=io.StringIO(), width=200)
    print_report(console, report)
    return [line.strip() for line in console.file.getvalue().splitlines()]


def test_the_terminal_shows_the_same_rows_and_of_one_run_its_matrix_facts_and_warnings() -> None:
    found = lines(report_on("Digits", TWO))
    assert found[0] == "Digits: accuracy (%) over all classes seen, after each task"
    assert found[2].split() == ["glfc", "90.0", "75.2", "82.6", "12.3", "3", "/", "1", "/", "2"]
    assert not any("backward transfer" in line for line in found)
    alone = lines(report_on("Digits", [summary("glfc", [90.0, 75.25], warnings=["a lower rate may help"])]))
    assert [line.split() for line in alone if line.startswith("i = ")] == [
        ["i", "=", "1", "90.0"],
        ["i", "=", "2", "90.0", "75.2"],
    ]
    assert alone[-2].startswith("backward transfer -5.0")
    assert alone[-1] == "warning: a lower rate may help"


def test_a_table_that_is_wider_than_the_screen_is_cut_between_columns_and_loses_none() -> None:
    tasks = [90.0 - task for task in range(20)]
    console = Console(file=io.StringIO(), width=72)
    print_report(console, report_on("Digits", [summary("glfc", tasks)]))
    shown = console.file.getvalue()
    assert max(map(len, shown.splitlines()[1:])) <= 72  # but for the title
    matrix = shown.index("accuracy (%) after task i")
    rows = [line.split() for line in shown[:matrix].splitlines() if line.startswith(" glfc")]
    assert len(rows) > 1
    assert [cell for row in rows for cell in row[1:]] == [
        *(f"{value:.1f}" for value in tasks),
        "80.5",
        "12.3",
        *"3/1/2",
    ]
    assert shown[:matrix].count("task") == 1 + 20  # once in the heading, and over each column
    assert shown[matrix:].count("i = 20") == len([line for line in shown.splitlines() if "i = 1 " in line]) > 1


def test_a_screen_too_narrow_for_two_columns_still_gets_them() -> None:
    panel = Panel("", ("method", "task 1", "task 2"), (("glfc", "90.0", "80.0"),))
    assert fitting(panel, 3) == [[0, 1], [0, 2]]
    assert fitting(panel, 24) == [[0, 1, 2]]
    assert fitting(panel, 23) == [[0, 1], [0, 2]]  # three columns of six, and two blanks each
    assert fitting(panel, 3, leading=2) == [[0, 1, 2]]


def test_a_run_that_has_not_come_as_far_has_dashes() -> None:
    table = report_on("Digits", [TWO[0], summary("icarl", [80.0], forgetting=None)]).tables[0]
    assert table.rows[1] == ("icarl", "80.0", "-", "80.0", "-", "3 / 1 / 2")


def png_chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Return a PNG's chunks after checking its signature and every checksum."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = [], 8
    while place < len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        body = data[place + 8 : place + 8 + length]
        assert struct.unpack_from(">I", data, place + 8 + length)[0] == zlib.crc32(kind + body)
        chunks.append((kind, body))
        place += 12 + length
    return chunks


def test_the_curves_are_a_whole_png_that_differs_with_the_figures() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of matplotlib's own imports
        import matplotlib.figure  # noqa: F401
    picture = curves_png(report_on("Digits", TWO))
    chunks = png_chunks(picture)
    assert [chunks[0][0], chunks[-1][0]] == [b"IHDR", b"IEND"]
    assert struct.unpack(">II", chunks[0][1][:8]) == (768, 480)
    assert curves_png(report_on("Digits", TWO)) == picture
    assert curves_png(report_on("Digits", [TWO[0], summary("finetune", [90.0, 60.0])])) != picture
