"""Folders of keys: how they are written, read, refused, and what TLS and Flower make of them."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.keyring import consortium

from fcil.core.errors import ConfigError, DamagedError, FcilError, FileError
from fcil.deployment.keys.files import check_name, held, write_new
from fcil.deployment.keys.make import (
    ProxyKeys,
    ProxyPublic,
    ServerKeys,
    SiteKeys,
    make_proxy_keys,
    make_secret,
    make_server_keys,
    make_site_keys,
    read_secret,
    renew_server_certificate,
)
from fcil.deployment.keys.sealing import seal, sign, unseal, verify
from fcil.deployment.keys.ssh import read_public_key

LONG_AGO = datetime(2001, 5, 5, tzinfo=UTC)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One consortium that no test changes."""
    return consortium(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def keys(shared: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    shutil.copytree(shared, tmp_path / "keys")
    return tmp_path / "keys"


# --- what is written ----------------------------------------------------------------------------------------------


def test_private_files_are_their_owners_alone_and_public_ones_are_not(shared: Path) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in shared.rglob("*") if path.is_file()}
    private = {name for name in modes if name.endswith((".key", ".seed", ".secret"))}
    assert private == {
        *("ca.key", "server.key", "site.key", "site.seed", "box.key", "node.key"),
        *("sealing.key", "signing.key", "proxy.seed", "consortium.secret"),
    }
    assert {modes[name] for name in private} == {0o600}
    assert all(modes[name] & 0o044 for name in ("ca.crt", "server.crt", "site.pub", "node.pub", "proxy.pub"))
    assert {stat.S_IMODE((shared / party).stat().st_mode) for party in ("server", "berlin", "proxy")} == {0o700}


def test_a_private_file_is_private_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".site.key.part").write_text("left by a kill, readable by all")
    (tmp_path / ".site.key.part").chmod(0o644)
    seen = []
    replace = os.replace

    def look(source: Path, target: Path) -> None:
        seen.append((Path(target).name, stat.S_IMODE(Path(source).stat().st_mode)))
        replace(source, target)

    monkeypatch.setattr("os.replace", look)
    make_site_keys(tmp_path, "berlin")
    assert ("site.key", 0o600) in seen
    assert ("site.seed", 0o600) in seen


@pytest.mark.parametrize(
    ("make", "file"),
    [
        (lambda folder: make_server_keys(folder / "server", ["other"]), "server/ca.key"),
        (lambda folder: make_site_keys(folder / "berlin", "berlin"), "berlin/site.key"),
        (lambda folder: make_proxy_keys(folder / "proxy"), "proxy/node.key"),
        (lambda folder: make_secret(folder / "berlin" / "consortium.secret"), "berlin/consortium.secret"),
    ],
    ids=["server", "site", "proxy", "secret"],
)
def test_a_key_is_never_overwritten(shared: Path, make: Callable[[Path], None], file: str) -> None:
    before = {path: path.read_bytes() for path in shared.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=f"{file} exists, and a key is never overwritten"):
        make(shared)
    assert {path: path.read_bytes() for path in shared.rglob("*") if path.is_file()} == before


def test_one_file_that_is_left_hinders_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "site.seed").write_text("5")
    with pytest.raises(ConfigError, match=r"site\.seed exists"):
        make_site_keys(tmp_path, "berlin")
    assert not (tmp_path / "site.key").exists()


def test_keys_that_cannot_all_be_written_leave_none(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(FileError, match="cannot be written"):
        write_new(tmp_path, {"site.key": b"key", "nowhere/site.pub": b"key"})
    assert [path.name for path in tmp_path.iterdir()] == [".keys.lock"]


def test_two_parties_never_share_a_folder(shared: Path) -> None:
    for party in ("server", "proxy"):
        with pytest.raises(ConfigError, match=f"holds the keys of a {party}; name another --out for those of a site"):
            make_site_keys(shared / party, "berlin")
    with pytest.raises(ConfigError, match="holds the keys of a site; name another --out for those of a server"):
        make_server_keys(shared / "berlin", ["host"])
    with pytest.raises(ConfigError, match="must never have the secret"):
        make_secret(shared / "server" / "consortium.secret")


def test_a_place_that_cannot_be_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="file cannot hold keys: File exists; name another folder"):
        make_proxy_keys(tmp_path / "file")


@pytest.mark.parametrize("name", ["a", "berlin-2", "St.Gallen", "a_b", "7", "x" * 64])
def test_names_of_sites(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "x" * 65, "a b", "a/b", ".", "..", "-x", "köln", "a\n", "proxy", "Proxy", "server"]
)
def test_names_that_no_site_can_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a site"):
        make_site_keys(tmp_path / "new", name)
    assert list(tmp_path.iterdir()) == []


# --- what is read -------------------------------------------------------------------------------------------------


