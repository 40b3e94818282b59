"""A server that was restored from a backup begins a new epoch, and its parties go on from where they are."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.consortium import SITES, Build, Consortium, Keyring

from fcil.core.errors import ConfigError, DamagedError, FederationError, FileError
from fcil.core.messages import RoundContext
from fcil.deployment import epoch as epochs
from fcil.deployment.epoch import check_epoch, new_epoch
from fcil.deployment.party_limits import PartyLimits
from fcil.deployment.server import audit_log, backup
from fcil.deployment.server.backup import KEYS, RUN, back_up
from fcil.deployment.transport.messages import Epoch, Terms, as_tensor
from fcil.federation.round_record import RoundRecord
from fcil.methods import Setting
from fcil.methods.glfc import GLFCConfig
from fcil.methods.proxy_role import PrototypeProxy, ProxyState
from fcil.methods.teachers import KeptModel


def play_to(made: Consortium, rounds: Iterator[RoundRecord], last: int) -> None:
    while made.rounds_played < last:
        next(rounds)


def server_keys(made: Consortium) -> Path:
    """Return a copy of the server's keys, to whose journal a test may add."""
    copy = made.place / "server"
    if not copy.exists():
        shutil.copytree(made.keys.place / "server", copy)
    return copy


FROZEN = "model.freeze=true"
MASKED = ("federation.aggregator=masked", "deployment.min_sites=3")


@pytest.mark.parametrize(
    ("method", "settings"),
    [("icarl", ()), ("glfc", ()), ("analytic", (FROZEN,)), ("icarl", MASKED), ("analytic", (FROZEN, *MASKED))],
)
def test_a_server_of_round_3_and_sites_of_round_6_go_on_together(
    build: Build, method: str, settings: tuple[str, ...]
) -> None:
    made = build(method, *settings, rounds=8)
    for name in SITES[:3]:
        made.add(name, "ant", *range(8))
        made.add(name, "bee", *range(6))
    rounds = made.rounds()
    play_to(made, rounds, 3)
    copy = made.place / "copy"
    assert back_up(made.place / "run", None, copy) == 3
    made.add("aachen", "cow", *range(8))  # a class that the backup does not know
    play_to(made, rounds, 6)
    before = {number: party.store.latest for number, party in made.parties.items()}
    assert made.run is not None
    made.run.close()
    shutil.rmtree(made.place / "run")
    shutil.copytree(copy / RUN, made.place / "run")
    made.serve()
    with suppress(FederationError):
        next(made.rounds())
    assert any("starts with --restored" in line for line in made.said[0])
    shutil.rmtree(made.place / "run")
    shutil.copytree(copy / RUN, made.place / "run")
    made.serve()
    begun = made.run.begin_epoch(server_keys(made))
    assert begun.round == 3
    made.server = made.run.serve(made.wire, made.warned.append)
    made.reopen("berlin")
    found = made.play()
    assert [record.round for record in found] == [4, 5, 6, 7, 8]
    masked = MASKED[0] in settings  # of three sites one announces its class again, and no sum has fewer than three
    assert [bool(record.not_applied) for record in found] == [masked, False, False, False, False]
    assert [record.failures for record in found[masked:]] == [[]] * (5 - masked)
    assert found[-1].classes == 3, "the site announces its class again"
    for number, party in made.parties.items():
        assert sum("was restored from a backup and goes on after round 3" in line for line in made.said[number]) == 1
        assert party.store.restores == 1
        assert before[number] is not None
    assert audit_log.entries(made.place / "server")[-1]["event"] == "restored"


def test_the_count_of_evaluations_goes_on_and_samples_stay(build: Build) -> None:
    made = build("icarl", "deployment.evaluate_every=1", rounds=5)
    for name in SITES[:3]:
        made.add(name, "ant", *range(8))
    rounds = made.rounds()
    play_to(made, rounds, 4)
    site = made.site("aachen")
    state, evaluated = site.store.latest, site.store.evaluated
    assert state is not None
    assert evaluated is not None
    site.begin_epoch(Epoch(7, 2, as_tensor(b""), as_tensor(b"")))
    kept = site.store.before(2)
    assert kept is not None
    assert torch.equal(site.role.in_use(kept.state), site.role.in_use(state.state))
    again = made.reopen("aachen").store
    assert (again.epoch, again.restores, again.begun_before(99)) == (7, 1, None)
    assert again.evaluated is not None
    assert (again.evaluated.round, again.evaluated.count) == (2, evaluated.count)


def terms(federation: str = "f", **changed: object) -> Terms:
    return Terms(federation, "", epoch=None if not changed else changed["epoch"])  # type: ignore[arg-type]


