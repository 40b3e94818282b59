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
    from fcil.deployment.party_limits import PartyLimits
    from fcil.deployment.proxy import ProxyRunner
    from fcil.deployment.server.run import ServedRun
    from fcil.deployment.server.state import ServedCheckpoint
    from fcil.deployment.transport.base import ConnectedParty
    from fcil.experiment.checkpoint import load_any_checkpoint
    from fcil.experiment.config import load_config
    from fcil.experiment.model_file import load_model
    from fcil.methods.analytic import SumsState

    FEW = PartyLimits(hold_out_images=1)


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
            parties[number] = (
                ConnectedParty(number, site, "site"),
                SiteParty(keys, federation.data(site), state, quiet, accept=federation.terms, limits=FEW).handle,
            )
        runner = ProxyRunner(
            ProxyKeys.load(federation.keys("proxy")), tmp_path / "again" / "proxy", quiet, accept=federation.terms
        )
        parties[0] = ConnectedParty(0, "proxy", "proxy"), runner.handle
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
        assert "berlin failed: it did not answer within 6 s" in federation.said("server")
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


@pytest.mark.soak
def test_every_picture_is_in_the_analytic_sums_once_whoever_is_killed(tmp_path: Path) -> None:
    settings = ("method.name=analytic", "deployment.deadline=10.0")
    with Consortium(tmp_path, "berlin", "paris", proxy=False) as federation:

        def play(rounds: int) -> None:
            wanted = federation.rounds() + rounds
            federation.wait_for(f"{rounds} more rounds", lambda: federation.rounds() >= wanted)

        for seed, site in enumerate(federation.sites):
            for label, name in enumerate(("cat", "dog")):
                paint(federation.data(site) / name, label, 8, seed)
        federation.serve(*settings, "deployment.rounds=500")
        for site in federation.sites:
            federation.join(site)
        play(1)
        federation.kill("berlin")  # its pictures may be on their way
        federation.join("berlin")
        paint(federation.data("paris") / "cat", 0, 6, 7)
        play(2)
        federation.kill("server")
        federation.kill("paris")
        federation.join("paris")
        federation.serve(*settings, "deployment.rounds=500", resume=True)
        play(2)
        federation.kill("server")
        more = federation.rounds() + 6
        federation.serve("method.name=analytic", "deployment.deadline=60.0", f"deployment.rounds={more}", resume=True)
        assert federation.ended("server") == 0, federation.logs()
        federation.wait_for("the end of the sites", lambda: federation.left_running() == [])
        state = load_any_checkpoint(federation.out)
        assert isinstance(state, ServedCheckpoint)
        kept = state.state.server.role_state
        assert isinstance(kept, SumsState)
        assert kept.counts is not None
        # of each class a site holds one picture out: 7 + 13 cats and 7 + 7 dogs are trained on
        assert sorted(kept.counts.tolist()) == [14, 20], federation.logs()


