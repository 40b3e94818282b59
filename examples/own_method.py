"""A method of your own in one file: balanced softmax with exemplars, compared with two that come with fcil.

python examples/own_method.py [DIRECTORY]

Balanced softmax (Ren et al., NeurIPS 2020) adds the logarithm of each class's share of the training data to its output
before the softmax, so that rare classes are not drowned by frequent ones. Here the data is a client's own: a few
exemplars of old classes next to many new images. A class that a client has no image of has no share in its loss, so
its output is left as the other clients have made it. The model predicts without the shares.

`test_own_method.py` holds the method to the tests that ours have to pass.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

import fcil
from fcil.methods import Roles, Setting
from fcil.methods.client import RehearsalClient
from fcil.methods.exemplar_selection import RehearsalConfig
from fcil.methods.local_objective import LocalObjective
from fcil.methods.server import plain_server

QUICK = ["data.samples_per_class=60", "scenario.tasks=[4, 3, 3]", "scenario.rounds_per_task=3", "model.name=cnn"]


class BalancedConfig(RehearsalConfig):
    """The method's settings: those of every method with exemplars, and one of its own."""

    strength: float = Field(1.0, ge=0, description="how much the shares of the classes count; 0 is a plain softmax")


def balanced_cross_entropy(logits: Tensor, labels: Tensor, counts: Tensor, strength: float) -> Tensor:
    """Return the loss of each example; `counts` has the training samples of each class."""
    shares = counts.to(logits) / counts.sum()
    raised = logits + strength * shares.log()
    return F.cross_entropy(raised.masked_fill(counts == 0, -float("inf")), labels, reduction="none")


class Balanced(LocalObjective[BalancedConfig]):
    """One local fit of a client."""

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the loss of a batch; `rows` says which of the client's training samples it has."""
        logits, targets = self.problem.net(images), self.problem.targets
        counts = targets.bincount(minlength=logits.shape[1])  # of all that the client trains on: new data and memory
        return balanced_cross_entropy(logits, targets[rows], counts, self.config.strength).mean()


def build(config: BalancedConfig, setting: Setting) -> Roles:
    """Return what clients and server do: rehearse with our objective, and average."""
    return Roles(RehearsalClient(config, setting, Balanced), plain_server())


fcil.register_method(fcil.Method("balanced", "balanced softmax with exemplars (NeurIPS 2020)", BalancedConfig, build))


def main(folder: Path) -> None:
    """Compare it with plain averaging and with iCaRL on the digits, and print the table."""
    compared = fcil.compare(
        "digits", ["finetune", "icarl", "balanced"], seeds=[1], ours="balanced", settings=QUICK, out=folder
    )
    print(compared.table())
    print(f"curves: {compared.folder / 'curves.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs/own-method"))
