"""A folder becomes a class if it is one, has enough images, and a person agrees where that is asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.command import fcil
from support.folders import age

from fcil.core.errors import ConfigError
from fcil.deployment.client.class_consent import ClassConsent, approve, approved
from fcil.deployment.client.image_folder import SiteData

SHAPE = (1, 4, 4)
NONE = torch.empty(0, dtype=torch.int64)


def fill(folder: Path, count: int, seed: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = np.random.default_rng([seed, number]).integers(0, 255, SHAPE[1:], dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{seed}-{number}.png")
        age(folder / f"{seed}-{number}.png", 60)


def opened(place: Path, consent: ClassConsent) -> SiteData:
    return SiteData.open(place / "state", place / "data", SHAPE, str.lower, 0.0, consent)


def test_a_link_to_the_folder_itself_is_no_class_and_links_out_of_it_are_not_followed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data / "ant", 2)
    fill(tmp_path / "private", 2, seed=1)
    (data / "all").symlink_to(".")
    (data / "bee").symlink_to(tmp_path / "private")
    (data / "ant" / "out.png").symlink_to(tmp_path / "private" / "1-0.png")
    (data / "ant" / "again.png").symlink_to("0-0.png")
    site = opened(tmp_path, ClassConsent())
    assert len(site.freeze(0, NONE)) == 2
    assert site.class_names == ("ant",)
    warnings = site.drain_warnings()
    assert sum("it is a link, and a class needs a folder of its own" in line for line in warnings) == 2
    assert sum("it is a link out of the site's folder" in line for line in warnings) == 1


def test_a_class_waits_for_enough_images_and_then_takes_all_of_them(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data / "ant", 5)
    fill(data / "bee", 4, seed=1)
    site = opened(tmp_path, ClassConsent(least=5))
    assert len(site.freeze(0, NONE)) == 5
    assert site.class_names == ("ant",)
    (line,) = site.drain_warnings()
    assert line.endswith("bee is no class yet: it has 4 of the 5 images that --least-images asks for")
    assert len(site.freeze(1, NONE)) == 5
    assert site.drain_warnings() == (), "it is said once"
    fill(data / "bee", 1, seed=2)
    fill(data / "ant", 1, seed=3)  # a class that is known takes any number
    site.freeze(2, NONE)
    assert (site.class_names, site.samples.ids) == (("ant", "bee"), ("ant", "bee"))
    assert len(site.samples) == 11


def test_a_class_needs_its_line_in_the_file_which_a_running_site_reads_again(tmp_path: Path) -> None:
    fill(tmp_path / "data" / "ant", 2)
    fill(tmp_path / "data" / "bee", 2, seed=1)
    file = tmp_path / "classes.txt"
    file.write_text("ant\n")
    site = opened(tmp_path, ClassConsent(1, file))
    site.freeze(0, NONE)
    assert site.class_names == ("ant",)
    (line,) = site.drain_warnings()
    assert f"`fcil federation classes approve bee --classes {file}` does" in line
    done = fcil("federation", "classes", "approve", "bee", "--classes", file)
    assert (done.returncode, done.stdout) == (0, f"bee is approved in {file}\n")
    assert approved(file) == ["ant", "bee"]
    site.freeze(1, NONE)
    assert site.class_names == ("ant", "bee")


def test_a_missing_file_approves_nothing_and_odd_names_are_refused(tmp_path: Path) -> None:
    assert not ClassConsent(1, tmp_path / "none").allows("ant")
    for name in ("", " ", "a/b", "a\nb"):
        with pytest.raises(ConfigError, match="is no name of a class"):
            approve(tmp_path / "none", name)
    assert not (tmp_path / "none").exists()
    assert approve(tmp_path / "some", " ant ")
    assert not approve(tmp_path / "some", "ant")
