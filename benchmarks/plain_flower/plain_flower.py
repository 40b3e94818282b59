"""Plain averaging as a Flower app: FedAvg over arrays, and a client that trains a ResNet-18.

It imports nothing but Flower, PyTorch, NumPy and PIL, since Flower starts a process for each message and each import is
paid again. For the same reason its descent is written out (making a `torch.optim.SGD` loads torch's compiler, 1.6 s),
and images are decoded for the first message only and then read from one file. Activations are channels-last, as ours.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from PIL import Image
from torch import Tensor, nn

client = ClientApp()
server = ServerApp()


class Block(nn.Module):
    """Two convolutions with a shortcut, whose stride is taken by slicing as in our network."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        return F.relu(out + self.shortcut(x[:, :, :: self.stride, :: self.stride]), inplace=True)


class ResNet18(nn.Module):
    """The network for small images: one 3 x 3 convolution, four stages of two blocks, a linear head."""

    def __init__(self, width: int, classes: int, channels: int = 3) -> None:
        super().__init__()
        stem = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        blocks: list[nn.Module] = []
        for stage in range(4):
            blocks.append(Block(widths[stage], widths[stage + 1], 1 if stage == 0 else 2))
            blocks.append(Block(widths[stage + 1], widths[stage + 1], 1))
        self.body = nn.Sequential(*stem, *blocks)
        self.head = nn.Linear(8 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        normalised = ((images - 0.5) / 0.25).contiguous(memory_format=torch.channels_last)
        return self.head(self.body(normalised).mean((2, 3)))


def network(settings: Any) -> ResNet18:
    """Return a fresh network of the configured size."""
    return ResNet18(int(settings["width"]), int(settings["classes"]))


def load(folder: Path) -> tuple[Tensor, Tensor]:
    """Return images and labels of a folder with a folder for each class; decoded once, then read from one file."""
    cache = folder.with_suffix(".npz")
    if not cache.exists():
        names = sorted(path.name for path in folder.iterdir())
        files = [(path, label) for label, name in enumerate(names) for path in sorted((folder / name).iterdir())]
        images = np.stack([np.asarray(Image.open(path)).transpose(2, 0, 1) for path, _ in files])
        partial = cache.with_suffix(".partial.npz")
        np.savez(partial, images=images, labels=np.array([label for _, label in files]))
        partial.rename(cache)
    with np.load(cache) as found:
        return torch.from_numpy(found["images"]), torch.from_numpy(found["labels"])


def fit(net: ResNet18, images: Tensor, labels: Tensor, settings: Any) -> None:
    """Train with stochastic gradient descent on the binary cross-entropy."""
    rate, decay = float(settings["learning-rate"]), float(settings["weight-decay"])
    parts = -(-len(labels) // int(settings["batch-size"]))
    parameters = list(net.parameters())
    net.train()
    for _ in range(int(settings["epochs"])):
        for rows in torch.tensor_split(torch.randperm(len(labels)), parts):
            scores = net(images[rows].float() / 255)
            hot = F.one_hot(labels[rows], scores.shape[1]).float()
            loss = F.binary_cross_entropy_with_logits(scores, hot)
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(gradient.add(parameter, alpha=decay), alpha=rate)


def age() -> float:
    """Return the seconds since this process was started."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train on this node's images."""
    torch.set_num_threads(1)
    started, moments = age(), [time.perf_counter()]
    images, labels = load(Path(str(context.node_config["data"])))
    moments.append(time.perf_counter())
    net = network(context.run_config)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
    fit(net, images, labels, context.run_config)
    moments.append(time.perf_counter())
    seconds = {"start": started, "load": moments[1] - moments[0], "fit": moments[2] - moments[1]}
    metrics = MetricRecord({"num-examples": len(labels), **seconds})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


class NotedFedAvg(FedAvg):
    """Writes a line after each round: how many answered, and the clients' mean seconds."""

    journal: Path

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Note the end of a round."""
        replies = list(replies)
        found = super().aggregate_train(server_round, replies)
        line = {"reports": sum(not reply.has_error() for reply in replies), **dict(found[1] or {})}
        with self.journal.open("a") as journal:
            journal.write(json.dumps(line) + "\n")
        return found


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds with all sites, without evaluation."""
    torch.set_num_threads(1)
    settings = context.run_config
    sites = int(settings["sites"])
    strategy = NotedFedAvg(fraction_evaluate=0.0, min_train_nodes=sites, min_available_nodes=sites)
    strategy.journal = Path(str(settings["journal"]))
    arrays = ArrayRecord(network(settings).state_dict())
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=int(settings["rounds"]))
