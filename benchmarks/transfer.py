"""Pre-trained networks: processor time per image, and what a linear head on their features reaches on CIFAR-100.

The head is ridge regression in closed form on features of length one, in one place, without tasks or clients. It sees
`TRAIN` images of each class, the first ones; the test has the first `TEST` of each. ImageNet pre-training stands behind
every figure. It needs CIFAR-100 and the extra `pretrained`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.common import cpu_seconds
from benchmarks.measure import Measurement
from fcil.core.errors import ConfigError
from fcil.data.datasets import DataConfig, load_source
from fcil.data.datasets.cifar100 import is_there
from fcil.data.datasets.dataset import Split
from fcil.data.samples import Samples
from fcil.experiment.build import agreed_model
from fcil.models import ModelConfig, initial_state
from fcil.models.trainer import TrainConfig, Trainer
from fcil.models.weights import installed_file

TRAIN, TEST = 20, 10  # images of each class
RIDGE = 0.1
CHOICES = (
    ("efficientnet-lite0", None),
    ("efficientnet-lite0", 160),
    ("efficientnet-lite1", None),
    ("efficientnet-lite2", None),
)


def measure() -> Iterator[Measurement]:
    """Yield milliseconds per image and accuracy, network by network."""
    if not is_there():
        raise ConfigError("this benchmark needs CIFAR-100; see docs/data.md")
    torch.set_num_threads(1)
    source = load_source(DataConfig(source="cifar100")).reduced(TRAIN)
    test = source.test.select(first_of_each(source.test.labels, TEST))
    for name, side in CHOICES:
        config = ModelConfig(name=name, weights="imagenet", image_size=side, freeze=True)
        if config.released is None or installed_file(config.released) is None:
            raise ConfigError("this benchmark needs the extra `pretrained`")
        agreed = agreed_model(config, source)
        machine = Trainer(agreed, TrainConfig())
        state = initial_state(agreed, 3, 0)
        found: list[Tensor] = []

        def extract(machine: Trainer = machine, state: dict[str, Tensor] = state, found: list[Tensor] = found) -> None:
            net = machine.net(state)
            for split in (source.train, test):
                samples = Samples(split, list(map(str, range(source.classes))))
                found.append(machine.features(net, samples, torch.arange(len(split))))

        spent = cpu_seconds(extract) / (len(source.train) + len(test))
        details = {"pixels": agreed.image_size, "accuracy": accuracy(found, source.train, test)}
        yield Measurement(f"{name}-{agreed.image_size}", 1000 * spent, None, None, unit="ms per image", details=details)


def first_of_each(labels: Tensor, count: int) -> Tensor:
    """Return the first samples of each class."""
    return torch.cat([(labels == label).nonzero().squeeze(1)[:count] for label in labels.unique().tolist()])


def accuracy(features: list[Tensor], train: Split, test: Split) -> float:
    """Return the share of test images that the head gets right, in percent."""
    known, asked = (F.normalize(rows.double()) for rows in features)
    gram = known.T @ known + RIDGE * torch.eye(known.shape[1], dtype=torch.float64)
    head = torch.linalg.solve(gram, known.T @ F.one_hot(train.labels).double())
    return 100 * float(((asked @ head).argmax(1) == test.labels).double().mean())
