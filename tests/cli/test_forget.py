"""`fcil forget`: the run's model is the one of all other samples, and no checkpoint has their sums any more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.command import fcil

from fcil.experiment.run import Run
from fcil.maths.analytic import feature_sums
from fcil.methods.analytic import SumsState

pytestmark = pytest.mark.numeric
SMALL = ["--quiet", "--set", "data.samples_per_class=8", "--set", "model.width=2", "--set", "scenario.tasks=2",
         "--set", "scenario.rounds_per_task=3", "--set", "scenario.initial_clients=3", "--set", "scenario.joiners=0",
         "--set", "scenario.participants=2", "--engine", "serial"]  # fmt: skip


def trained(folder: Path, method: str = "analytic", *more: str) -> Path:
    assert fcil("run", "digits", "--method", method, *SMALL, *more, "--out", folder).returncode == 0
    return folder


def sums_of(run: Run) -> Any:
    kept = run.state.server.role_state
    assert isinstance(kept, SumsState)
    assert kept.sums is not None
    return kept.sums


def expected(run: Run) -> Any:
    """Return the sums over what the clients' ledgers say is in them, taken in one place."""
    clients, local, total = run.simulation.clients, run.assembly.local, None
    for state in clients.states().values():
        ledger: Any = state
        plus = torch.cat([batch.samples for batch in ledger.batches[: ledger.counted] if not batch.withdrawn])
        samples = plus[~torch.isin(plus, ledger.forgotten)]
        features = local.features(local.machine.net(run.state.model), samples)
        outputs = clients.samples.outputs(samples, run.state.server.context)
        more = feature_sums(features, outputs, run.state.server.context.classes)
        total = more if total is None else total + more
    return total


def test_a_class_and_then_all_samples_of_a_client_are_forgotten(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run")
    model = folder / "model.safetensors"
    before = model.read_bytes()
    with Run.resume(folder) as run:
        sums, ledger = sums_of(run), run.simulation.clients.kept[1].state
        labels = run.simulation.clients.samples.labels(ledger.known)  # type: ignore[attr-defined]
        label = int(labels[0])
    done = fcil("forget", folder, "--client", "1", "--class", str(label))
    assert (done.returncode, done.stdout) == (0, "client 1: 8 samples are forgotten\n")
    assert model.read_bytes() != before
    with Run.resume(folder) as run:
        after = sums_of(run)
        assert float(after.counts.sum()) == float(sums.counts.sum()) - 8
        torch.testing.assert_close(after.gram, expected(run).gram, rtol=1e-5, atol=1e-9)
        torch.testing.assert_close(after.classes, expected(run).classes, rtol=1e-5, atol=1e-9)
    assert fcil("forget", folder, "--client", "1", "--class", str(label)).stdout == "no such samples are in the sums\n"
    assert fcil("forget", folder, "--client", "1").returncode == 0
    (folder / "checkpoint.fcil").write_bytes(b"damaged")  # the one before it has not kept them either
    with Run.resume(folder) as run:
        torch.testing.assert_close(sums_of(run).gram, expected(run).gram, rtol=1e-5, atol=1e-9)
        assert float(sums_of(run).counts.sum()) == float(expected(run).counts.sum())
        assert not set(run.simulation.clients.kept[1].state.known.tolist()) - set(  # type: ignore[attr-defined]
            run.simulation.clients.kept[1].state.forgotten.tolist()  # type: ignore[attr-defined]
        )


def test_a_class_and_single_samples_are_forgotten_by_all_clients(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run")
    with Run.resume(folder) as run:
        ledgers: Any = run.simulation.clients.states()
        sent = {client: set(ledger.known.tolist()) for client, ledger in ledgers.items()}
        labels, ids = run.simulation.clients.samples.split.labels, run.simulation.clients.samples.ids
        label = int(labels[min(sent[0])])
    gone = {sample for samples in sent.values() for sample in samples if int(labels[sample]) == label}
    assert fcil("forget", folder, "--class", str(label)).stdout.count("samples are forgotten") == sum(
        bool(samples & gone) for samples in sent.values()
    )
    two = sorted(sent[1] - gone)[:2]
    assert fcil("forget", folder, "--sample", two[0], "--sample", two[1]).returncode == 0
    with Run.resume(folder) as run:
        after = sums_of(run)
        left = {client: samples - gone - set(two) for client, samples in sent.items()}
        assert float(after.counts.sum()) == sum(map(len, left.values())) == float(expected(run).counts.sum())
        assert float(after.counts[run.state.server.catalogue.classes.index(ids[label])]) == 0
        torch.testing.assert_close(after.gram, expected(run).gram, rtol=1e-5, atol=1e-9)


def test_what_cannot_be_forgotten_is_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run")
    other = trained(tmp_path / "other", "finetune", "--set", "train.epochs=1")
    own = ("--set", "scenario.split=disjoint", "--set", "privacy.epsilon=2.0")
    private = trained(tmp_path / "private", "analytic", *own)
    for words, said in (
        (("forget", private, "--client", "1"), "has privacy.epsilon: to withdraw samples, their sums would be sent a"),
        (("forget", folder, "--client", "77"), "--client 77: this client has sent nothing yet"),
        (("forget", folder, "--client", "1", "--class", "zebra"), "--class zebra: the data has no such class"),
        (("forget", folder), "nothing is to be forgotten; name a --client, a --class or a --sample"),
        (("forget", folder, "--sample", "7", "--sample", "99999"), "--sample 99999: there is none; training samples"),
        (("forget", other, "--client", "1"), "only runs of the method analytic can forget"),
        (("forget", tmp_path, "--client", "1"), "holds no checkpoint"),
    ):
        done = fcil(*words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert said in done.stderr