def test_an_epoch_needs_the_signature_of_the_federations_server(keyring: Keyring, tmp_path: Path) -> None:
    keys, authority = keyring.place / "server", keyring.place / "server" / "ca.crt"
    epoch = new_epoch("f", 3, None, keys)
    check_epoch(terms(epoch=epoch), 0, authority)
    forged = [
        (replace(epoch, round=2), "f"),
        (replace(epoch, began=epoch.began - 1), "f"),
        (replace(epoch, signature=as_tensor(b"x")), "f"),
        (replace(epoch, certificate=as_tensor(b"x")), "f"),
        (replace(epoch, certificate=as_tensor(authority.read_bytes())), "f"),
        (epoch, "another"),
    ]
    for one, federation in forged:
        with pytest.raises(FederationError, match="does not carry the signature"):
            check_epoch(terms(federation, epoch=one), 0, authority)
    for known, one, sentence in (
        (epoch.began + 1, epoch, "before the epoch that began"),
        (1, None, "starts with --restored"),
        (0, replace(epoch, began=int(time.time()) + 400), "in the future"),
        (0, replace(epoch, round=-1), "after round -1"),
    ):
        with pytest.raises(FederationError, match=sentence):
            check_epoch(terms(epoch=one), known, authority)


def test_a_clock_that_was_set_back_begins_no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    former = new_epoch("f", 3, None, None)
    monkeypatch.setattr(epochs.time, "time", lambda: former.began)
    with pytest.raises(ConfigError, match="set the clock"):
        new_epoch("f", 3, former, None)


def test_a_site_follows_as_often_as_its_owner_allows(build: Build) -> None:
    made = build("icarl", rounds=4)
    made.limits = PartyLimits(hold_out_images=1, restores=0)
    for name in SITES[:3]:
        made.add(name, "ant", *range(8))
        made.reopen(name)
    play_to(made, made.rounds(), 2)
    made.serve()
    assert made.run is not None
    made.run.begin_epoch(server_keys(made))
    made.server = made.run.serve(made.wire, made.warned.append)
    with pytest.raises(FederationError, match="0 of 2 sites connected"):
        next(made.rounds())
    assert "limit restores is 0" in made.warned[-2]


def test_a_proxy_offers_what_the_server_has(monkeypatch: pytest.MonkeyPatch) -> None:
    role = PrototypeProxy(GLFCConfig(), Setting(6, (1, 8, 8), None))
    kept = [KeptModel(digest, {}) for digest in ("one", "two")]
    state = ProxyState((2, 4), None, kept[0], kept[1], 0.5)
    same = RoundContext(7, ("a",) * 5, (2, 5), 1)
    assert role.offering(state, {"one", "two"}, same) == state
    assert role.offering(state, {"two"}, same) == replace(state, current=None, score=-1.0)
    for blocks in ((2,), (2, 3), (1, 4)):
        assert role.offering(state, {"one", "two"}, replace(same, blocks=blocks)) == ProxyState()


# --- backups ------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(build: Build) -> Consortium:
    made = build("icarl", rounds=4)
    for name in SITES[:3]:
        made.add(name, "ant", *range(8))
    return made


def test_a_backup_made_while_a_round_ends_is_consistent(made: Consortium, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = made.rounds()
    next(rounds)
    plain, run = backup._copy_file, made.place / "run"

    def slow(source: Path, to: Path) -> None:
        plain(source, to)
        if source.name == backup.FILE:
            next(rounds)  # a whole round between the checkpoint and its records

    monkeypatch.setattr(backup, "_copy_file", slow)
    copy = made.place / "copies" / "monday"
    assert back_up(run, made.keys.place / "server", copy) == 1
    assert (copy / RUN / "records.jsonl").read_bytes().count(b"\n") == 1
    assert (copy / KEYS / "server.key").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in copy.parent.iterdir()) == ["monday"]
    with pytest.raises(ConfigError, match="exists; name a new folder"):
        back_up(run, None, copy)


def test_a_backup_that_cannot_be_whole_leaves_nothing(made: Consortium, monkeypatch: pytest.MonkeyPatch) -> None:
    next(made.rounds())
    run, copy = made.place / "run", made.place / "copy"
    records = run / "records.jsonl"
    monkeypatch.setattr(backup, "PAUSE", 0.0)
    whole = records.read_bytes()
    records.write_bytes(whole.replace(b'"round"', b'"ruond"'))
    with pytest.raises(DamagedError, match="do not match"):
        back_up(run, None, copy)
    records.write_bytes(whole)
    monkeypatch.setattr(backup, "_copy_file", full)
    with pytest.raises(FileError, match="No space left"):
        back_up(run, None, copy)
    assert not list(made.place.glob("*copy*"))
    assert not list(made.place.glob(".*copy*"))


def full(source: Path, to: Path) -> None:
    raise OSError(28, "No space left on device", str(to))
