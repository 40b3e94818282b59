"""Where a server listens and whom parties call: what cannot work, or would not be encrypted, is refused at once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from support.command import fcil
from support.keyring import consortium

pytest.importorskip("flwr")

from fcil.core import local_server as server
from fcil.core import net
from fcil.core.errors import ConfigError
from fcil.deployment.flower import process as environment
from fcil.deployment.flower import serve as hosting
from fcil.deployment.flower.process import LOG, keep_log
from fcil.deployment.flower.serve import check_address
from fcil.deployment.flower.superlink_client import SuperLinkClient, connect_host


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return consortium(tmp_path_factory.mktemp("keys"))


@pytest.mark.parametrize("command", ["join", "proxy"])
def test_without_tls_only_this_machine_is_called(command: str, keys: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    party = (
        ["--keys", keys / "berlin", "--data", tmp_path / "data"] if command == "join" else ["--keys", keys / "proxy"]
    )
    done = fcil(
        "federation", command, "--server", "fl.example.org:9000", "--insecure", *party, "--state", tmp_path / "state"
    )
    assert done.returncode == 2
    assert "--server fl.example.org:9000: --insecure turns TLS off, which needs a loopback address" in done.stderr
    assert not (tmp_path / "state").exists()


def test_a_server_listens_where_its_certificate_names_it(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "_unusable", lambda host, port: None)
    for host in ("0.0.0.0", "[::]", "127.0.0.1", "[::1]", "localhost", "fl.example.org", "FL.example.org", "10.0.0.7"):
        check_address(f"{host}:9000", keys / "server")
    for host in ("10.0.0.8", "example.org", "127.0.0.2"):
        with pytest.raises(ConfigError, match=rf"server.crt does not name {host}; use 0.0.0.0:9000 .*,{host}`"):
            check_address(f"{host}:9000", keys / "server")


def test_what_listens_everywhere_is_called_at_this_machine() -> None:
    assert [connect_host(host) for host in ("0.0.0.0", "::", "fl.example.org")] == [
        "127.0.0.1",
        "::1",
        "fl.example.org",
    ]


def test_a_server_that_is_interrupted_while_it_starts_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SuperLinkClient, "__init__", interrupted)
    port = net.free_port()
    done = fcil(
        "federation", "serve", "digits", "--address", f"127.0.0.1:{port}", "--insecure", "--out", tmp_path / "run"
    )
    assert done.returncode == 130
    assert "interrupted; the same command continues" in done.stderr


def test_what_flower_says_goes_to_its_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keep_log(tmp_path)
    logging.getLogger("flwr").error("the link is down")
    assert "the link is down" in (tmp_path / LOG).read_text()
    assert capfd.readouterr() == ("", "")


def test_what_watches_and_what_serves_agree_on_which_hosts_are_this_machine() -> None:
    assert server.is_loopback is net.is_loopback
    assert net.is_loopback("127.0.0.1%lo"), "as a system may write it, with a zone"
    assert not net.is_loopback("fe80::1%lo")


def test_every_part_of_flower_is_kept_from_reporting_by_the_same_settings(tmp_path: Path) -> None:
    assert environment.SILENCE.items() <= environment.settings(tmp_path).items()
