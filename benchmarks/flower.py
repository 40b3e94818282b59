"""The same empty round in Flower's own simulation; prints the seconds of each round as JSON.

Used by `overhead.py`; needs `flwr[simulation]`. Written with the message API: FedAvg over arrays, ten of ten nodes per
round, no evaluation, the Ray backend with one core per client.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from fcil.models import Classifier, ModelConfig, grow, initial_state

PARTICIPANTS, ROUNDS = int(sys.argv[1]), int(sys.argv[2])
moments: list[float] = []
client = ClientApp()
server = ServerApp()


def state() -> dict[str, torch.Tensor]:
    """Return the published ResNet-18 with 100 outputs."""
    return grow(initial_state(ModelConfig(), 3, 1), 100, 2)


@client.train()
def train(message: Message, context: Context) -> Message:
    """Load what is received into a network and send it back."""
    net = Classifier(ModelConfig(), [0.0] * 3, [1.0] * 3, classes=100)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


class TimedFedAvg(FedAvg):
    """Notes when each round begins and ends."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        """Note the beginning."""
        moments.append(time.perf_counter())
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Note the end."""
        replies = list(replies)
        assert len(replies) == PARTICIPANTS
        assert not any(reply.has_error() for reply in replies)
        found = super().aggregate_train(server_round, replies)
        moments.append(time.perf_counter())
        return found


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    torch.set_num_threads(1)
    strategy = TimedFedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=PARTICIPANTS)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(state()), num_rounds=ROUNDS)


if __name__ == "__main__":
    run_simulation(
        server,
        client,
        num_supernodes=PARTICIPANTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}},
    )
    rounds = [end - begin for begin, end in zip(moments[::2], moments[1::2], strict=True)]
    print("ROUNDS", json.dumps(rounds), flush=True)
