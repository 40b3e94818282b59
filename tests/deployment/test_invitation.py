"""Invitations, requests and sealed secrets: the way of a party into a federation, and attacks on each message."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command import fcil
from support.examples import examples

from fcil.core.errors import ConfigError, FcilError, FederationError
from fcil.core.files import read_json, seal_json
from fcil.deployment.invitation import Invitation
from fcil.deployment.keys.handover import keep, opened, sealed_lines
from fcil.deployment.keys.lines import find_lines
from fcil.deployment.keys.make import SiteKeys, make_proxy_keys, make_server_keys, make_site_keys, read_secret
from fcil.deployment.keys.request import JoinRequest, proxy_request, read_requests, site_request
from fcil.deployment.party_limits import PartyLimits
from fcil.deployment.server.roster import Roster

ADDRESS = "127.0.0.1:9000"
TERMS = "0123456789abcdef"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server that invites, two sites and a proxy, which no test changes."""
    place = tmp_path_factory.mktemp("invited")
    made = fcil("federation", "init", "digits", "--address", ADDRESS, "--keys", place / "server")
    assert made.returncode == 0, made.stderr
    for name in ("north", "south"):
        make_site_keys(place / name, name)
    make_proxy_keys(place / "proxy")
    return place


@pytest.fixture
def place(shared: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    shutil.copytree(shared, tmp_path / "place")
    return tmp_path / "place"


def requests(place: Path, terms: str = TERMS) -> list[JoinRequest]:
    return [*(site_request(place / name, terms) for name in ("north", "south")), proxy_request(place / "proxy", terms)]


def forge(path: Path, **changed: object) -> Path:
    """Write an invitation with other values, whose digest is right."""
    document = {key: value for key, value in read_json(path).items() if key != "digest"}
    other = path.with_name("forged.json")
    other.write_bytes(seal_json({**document, **changed}))
    return other


# --- the invitation -----------------------------------------------------------------------------------------------


def test_an_invitation_is_written_once_for_keys_and_terms_and_says_the_same_when_read(place: Path) -> None:
    found = Invitation.load(place / "server" / "invitation.json")
    again = fcil("federation", "init", "digits", "--address", ADDRESS, "--keys", place / "server")
    assert found.server == ADDRESS
    assert found.fingerprint in again.stdout
    assert Invitation.load(place / "server" / "invitation.json") == found
    assert found.terms.digest in found.words(PartyLimits())[0]
    other = fcil(
        "federation", "init", "digits", "--address", ADDRESS, "--keys", place / "server", "--set", "train.epochs=3"
    )
    assert found.fingerprint not in other.stdout


def test_a_changed_invitation_is_refused_unless_its_fingerprint_changes_too(place: Path) -> None:
    path = place / "server" / "invitation.json"
    first = Invitation.load(path)
    with pytest.raises(ConfigError, match="its fingerprint is not that of its content"):
        Invitation.load(forge(path, server="evil.example.org:9000"))
    make_server_keys(place / "evil", ["127.0.0.1"])
    evil = (place / "evil" / "ca.crt").read_text()
    with pytest.raises(ConfigError, match="fingerprint"):
        Invitation.load(forge(path, ca=evil))
    whole = Invitation("evil.example.org:9000", evil, first.terms)
    path.write_bytes(whole.document)
    assert Invitation.load(path).fingerprint != first.fingerprint


def test_an_invitation_that_is_something_else_is_refused_in_a_sentence(place: Path) -> None:
    path = place / "server" / "invitation.json"
    for changed in (
        {"fcil_invitation": 2},
        {"server": "no port"},
        {"server": "\x1b[2Jhost:9000"},
        {"ca": "no certificate"},
        {"rounds": "many"},
        {"recipe": None},
    ):
        with pytest.raises(ConfigError, match="is no invitation that"):
            Invitation.load(forge(path, **changed))
    path.write_bytes(b" " * (1 << 20))
    with pytest.raises(ConfigError, match="more than"):
        Invitation.load(path)


def test_terms_beyond_the_limits_of_a_site_are_refused_before_anything_is_written(place: Path) -> None:
    invitation = Invitation.load(place / "server" / "invitation.json")
    with pytest.raises(FederationError, match=r"train\.epochs: found"):
        invitation.words(PartyLimits(epochs=1))
    (place / "photos").mkdir()
    limits = place / "limits.toml"
    limits.write_text("epochs = 1\n")
    options = ["--name", "west", "--data", place / "photos", "--keys", place / "west", "--limits", limits]
    done = fcil("federation", "join", place / "server" / "invitation.json", *options, "--state", place / "state")
    assert done.returncode != 0
    assert "the server's terms are refused" in done.stderr
    assert not (place / "west").exists()


def test_an_invitation_nobody_accepts_makes_no_keys_and_one_of_another_server_does_not_replace_the_first(
    place: Path,
) -> None:
    (place / "photos").mkdir()
    options = ["--name", "west", "--data", place / "photos", "--keys", place / "west", "--state", place / "state"]
    path = place / "server" / "invitation.json"
    done = fcil("federation", "join", path, *options)
    assert (done.returncode, "nobody has accepted this invitation" in done.stderr) == (2, True)
    wrong = fcil("federation", "join", path, *options, "--accept", "abcd-efgh")
    assert (wrong.returncode, "the fingerprint of the invitation is" in wrong.stderr) == (2, True)
    assert not (place / "west").exists()
    invitation = Invitation.load(path)
    invitation.keep(place / "north", "site")
    assert invitation.is_kept(place / "north")
    make_server_keys(place / "other", ["127.0.0.1"])
    other = Invitation(ADDRESS, (place / "other" / "ca.crt").read_text(), invitation.terms)
    assert not other.is_kept(place / "north")
    with pytest.raises(ConfigError, match="the authority of another federation"):
        other.keep(place / "north", "site")
    assert SiteKeys.load.__doc__
    assert (place / "north" / "ca.crt").read_text() == invitation.authority


# --- the request --------------------------------------------------------------------------------------------------


def test_requests_are_found_in_a_mail_with_broken_and_quoted_lines(place: Path) -> None:
    lines = [request.line for request in requests(place)]
    mail = "Dear all,\n" + "".join(
        "> " + line[:70] + "\n> " + line[70:150] + "\n>> " + line[150:] + "\nregards\n" for line in lines
    )
    (place / "mail.txt").write_text(mail)
    assert {one.name for one in read_requests([str(place / "mail.txt"), lines[0]])} == {"north", "south", "proxy"}
    assert read_requests([lines[1]])[0].fingerprint == requests(place)[1].fingerprint


def test_a_request_with_any_field_of_another_is_refused(place: Path) -> None:
    north, south, proxy = requests(place)
    for own, other in ((north, south), (proxy, north)):
        for field, value in enumerate(other.fields[:-1]):
            fields = [*own.fields]
            if fields[field] == value:
                continue
            fields[field] = value
            with pytest.raises(ConfigError, match="is damaged"):
                read_requests([":".join(("fcil-request-1", *fields, "end"))])


@examples(60)
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=80), st.integers(0, 7))
def test_no_text_in_a_request_ends_in_anything_but_a_sentence(shared: Path, text: str, field: int) -> None:
    fields = [*site_request(shared / "north", TERMS).fields]
    fields[field : field + 1] = [text]
    try:
        read_requests([":".join(("fcil-request-1", *fields, "end"))])
    except FcilError as error:
        assert "\n" not in str(error).strip()