def test_a_site_loads_what_was_made_and_sent(shared: Path) -> None:
    site = SiteKeys.load(shared / "berlin")
    assert site.name == "berlin"
    assert f"{site.public_key} berlin\n" == (shared / "berlin" / "site.pub").read_text()
    assert site.ca == shared / "berlin" / "ca.crt"
    assert site.private_key == shared / "berlin" / "site.key"
    assert site.root == int((shared / "berlin" / "site.seed").read_text())
    assert site.secret.value.hex() == (shared / "berlin" / "consortium.secret").read_text().strip()
    assert site.proxy == ProxyKeys.load(shared / "proxy").public
    assert str(site.root) not in repr(site)
    assert site.secret.value.hex() not in repr(site)


def test_what_a_site_seals_the_proxy_opens_and_what_it_signs_the_site_verifies(shared: Path) -> None:
    site, proxy = SiteKeys.load(shared / "berlin"), ProxyKeys.load(shared / "proxy")
    assert site.proxy is not None
    assert unseal(seal(b"upload", site.proxy.sealing), proxy.sealing) == b"upload"
    assert verify(b"teacher", sign(b"teacher", proxy.signing), site.proxy.signing)
    assert site.secret == proxy.secret
    assert not [part for part in (proxy.sealing, proxy.signing) if repr(part) in repr(proxy)]


def test_without_a_proxy_or_a_certificate_a_site_loads_if_it_is_told_so(keys: Path) -> None:
    (keys / "berlin" / "proxy.pub").unlink()
    (keys / "berlin" / "ca.crt").unlink()
    site = SiteKeys.load(keys / "berlin", insecure=True)
    assert (site.ca, site.proxy) == (None, None)
    with pytest.raises(DamagedError, match=r"ca\.crt is missing; the server's administrator has it"):
        SiteKeys.load(keys / "berlin")
    (keys / "proxy" / "ca.crt").unlink()
    assert ProxyKeys.load(keys / "proxy", insecure=True).ca is None


def test_every_root_is_random(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_site_keys(tmp_path / name, name)
    roots = [int((tmp_path / name / "site.seed").read_text()) for name in ("a", "b")]
    assert roots[0] != roots[1]
    assert all(0 <= root < 2**63 for root in roots)


LOADERS: dict[str, Callable[[Path], Any]] = {
    "server": ServerKeys.load,
    "berlin": SiteKeys.load,
    "proxy": ProxyKeys.load,
}


@pytest.mark.parametrize(
    ("file", "who"),
    [
        ("server/ca.crt", "`fcil federation keys server` makes it"),
        ("server/server.crt", "with --renew a new one"),
        ("server/server.key", "with --renew a new one"),
        ("berlin/site.key", "`fcil federation keys site NAME` makes it"),
        ("berlin/site.pub", "`fcil federation keys site NAME` makes it"),
        ("berlin/site.seed", "`fcil federation keys site NAME` makes it"),
        ("berlin/ca.crt", "the server's administrator has it"),
        ("berlin/consortium.secret", "another site or the proxy has it"),
        ("proxy/node.key", "`fcil federation keys proxy` makes it"),
        ("proxy/sealing.key", "`fcil federation keys proxy` makes it"),
        ("proxy/proxy.pub", "the proxy's administrator has it"),
        ("proxy/proxy.seed", "`fcil federation keys proxy` makes it"),
    ],
)
def test_what_is_missing_or_damaged_is_named_with_who_provides_it(keys: Path, file: str, who: str) -> None:
    load = LOADERS[file.partition("/")[0]]
    (keys / file).write_bytes(b"\xffnonsense")
    with pytest.raises(DamagedError, match=f"{file} is damaged: .*{who}"):
        load((keys / file).parent)
    (keys / file).unlink()
    with pytest.raises(DamagedError, match=f"{file} is missing; .*{who}"):
        load((keys / file).parent)


@pytest.mark.parametrize(
    ("source", "target", "sentence"),
    [
        ("server/server.crt", "berlin/ca.crt", "it is the certificate of a server, not of the authority"),
        ("proxy/node.pub", "berlin/site.pub", "it does not belong to site.key"),
        ("berlin/site.key", "berlin/site.pub", "never send this file"),
        ("proxy/node.pub", "berlin/proxy.pub", "it is not the document that `fcil federation keys proxy` wrote"),
        ("proxy/signing.key", "proxy/sealing.key", "it does not belong to sealing.key and signing.key"),
        ("server/ca.key", "server/server.key", "it does not belong to server.crt"),
        ("server/server.key", "berlin/site.key", "it is no EC private key in OpenSSH format"),
        ("berlin/consortium.secret", "server/consortium.secret", "must not be at a server"),
    ],
)
def test_files_in_each_others_places_are_told_apart(keys: Path, source: str, target: str, sentence: str) -> None:
    shutil.copy(keys / source, keys / target)
    with pytest.raises(FcilError, match=re.escape(sentence)):
        LOADERS[target.partition("/")[0]]((keys / target).parent)


@pytest.mark.parametrize("text", ["", "-1", str(2**63), "1.5", "٣", "0x10"])
def test_a_root_is_a_number_of_63_bits(keys: Path, text: str) -> None:
    (keys / "berlin" / "site.seed").write_text(text)
    with pytest.raises(DamagedError, match=r"site\.seed is damaged: it should hold a whole number below 2\*\*63"):
        SiteKeys.load(keys / "berlin")


def test_a_damaged_private_file_is_not_quoted(keys: Path) -> None:
    path = keys / "berlin" / "consortium.secret"
    path.write_text("5ec2e7" * 10)
    with pytest.raises(DamagedError) as caught:
        read_secret(path)
    assert "5ec2e7" not in str(caught.value)


def test_a_site_key_without_a_name_is_refused(keys: Path) -> None:
    path = keys / "berlin" / "site.pub"
    path.write_text(" ".join(path.read_text().split()[:2]))
    with pytest.raises(DamagedError, match="behind its key should stand the site's name, but '' cannot be"):
        SiteKeys.load(keys / "berlin")


@examples(60)
@given(data=st.data())
def test_damage_anywhere_ends_in_keys_or_one_sentence(shared: Path, data: st.DataObject) -> None:
    party = data.draw(st.sampled_from(sorted(LOADERS)))
    path = data.draw(st.sampled_from(sorted(p for p in (shared / party).iterdir() if p.suffix != ".lock")))
    whole = path.read_bytes()
    start = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(start, min(len(whole), start + 40)))
    try:
        path.write_bytes(whole[:start] + data.draw(st.binary(max_size=6)) + whole[end:])
        LOADERS[party](shared / party)
    except FcilError as error:
        assert str(error)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("document", [{}, {"sealing": "ab", "signing": "cd"}, {"sealing": 1, "signing": None}])
