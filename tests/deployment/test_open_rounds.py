"""An open federation plays when there is something to learn; settings change while it runs; releases differ in age."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.consortium import Build, Consortium

from fcil.core.errors import ConfigError, StoppedError
from fcil.core.files import write_json
from fcil.deployment.server import idle, live_settings
from fcil.deployment.server.live_settings import LiveSettings, Schedule
from fcil.deployment.server.release_store import ReleaseStore
from fcil.deployment.transport.messages import NewsRequest, ReleaseRequest, TrainRequest
from fcil.experiment.config import DeploymentConfig

OPEN = ("deployment.rounds=open", "deployment.burst=3")


class Looks:
    """Stands for the pauses of an idle server: each one does the next act, and the last one interrupts it."""

    def __init__(self, made: Consortium, *acts: Any) -> None:
        self.made, self.acts, self.number = made, acts, 0

    def __call__(self, *_: object) -> None:
        if self.number == len(self.acts):
            raise StoppedError("interrupted")
        self.number += 1
        self.acts[self.number - 1]()


def played(made: Consortium, monkeypatch: pytest.MonkeyPatch, *acts: Any) -> list[int]:
    """Let an open federation run until all acts are done, and return its rounds before each look."""
    rounds: list[int] = []
    looks = Looks(made, *acts)
    monkeypatch.setattr(idle.Idling, "_pause", lambda *_: (rounds.append(made.rounds_played), looks()))
    with pytest.raises(StoppedError):
        for _ in made.rounds():
            pass
    return rounds


def stock(made: Consortium, site: str, name: str, count: int = 6) -> None:
    made.add(site, name, *range(count))


def test_rounds_follow_new_images_and_classes_and_nothing_else(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    made = build("icarl", *OPEN, "deployment.new_images=2", "deployment.release_every=0", sites=("aachen", "berlin"))
    acts = (
        lambda: stock(made, "aachen", "ant"),
        lambda: made.add("aachen", "ant", 50),  # one is below the threshold
        lambda: made.add("aachen", "ant", 51),
        lambda: stock(made, "berlin", "bee", 1),
        lambda: stock(made, "berlin", "bee", 6),
    )
    rounds = played(made, monkeypatch, *acts)
    assert rounds == [0, 4, 4, 7, 7, 11], "a burst after news, counted anew where a class was announced"
    assert [record.classes for record in made.journal] == [0, *[1] * 7, *[2] * 3]
    assert made.warned[0] == "nothing to learn after round 0: the federation waits for new images"
    assert "rounds go on: there are new images at aachen" in made.warned
    released = ReleaseStore(made.place / "run").entries
    assert [one.round for one in released] == [4, 7, 8, 11], "at the end of each burst and block"
    asked = len(made.wire.requests(NewsRequest))
    assert asked
    before = len(made.wire.sent)
    played(made, monkeypatch, lambda: None, lambda: None)
    idle_messages = made.wire.sent[before:]
    assert len(idle_messages) == len(made.wire.requests(NewsRequest)) - asked, "an idle look asks for news alone"
    assert all(len(one.content) < 10_000 and not one.parcels for one in idle_messages)


def test_a_new_site_a_pause_and_a_restart_are_heeded(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    made = build("icarl", *OPEN, "deployment.min_sites=2", sites=("aachen", "berlin"))
    stock(made, "aachen", "ant")

    def join() -> None:
        made.data("cork").mkdir(parents=True)
        stock(made, "cork", "ant")
        made.join("cork")

    assert played(made, monkeypatch, join, lambda: made.wire.away.update((0, 1))) == [4, 7, 7]
    made.wire.away.clear()
    stock(made, "berlin", "ant")
    with pytest.raises(StoppedError):
        for record in made.rounds():
            if record.round == 8:
                raise StoppedError("killed in the middle of a burst")
    made.serve()
    assert played(made, monkeypatch) == [10], "the rest of the burst"
    moments = iter(count(0, 40))
    monkeypatch.setattr(idle, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    live_settings.store(made.place / "run", {"every": 100.0})
    assert played(made, monkeypatch, lambda: None, lambda: None, lambda: None)[-1] == 13


def test_settings_change_between_rounds_and_an_open_federation_can_be_ended(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build("icarl", *OPEN, sites=("aachen", "berlin"))
    stock(made, "aachen", "ant")
    run = made.place / "run"
    monkeypatch.setattr(idle.Idling, "_pause", lambda *_: live_settings.store(run, {"rounds": 6, "burst": 2}))
    assert [record.round for record in made.rounds()] == [1, 2, 3, 4, 5, 6]
    assert made.run is not None
    assert made.run.finished
    assert made.server is not None
    assert made.server.evaluator.config.rounds == 6
    made.serve()
    assert any(one.startswith("changed in operation: deployment.rounds=6, deployment.burst=2") for one in made.warned)


def test_only_what_may_change_changes(tmp_path: Path) -> None:
    begun = DeploymentConfig()
    told: list[str] = []
    settings = LiveSettings(tmp_path, begun)
    settings.complain = told.append
    assert settings.now == begun
    live_settings.store(tmp_path, live_settings.wanted(tmp_path, begun, ["deployment.deadline=60.0"]))
    live_settings.store(tmp_path, live_settings.wanted(tmp_path, begun, ["deployment.rounds=open"]))
    assert (settings.now.deadline, settings.now.rounds) == (60.0, "open")
    for wrong, sentence in (
        ("deployment.image_size=64", "deployment.image_size: it cannot change while a federation runs"),
        ("train.epochs=3", "train: it cannot change while a federation runs; these can: deployment.rounds"),
        ("deployment.deadline=-1", "deployment.deadline: found -1, should be"),
        ("deployment.rounds=never", "deployment.rounds"),
        ("deployment.dead=1", "deployment.dead: it cannot change"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            live_settings.wanted(tmp_path, begun, [wrong])
    write_json(tmp_path / live_settings.FILE, {"deadline": "soon"})
    assert settings.now.deadline == 60.0
    assert told[0].startswith("the settings stay as they are: deployment.deadline: found 'soon'")
    (tmp_path / live_settings.SCHEDULE).write_text("{")
    assert Schedule(tmp_path).until == 0


def test_a_party_of_an_earlier_protocol_is_asked_for_what_it_knows_alone(build: Build) -> None:
    made = build("icarl", "deployment.release_every=1", rounds=3)
    for site in ("aachen", "berlin", "cork"):
        stock(made, site, "ant")
    handler = made.handler("aachen")

    def older(content: bytes, parcels: Any) -> bytes:
        assert b"ReleaseRequest" not in content[:400]
        return handler(content, parcels).replace(b"fcil protocol 4-5 ", b"fcil protocol 4-4 ", 1)

    made.wire.parties[0] = made.wire.parties[0][0], older
    records = made.play()
    assert [record.reports for record in records] == [0, 3, 3]
    assert [len(made.wire.requests(TrainRequest, number)) for number in (0, 1)] == [3, 3]
    assert made.wire.requests(ReleaseRequest, 0) == []
    assert len(made.wire.requests(ReleaseRequest, 1)) == 2
    assert made.warned == []


def test_an_open_server_that_starts_before_its_sites_says_whom_it_waits_for_and_begins_with_them(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build("icarl", *OPEN, "deployment.min_sites=2", sites=("aachen", "berlin"))
    stock(made, "aachen", "ant")
    made.wire.away.update((0, 1))
    pauses: list[float] = []

    def pause(_: object, state: object, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            made.wire.away.clear()
        if seconds == idle.LOOK:
            raise StoppedError("interrupted")

    monkeypatch.setattr(idle.Idling, "_pause", pause)
    with pytest.raises(StoppedError):
        list(made.rounds())
    assert made.rounds_played == 4
    assert pauses == [*[idle.PAUSE] * 3, idle.LOOK], "it does not let parties wait for the next look"
    waited = [one for one in made.warned if "the federation waits" in one]
    assert waited[0] == "too few parties after round 0: the federation waits: 0 of 2 sites connected"
    assert len(waited) == 2
