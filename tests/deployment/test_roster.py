"""Who is registered with a server."""

from __future__ import annotations

import base64
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from fcil.core.errors import ConfigError, DamagedError, FcilError
from fcil.core.files import read_json, write_json
from fcil.deployment.keys.make import make_proxy_keys, make_site_keys
from fcil.deployment.keys.ssh import read_public_key
from fcil.deployment.server.roster import Roster

SITES = ("berlin", "paris", "rome")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("keys")
    for name in SITES:
        make_site_keys(place / name, name)
    make_proxy_keys(place / "proxy")
    return place


@pytest.fixture
def roster(keys: Path, tmp_path: Path) -> Roster:
    """Berlin, Paris and the proxy."""
    roster = Roster.load(tmp_path)
    roster.add(keys / "berlin" / "site.pub")
    roster.add(keys / "paris" / "site.pub")
    roster.add(keys / "proxy" / "node.pub", role="proxy")
    return roster


def test_whoever_was_added_is_there_when_it_is_read_again(keys: Path, roster: Roster) -> None:
    again = Roster.load(roster.folder)
    assert again.entries == roster.entries
    assert [(entry.number, entry.name, entry.role) for entry in again.entries] == [
        (0, "berlin", "site"),
        (1, "paris", "site"),
        (2, "proxy", "proxy"),
    ]
    assert again.entries[0].public_key == read_public_key(keys / "berlin" / "site.pub").text
    assert again.entries[0].fingerprint == read_public_key(keys / "berlin" / "site.pub").fingerprint
    assert [entry.name for entry in again.sites] == ["berlin", "paris"]
    assert again.proxy == again.entries[2]


def test_nobody_is_registered_at_first(tmp_path: Path) -> None:
    roster = Roster.load(tmp_path)
    assert (roster.entries, roster.sites, roster.proxy) == ((), (), None)
    with pytest.raises(
        ConfigError, match="nowhere is no folder of a server's keys; make one with `fcil federation keys server"
    ):
        Roster.load(tmp_path / "nowhere")


def test_a_number_is_never_used_again(keys: Path, roster: Roster) -> None:
    assert roster.remove("paris").number == 1
    assert [entry.name for entry in roster.sites] == ["berlin"]
    assert roster.add(keys / "rome" / "site.pub", name="paris").number == 3
    assert [(entry.number, entry.removed) for entry in Roster.load(roster.folder).entries] == [
        (0, False),
        (1, True),
        (2, False),
        (3, False),
    ]


def test_a_removed_proxy_makes_room_for_another(keys: Path, roster: Roster, tmp_path: Path) -> None:
    make_proxy_keys(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"there is a proxy already \(SHA256:.*remove it first"):
        roster.add(tmp_path / "other" / "node.pub", role="proxy")
    roster.remove("proxy")
    assert roster.add(tmp_path / "other" / "node.pub", role="proxy").number == 3


def test_a_name_is_taken_once(keys: Path, roster: Roster) -> None:
    for name in ("berlin", "BERLIN"):
        with pytest.raises(
            ConfigError, match="a site named berlin is registered already; give this one another --name"
        ):
            roster.add(keys / "rome" / "site.pub", name=name)
    assert len(Roster.load(roster.folder).entries) == 3


def test_a_key_is_taken_once_even_after_its_owner_was_removed(keys: Path, roster: Roster) -> None:
    with pytest.raises(ConfigError, match=r"site\.pub is the key of berlin already"):
        roster.add(keys / "berlin" / "site.pub", name="munich")
    roster.remove("berlin")  # Flower keeps the keys of those who left and refuses them
    with pytest.raises(ConfigError, match=r"site\.pub was the key of berlin, which was removed"):
        roster.add(keys / "berlin" / "site.pub")


def test_a_quarantine_is_kept_and_ends_and_files_without_the_field_are_read(roster: Roster) -> None:
    assert roster.quarantine("paris").quarantined
    assert [entry.quarantined for entry in Roster.load(roster.folder).present] == [False, True, False]
    assert not roster.quarantine("paris", begins=False).quarantined
    path = roster.folder / "roster.json"
    document = read_json(path)
    for entry in document["entries"]:
        del entry["quarantined"]
    write_json(path, {key: value for key, value in document.items() if key != "digest"})
    assert Roster.load(roster.folder).entries == roster.entries
    for name, said in (("rome", "rome is not registered in"), ("proxy", "proxy cannot be put in quarantine")):
        with pytest.raises(ConfigError, match=said):
            roster.quarantine(name)


def test_removing_nobody_says_who_is_there(roster: Roster) -> None:
    roster.remove("paris")
    with pytest.raises(ConfigError, match=r"paris is not registered in .*roster\.json; there is berlin, proxy"):
        roster.remove("paris")


def test_the_proxy_and_sites_are_not_mixed_up(keys: Path, tmp_path: Path) -> None:
    roster = Roster.load(tmp_path)
    with pytest.raises(ConfigError, match=r"node\.pub is the proxy's key; add it with --proxy"):
        roster.add(keys / "proxy" / "node.pub")
    with pytest.raises(ConfigError, match=r"is the key of rome, not of the proxy; its file is the node\.pub"):
        roster.add(keys / "rome" / "site.pub", role="proxy")
    with pytest.raises(ConfigError, match="--name rome: a proxy is always called proxy"):
        roster.add(keys / "proxy" / "node.pub", name="rome", role="proxy")
    with pytest.raises(ConfigError, match="'proxy' cannot be the name of a site"):
        roster.add(keys / "rome" / "site.pub", name="proxy")
    assert roster.entries == ()