def test_two_requests_of_one_name_with_different_keys_are_refused_together(place: Path) -> None:
    make_site_keys(place / "false", "north")
    with pytest.raises(ConfigError, match="two requests of north"):
        read_requests([site_request(place / "false", TERMS).line, site_request(place / "north", TERMS).line])


def test_approval_registers_each_party_once_and_refuses_other_terms(place: Path) -> None:
    terms = Invitation.load(place / "server" / "invitation.json").terms.digest
    asked = place / "requests.txt"
    asked.write_text("\n".join(request.line for request in requests(place, terms)))
    alone = fcil("federation", "sites", "approve", asked, "--keys", place / "server")
    assert (alone.returncode, "nobody has compared" in alone.stderr) == (2, True)
    assert not Roster.load(place / "server").entries
    for words in ("is registered", "was registered already"):
        done = fcil("federation", "sites", "approve", asked, "--keys", place / "server", "--yes")
        assert done.stdout.count(words) == 3, done.stderr
    roster = Roster.load(place / "server")
    assert [entry.name for entry in roster.sites] == ["north", "south"]
    assert roster.proxy is not None
    stranger = requests(place)[0].line
    refused = fcil("federation", "sites", "approve", stranger, "--keys", place / "server", "--yes")
    assert (refused.returncode, "has accepted the terms" in refused.stderr) == (2, True)


