"""Attacks of a stranger: without a registered key nobody can stop the server or delay its parties."""

from __future__ import annotations

import gc
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.supernode import node_auth_http_interceptor
from support.command import fcil
from support.fleet import RawNode, status
from support.keyring import consortium
from support.limited import ANSWER, Line, Served, served, wait_for

from fcil.core.errors import ConfigError, FederationError
from fcil.core.net import free_port
from fcil.deployment.flower import clock, limited_server, reconnect
from fcil.deployment.flower.auth_middleware import FLEET
from fcil.deployment.flower.clock import ahead_of, misfit, notable
from fcil.deployment.flower.limits import LIMITS, ConnectionLimits
from fcil.deployment.flower.process import LOG
from fcil.deployment.flower.reconnect import ServerAddress, stay_connected
from fcil.deployment.flower.superlink_client import NodeRequest, SuperLinkClient
from fcil.deployment.keys.files import PUBLIC, ExposedError, folder_warning, others_may_open
from fcil.deployment.keys.handover import opened
from fcil.deployment.keys.make import (
    ProxyKeys,
    ServerKeys,
    SiteKeys,
    make_server_keys,
    renew_server_certificate,
)


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect the sockets of a test before the next one begins, which may belong to another file."""
    yield
    gc.collect()


pytestmark = [
    pytest.mark.xdist_group("stranger"),  # they share a SuperLink
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # sockets that a flood leaves open
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern"),  # of a package of Flower's
]
PATIENT = ConnectionLimits(stranger_life=3600.0, idle=3600.0, handshake=3600.0, grace=3600.0)  # nothing ends by itself
MIB = 1 << 20
ATTACKERS = 500
HELLO = bytes.fromhex("16030102000100")  # the beginning of a TLS handshake that never goes on


# --- the real process ---------------------------------------------------------------------------------------------


@dataclass
class Link:
    """A SuperLink with TLS, a registered node, and connections of strangers that were opened before anything else."""

    superlink: SuperLinkClient
    ca: Path
    node: RawNode
    slow: dict[str, socket.socket]

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.superlink.address.rpartition(":")
        return host, int(port)

    def plain(self) -> socket.socket:
        """Connect without TLS."""
        return socket.create_connection(self.address, 60.0)

    def secure(self) -> ssl.SSLSocket:
        """Connect with TLS."""
        return ssl.create_default_context(cafile=str(self.ca)).wrap_socket(self.plain(), server_hostname="127.0.0.1")

    def process(self, field: str) -> int:
        """Return a figure in KiB from the process's status."""
        lines = Path(f"/proc/{self.superlink.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field))

    def cpu(self) -> float:
        """Return the seconds of processor time that the process has taken."""
        fields = Path(f"/proc/{self.superlink.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def exchange(self) -> bytes | FederationError:
        """Let the server ask the node, and the node answer; return what came."""
        found: list[bytes | FederationError] = []
        request = NodeRequest(self.node.node.node_id, b"a request", {})
        asking = threading.Thread(
            target=lambda: found.extend(got for _, got in self.superlink.exchange([request], "1", 60.0, 4 * MIB))
        )
        asking.start()
        asked: list[Any] = []

        def came() -> bool:
            try:
                asked.append(self.node.request())
            except ValueError:  # nothing yet
                return False
            return True

        wait_for(came)
        self.node.answer(asked[0], bytes(MIB))
        asking.join()
        return found[0]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return consortium(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def link(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Link]:
    own = ServerKeys.load(keys / "server")
    certificates = {"ca": own.ca, "certificate": own.certificate, "key": own.private_key}
    folder = tmp_path_factory.mktemp("link")
    with SuperLinkClient(folder, "127.0.0.1", free_port(), certificates) as superlink:
        node = RawNode(superlink.address, own.ca.read_bytes())
        node.register_at(superlink, "berlin")
        node.enter(registered=True)
        made = Link(superlink, own.ca, node, {})
        made.slow |= {"handshake": made.plain(), "idle": made.secure(), "header": made.secure(), "body": made.secure()}
        made.slow["handshake"].sendall(HELLO)
        made.slow["header"].sendall(b"POST / HTTP/1.1\r\nhost:")
        made.slow["body"].sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\n\r\nx")
        yield made
        for line in made.slow.values():
            line.close()
        node.close()
    gc.collect()  # here, not in a test of another file that comes next


def answer(line: socket.socket) -> bytes:
    """Return all that a server says before it hangs up."""
    said = b""
    while True:
        try:
            piece = line.recv(1 << 16)
        except (ConnectionError, ssl.SSLError):
            return said
        if not piece:
            return said
        said += piece


def test_a_header_without_end_is_hung_up_within_128_kib_and_costs_nothing(link: Link) -> None:
    with link.secure() as line:
        with suppress(OSError):  # it is hung up while this is still being sent
            line.sendall(b"GET / HTTP/1.1\r\nx: ".ljust(128 << 10, b"y"))
        assert answer(line).startswith(b"HTTP/1.1 400")  # and not at the end of a stranger's life
    before, sent = link.cpu(), 0
    with link.secure() as line:
        line.sendall(b"GET / HTTP/1.1\r\nx: ")
        while sent < 96 * MIB:
            try:
                line.sendall(bytes(MIB))
            except OSError:
                break
            sent += MIB
    assert sent < 96 * MIB
    assert link.exchange() == bytes(MIB), "the server still serves its node"
    assert link.cpu() - before < 1.0
    assert "Invalid HTTP request" not in (link.superlink.folder / LOG).read_text(), "strangers cannot fill the log"


def test_strangers_learn_nothing_but_the_time_and_have_to_go(link: Link) -> None:
    with link.secure() as line:
        line.sendall(b"POST /v1/fleet/activate-node HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n")
        said = line.recv(1 << 12)  # at once: nothing of the body is waited for
        line.sendall(b"x" * 99)
        assert link.exchange() == bytes(MIB)
    assert said.startswith(b"HTTP/1.1 401")
    assert b"connection: close" in said
    assert b"date: " in said
    assert b"uvicorn" not in said
    with link.secure() as line:
        line.sendall(b"GET /" + b"x" * LIMITS.target_bytes + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        assert line.recv(1 << 12).startswith(b"HTTP/1.1 414")


def test_an_unregistered_key_is_told_so_and_no_more(link: Link) -> None:
    stranger = RawNode(link.superlink.address, link.ca.read_bytes())
    with pytest.raises(httpx.HTTPStatusError) as refused:
        stranger.enter(registered=True)
    assert (status(refused.value), refused.value.response.json()["detail"]) == (
        412,
        "Failed to activate SuperNode. It is not registered.",
    )
    with pytest.raises(httpx.HTTPStatusError) as refused:
        stranger.enter()
    assert status(refused.value) == 401
    stranger.close()


def test_a_registered_node_is_served_among_500_hostile_connections(link: Link) -> None:
    hostile = pytest.importorskip("benchmarks.hostile", reason="benchmarks come with the source alone")
    assert link.exchange() == bytes(MIB)
    before = link.process("VmRSS")
    with hostile.besieged(link.superlink.address, ATTACKERS) as strangers:
        wait_for(lambda: strangers.opened.total() >= ATTACKERS)
        assert strangers.open > ATTACKERS / 2
        assert [link.exchange() for _ in range(3)] == [bytes(MIB)] * 3
        assert link.node.node.node_id in link.superlink.nodes()
        assert link.process("VmHWM") - before < 100 << 10
    assert link.exchange() == bytes(MIB)


def test_more_connections_than_one_address_may_have_cost_it_the_oldest(link: Link) -> None:
    lines = [link.plain() for _ in range(LIMITS.strangers_per_address + 8)]
    found, _, _ = select.select(lines, [], [], 60.0)
    assert lines[0] in found
    assert lines[-1] not in found
    assert link.exchange() == bytes(MIB)
    for line in lines:
        line.close()


@pytest.mark.parametrize("late", [LIMITS.behind + 30, -LIMITS.ahead - 5])
def test_a_signature_of_another_time_is_refused(link: Link, late: float, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = SimpleNamespace(now=lambda: datetime.now(UTC) - timedelta(seconds=late))
    monkeypatch.setattr(node_auth_http_interceptor, "now", moment.now)
    with pytest.raises(httpx.HTTPStatusError) as refused:
        link.node.request()
    assert status(refused.value) == 401


def test_fifty_sites_behind_one_address_come_in_at_once(link: Link) -> None:
    nodes = [RawNode(link.superlink.address, link.ca.read_bytes()) for _ in range(50)]
    for number, node in enumerate(nodes):
        node.register_at(link.superlink, f"site-{number}")
    with ThreadPoolExecutor(len(nodes)) as pool:
        numbers = set(pool.map(lambda node: node.enter(registered=True), nodes))
    assert numbers < link.superlink.nodes()
    for node in nodes:
        node.close()


@pytest.mark.parametrize(("shift", "words"), [(86400, "1 d ahead of"), (-7200, "2 h behind")])
def test_a_site_whose_clock_is_off_is_told_by_how_much(
    link: Link, keys: Path, tmp_path: Path, shift: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "time", SimpleNamespace(time=lambda: time.time() + shift))
    options = ["--keys", keys / "berlin", "--data", tmp_path, "--state", tmp_path / "state"]
    done = fcil("federation", "join", "--server", link.superlink.address, *options)
    assert done.returncode == 2
    assert f"this machine's clock is {words} the server's" in done.stderr
    assert "from 60 s behind its clock to 5 s ahead" in done.stderr


def test_every_slow_stranger_has_been_hung_up(link: Link) -> None:
    """The last test of this process: those that were opened first have had the time of the tests above."""
    for line in link.slow.values():
        line.settimeout(60.0)
        answer(line)  # returns


# --- each limit ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_newcomer_takes_the_place_of_the_oldest_stranger_of_its_address(loop: str) -> None:
    pytest.importorskip(loop)
    with served(replace(PATIENT, strangers_per_address=3), loop) as made:
        elsewhere = made.call("127.0.0.2")
        lines = [made.call() for _ in range(5)]
        assert [line.hung_up() for line in lines[:2]] == [True, True]
        assert all(line.open for line in (elsewhere, *lines[2:]))


def test_in_all_the_address_with_the_most_strangers_gives_way() -> None:
    with served(replace(PATIENT, strangers=4)) as made:
        first = made.call("127.0.0.2")
        lines = [made.call() for _ in range(3)]
        last = made.call("127.0.0.3")
        assert lines[0].hung_up()
        assert all(line.open for line in (first, last, *lines[1:]))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_strangers_never_displace_a_connection_that_has_shown_a_registered_key(loop: str, keys: Path) -> None:
    pytest.importorskip(loop)
    with served(replace(PATIENT, strangers=4, strangers_per_address=4), loop) as made:
        registered = signed(made, made.call())
        for _ in range(9):
            made.call().request(headers=made.nodes[0].headers() | {"flwr-timestamp": "2026-01-01T00:00:00+00:00"})
        assert registered.open
        signed(made, registered)
        assert len(made.server.table.nodes[made.nodes[0].number]) == 1
    del keys


def signed(made: Served, line: Any, late: float = 0.0, expected: int = 200, **request: Any) -> Any:
    """Send a signed request on a connection, and check its status."""
    line.request(headers=made.nodes[0].headers(late), **request)
    assert line.status() == expected
    return line


def test_one_party_has_so_many_connections_and_costs_no_other_any() -> None:
    with served(replace(PATIENT, per_node=2)) as made:
        lines = [signed(made, made.call()) for _ in range(2)]
        other = made.call()
        other.request(headers=made.nodes[1].headers())
        assert other.status() == 200
        newest = signed(made, made.call())
        assert lines[0].hung_up()
        assert all(line.open for line in (lines[1], other, newest))


def test_the_secret_of_the_owner_counts_as_a_key() -> None:
    with served(replace(PATIENT, strangers=1), secret="owner") as made:
        owner = made.call()
        owner.request("/fcil/allowance/9", headers={"x-fcil-link-secret": "owner"})
        assert owner.status() == 204
        made.call()
        made.call()
        assert owner.open


def test_a_stranger_lives_a_short_time_whatever_it_does(keys: Path) -> None:
    short = replace(PATIENT, stranger_life=0.3)
    for loop in ("asyncio", "uvloop"):
        pytest.importorskip(loop)
        with served(short, loop) as made:
            idle, header = made.call(), made.call()
            header.send(b"POST / HTTP/1.1\r\n")
            assert idle.hung_up()
            assert header.hung_up()
            assert made.server.table.unknown == 0
        with served(short, loop, keys / "server") as made:  # before TLS, and without a word
            half, silent = made.call(), made.call()
            half.send(HELLO)
            assert half.hung_up()
            assert silent.hung_up()


def test_a_handshake_has_a_deadline_of_its_own(keys: Path) -> None:
    for loop in ("asyncio", "uvloop"):
        pytest.importorskip(loop)
        with served(replace(PATIENT, handshake=0.3), loop, keys / "server") as made:
            assert made.call().hung_up()
            wait_for(lambda made=made: made.server.table.unknown == 0)


def test_a_registered_connection_may_rest_between_requests_for_a_while() -> None:
    with served(replace(PATIENT, idle=0.3)) as made:
        line = signed(made, made.call())
        line.send(b"POST /v1")  # a header that is begun does not extend it
        assert line.hung_up()
        assert not made.server.table.nodes


def test_a_slow_body_of_a_registered_party_has_the_time_of_its_pace_and_no_more() -> None:
    with served(replace(PATIENT, grace=0.3, pace=1e9)) as made:
        line = made.call()
        line.request(headers=made.nodes[0].headers(), body=b"x" * 10, promised=20)
        assert line.status() == 408
    with served(replace(PATIENT, grace=0.3, pace=0.01)) as made:  # a hundred seconds for each byte
        line = made.call()
        line.request(headers=made.nodes[0].headers(), body=b"x" * 10, promised=20)
        time.sleep(1.0)
        assert line.open
        line.send(b"x" * 10)
        assert line.status() == 200


def test_an_answer_is_fetched_as_slowly_as_the_pace_allows() -> None:
    with served(replace(PATIENT, idle=0.1, pace=10.0)) as made:
        line = signed(made, made.call(), path=f"{FLEET}pull-{ANSWER}")  # about a hundred seconds' worth
        time.sleep(0.5)
        assert line.open
    with served(replace(PATIENT, idle=0.1, pace=1e9)) as made:
        assert signed(made, made.call(), path=f"{FLEET}pull-{ANSWER}").hung_up()


@pytest.mark.parametrize(("late", "expected"), [(0, 200), (50, 200), (70, 401), (-3, 200), (-8, 401), (86400, 401)])
def test_a_signature_is_good_for_a_minute(late: float, expected: int) -> None:
    with served(PATIENT) as made:
        signed(made, made.call(), late, expected)


def test_a_time_that_is_none_or_not_the_signed_one_is_refused() -> None:
    with served(PATIENT) as made:
        node = made.nodes[0]
        for headers in (
            {},
            node.headers(stamp="soon"),
            node.headers(stamp=datetime.now().isoformat()),
            node.headers(late=30) | {"flwr-timestamp": datetime.now(UTC).isoformat()},
        ):
            line = made.call()
            line.request(headers=headers)
            assert line.status() == 401
            line.request(headers=node.headers())
            assert line.open, "nothing more is looked at"
        assert made.server.table.unknown == 4
        made.lines[0].close()
        wait_for(lambda: made.server.table.unknown == 3)


def test_connections_are_accepted_at_a_pace() -> None:
    with served(replace(PATIENT, newcomers=0.001, newcomers_at_once=3)) as made:
        registered = signed(made, made.call())
        made.call()
        made.call()
        waiting = Line(made.port)
        made.lines.append(waiting)
        waiting.request(headers=made.nodes[0].headers())
        for _ in range(3):
            signed(made, registered)
            time.sleep(0.2)
        assert waiting.open
        assert made.seen == 3


def test_a_header_that_comes_whole_is_refused_if_it_is_too_large() -> None:
    with served(PATIENT) as made:
        line = made.call()
        with suppress(OSError):
            line.request(headers=made.nodes[0].headers() | {"x": "y" * 2 * LIMITS.header_bytes})
        assert line.status() in (0, 400)
        assert line.hung_up()
        signed(made, made.call())


def test_without_files_the_server_lets_strangers_go_and_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    full: list[OSError] = []
    accept = socket.socket.accept

    def accepting(self: socket.socket) -> Any:
        if full:
            raise full.pop()
        return accept(self)

    with served(PATIENT) as made:
        stranger, registered = made.call(), signed(made, made.call())
        monkeypatch.setattr(socket.socket, "accept", accepting)
        full.append(OSError(limited_server.FULL[0], "too many open files"))
        signed(made, made.call())
        assert stranger.hung_up()
        assert registered.open


# --- clocks -------------------------------------------------------------------------------------------------------


def party(**known: Any) -> Any:
    """Return as much of a party as an attempt to connect needs."""
    return SimpleNamespace(**{"folder": Path(), "knows_server": False, "dismissed": False, **known})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


class Elsewhen(BaseHTTPRequestHandler):
    """A server whose clock is off."""

    shift = 0.0

    def do_HEAD(self) -> None:
        self.send_response(403)
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(time.time() + self.shift)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def elsewhen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start HTTPS servers whose clock is off by some seconds, with the keys in a folder."""
    started: list[HTTPServer] = []

    def start(folder: Path, shift: float) -> str:
        monkeypatch.setattr(Elsewhen, "shift", shift)
        server = HTTPServer(("127.0.0.1", 0), Elsewhen)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        started.append(server)
        return f"127.0.0.1:{server.server_address[1]}"

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def test_a_server_whose_clock_is_off_is_refused_with_the_difference(keys: Path, folder: Path, elsewhen: Any) -> None:
    address = elsewhen(keys / "server", -86400)
    with pytest.raises(ConfigError, match=r"clock is 1 d ahead of the server's"):
        stay_connected(party(folder=folder), ServerAddress(address, None, keys / "server" / "ca.crt"), print)


def test_a_clock_so_far_behind_that_the_certificate_is_not_yet_valid_is_named(folder: Path, elsewhen: Any) -> None:
    make_server_keys(folder / "server", ["127.0.0.1"])
    renew_server_certificate(folder / "server", now=datetime.now(UTC) + timedelta(days=2))
    ca = folder / "server" / "ca.crt"
    with pytest.raises(ConfigError, match=r"clock is 2 d behind the server's.*not yet valid"):
        stay_connected(party(folder=folder), ServerAddress(elsewhen(folder / "server", 2 * 86400), None, ca), print)
    with pytest.raises(ConfigError, match="certificate is not valid yet") as refused:
        stay_connected(party(folder=folder), ServerAddress(elsewhen(folder / "server", 0), None, ca), print)
    assert "was not issued by" not in str(refused.value)


def test_a_party_that_was_admitted_before_waits_for_its_clock_to_be_set(
    keys: Path, folder: Path, elsewhen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, said = elsewhen(keys / "server", 3600), []
    monkeypatch.setattr(reconnect, "PATIENCE", 0.3)
    monkeypatch.setattr(reconnect, "PAUSE", 0.1)
    with pytest.raises(ConfigError, match="behind the server's"):
        stay_connected(
            party(folder=folder, knows_server=True),
            ServerAddress(address, None, keys / "server" / "ca.crt"),
            said.append,
        )
    assert len(said) == 1
    assert said[0].startswith("warning: this machine's clock is")


def test_a_difference_is_refused_only_if_it_is_certain_and_said_if_it_is_notable() -> None:
    assert [notable(one) is None for one in (None, 0.0, 2.0, -2.0, 3.0, -3.0)] == [True] * 4 + [False] * 2
    assert [misfit(one) is None for one in (None, 0.0, 6.9, -61.9, 7.1, -62.1)] == [True] * 4 + [False] * 2
    assert ahead_of("Thu, 01 Jan 1970 00:00:00 GMT", 86401.0) == 86400.0
    assert clock.difference(-59.6) == "this machine's clock is 1 min behind the server's"
    assert clock.difference(3 * 86400 + 59) == "this machine's clock is 3 d ahead of the server's"


# --- files of keys, and folders -----------------------------------------------------------------------------------


LATER = ("ca.key", "box.key", "journal.jsonl")  # keys that are read when they are used, and a file that is no key
LOAD = {"server": ServerKeys.load, "berlin": SiteKeys.load, "proxy": ProxyKeys.load}


def test_private_keys_that_others_can_read_are_refused_at_every_party(keys: Path) -> None:
    refused = 0
    for name, load in LOAD.items():
        for path in sorted((keys / name).iterdir()):
            if path.name.endswith(PUBLIC) or path.name.startswith(".") or path.name in LATER:
                continue
            for mode in (0o644, 0o640, 0o604, 0o660):
                path.chmod(mode)
                with pytest.raises(ExposedError) as error:
                    load(keys / name)
                assert f"{path} can be read by others on this machine" in str(error.value)
                assert f"`chmod 600 {path}` (its mode is {mode:o})" in str(error.value)
                refused += 1
            path.chmod(0o400)
            load(keys / name)
    assert refused == 4 * (1 + 3 + 5)


def test_the_key_of_the_authority_is_refused_when_it_is_used(keys: Path) -> None:
    (keys / "server" / "ca.key").chmod(0o644)
    with pytest.raises(ExposedError, match=r"ca\.key can be read by others"):
        renew_server_certificate(keys / "server")
    (keys / "server" / "ca.key").chmod(0o600)


def test_the_key_that_opens_a_sealed_secret_is_refused_when_it_is_used(keys: Path) -> None:
    (keys / "berlin" / "box.key").chmod(0o644)
    with pytest.raises(ExposedError, match=r"box\.key can be read by others"):
        opened(keys / "berlin", "", "--from")
    (keys / "berlin" / "box.key").chmod(0o600)


@pytest.mark.parametrize("command", ["serve", "join", "proxy"])
def test_the_commands_refuse_such_keys(command: str, keys: Path, tmp_path: Path) -> None:
    name = {"serve": "server", "join": "berlin", "proxy": "proxy"}[command]
    key = {"serve": "server.key", "join": "consortium.secret", "proxy": "signing.key"}[command]
    options = ["--keys", keys / name]
    if command == "serve":
        options = ["digits", "--address", "127.0.0.1:9", "--out", tmp_path / "run", *options]
    else:
        options += ["--server", "127.0.0.1:9", "--state", tmp_path / "state"]
        options += ["--data", tmp_path] if command == "join" else []
    (keys / name / key).chmod(0o644)
    done = fcil("federation", command, *options)
    (keys / name / key).chmod(0o600)
    assert done.returncode == 2
    assert f"chmod 600 {keys / name / key}" in done.stderr


def test_root_may_lend_a_key_to_the_group_of_a_service() -> None:
    us, root, other = 10001, 0, 10002
    assert not others_may_open(0o600, us, us)
    assert [others_may_open(mode, us, us) for mode in (0o640, 0o604, 0o610, 0o666)] == [True] * 4
    assert [others_may_open(mode, root, us) for mode in (0o640, 0o440, 0o600)] == [False] * 3
    assert [others_may_open(mode, root, us) for mode in (0o644, 0o660, 0o444)] == [True] * 3
    assert not others_may_open(0o600, other, root)  # a container's root, and keys that its host's user owns
    assert [others_may_open(0o640, owner, root) for owner in (root, other)] == [True, True]


def test_folders_that_others_can_open_are_warned_about(
    keys: Path, folder: Path, elsewhen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folder_warning(folder) is None
    state, own = folder / "state", folder / "keys"
    for place, mode in ((state, 0o777), (own, 0o755)):
        place.mkdir()
        place.chmod(mode)
    assert folder_warning(own, public=True) is None
    assert "`chmod 755 " in str(folder_warning(state, public=True))
    monkeypatch.setattr(clock, "time", SimpleNamespace(time=lambda: time.time() + 86400))
    address = ServerAddress(elsewhen(keys / "server", 0), own / "site.key", keys / "server" / "ca.crt")
    said: list[str] = []
    with pytest.raises(ConfigError):
        stay_connected(party(folder=state), address, said.append)
    assert said == [
        f"warning: others on this machine can change what is in {state} (its mode is 777): `chmod 700 {state}`",
        f"warning: others on this machine can read what is in {own} (its mode is 755): `chmod 700 {own}`",
    ]


# --- plain HTTP ---------------------------------------------------------------------------------------------------


def test_without_tls_neither_a_server_nor_a_party_leaves_this_machine(tmp_path: Path) -> None:
    for host in ("192.0.2.7", "fl.example.org", "0.0.0.0", "[::]"):
        with pytest.raises(ConfigError, match="--insecure turns TLS off"):
            ServerAddress(f"{host}:9000", None, None)
        with pytest.raises(ConfigError, match="--insecure turns TLS off"):
            SuperLinkClient(tmp_path / "link", host, 9000, None)
    assert not (tmp_path / "link").exists()
    ServerAddress("127.0.0.1:9000", None, None)
