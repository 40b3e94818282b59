from __future__ import annotations

import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

from fcil.results.report import CURVES_FILE, curves_png, report_text
from fcil.results.tables import headings, markdown, row


def summary(method: str, accuracy: list[float], **fields: Any) -> dict[str, Any]:
    return {
        "method": method,
        "preset": "fcil",
        "seed": 2021,
        "accuracy": accuracy,
        "average": sum(accuracy) / len(accuracy) if accuracy else None,
        "forgetting": 12.345,
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
    text = report_text("Digits", TWO, [Path("runs/demo/glfc"), Path("runs/demo/finetune")])
    assert text.startswith("# Digits\n")
    assert "| glfc | 90.0 | 75.2 | 82.6 | 12.3 | 3 / 1 / 2 |" in text
    assert "| finetune | 90.0 | 40.0 | 65.0 | 12.3 | 3 / 1 / 2 |" in text
    assert f"({CURVES_FILE})" in text
    assert "`glfc`, preset `fcil`, seed 2021: 62 s, 1.5 MB up, 22.3 MB down, 1 failures; all files in `glfc/`" in text
    assert "`finetune/`" in text


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
    picture = curves_png(TWO)
    chunks = png_chunks(picture)
    assert [chunks[0][0], chunks[-1][0]] == [b"IHDR", b"IEND"]
    assert struct.unpack(">II", chunks[0][1][:8]) == (768, 480)
    assert curves_png(TWO) == picture
    assert curves_png([TWO[0], summary("finetune", [90.0, 60.0])]) != picture