def test_a_proxy_document_with_other_content_is_refused(tmp_path: Path, document: dict[str, Any]) -> None:
    from fcil.core.files import write_json

    write_json(tmp_path / "proxy.pub", document)
    with pytest.raises(DamagedError, match="it should hold sealing and signing, 64 hexadecimal digits each"):
        ProxyPublic.load(tmp_path / "proxy.pub")


# --- OpenSSH and Flower -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stem", ["berlin/site", "proxy/node"])
def test_node_keys_load_in_flower(shared: Path, stem: str) -> None:
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives.asymmetric import (
        bytes_to_public_key,
        public_key_to_bytes,
        sign_message,
        uses_nist_ec_curve,
        verify_signature,
    )
    from flwr.supernode.cli.flower_supernode import _try_setup_client_authentication

    arguments = argparse.Namespace(auth_supernode_private_key=shared / f"{stem}.key", auth_supernode_public_key=None)
    pair = _try_setup_client_authentication(arguments)
    assert pair is not None
    registered = bytes_to_public_key(try_load_public_key(shared / f"{stem}.pub"))
    assert public_key_to_bytes(pair[1]) == public_key_to_bytes(registered)
    assert uses_nist_ec_curve(registered)
    assert pair[1].curve.name == "secp384r1"
    assert verify_signature(registered, b"message", sign_message(pair[0], b"message"))
    assert load_ssh_public_key((shared / f"{stem}.pub").read_bytes()) == registered


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_a_fingerprint_is_what_ssh_keygen_prints(shared: Path) -> None:
    path = shared / "berlin" / "site.pub"
    printed = subprocess.run(["ssh-keygen", "-lf", path], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["384", read_public_key(path).fingerprint, "berlin", "(ECDSA)"]
    derived = subprocess.run(
        ["ssh-keygen", "-yf", path.with_suffix(".key")], capture_output=True, text=True, check=True
    ).stdout
    assert derived.split()[:2] == read_public_key(path).text.split()


# --- TLS ----------------------------------------------------------------------------------------------------------


def shake_hands(server: Path, ca: Path, host: str) -> None:
    """Let a client that trusts an authority call a server by a name, and have them exchange a word."""
    answering = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    answering.load_cert_chain(server / "server.crt", server / "server.key")
    calling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    calling.verify_flags |= ssl.VERIFY_X509_STRICT
    calling.load_verify_locations(ca)

    def answer(listening: socket.socket) -> None:
        plain, _ = listening.accept()
        with plain:
            try:
                with answering.wrap_socket(plain, server_side=True) as secure:
                    secure.sendall(b"hello")
            except (ssl.SSLError, ConnectionError):
                pass  # the caller hung up, and says why

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer, args=(listening,))
        thread.start()
        try:
            with (
                socket.create_connection(listening.getsockname(), timeout=10) as plain,
                calling.wrap_socket(plain, server_hostname=host) as secure,
            ):
                assert secure.recv(5) == b"hello"
        finally:
            thread.join()


