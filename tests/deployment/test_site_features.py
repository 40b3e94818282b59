"""Kept features of a site's images: in its state folder, for as long as the images."""

from __future__ import annotations

import stat

import pytest
from support.consortium import SITES, Build, Consortium

import fcil.models.frozen as frozen_module
from fcil.deployment.client.site import FEATURES


def kept(made: Consortium, name: str) -> set[str]:
    """Return the blocks that a site has features of."""
    return {path.name.partition("-")[0] for path in (made.state(name) / FEATURES).glob("*.block")}


def blocks(made: Consortium, name: str) -> set[str]:
    """Return the blocks of the images that a site still has."""
    samples = made.site(name).data.samples
    return {samples.blocks.digest(block) for block, _, _ in samples.blocks.parts(samples.held)}


def test_features_lie_in_the_state_folder_and_go_with_their_images(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen_module, "SMALLEST", 0)
    made = build("icarl", "model.freeze=true", "scenario.memory=2", rounds=6)
    seen: list[set[str]] = []

    def arrive(name: str, first: int) -> None:
        for site in SITES[:3]:
            made.add(site, name, *range(first + 100 * SITES.index(site), first + 100 * SITES.index(site) + 8))

    def look() -> None:
        seen.append(kept(made, "aachen"))
        made.reopen("aachen")

    records = made.play({0: lambda: arrive("ant", 0), 3: lambda: (look(), arrive("bee", 50))})
    assert [record.failures for record in records] == [[]] * 6
    assert [record.reports for record in records][-1] == 3
    folder = made.state("aachen") / FEATURES
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert seen[0]
    assert kept(made, "aachen")
    assert kept(made, "aachen") <= blocks(made, "aachen")
    assert not seen[0] <= kept(made, "aachen")  # most ants are gone
