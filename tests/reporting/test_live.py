"""`fcil watch` as a browser meets it: a real server, asked over a real connection."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.command import fcil
from support.pages import serving, small_run
from support.served import idle, served
from support.tiny import TINY

from fcil.experiment.config import load_config
from fcil.experiment.party_status import write_status
from fcil.experiment.run import Run
from fcil.reporting.live.discovery import find_runs, progress_of
from fcil.reporting.live.listing import bare_facts
from fcil.reporting.live.server import WatchServer
from fcil.reporting.page.shell import style


def ask(server: WatchServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=30)  # type: ignore[arg-type]
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in {"Host": f"localhost:{server.server_port}", **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def state(server: WatchServer) -> dict[str, dict[str, str | int]]:
    status, text, _ = ask(server, "/state")
    assert status == 200
    runs: dict[str, dict[str, str | int]] = json.loads(text)["runs"]
    return runs


def test_the_page_of_a_run_follows_its_rounds(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    with Run.start(load_config("digits", list(TINY)), folder) as run, serving([folder]) as server:
        assert state(server)["mine"]["rounds"] == 0
        assert "no round has finished yet" in ask(server, "/page/mine")[1]
        stamps, pages = [state(server)["mine"]["stamp"]], []
        for _ in run.rounds():
            found = state(server)["mine"]
            stamps.append(found["stamp"])
            pages.append(ask(server, "/page/mine")[1])
            assert found["rounds"] == len(pages)
        assert (len(set(stamps)), len(set(pages))) == (5, 4)
        frame = ask(server, "/")[1]  # a single run needs no list
        assert "<iframe src='/page/mine'" in frame
        assert json.dumps(stamps[-1]) in frame
        run.finish()
        assert state(server)["mine"]["status"] == "4 rounds, finished"


def test_the_run_of_a_server_is_shown_too(tmp_path: Path) -> None:
    with served(tmp_path / "federation" / "server", 3) as run, serving([tmp_path / "federation"]) as server:
        rounds = run.rounds(idle())
        for played in (1, 2):
            next(rounds)
            assert state(server)["federation/server"]["rounds"] == played
        assert "75.0" in ask(server, "/page/federation/server")[1]


def test_a_server_that_waits_for_sites_says_so_before_its_first_round(tmp_path: Path) -> None:
    with served(tmp_path / "server", 3) as run, serving([tmp_path / "server"]) as server:
        before = state(server)["server"]["stamp"]
        write_status(run.folder, {"kind": "server", "phase": "round 1 waits: 0 of 2 sites connected", "since": ""})
        assert state(server)["server"]["stamp"] != before
        assert "round 1 waits: 0 of 2 sites connected" in ask(server, "/page/server")[1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one that has just begun, one that is damaged, and something else."""
    place = tmp_path_factory.mktemp("runs")
    for name, rounds in (("first", 2), ("second & <last>", 1), ("begun", 0)):
        with served(place / name, 9) as run:
            playing = run.rounds(idle())
            for _ in range(rounds):
                next(playing)
    (place / "broken").mkdir()
    (place / "broken" / "config.json").write_text("{")
    (place / "broken" / "records.jsonl").write_text('{"round": 0')
    (place / "notes").mkdir()
    (place / "notes" / "secret.txt").write_text("secret")
    (place / ".hidden").mkdir()
    (place / ".hidden" / "config.json").write_text("{}")
    return place


def test_several_runs_are_listed_with_links_and_side_by_side(runs: Path) -> None:
    with serving([runs]) as server:
        status, listed, _ = ask(server, "/")
        assert status == 200
        links = re.findall(r'href="(/run/[^"]+)"', listed)
        base = f"/run/{runs.name}"
        assert links == [f"{base}/{name}" for name in ("begun", "broken", "first", "second%20%26%20%3Clast%3E")]
        assert "second &amp; &lt;last&gt;" in listed
        assert "no round has finished yet" in listed
        for link in links:
            status, frame, _ = ask(server, link)
            assert (status, "<iframe" in frame) == (200, True)
            assert ask(server, link.replace("/run/", "/page/"))[0] == 200
        together = ask(server, "/page")[1]
        assert "second &amp; &lt;last&gt;" in together
        assert "/page'" in ask(server, "/all")[1]