@pytest.mark.parametrize("host", ["fl.example.org", "10.0.0.7", "localhost", "127.0.0.1", "::1"])
def test_a_server_is_believed_at_each_of_its_addresses(shared: Path, host: str) -> None:
    shake_hands(shared / "server", shared / "berlin" / "ca.crt", host)


@pytest.mark.parametrize("host", ["example.org", "10.0.0.8", "a.fl.example.org"])
def test_a_server_is_not_believed_at_another_address(shared: Path, host: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid for"):
        shake_hands(shared / "server", shared / "berlin" / "ca.crt", host)


def test_a_server_of_another_federation_is_not_believed(shared: Path, tmp_path: Path) -> None:
    make_server_keys(tmp_path, ["fl.example.org"])
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        shake_hands(tmp_path, shared / "berlin" / "ca.crt", "fl.example.org")


def test_a_certificate_of_another_authority_is_found_when_keys_are_loaded(keys: Path, tmp_path: Path) -> None:
    make_server_keys(tmp_path / "other", ["host"])
    shutil.copy(tmp_path / "other" / "ca.crt", keys / "server")
    with pytest.raises(DamagedError, match=r"server\.crt is damaged: it was not signed by the authority in ca\.crt"):
        ServerKeys.load(keys / "server")


def test_a_server_knows_its_addresses_and_its_end(shared: Path) -> None:
    server = ServerKeys.load(shared / "server")
    assert sorted(server.addresses) == sorted(["fl.example.org", "10.0.0.7", "localhost", "127.0.0.1", "::1"])
    assert timedelta(days=824) < server.expires - datetime.now(UTC) < timedelta(days=826)


def test_a_renewed_certificate_has_new_addresses_under_the_same_authority(keys: Path) -> None:
    authority, key = ((keys / "server" / name).read_bytes() for name in ("ca.crt", "server.key"))
    renew_server_certificate(keys / "server", ["new.example.org"])
    shake_hands(keys / "server", keys / "berlin" / "ca.crt", "new.example.org")
    assert "10.0.0.7" not in ServerKeys.load(keys / "server").addresses
    assert [(keys / "server" / name).read_bytes() for name in ("ca.crt", "server.key")] == [authority, key]


def test_an_old_certificate_is_renewed_for_the_same_addresses_even_without_its_key(tmp_path: Path) -> None:
    make_server_keys(tmp_path, ["host", "::2"], now=datetime.now(UTC) - timedelta(days=900))
    with pytest.raises(
        DamagedError,
        match=r"has expired or is not yet valid \(.*\); renew it with `fcil federation keys server --renew --out",
    ):
        ServerKeys.load(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake_hands(tmp_path, tmp_path / "ca.crt", "host")
    (tmp_path / "server.key").unlink()
    renew_server_certificate(tmp_path)
    assert {"host", "::2"} <= set(ServerKeys.load(tmp_path).addresses)
    shake_hands(tmp_path, tmp_path / "ca.crt", "host")


def test_a_certificate_never_outlives_its_authority(tmp_path: Path) -> None:
    make_server_keys(tmp_path, ["host"], now=datetime.now(UTC) - timedelta(days=3500))
    renew_server_certificate(tmp_path)
    assert ServerKeys.load(tmp_path).expires - datetime.now(UTC) < timedelta(days=150)


def test_an_authority_whose_time_is_over_is_refused(tmp_path: Path) -> None:
    make_server_keys(tmp_path, ["host"], now=LONG_AGO)
    for act in (ServerKeys.load, renew_server_certificate):
        with pytest.raises(DamagedError, match=r"to 2011-05-03\); the server needs new keys"):
            act(tmp_path)


def test_a_renewal_that_knows_no_addresses_asks_for_them(keys: Path) -> None:
    (keys / "server" / "server.crt").unlink()
    with pytest.raises(ConfigError, match="does not say for which addresses to renew; name them by --address"):
        renew_server_certificate(keys / "server")
    (keys / "server" / "ca.key").unlink()
    with pytest.raises(DamagedError, match=r"ca\.key is missing; .* put it back from your copy"):
        renew_server_certificate(keys / "server")


@pytest.mark.parametrize(
    "address", ["", "host:9092", "10.0.0.999", "a b", "http://host", "köln.de", "x" * 64, "-a", "a..b"]
)
def test_what_is_no_address_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="it should be a host's name or an IP address, without a port"):
        make_server_keys(tmp_path / "new", [address])
    assert list(tmp_path.iterdir()) == []
