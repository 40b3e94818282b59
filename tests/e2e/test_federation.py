"""A federation of real processes over TLS on 127.0.0.1: nobody is mocked, and everybody is ended by their id."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.command import fcil

pytestmark = [
    pytest.mark.xdist_group("federation"),  # one after the other: each has half a dozen processes
    pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="the extra flower is not installed"),
]
if importlib.util.find_spec("flwr") is not None:
    from support.deployed import Consortium, paint, processes
    from support.in_process import InProcessTransport
    from support.traces import of_secret

    from fcil.deployment.client.site import SiteParty
    from fcil.deployment.keys.make import ProxyKeys, SiteKeys, read_secret
    from fcil.deployment.proxy import ProxyRunner
    from fcil.deployment.server.run import ServedRun
    from fcil.deployment.transport.base import Member
    from fcil.experiment.config import load_config
    from fcil.experiment.model_file import load_model


def accuracies(out: Path) -> list[float]:
    """Return the accuracy of each block of classes at the end of a server's run."""
    return json.loads((out / "summary.json").read_text())["accuracy_matrix"][-1]


def test_a_whole_federation_learns_a_new_class_keeps_the_old_ones_and_leaves_nothing_running(tmp_path: Path) -> None:
    place = tmp_path / "home"
    command = [
        sys.executable,
        "-m",
        "fcil",
        "federation",
        "try",
        "digits",
        "--sites",
        "3",
        "--rounds",
        "8",
        "--out",
        place,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "now class 5 arrives at site-1 and site-2, and site-4 joins" in done.stdout
    old, new = accuracies(place / "server")
    assert new > 100 / 6  # chance
    assert old > 70
    records = [json.loads(line) for line in (place / "server" / "records.jsonl").read_text().splitlines()]
    assert records[-1]["clients"] == 4  # the late one too
    assert not any(record["failures"] for record in records)
    named = load_model(place / "state" / "site-4" / "model.safetensors")
    assert sorted(named.class_names) == ["0", "1", "2", "3", "4", "5"]
    assert not any(name in "012345" for name in load_model(place / "server" / "model.safetensors").class_names)
    assert not processes(place)
    secret = read_secret(place / "keys" / "consortium.secret")
    for path in (path for folder in (place / "server", place / "keys" / "server") for path in folder.rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        for what, values in of_secret(secret).items():
            assert not any(value in data for value in values), f"{what} in {path}"
    shown = fcil("show", place / "server")
    assert shown.returncode == 0
    assert f"{new:.1f}" in shown.stdout


@pytest.mark.soak  # a real federation takes about a minute; the others below have to do in `make test`
def test_requests_over_flower_give_the_bits_of_requests_within_one_process(tmp_path: Path) -> None:
    with Consortium(tmp_path, "berlin", "paris") as federation:
        for seed, site in enumerate(federation.sites):
            for label, name in enumerate(("cat", "dog", "owl")[: 2 + seed]):  # cat and dog are at both sites
                paint(federation.data(site) / name, label, 8, seed)
        federation.serve()
        federation.consult()
        for site in federation.sites:
            federation.join(site)
        assert federation.ended("server") == 0, federation.logs()
        assert [federation.ended(name) for name in ("berlin", "paris", "proxy")] == [0, 0, 0], federation.logs()
        deployment_config = ServedRun.resume(load_config(str(federation.config)), federation.out)
        deployment_config.close()

        quiet = lambda line: None  # noqa: E731
        parties = {}
        for number, site in ((1, "berlin"), (2, "paris")):
            keys, state = SiteKeys.load(federation.keys(site)), tmp_path / "again" / site
            parties[number] = Member(number, site, "site"), SiteParty(keys, federation.data(site), state, quiet).handle
        runner = ProxyRunner(ProxyKeys.load(federation.keys("proxy")), tmp_path / "again" / "proxy", quiet)
        parties[0] = Member(0, "proxy", "proxy"), runner.handle
        with ServedRun.start(load_config(str(federation.config)), tmp_path / "again" / "server") as run:
            run.federation = deployment_config.federation  # the proxy signs its name
            list(run.rounds(run.serve(InProcessTransport(parties), quiet)))
        ours, theirs = run.state.server, deployment_config.state.server
        assert ours.catalogue == theirs.catalogue
        assert len(ours.catalogue.classes) == 3
        assert all((ours.model[name] == theirs.model[name]).all() for name in ours.model | theirs.model)
        assert [record.correct for record in run.journal.records] == [
            record.correct for record in deployment_config.journal.records
        ]


def test_sites_and_server_are_killed_and_come_back(tmp_path: Path) -> None:
    with Consortium(tmp_path, "berlin", "paris", "oslo", proxy=False) as federation:
        for seed, site in enumerate(federation.sites):
            for label, name in enumerate(("cat", "dog")):
                paint(federation.data(site) / name, label, 8, seed)
        (federation.data("paris") / "cat" / "broken.png").write_bytes(b"no picture")
        paint(federation.data("paris") / "unicorn", 2, 1, 9)  # a class of one image
        for path in federation.data("oslo").glob("*/*.png"):
            path.unlink()  # and a site without any
        settings = ("method.proxy=false", "deployment.rounds=60", "deployment.deadline=6.0")
        federation.serve(*settings)
        for site in federation.sites:
            federation.join(site)
        federation.wait_for("a round of three sites", lambda: "3 sites" in federation.said("server"))

        federation.kill("berlin")  # in the middle of whatever it is doing
        killed = federation.rounds()
        federation.wait_for("two rounds without it", lambda: federation.rounds() >= killed + 2)
        assert "site berlin: it did not answer within 6 s" in federation.said("server")
        before = federation.said("berlin").count("trained on")
        federation.join("berlin")
        federation.wait_for("a round with it again", lambda: federation.said("berlin").count("trained on") > before)

        federation.kill("server")
        played = federation.rounds()
        more = played + 3
        # A busy machine's sites get the last message, too.
        patient = ("method.proxy=false", "deployment.deadline=60.0")
        federation.serve(*patient, f"deployment.rounds={more}", resume=True)
        assert federation.ended("server") == 0, federation.logs()
        assert federation.rounds() == more
        assert [federation.ended(site) for site in federation.sites] == [0, 0, 0], federation.logs()
        assert "trying again" in federation.said("paris")  # the sites stayed, and found the server again
        assert "broken.png" in federation.said("paris")
        assert len(load_model(federation.state("oslo") / "model.safetensors").class_names) == 3
        assert federation.left_running() == []


def test_strangers_are_refused_and_a_hostile_site_costs_only_its_own_work(tmp_path: Path) -> None:
    with Consortium(tmp_path, "berlin", "paris", "mallory", proxy=False) as federation:
        for seed, site in enumerate(("berlin", "paris")):
            paint(federation.data(site) / "cat", 0, 8, seed)
            paint(federation.data(site) / "dog", 1, 8, seed)
        federation.serve("method.name=finetune", "deployment.rounds=5", "deployment.min_sites=3")
        hostile = [federation.address, str(federation.keys("mallory")), str(tmp_path / "mallory")]
        federation.start("mallory", hostile, "support.hostile")
        federation.found("stranger")  # nobody has registered it
        federation.join("stranger")
        federation.found("misled")
        federation.register("misled")
        fcil("federation", "keys", "server", "--address", "127.0.0.1", "--out", tmp_path / "other")
        (federation.keys("misled") / "ca.crt").write_bytes((tmp_path / "other" / "ca.crt").read_bytes())
        federation.join("misled")
        federation.join("berlin")
        federation.join("paris")
        assert federation.ended("stranger") == 2, federation.logs()
        assert "does not know this party; send its .pub file" in federation.said("stranger")
        assert federation.ended("misled") == 2, federation.logs()
        assert "was not issued by the CA" in federation.said("misled")

        assert federation.ended("server") == 0, federation.logs()
        said = federation.said("server")
        for reason in (
            "site mallory: the update of client 2 is refused: it is not finite",
            "site mallory: the update of client 2 is refused: it has backbone.stem.0.weight as",
            "site mallory: a message cannot be read: the message declares",
            "site mallory answers neither with a reply nor with a failure",
        ):
            assert reason in said
        records = [json.loads(line) for line in (federation.out / "records.jsonl").read_text().splitlines()]
        assert all(record["reports"] == 2 for record in records[1:])  # the good ones are always counted


@pytest.mark.soak
def test_an_interrupted_federation_ends_every_process(tmp_path: Path) -> None:
    place = tmp_path / "home"
    command = [
        sys.executable,
        "-m",
        "fcil",
        "federation",
        "try",
        "digits",
        "--sites",
        "2",
        "--method",
        "finetune",
        "--out",
        place,
    ]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 240
    while not list(place.glob("server/records.jsonl")) and time.monotonic() < until:
        time.sleep(0.1)
    assert len(processes(place)) > 5
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=240)
    assert child.returncode == 130, said
    assert "every process has ended" in said
    time.sleep(1.0)  # those that Flower's parts are look for their owner twice a second
    assert processes(place) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--address", "0.0.0.0:9000", "--insecure"], "only a loopback address"),
        (["--address", "127.0.0.1:9000"], "--keys DIR is needed"),
        (["--address", "127.0.0.1", "--insecure"], "it should be HOST:PORT"),
        (["--address", "127.0.0.1:9000", "--insecure", "--set", "method.detector=oracle"], "the oracle knows"),
    ],
)
def test_a_server_that_cannot_be_is_refused_and_leaves_nothing(
    options: list[str], sentence: str, tmp_path: Path
) -> None:
    done = fcil("federation", "serve", "digits", "--out", tmp_path / "run", *options)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert not (tmp_path / "run" / "config.json").exists()