def test_the_list_has_method_progress_and_time_left_of_each_run(tmp_path: Path) -> None:
    done = small_run(tmp_path / "done", method={"name": "finetune"})
    small_run(tmp_path / "begun", rounds=1, method={"name": "finetune"})
    with serving([tmp_path]) as server:
        listed = ask(server, "/")[1]
    assert "<h1>2 runs</h1>" in listed
    assert "1 of 2 runs finished" in listed
    rows = dict(zip(("begun", "done"), re.findall(r"<tr><td><a .*?</tr>", listed), strict=True))
    assert all("<td>finetune, seed 4</td>" in row for row in rows.values())
    assert '<progress value="1" max="4"></progress> 1 of 4' in rows["begun"]
    assert '<progress value="4" max="4"></progress> 4 of 4' in rows["done"]
    assert re.search(r"<td>about \d+ (s|min)</td>", rows["begun"])
    assert "about" not in rows["done"]
    assert "<td>finished</td>" in rows["done"]
    facts = bare_facts(done)
    assert not isinstance(facts, str)
    assert f"<td>{facts.summary['last']:.1f} %</td>" in rows["done"]


def test_the_list_looks_like_the_report(runs: Path) -> None:
    with serving([runs]) as server:
        assert style() in ask(server, "/")[1]
        assert style() in ask(server, "/page")[1]


def test_a_damaged_run_has_a_note_and_costs_the_others_nothing(runs: Path) -> None:
    with serving([runs]) as server:
        status, note, _ = ask(server, f"/page/{runs.name}/broken")
        assert status == 200
        assert "broken/config.json is damaged" in note
        listed, together = ask(server, "/")[1], ask(server, "/page")[1]
        assert all("config.json is damaged" in text for text in (listed, together))
        assert "begun: no round has finished yet" in together
        assert "<td>75.0 %</td>" in listed


def test_a_page_that_cannot_be_made_is_a_note(runs: Path) -> None:
    def fail(folders: Sequence[Path], notes: Sequence[str]) -> str:
        raise KeyError("<odd>")

    with serving([runs / "first"], fail) as server:
        status, note, _ = ask(server, "/page/first")
        assert status == 200
        assert "the page cannot be made just now: KeyError: &#x27;&lt;odd&gt;&#x27;" in note


def test_a_page_is_made_once_for_all_who_look_at_it(runs: Path) -> None:
    made: list[Sequence[Path]] = []

    def make(folders: Sequence[Path], notes: Sequence[str]) -> str:
        made.append(folders)
        return "page"

    with serving([runs], make) as server:
        assert {ask(server, "/page")[1] for _ in range(3)} == {"page"}
    assert made == [[runs / "first", runs / "second & <last>"]]


@pytest.mark.parametrize(
    "path",
    [
        "/page/../../../../etc/passwd",
        "/page/%2e%2e/%2e%2e/etc/passwd",
        "/page/..%2f..%2f..%2fetc%2fpasswd",
        "/run//etc/passwd",
        "/page/RUNS/notes",
        "/page/RUNS/notes/secret.txt",
        "/page/RUNS/first/records.jsonl",
        "/page/RUNS/first/../notes",
        "/page/RUNS/.hidden",
        "/records.jsonl",
        "/page/RUNS/first%00",
        "/page/%ff%fe",
        "//page",
        "http://[/",
    ],
)
def test_nothing_is_served_but_pages_of_the_runs(runs: Path, path: str) -> None:
    with serving([runs]) as server:
        status, text, _ = ask(server, path.replace("RUNS", runs.name))
        assert (status, text) == ((404, "there is no such page\n") if path != "//page" else (200, text))
        assert "secret" not in text


def test_a_link_that_leads_out_of_the_folder_is_not_followed(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "elsewhere").symlink_to(runs / "first")
    assert find_runs([tmp_path / "shown"]) == {}
    with serving([tmp_path / "shown"]) as server:
        assert "No run yet" in ask(server, "/")[1]
        assert ask(server, "/page/shown/elsewhere")[0] == 404