# --- the secret ---------------------------------------------------------------------------------------------------


def test_a_sealed_secret_opens_at_its_party_alone_with_the_key_of_the_proxy(place: Path) -> None:
    lines = sealed_lines(place / "north", requests(place))
    assert set(lines) == {"south", "proxy"}
    everything = "\n".join(lines.values())
    secret = read_secret(place / "north" / "consortium.secret")
    assert secret.value.hex() not in everything
    for name in lines:
        found = opened(place / name, everything, "LINE")
        assert found.secret == secret
        assert found.proxy == proxy_request(place / "proxy", TERMS).proxy
        keep(place / name, found)
        keep(place / name, found)  # a second time changes nothing
    assert (place / "south" / "consortium.secret").stat().st_mode & 0o77 == 0
    with pytest.raises(ConfigError, match="does not open"):
        opened(place / "south", lines["proxy"].replace("fcil-secret-1:proxy", "fcil-secret-1:south"), "LINE")
    with pytest.raises(ConfigError, match="no sealed secret is for north"):
        opened(place / "north", everything, "LINE")


def test_a_secret_that_is_there_is_never_replaced_by_a_received_one(place: Path) -> None:
    """Anybody can seal: the server's people, too, with a secret that they know."""
    first, second = (sealed_lines(place / name, requests(place)) for name in ("north", "proxy"))
    keep(place / "south", opened(place / "south", first["south"], "LINE"))
    other = opened(place / "south", second["south"], "LINE")
    with pytest.raises(ConfigError, match="is another one"):
        keep(place / "south", other)
    assert read_secret(place / "south" / "consortium.secret") == read_secret(place / "north" / "consortium.secret")


def test_the_server_gets_no_secret_and_a_person_compares_before_one_is_sealed_or_kept(place: Path) -> None:
    lines = [request.line for request in requests(place)]
    at_server = fcil("federation", "keys", "secret", "--out", place / "server", "--for", lines[0], "--yes")
    assert (at_server.returncode, "holds the keys of a server" in at_server.stderr) == (2, True)
    unseen = fcil("federation", "keys", "secret", "--out", place / "north", "--for", lines[1])
    assert (unseen.returncode, "nobody has compared" in unseen.stderr) == (2, True)
    assert not (place / "north" / "consortium.secret").exists()
    sealed = fcil("federation", "keys", "secret", "--out", place / "north", "--for", lines[1], "--yes")
    assert find_lines("fcil-secret-1", sealed.stdout.strip(), "LINE")
    closed = fcil("federation", "keys", "secret", "--out", place / "south", "--from", sealed.stdout.strip())
    assert (closed.returncode, "nobody has compared the secret" in closed.stderr) == (2, True)
    assert not (place / "south" / "consortium.secret").exists()
    kept = fcil("federation", "keys", "secret", "--out", place / "south", "--from", sealed.stdout.strip(), "--yes")
    assert kept.returncode == 0
    assert read_secret(place / "south" / "consortium.secret") == read_secret(place / "north" / "consortium.secret")