def test_a_private_key_is_refused_with_a_warning_not_to_send_it(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"site\.key is a private key: never send this file to anybody; send the \.pub"
    ):
        Roster.load(tmp_path).add(keys / "rome" / "site.key")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "it is empty"),
        (b"hello", "it begins with 'hello'"),
        (b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8 me", "it begins with 'ssh-ed25519'"),
        (b"ecdsa-sha2-nistp384", ""),
        (b"ecdsa-sha2-nistp384 AAAA x", ""),
        (b"\xff\xfe", "codec can't decode"),
        (b"a\nb", "it has 2 lines"),
        (b"-----BEGIN CERTIFICATE-----\nxx\n", "it has 2 lines"),
    ],
)
def test_what_is_no_public_key_is_refused_with_what_would_be_right(tmp_path: Path, content: bytes, found: str) -> None:
    (tmp_path / "x.pub").write_bytes(content)
    with pytest.raises(ConfigError, match="is no EC public key in OpenSSH format") as caught:
        Roster.load(tmp_path).add(tmp_path / "x.pub")
    assert found in str(caught.value)
    assert "it should be one line that begins with ecdsa-sha2-nistp384" in str(caught.value)
    assert not (tmp_path / "roster.json").exists()


def test_a_key_in_a_form_that_nobody_reads_is_refused(keys: Path, tmp_path: Path) -> None:
    kind, text, name = (keys / "rome" / "site.pub").read_text().split()
    compressed = bytearray(base64.b64decode(text))
    compressed[-97] = 2  # the first byte of the point, which says how it is written
    (tmp_path / "x.pub").write_text(f"{kind} {base64.b64encode(compressed).decode()} {name}")
    with pytest.raises(ConfigError, match=r"is no EC public key in OpenSSH format \(Need uncompressed point\)"):
        Roster.load(tmp_path).add(tmp_path / "x.pub")


def test_a_document_for_the_sites_is_told_from_a_key(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"proxy\.pub is a document for the sites, no key of a node; .* node\.pub"):
        Roster.load(tmp_path).add(keys / "proxy" / "proxy.pub", role="proxy")


def test_a_key_without_a_name_needs_one(keys: Path, tmp_path: Path) -> None:
    (tmp_path / "x.pub").write_text(read_public_key(keys / "rome" / "site.pub").text)
    with pytest.raises(ConfigError, match="has no name behind its key; give it one with --name"):
        Roster.load(tmp_path).add(tmp_path / "x.pub")
    assert Roster.load(tmp_path).add(tmp_path / "x.pub", name="rome").name == "rome"


def test_many_who_add_at_once_all_get_a_number(tmp_path: Path) -> None:
    for number in range(8):
        make_site_keys(tmp_path / f"s{number}", f"s{number}")
    stale = [Roster.load(tmp_path) for _ in range(8)]
    start, failed = threading.Barrier(8), []

    def add(number: int) -> None:
        start.wait()
        try:
            stale[number].add(tmp_path / f"s{number}" / "site.pub")
        except FcilError as error:
            failed.append(error)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    entries = Roster.load(tmp_path).entries
    assert [entry.number for entry in entries] == list(range(8))
    assert {entry.name for entry in entries} == {f"s{number}" for number in range(8)}


def test_it_can_be_read_while_somebody_writes(roster: Roster) -> None:
    from fcil.deployment.keys.files import held

    with held(roster.folder):
        assert Roster.load(roster.folder).entries == roster.entries


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"number": 1}, "its party 0 has the number 1"),
        ({"number": "0"}, "entries.0.number: Input should be a valid integer"),
        ({"role": "boss"}, "entries.0.role: Input should be 'site' or 'proxy'"),
        ({"name": "a b"}, "'a b' cannot be the name of a site"),
        ({"public_key": "ssh-rsa AAAA"}, "it begins with 'ssh-rsa'"),
        ({"more": 1}, "entries.0.more: Extra inputs are not permitted"),
    ],
)
def test_a_file_with_other_content_behind_a_right_digest_is_refused(
    roster: Roster, change: dict[str, Any], sentence: str
) -> None:
    path = roster.folder / "roster.json"
    document = read_json(path)
    document["entries"][0] |= change
    write_json(path, document)
    with pytest.raises(DamagedError, match="is damaged") as caught:
        Roster.load(roster.folder)
    assert sentence in str(caught.value)


@examples(40)
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_changed_file_is_never_believed(tmp_path_factory: pytest.TempPathFactory, place: int, byte: int) -> None:
    folder = tmp_path_factory.mktemp("roster")
    make_site_keys(folder / "berlin", "berlin")
    roster = Roster.load(folder)
    roster.add(folder / "berlin" / "site.pub")
    path = folder / "roster.json"
    whole = bytearray(path.read_bytes())
    whole[place % len(whole)] = byte
    path.write_bytes(whole)
    try:
        assert Roster.load(folder).entries == roster.entries
    except DamagedError as error:
        assert "is damaged" in str(error)