@pytest.mark.soak
def test_masked_sums_have_every_picture_once_whoever_is_killed_between_which_turns(tmp_path: Path) -> None:
    """Three of four sites are killed, each before another turn, and then the server; all start again."""
    settings = ("method.name=analytic", "federation.aggregator=masked", "deployment.min_sites=4")
    settings += ("deployment.deadline=15.0",)
    last = {"berlin": ("KeysRequest", 3), "oslo": ("TrainRequest", 3), "paris": ("UnmaskRequest", 4)}
    with Consortium(tmp_path, "berlin", "oslo", "paris", "rome", proxy=False) as federation:
        for seed, site in enumerate(federation.sites):
            for label, name in enumerate(("cat", "dog")):
                paint(federation.data(site) / name, label, 8, seed)
        federation.serve(*settings, "deployment.rounds=500")
        for site in federation.sites:
            federation.join(site, until=last.get(site))
        for site in last:
            assert federation.ended(site) == -signal.SIGKILL
            federation.join(site)
        played = federation.rounds() + 2
        federation.wait_for("2 more rounds", lambda: federation.rounds() >= played)
        federation.kill("server")
        more = federation.rounds() + 4
        federation.serve(*settings[:-1], "deployment.deadline=60.0", f"deployment.rounds={more}", resume=True)
        assert federation.ended("server") == 0, federation.logs()
        records = [json.loads(line) for line in (federation.out / "records.jsonl").read_text().splitlines()]
        whole = [record for record in records if not record.get("not_applied")]
        assert all(record["reports"] >= 3 for record in whole)
        assert records[-1]["reports"] == 4, "all are there again"
        assert {failure["stage"] for record in records for failure in record["failures"]} & {"keys", "answer", "unmask"}
        state = load_any_checkpoint(federation.out)
        assert isinstance(state, ServedCheckpoint)
        kept = state.state.server.role_state
        assert isinstance(kept, SumsState)
        assert kept.counts is not None
        assert kept.counts.tolist() == [28, 28], federation.logs()  # each site holds one picture of a class out


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
        federation.found("undecided")
        federation.register("undecided")
        federation.join("undecided", agreed=False)
        federation.join("berlin")
        federation.join("paris")
        assert federation.ended("undecided") == 2, federation.logs()
        assert "by the method finetune: resnet18 of width 2" in federation.said("undecided")
        assert f"add --accept {federation.terms} to the command" in federation.said("undecided")
        assert f"terms {federation.terms}" in federation.said("server")
        assert federation.ended("stranger") == 2, federation.logs()
        assert "does not know this party; send its .pub file" in federation.said("stranger")
        assert federation.ended("misled") == 2, federation.logs()
        assert "was not issued by the CA" in federation.said("misled")

        assert federation.ended("server") == 0, federation.logs()
        said = federation.said("server")
        for reason in (
            "site mallory: the update of client 2 is refused: it is not finite",
            "site mallory: the update of client 2 is refused: it has backbone.stem.0.weight as",
            "mallory failed: a message cannot be read: the message declares",
            "mallory failed: it answers neither with a reply nor with a failure",
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
        (["--address", "0.0.0.0:9000", "--insecure"], "needs a loopback address"),
        (["--address", "127.0.0.1:9000"], "--keys DIR is needed"),
        (["--address", "127.0.0.1", "--insecure"], "it should be HOST:PORT"),
        (
            ["--address", "127.0.0.1:9000", "--insecure", "--set", "method.detector=oracle"],
            "the oracle reads a simulation",
        ),
    ],
)
def test_a_server_that_cannot_be_is_refused_and_leaves_nothing(
    options: list[str], sentence: str, tmp_path: Path
) -> None:
    done = fcil("federation", "serve", "digits", "--out", tmp_path / "run", *options)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.soak  # its rounds, pauses and restarts of real processes take minutes
def test_an_open_federation_learns_waits_releases_and_is_asked_for_predictions(tmp_path: Path) -> None:
    from fcil.core.net import free_port

    with Consortium(tmp_path, "berlin", "paris", proxy=False) as federation:
        for seed, site in enumerate(federation.sites):
            paint(federation.data(site) / "cat", 0, 8, seed)
        settings = ("method.name=finetune", "deployment.rounds=open", "deployment.burst=2")
        federation.serve(*settings)
        for site in federation.sites:
            federation.join(site)
        current = federation.state("paris") / "releases" / "current"
        federation.wait_for("the first release", current.exists)
        federation.wait_for("the wait", lambda: "waits for new images" in federation.said("server"))
        federation.kill("berlin")
        paint(federation.data("paris") / "dog", 1, 8, 1)
        address = f"127.0.0.1:{free_port()}"
        federation.start("predict", ["predict", str(federation.state("paris")), "--serve", address])
        federation.join("berlin")
        federation.wait_for("a release with both", lambda: len(load_model(current).class_names) == 2)
        federation.wait_for("the endpoint", lambda: "now 000" in federation.said("predict"))
        federation.wait_for("berlin's", (federation.state("berlin") / "releases/current").exists)
        run = ("--run", str(federation.out), "--keys", str(federation.keys("server")))
        assert fcil("federation", "rollback", "1", *run).returncode == 0
        federation.wait_for("the rollback", lambda: len(load_model(current).class_names) == 1)
        played = federation.rounds()
        assert fcil("federation", "set", f"deployment.rounds={played + 1}", *run).returncode == 0
        assert federation.ended("server") == 0, federation.logs()
        assert [federation.ended(name) for name in federation.sites] == [0, 0], federation.logs()
        assert federation.rounds() == played + 1
        federation.running["predict"].terminate()
        assert federation.ended("predict") == 0, federation.said("predict")
