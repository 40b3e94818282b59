"""`fcil federation keys` and `fcil federation sites` as administrators meet them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.command import fcil
from support.keyring import consortium
from support.records import record
from support.served import served

from fcil.deployment.keys.make import ProxyKeys, ServerKeys, SiteKeys
from fcil.deployment.keys.ssh import read_public_key
from fcil.federation.round_record import FailureRecord


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(*arguments: str | Path) -> str:
    """Return what a command says that must succeed."""
    done = fcil(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def private_values(place: Path) -> set[str]:
    """Return every line of every private file that is long enough to be told from other text."""
    files = [path for path in place.rglob("*") if path.suffix in (".key", ".seed", ".secret")]
    lines = {line for path in files for line in path.read_text().splitlines()}
    return {line for line in lines if len(line) > 12 and not line.startswith("-----")}


def test_a_federation_is_set_up_by_commands_which_never_print_a_private_value(place: Path) -> None:
    told = [
        said("federation", "keys", "server", "--address", "fl.example.org,10.0.0.7", "--address", "fl"),
        said("federation", "keys", "site", "berlin"),
        said("federation", "keys", "proxy"),
        said("federation", "keys", "secret", "--out", "keys/berlin"),
    ]
    assert told[0].startswith("send keys/server/ca.crt to every site and to the proxy; keep ca.key")
    assert "send keys/berlin/site.pub to the server's administrator; keep site.key" in told[1]
    assert "put ca.crt, consortium.secret and, where there is a proxy, proxy.pub beside them" in told[1]
    assert "send keys/proxy/node.pub to the server's administrator and keys/proxy/proxy.pub to every site" in told[2]
    assert "a copy of keys/berlin/consortium.secret" in told[3]
    assert "never to the server" in told[3]
    shutil.copy("keys/berlin/consortium.secret", "keys/proxy")
    shutil.copy("keys/proxy/proxy.pub", "keys/berlin")
    for party in ("berlin", "proxy"):
        shutil.copy("keys/server/ca.crt", f"keys/{party}")
    told += [
        said("federation", "sites", "add", "keys/berlin/site.pub"),
        said("federation", "sites", "add", "keys/proxy/node.pub", "--proxy"),
    ]
    told += [said("federation", "keys", "show", f"keys/{party}") for party in ("server", "berlin", "proxy")]
    told += [
        said("federation", "sites", "list"),
        said("federation", "sites", "list", "--json"),
        said("federation", "keys", "server", "--renew"),
    ]
    assert "warning" not in "".join(told)
    assert len(private_values(place)) > 9
    assert not [value for value in private_values(place) if value in "".join(told)]
    assert "fl" in ServerKeys.load(Path("keys/server")).addresses
    assert SiteKeys.load(Path("keys/berlin")).secret == ProxyKeys.load(Path("keys/proxy")).secret


def test_show_tells_what_a_folder_holds(place: Path) -> None:
    consortium(place)
    site, proxy, server = (said("federation", "keys", "show", name) for name in ("berlin", "proxy", "server"))
    assert f"site.pub           the site berlin, {read_public_key(place / 'berlin' / 'site.pub').fingerprint}" in site
    check = SiteKeys.load(place / "berlin").secret.check
    assert check in site
    assert check in proxy
    public = ProxyKeys.load(place / "proxy").public.fingerprint
    assert public in site
    assert public in proxy
    expires = f"until {ServerKeys.load(place / 'server').expires:%Y-%m-%d}"
    assert f"server.crt         for fl.example.org, localhost, 10.0.0.7, 127.0.0.1, ::1, {expires}" in server
    assert "nobody is registered yet" in server


def test_show_tells_what_is_missing_damaged_or_open_and_who_provides_it(place: Path) -> None:
    consortium(place)
    (place / "berlin" / "ca.crt").unlink()
    (place / "berlin" / "proxy.pub").unlink()
    (place / "berlin" / "consortium.secret").write_text("x")
    (place / "berlin" / "site.key").chmod(0o644)
    shown = fcil("federation", "keys", "show", "berlin")
    assert (shown.returncode, shown.stderr.count("\n")) == (0, 3)
    assert "proxy.pub          not here; right where no proxy takes part" in shown.stdout
    assert "warning: berlin/ca.crt is missing; the server's administrator has it" in shown.stderr
    assert "warning: berlin/consortium.secret is damaged: " in shown.stderr
    assert "berlin/site.key can be read by others on this machine; make it yours alone with `chmod 600" in shown.stderr
    shutil.copy("proxy/consortium.secret", "server")
    shutil.copy("server/ca.key", "server/server.key")
    shutil.copy("proxy/signing.key", "proxy/sealing.key")
    assert (
        "warning: server/consortium.secret must not be at a server"
        in fcil("federation", "keys", "show", "server").stderr
    )
    (place / "server" / "consortium.secret").unlink()
    assert (
        "server.key is damaged: it does not belong to server.crt" in fcil("federation", "keys", "show", "server").stderr
    )
    assert "proxy.pub is damaged: it does not belong to" in fcil("federation", "keys", "show", "proxy").stderr
    shutil.rmtree("berlin")
    said("federation", "keys", "site", "berlin", "--out", "berlin")
    (place / "berlin" / "site.key").unlink()
    assert fcil("federation", "keys", "show", "berlin").stderr.count("site.key is missing") == 1


def test_a_secret_goes_into_a_file_or_a_folder(place: Path) -> None:
    said("federation", "keys", "secret")
    said("federation", "keys", "secret", "--out", "a/ours.secret")
    said("federation", "keys", "secret", "--out", "b")
    files = ["keys/consortium.secret", "a/ours.secret", "b/consortium.secret"]
    assert {(place / file).stat().st_mode & 0o777 for file in files} == {0o600}
    assert len({(place / file).read_text() for file in files}) == 3


def test_sites_are_added_listed_and_removed(place: Path) -> None:
    consortium(place)
    keys = ("--keys", "server")
    assert "nobody is registered in server" in said("federation", "sites", "list", *keys)
    added = said("federation", "sites", "add", "berlin/site.pub", "--name", "munich", *keys)
    print_ = read_public_key(place / "berlin" / "site.pub").fingerprint
    assert added.startswith(f"registered munich as number 0; ask its people whether their fingerprint is {print_}")
    said("federation", "sites", "add", "proxy/node.pub", "--proxy", *keys)
    assert [line.split() for line in said("federation", "sites", "list", *keys).splitlines()] == [
        ["0", "munich", "site", print_],
        ["1", "proxy", "proxy", read_public_key(place / "proxy" / "node.pub").fingerprint],
    ]
    assert "1 sites, a proxy" in said("federation", "keys", "show", "server")
    assert said("federation", "sites", "remove", "munich", *keys).startswith("removed munich, number 0; to come back")
    assert "munich" not in said("federation", "sites", "list", *keys)
    listed = json.loads(said("federation", "sites", "list", "--json", *keys))
    assert (listed[0]["name"], listed[0]["removed"], listed[0]["fingerprint"]) == ("munich", True, print_)


def test_a_site_is_put_in_quarantine_and_released_and_its_rounds_are_counted(place: Path) -> None:
    consortium(place)
    keys = ("--keys", "server")
    said("federation", "sites", "add", "berlin/site.pub", *keys)
    said("federation", "sites", "add", "proxy/node.pub", "--proxy", *keys)
    put = said("federation", "sites", "quarantine", "berlin", *keys)
    assert put.startswith("berlin, number 0, is in quarantine: it stays registered")
    assert said("federation", "sites", "list", *keys).splitlines()[0].endswith("  in quarantine")
    assert json.loads(said("federation", "sites", "list", "--json", *keys))[0]["quarantined"] is True
    refused = fcil("federation", "sites", "quarantine", "proxy", *keys)
    assert (refused.returncode, "proxy cannot be put in quarantine: rounds need it" in refused.stderr) == (2, True)
    assert said("federation", "sites", "quarantine", "berlin", "--end", *keys).endswith("takes part again\n")
    assert "quarantine" not in said("federation", "sites", "list", *keys)
    with served(place / "run", 2) as run:
        run.journal.append(record(0, participants=[0], excluded=[{"client": 0, "reason": "too far away"}]))
        run.journal.append(record(1, participants=[0], failures=[refusal(0, "update"), refusal(0, "fit")]))
        run.state = replace(run.state, server=replace(run.state.server, round=2))
        run._save()
    listed = said("federation", "sites", "list", "--run", "run", *keys).splitlines()
    assert listed[0].endswith("  trained 2, excluded 1, refused 1, failed 1")
    (site, proxy) = json.loads(said("federation", "sites", "list", "--run", "run", "--json", *keys))
    assert (site["trained"], site["excluded"], site["refused"], site["failed"]) == (2, 1, 1, 1)
    assert "trained" not in proxy
    assert fcil("federation", "sites", "list", "--run", "nowhere", *keys).returncode != 0


def refusal(client: int, stage: str) -> FailureRecord:
    return FailureRecord(client=client, round=1, stage=stage, reason="it is not finite")


def test_sites_are_registered_with_a_server_alone(place: Path) -> None:
    consortium(place)
    for folder, whose in (("berlin", "site"), ("proxy", "proxy")):
        refused = fcil("federation", "sites", "add", "berlin/site.pub", "--keys", folder)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert (
            f"--keys {folder}: should be a folder of a server's keys, it holds those of a {whose}; " in refused.stderr
        )
    assert "absent.pub is missing" in fcil("federation", "sites", "add", "absent.pub", "--keys", "server").stderr
    assert not list(place.rglob("roster.json"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["federation", "keys", "server"], "--address is missing; name the hosts by which sites call the server"),
        (["federation", "keys", "server", "--address", "host:9092"], "--address host:9092: it should be a host's name"),
        (["federation", "keys", "server", "--renew"], "keys/server/ca.crt is missing; "),
        (["federation", "keys", "server", "--address", "a", "--out", ""], '--out "": the path is empty'),
        (
            ["federation", "keys", "server", "--address", "a", "--out", "/dev/null"],
            "/dev/null cannot hold keys: File exists",
        ),
        (["federation", "keys", "site", "proxy"], "'proxy' cannot be the name of a site"),
        (["federation", "keys", "site", "../x"], "'../x' cannot be the name of a site; use 1 to 64 letters"),
        (["federation", "keys", "site", "köln", "--out", "x"], "'köln' cannot be the name of a site"),
        (["federation", "keys", "show", "nowhere"], "nowhere holds no keys of a server, a site or the proxy"),
        (["federation", "sites", "add", "x.pub", "--keys", "nowhere"], "nowhere is no folder of a server's keys"),
        (["federation", "sites", "list"], "keys/server is no folder of a server's keys"),
        (
            ["federation", "sites", "add", "x.pub", "--keys", "."],
            "--keys .: should be a folder of a server's keys, it holds none; ",
        ),
        (["federation", "sites", "list", "--keys", ""], '--keys "": the path is empty'),
    ],
)
def test_bad_input_gets_a_sentence_and_leaves_nothing_behind(place: Path, arguments: list[str], sentence: str) -> None:
    done = fcil(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(place.iterdir()) == []


def test_what_exists_is_refused_with_what_to_do(place: Path) -> None:
    consortium(place)
    refused = [
        (["federation", "keys", "server", "--address", "a", "--out", "server"], "never overwritten; use --renew"),
        (["federation", "keys", "site", "berlin", "--out", "berlin"], "berlin/site.key exists"),
        (["federation", "keys", "site", "rome", "--out", "server"], "server holds the keys of a server"),
        (["federation", "keys", "secret", "--out", "server"], "which must never have the secret"),
        (["federation", "sites", "add", "berlin/site.key", "--keys", "server"], "never send this file to anybody"),
        (["federation", "sites", "add", "proxy/proxy.pub", "--proxy", "--keys", "server"],
         "the proxy's is the node.pub beside it"),
        (["federation", "sites", "remove", "rome", "--keys", "server"],
         "not registered in server/roster.json; there is nobody"),
    ]  # fmt: skip
    for arguments, sentence in refused:
        done = fcil(*arguments)
        assert done.returncode == 2
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        *("keys", "keys server", "keys site", "keys proxy", "keys secret", "keys show"),
        *("sites", "sites add", "sites remove", "sites list"),
    ],
)
def test_every_command_has_a_help_text(command: str) -> None:
    done = fcil("federation", *command.split(), "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_without_the_extra_all_else_works_and_these_commands_say_what_to_install(place: Path) -> None:
    program = """
import sys
sys.modules.update(nacl=None, flwr=None)
from support.command import fcil
for line in ("federation keys --help", "list methods", "federation keys site berlin", "federation sites list"):
    done = fcil(*line.split())
    print(done.returncode, done.stderr.strip())
"""
    root = Path(__file__).parents[2]
    environment = {"PYTHONPATH": f"{root}:{root / 'tests'}", "PATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True, cwd=place
    )
    sentence = "2 error: nacl is not installed; install fcil with its extra `flower`"
    assert done.stdout.splitlines() == ["0 ", "0 ", sentence, sentence]
    assert list(place.iterdir()) == []
