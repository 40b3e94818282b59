"""Releases: frozen when due, told to every site once, never forged or half swapped, kept back when worse."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.consortium import Build, Consortium

from fcil.core.errors import ConfigError
from fcil.core.messages import model_digest
from fcil.deployment.client import releases as site_releases
from fcil.deployment.server import audit_log, release_store
from fcil.deployment.server.release_store import ReleaseEntry, ReleaseStore
from fcil.deployment.transport.messages import (
    Answer,
    EvaluationResult,
    ReleaseHeld,
    ReleaseRequest,
    decode_message,
    encode_message,
    encode_model,
)
from fcil.experiment.model_file import load_model, model_file, stored_model


def stocked(made: Consortium, name: str = "ant", count: int = 6) -> Consortium:
    for place, site in enumerate(("aachen", "berlin", "cork")):
        made.add(site, name, *range(100 * place, 100 * place + count))
    return made


def store(made: Consortium) -> ReleaseStore:
    return ReleaseStore(made.place / "run")


def current(made: Consortium, site: str = "aachen") -> dict[str, object]:
    return json.loads((made.state(site) / "releases/current/release.json").read_text())


def test_a_block_that_ends_a_round_that_is_due_and_an_operators_wish_make_releases(build: Build) -> None:
    made = stocked(build(rounds=6))
    records = made.play({2: lambda: store(made).ask(), 4: lambda: stocked(made, "bee")})
    assert [record.classes for record in records] == [0, 1, 1, 1, 1, 2]
    assert made.run is not None
    entries = store(made).entries
    assert [(one.number, one.round, len(one.catalogue)) for one in entries] == [(1, 3, 1), (2, 5, 1), (3, 6, 2)]
    assert [one.previous for one in entries] == ["", entries[0].digest, entries[1].digest]
    assert entries[-1].records == made.run.journal.digest
    assert entries[-1].per_class == records[-1].per_class
    assert entries[-1].accuracy == pytest.approx(100 * sum(records[-1].correct) / sum(records[-1].total))
    assert not store(made).asked
    noted = [entry for entry in audit_log.entries(made.run.folder) if entry["event"] == "released"]
    assert [entry["digest"] for entry in noted] == [one.digest for one in entries]
    again = stocked(build("icarl", "deployment.release_every=2", rounds=5))
    again.play()
    assert [one.round for one in store(again).entries] == [2, 4, 5]


def test_sites_get_the_current_release_once_and_name_the_classes_that_they_know(build: Build) -> None:
    made = stocked(build(rounds=4))
    made.add("cork", "cow", *range(6))
    acts = {2: lambda: made.wire.away.add(0), 3: made.wire.away.clear}
    made.play(acts)
    choice = store(made).choice
    assert choice is not None
    assert [one.round for one in store(made).entries] == [4]
    model = stored_model(made.place / "run/releases/current/model.safetensors")
    for site, names in (("aachen", {"ant"}), ("berlin", {"ant"}), ("cork", {"ant", "cow"})):
        folder = made.state(site)
        assert current(made, site)["since"] == choice.since
        assert model_file(folder).parent.name == f"0001-{choice.since}"
        predictor = load_model(folder)
        assert names <= set(predictor.class_names)
        assert len(predictor.class_names) == 2
        assert model_digest(stored_model(model_file(folder))) == model_digest(model)
    assert len(made.wire.requests(ReleaseRequest)) == 3
    assert not any(one.parcels for one in made.wire.sent[-3:]), "the model was there from its evaluation"


def test_a_site_that_was_away_or_refused_gets_the_release_when_it_can(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stocked(build("icarl", "deployment.release_every=2", rounds=5))
    full = {"on": True}
    real = site_releases.write_folder

    def write(path: Path, files: dict[str, bytes]) -> None:
        if full["on"] and "berlin" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, files)

    monkeypatch.setattr(site_releases, "write_folder", write)
    acts = {1: lambda: made.wire.away.add(2), 2: lambda: full.update(on=False), 3: made.wire.away.clear}
    held: list[tuple[bool, bool]] = []
    for number, _ in enumerate(made.rounds(), 1):
        held.append(tuple((made.state(site) / "releases/current").exists() for site in ("berlin", "cork")))  # type: ignore[arg-type]
        acts.get(number, lambda: None)()
    assert held == [(False, False), (False, False), (True, False), (True, True), (True, True)]
    assert [one for one in made.warned if "release" in one] == [
        "site berlin does not take release 1: it refuses: this party's disk is full; it goes on once there is room"
    ]
    assert not list((made.state("berlin") / "releases").glob(".*")), "nothing half-written"
    assert [path.name[:4] for path in sorted((made.state("berlin") / "releases").glob("[0-9]*"))] == ["0002", "0003"]


def test_a_worse_release_is_kept_back_and_an_operator_may_choose_any(build: Build) -> None:
    settings = ("deployment.release_every=2", "deployment.release_margin=10", "federation.max_drop=100")
    made = stocked(build("icarl", *settings, rounds=6))

    def spoil(answer: object) -> EvaluationResult | None:
        return EvaluationResult(answer.right * 0, answer.total) if isinstance(answer, EvaluationResult) else None

    def choose() -> None:
        (kept,) = (one for one in store(made).entries if one.kept_back)
        assert (kept.number, store(made).choice.number) == (2, 1)  # type: ignore[union-attr]
        assert "its accuracy is 0.0 %" in kept.kept_back
        assert current(made)["number"] == 1
        made.wire.tampered.clear()
        store(made).choose(2)

    seen: list[object] = []
    acts = {3: lambda: made.wire.tampered.update(dict.fromkeys(range(3), spoil)), 4: choose}
    acts[5] = lambda: seen.append(current(made)["number"])
    made.play(acts)
    assert seen == [2], "sites follow the choice after the next round"
    assert current(made)["number"] == 3
    assert any("release 2, round 4, accuracy 0.0 %" in one and "rollback 2" in one for one in made.warned)
    assert made.run is not None
    assert [one["event"] for one in audit_log.entries(made.run.folder)] == ["released", "kept back", "released"]
    with pytest.raises(ConfigError, match="there are 1, 2, 3"):
        store(made).entry(9)


def test_no_site_takes_a_forged_a_late_or_a_repeated_release(build: Build) -> None:
    made = stocked(build("icarl", "deployment.release_every=2", rounds=4))
    made.play()
    handler = made.handler("aachen")
    last = made.wire.requests(ReleaseRequest, 0)[-1]
    before = current(made)

    def answer(request: ReleaseRequest, model: dict[str, torch.Tensor] | None = None) -> str:
        parcels = {request.release.model: encode_model(request.release.model, model)} if model else {}
        handler(encode_message(request), parcels)
        return made.said[0][-1]

    late = made.wire.requests(ReleaseRequest, 0)[0]
    known = len(made.said[0])
    for request in (last, late):
        content = decode_message(handler(encode_message(request), {}), Answer, 1 << 20).content
        assert content == ReleaseHeld(int(str(before["since"])))
    assert len(made.said[0]) == known, "nothing is said of either"
    forged = remade(last, model="0" * 32)
    model = stored_model(made.place / "run/releases/current/model.safetensors")
    assert "is not the one with the digest" in answer(forged, model)
    narrow = {**model, "head.weight": model["head.weight"][:0], "head.bias": model["head.bias"][:0]}
    assert "does not have an output for each" in answer(remade(last, model=model_digest(narrow)), narrow)
    broken = {**model, "head.weight": model["head.weight"] * torch.nan}
    assert "is not finite" in answer(remade(last, model=model_digest(broken)), broken)
    other = remade(last, catalogue=tuple("f" * len(one) for one in last.release.catalogue))
    assert "are not those of the rounds so far" in answer(other)
    assert current(made) == before
    assert "does not follow release 2" not in "".join(made.said[0])
    answer(remade(last, records="another history"))
    assert any("does not follow release 2, which this site has" in line for line in made.said[0])


def remade(request: ReleaseRequest, **changed: object) -> ReleaseRequest:
    return replace(request, release=replace(request.release, **changed), since=request.since + 1)  # type: ignore[arg-type]


def test_a_release_survives_a_kill_between_any_two_writes(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    for moment in ("write_folder", "write_json", "point_to"):
        made = stocked(build("icarl", "deployment.release_every=2", rounds=3))

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(release_store, moment, killed)
            made.play()
        made.serve()
        assert store(made).entries == [] or moment != "write_folder"
        assert len(list(made.rounds())) == 1
        assert [one.round for one in store(made).entries] == [2, 3], moment
        assert current(made)["number"] == store(made).choice.number == 2  # type: ignore[union-attr]
        assert (made.place / "run/releases/current").readlink() == Path("0002")


def test_the_disk_of_a_server_may_be_full_when_a_release_is_due(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stocked(build("icarl", "deployment.release_every=2", rounds=4))
    with monkeypatch.context() as patch:
        patch.setattr("fcil.core.files.shutil.rmtree", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full")))
        for number, _ in enumerate(made.rounds(), 1):
            if number == 2:
                patch.undo()
    assert [one.round for one in store(made).entries] == [3, 4]
    assert any(one.startswith("no release after round 2: ") for one in made.warned)


def test_old_models_go_and_their_entries_and_the_current_one_stay(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_store, "KEPT", 2)
    made = stocked(build("icarl", "deployment.release_every=1", rounds=6))
    made.play({3: lambda: store(made).choose(1)})
    assert [one.number for one in store(made).entries] == [1, 2, 3, 4, 5]
    with pytest.raises(ConfigError, match="release 3: its model is gone"):
        store(made).choose(3)
    assert store(made).choose(4).number == 4


def test_each_choice_is_later_than_the_one_before_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ReleaseStore(tmp_path)
    for number in (1, 2):
        entry = ReleaseEntry(
            number=number, federation="f", round=number, model="m", catalogue=("a",), records="r", previous="", made=0
        )
        kept.add(entry, b"model")
    clock = iter((2000, 2000, 1000))
    monkeypatch.setattr(release_store.time, "time", lambda: next(clock))
    assert [kept.choose(number).since for number in (1, 2, 1)] == [2000, 2001, 2002]
    assert kept.choice == release_store.CurrentRelease(number=1, since=2002)
    assert (kept.folder / "current").readlink() == Path("0001")
    assert str(kept.entry(2)) == "release 2, round 2, accuracy not measured"
