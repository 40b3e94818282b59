"""Who holds what, asked by a program before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.beasts import CONFIG, samples

import fcil
from fcil.core.errors import ConfigError

PNG = b"\x89PNG\r\n\x1a\n"


def test_the_ledger_counts_what_each_client_holds_of_the_program_s_data() -> None:
    found = fcil.holdings(CONFIG, data=samples(), settings=["scenario.class_fraction=1.0", "scenario.both_share=1.0"])
    assert isinstance(found, fcil.Holdings)
    assert found.source.class_names == ("ant", "bee", "cow", "dog")
    assert [task.classes for task in found.ledger.tasks] == [(0, 1), (2, 3)]
    # a quarter of the eight images of each class is held out, and a shared split gives every client the rest
    assert [[holding.samples for holding in row.holdings] for row in found.ledger.clients] == [
        [{0: 6, 1: 6}, {2: 6, 3: 6}]
    ] * 2
    assert sum(row.drawn for row in found.ledger.clients) == 4


def test_a_round_of_a_preset_is_shown_and_its_picture_saved(tmp_path: Path) -> None:
    found = fcil.holdings("digits", seed=5, round=1)
    assert (found.round, found.config.seed, len(found.ledger.tasks)) == (1, 5, 1)
    found.save(tmp_path / "who.png")
    assert found._repr_png_()[:8] == (tmp_path / "who.png").read_bytes()[:8] == PNG
    with pytest.raises(ConfigError, match=r"who\.jpg: the picture is a PNG; name a file that ends in \.png"):
        found.save(tmp_path / "who.jpg")


def test_what_is_odd_is_said_and_what_cannot_be_refused() -> None:
    odd = fcil.holdings(CONFIG, data=samples(), settings=["scenario.participants=9"])
    assert any("participants" in warning for warning in odd.warnings)
    with pytest.raises(ConfigError, match="round 3 is out of range \\(1 to 2\\)"):
        fcil.holdings(CONFIG, data=samples(), round=3)