def test_only_reading_is_possible_and_only_under_the_servers_own_name(runs: Path) -> None:
    with serving([runs]) as server:
        assert ask(server, "/", "POST")[0] == 501
        status, text, headers = ask(server, "/", "HEAD")
        assert (status, text) == (200, "")
        assert int(headers["Content-Length"]) > 100
        assert headers["Cache-Control"] == "no-store"
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'self' 'unsafe-inline' data: blob:;")
        port = server.server_port
        for host, wanted in (("localhost", 200), ("127.0.0.1", 200), ("evil.example", 403), ("[", 403), ("", 403)):
            assert ask(server, "/", Host=f"{host}:{port}")[0] == wanted, host


def test_pages_of_ours_ask_nobody_else(runs: Path) -> None:
    with serving([runs]) as server:
        for path in ("/", "/all", f"/run/{runs.name}/first", f"/page/{runs.name}/broken"):
            assert not re.search(r"(https?:)?//\w", ask(server, path)[1]), path


def test_names_differ_even_if_the_folders_names_do_not(runs: Path, tmp_path: Path) -> None:
    for place in ("one", "two", "three"):
        (tmp_path / place / "run").mkdir(parents=True)
        (tmp_path / place / "run" / "config.json").touch()
    places = [tmp_path / place / "run" for place in ("one", "two", "three", "one")]
    assert list(find_runs(places)) == ["run", "run-2", "run-3"]
    for seed in (1, 2):
        (tmp_path / "four" / f"glfc-{seed}").mkdir(parents=True)
        (tmp_path / "four" / f"glfc-{seed}" / "config.json").touch()
    (tmp_path / "glfc-1").mkdir()
    (tmp_path / "glfc-1" / "config.json").touch()
    places = [tmp_path / "glfc-1", *(tmp_path / "four" / f"glfc-{seed}" for seed in (1, 2))]
    assert list(find_runs(places)) == ["glfc-1", "glfc-1-2", "glfc-2"]  # a name is never that of another run
    assert progress_of(tmp_path / "nowhere").rounds == 0


def test_a_folder_that_nobody_may_look_into_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("run", "secret"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").touch()
    look = Path.is_file

    def forbidden(path: Path) -> bool:  # what the system says to all but root, who runs these tests
        if path.parent.name == "secret":
            raise PermissionError(13, "Permission denied", str(path))
        return look(path)

    monkeypatch.setattr(Path, "is_file", forbidden)
    assert list(find_runs([tmp_path / "runs"])) == ["runs/run"]


def test_a_folder_with_one_run_is_a_list_to_which_others_may_come(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "first", tmp_path / "all" / "first")
    with serving([tmp_path / "all"]) as server:
        assert "<h1>1 run</h1>" in ask(server, "/")[1]
        assert "List of runs" in ask(server, "/run/all/first")[1]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_another_kind_of_loopback_is_one_too(runs: Path) -> None:
    with serving([runs], host="::1") as server:
        assert server.is_local
        assert server.url == f"http://[::1]:{server.server_port}/"
        assert ask(server, "/")[0] == 200


def test_a_server_for_everybody_is_warned_of_and_ctrl_c_ends_it(runs: Path) -> None:
    command = [sys.executable, "-m", "fcil", "watch", str(runs), "--port", "0", "--host", "0.0.0.0"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        port = int(re.findall(r"at http://0\.0\.0\.0:(\d+)/   Ctrl-C ends it\n", line)[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/state")
        assert len(json.loads(connection.getresponse().read())["runs"]) == 4
        began = time.monotonic()
        child.send_signal(signal.SIGINT)  # with the connection still open
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert (child.returncode, out) == (0, "stopped watching; the runs go on\n")
    assert time.monotonic() - began < 30
    assert err == (
        "warning: --host 0.0.0.0: anyone who reaches this machine can read these runs; nothing is encrypted, and no "
        "password is asked for\n"
    )
    connection.close()


def test_what_cannot_be_served_gets_a_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for options, said in (
            ([tmp_path / "none"], f"{tmp_path}/none is not a directory; name a run's, or one in which runs are"),
            ([tmp_path, "--port", port], f"--port {port}: cannot be listened at on 127.0.0.1 (Address already in use)"),
            ([tmp_path, "--host", "no such host"], "--host no such host: "),
            ([tmp_path, "--host", "a" * 300], "; name an address of this machine"),
        ):
            done = fcil("watch", *options)
            assert done.returncode == 2
            assert said in done.stderr
            assert done.stderr.count("\n") == 1
