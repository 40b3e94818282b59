"""Exact unlearning in a simulation's directory: clients withdraw samples, and the model is as if without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fcil.core.errors import ConfigError, FederationError
from fcil.core.messages import Order
from fcil.experiment.run import Run
from fcil.federation.client import Job, run_job
from fcil.methods.ledger import SampleLedger, withdraw

KEPT = 2  # checkpoints in a directory; the sums with the samples must be in none of them


@dataclass(frozen=True)
class Selection:
    """The samples to be forgotten: those of a client, of a class, with these numbers, or of all that is given."""

    client: int | None = None
    class_name: str | None = None
    samples: Sequence[int] = ()

    @property
    def is_empty(self) -> bool:
        """Say whether nothing is selected, which would mean everything."""
        return self.client is None and self.class_name is None and not self.samples


def forget(folder: Path, selection: Selection) -> dict[int, int]:
    """Take samples out of a run's sums, and return their number at each client that has lost some.

    The run keeps its rounds. Checkpoints and, once it has finished, the final model are written anew.
    """
    if selection.is_empty:
        raise ConfigError("nothing is to be forgotten; name a --client, a --class or a --sample")
    with Run.resume(folder, ["run.engine=serial"]) as run:
        lost = {}
        for client in _clients(run, selection.client):
            ledger = _ledger(run, client)
            left = withdraw(ledger, _chosen(run, ledger, selection))
            if left is ledger:
                continue
            lost[client] = len(left.forgotten) - len(ledger.forgotten)
            _keep(run, client, left)
            while _exchange(run, client):
                pass
        for _ in range(KEPT if lost else 0):
            run._save()
        if run.finished and lost:
            run.finish()
        return lost


def _clients(run: Run, client: int | None) -> list[int]:
    """Return the clients that are looked through."""
    kept = sorted(run.simulation.clients.kept)
    if client is None:
        return kept
    if client not in kept:
        known = ", ".join(map(str, kept)) or "none"
        raise ConfigError(f"--client {client}: this client has sent nothing yet; those that have are {known}")
    return [client]


def _ledger(run: Run, client: int) -> SampleLedger:
    if run.config.privacy.on and run.config.method.private == "sums":
        raise ConfigError(
            f"{run.folder} has privacy.epsilon: to withdraw samples, their sums would be sent a second time, with more "
            "epsilon, and the noise would stay; the guarantee bounds what the model tells of them as it is"
        )
    state = run.simulation.clients.kept[client].state
    if not isinstance(state, SampleLedger):
        raise ConfigError(
            f"{run.folder} was trained by {run.config.method_name}: what its model learned of a client cannot be told "
            "apart; only runs of the method analytic can forget"
        )
    return state


def _chosen(run: Run, ledger: SampleLedger, selection: Selection) -> Tensor:
    """Return the samples of a client that are to be forgotten."""
    chosen: Tensor = torch.unique(ledger.known)
    if selection.samples:
        held, wanted = run.simulation.clients.samples, torch.tensor(selection.samples)
        beyond = [number for number in selection.samples if not 0 <= number < len(held)]
        if beyond:
            raise ConfigError(
                f"--sample {beyond[0]}: there is none; training samples are numbered 0 to {len(held) - 1}"
            )
        chosen = chosen[torch.isin(chosen, wanted)]
    if selection.class_name is not None:
        names = list(run.source.class_names)
        if selection.class_name not in names:
            raise ConfigError(
                f"--class {selection.class_name}: the data has no such class; there is {', '.join(names)}"
            )
        labels = run.simulation.clients.samples.labels(chosen)
        chosen = chosen[labels == names.index(selection.class_name)]
    return chosen


def _keep(run: Run, client: int, ledger: SampleLedger) -> None:
    clients = run.simulation.clients
    clients.kept[client] = replace(clients.kept[client], state=ledger)
    clients.changed.add(client)


def _exchange(run: Run, client: int) -> bool:
    """Let a client send its next batch outside of all rounds; return whether there was one."""
    simulation, state = run.simulation, run.state
    server, order = simulation.server, Order(client, participate=True)
    opened, ledger = server.open(state.server, None), _ledger(run, client)
    job = Job(order, 0, ledger, ledger.latest, None, None)
    roles, local = run.assembly.roles, run.assembly.local
    done = run_job(roles.client, server.aggregator, job, opened.broadcast, opened.models, local)
    if done.reply is None:
        raise FederationError(str(done.failure))
    if isinstance(done.state, SampleLedger):
        _keep(run, client, done.state)
    if done.reply.report is None:
        return False
    replies = server.expect(opened, [order])
    replies.add(done.answer)
    closed = server.aggregate(opened, replies)
    after = replace(closed.state, round=state.server.round, waiting=state.server.waiting)
    run.state = replace(state, server=after)
    return True
