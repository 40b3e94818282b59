"""GLFC in a plain implementation, as a reader of the paper would write it: the reference for the library.

Clients are objects that run one after another. Each holds copies of its own images and of every model it was sent.
Images pass one by one through PIL and a `Dataset`. Each client measures its entropy alone. Prototypes are perturbed and
rebuilt one at a time. The algorithm and the scenario are the library's (GLFC, edition `fcil`). Nothing is slowed down
on purpose, and nothing is shared, cached or batched beyond what a `DataLoader` does.
"""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fcil.data.datasets import load_source
from fcil.data.datasets.dataset import Source
from fcil.data.scenario.scenario import Scenario
from fcil.experiment.config import Config

LBFGS_EVALUATIONS = 20  # of one step of torch's optimiser, by default

Pixels = NDArray[np.uint8]  # (images, height, width), and channels last unless grey
Labels = NDArray[np.int64]
Transform = Callable[[Image.Image], Tensor]


class Clock:
    """CPU seconds by part of the run."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of what stands inside to a part."""
        began = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - began


# --- networks -----------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class Network(nn.Module):
    """ResNet-18 with a head that grows; it takes normalised images."""

    def __init__(self, channels: int, width: int, classes: int) -> None:
        super().__init__()
        stem = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        blocks: list[nn.Module] = []
        for stage in range(4):
            blocks.append(Block(widths[stage], widths[stage + 1], 1 if stage == 0 else 2))
            blocks.append(Block(widths[stage + 1], widths[stage + 1], 1))
        self.body = nn.Sequential(*stem, *blocks)
        self.head = nn.Linear(8 * width, classes)

    @property
    def classes(self) -> int:
        """Return the number of outputs."""
        return self.head.out_features

    def grow(self, classes: int) -> None:
        """Give the head more outputs; the old ones keep their weights."""
        old, self.head = self.head, nn.Linear(self.head.in_features, classes)
        with torch.no_grad():
            self.head.weight[: old.out_features] = old.weight
            self.head.bias[: old.out_features] = old.bias

    def features(self, x: Tensor) -> Tensor:
        """Return the pooled features."""
        return self.body(x).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Encoder(nn.Module):
    """The LeNet whose gradients travel to the proxy, its weights uniform in [-0.5, 0.5]."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        first, second, third = nn.Conv2d(shape[0], 12, 5, 2, 2), nn.Conv2d(12, 12, 5, 2, 2), nn.Conv2d(12, 12, 5, 1, 2)
        self.body = nn.Sequential(first, nn.Sigmoid(), second, nn.Sigmoid(), third, nn.Sigmoid(), nn.Flatten())
        self.head = nn.Linear(self.body(torch.zeros(1, *shape)).shape[1], classes)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)

    def gradient(self, image: Tensor, label: Tensor, differentiable: bool = False) -> list[Tensor]:
        """Return the gradient of the cross-entropy at one image, the head's weight and bias last."""
        loss = F.cross_entropy(self.head(self.body(image)), label)
        return list(torch.autograd.grad(loss, list(self.parameters()), create_graph=differentiable))


# --- data ---------------------------------------------------------------------------------------------------------


class Pictures(Dataset[tuple[Tensor, int]]):
    """Images and class ids; each image is made a PIL picture and transformed when it is asked for."""

    def __init__(self, images: Pixels, labels: Labels, transform: Transform) -> None:
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.images[index])), int(self.labels[index])


class Transforms:
    """How the pictures of this data set become tensors: augmentation, values in [0, 1], normalisation."""

    def __init__(self, config: Config, source: Source) -> None:
        self.settings = config.train.augment
        self.mean, self.deviation = (torch.tensor(v).view(-1, 1, 1) for v in (source.mean, source.deviation))

    def train(self, picture: Image.Image) -> Tensor:
        """Return an augmented picture, normalised."""
        if padding := self.settings.crop_padding:
            width, height = picture.size
            left, top = random.randint(0, 2 * padding), random.randint(0, 2 * padding)
            picture = ImageOps.expand(picture, padding).crop((left, top, left + width, top + height))
        if self.settings.flip and random.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if strength := self.settings.brightness:
            picture = ImageEnhance.Brightness(picture).enhance(random.uniform(1 - strength, 1 + strength))
        return self.evaluate(picture)

    def evaluate(self, picture: Image.Image) -> Tensor:
        """Return a picture as it is, normalised."""
        return self.normalise(to_tensor(picture))

    def normalise(self, image: Tensor) -> Tensor:
        """Return images with values in [0, 1] as the network takes them."""
        return (image - self.mean) / self.deviation


def to_tensor(picture: Image.Image) -> Tensor:
    """Return a picture as (channels, height, width) with values in [0, 1]."""
    pixels = np.array(picture)
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous().float().div(255)


def copy_pixels(images: Tensor) -> Pixels:
    """Return a copy of uint8 images as PIL wants them."""
    channels_last = images.permute(0, 2, 3, 1).numpy().copy()
    return channels_last[..., 0] if channels_last.shape[-1] == 1 else channels_last


# --- the client ---------------------------------------------------------------------------------------------------


class Client:
    """One client with its own images, memory and models."""

    def __init__(self, config: Config, transforms: Transforms, clock: Clock) -> None:
        self.config, self.transforms, self.clock = config, transforms, clock
        self.images, self.labels = np.empty((0, 0, 0), np.uint8), np.empty(0, np.int64)
        self.finished: tuple[Pixels, Labels] | None = None  # the former data, until it is herded
        self.memory: dict[int, Pixels] = {}  # exemplars of each old class, best first
        self.seen: set[int] = set()
        self.new_classes: list[int] = []  # those that this round brought
        self.entropy = 0.0
        self.model: Network
        self.old_models: list[Network] = []

    def receive(self, images: Pixels, labels: Labels) -> None:
        """Take the data of a new task, which may be none."""
        self.finished = (self.images, self.labels) if len(self.labels) else None
        self.images, self.labels = images, labels

    def begin_round(self, global_model: Network) -> None:
        """Do what every client does in every round: measure the entropy, look for new classes, update the memory."""
        self.model = copy.deepcopy(global_model).eval()
        if len(self.labels):
            with self.clock.part("entropy"):
                self.entropy = self.mean_entropy()
        present = set(self.labels.tolist())
        self.new_classes = sorted(present - self.seen)  # the detector `labels`: the entropy is measured, not used
        self.seen |= present
        if self.finished is not None:
            with self.clock.part("herding"):
                self.remember(*self.finished)
            self.finished = None

    @torch.no_grad()
    def mean_entropy(self) -> float:
        """Return the mean softmax entropy of the received model over the current data."""
        total = 0.0
        data = Pictures(self.images, self.labels, self.transforms.evaluate)
        for images, _ in DataLoader(data, self.config.train.batch_size):
            p = F.softmax(self.model(images), 1)
            total -= float((p * torch.log(p.clamp(min=1e-12))).sum())
        return total / len(self.labels)

    @torch.no_grad()
    def features(self, images: Pixels) -> Tensor:
        """Return the model's features: pictures are transformed one by one, then pass the network together."""
        inputs = torch.stack([self.transforms.evaluate(Image.fromarray(image)) for image in images])
        return self.model.features(inputs)

    def remember(self, images: Pixels, labels: Labels) -> None:
        """Herd the finished task into memory, and cut every class to its share."""
        classes = sorted({*self.memory, *labels.tolist()})
        share = self.config.scenario.memory // len(classes)
        for label in np.unique(labels).tolist():
            own = images[labels == label]
            self.memory[label] = own[herd(F.normalize(self.features(own), dim=1), share)]
        self.memory = {label: self.memory[label][:share].copy() for label in classes}

    def train(self, rates: list[float], teachers: list[Network], outputs: dict[int, int], old_width: int) -> None:
        """Train on the current data and the memory, with L_GC and, once there is a teacher, L_RD."""
        self.old_models = [copy.deepcopy(model).eval() for model in teachers]
        teacher = next((model for model in self.old_models if model.classes <= old_width), None)
        images = [pixels for pixels in (self.images, *self.memory.values()) if len(pixels)]
        labels = [self.labels, *(np.full(len(pixels), label) for label, pixels in self.memory.items())]
        if not images:
            return
        data = Pictures(np.concatenate(images), np.concatenate(labels), self.transforms.train)
        settings = self.config.train
        batches = math.ceil(len(data) / settings.batch_size)
        # All of nearly the same size: a small last batch has no batch statistics to speak of.
        loader = DataLoader(data, math.ceil(len(data) / batches), shuffle=True)
        optimiser = torch.optim.SGD(
            self.model.parameters(), rates[0], settings.momentum, weight_decay=settings.weight_decay
        )
        self.model.train()
        for rate in rates:
            optimiser.param_groups[0]["lr"] = rate
            for inputs, classes in loader:
                old = torch.tensor([label in self.memory for label in classes.tolist()])
                targets = torch.tensor([outputs[label] for label in classes.tolist()])
                loss = self.loss(self.model(inputs), targets, old, inputs, teacher)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        optimiser.zero_grad()  # copies of the model would carry its gradients along
        self.model.eval()

    def loss(self, logits: Tensor, targets: Tensor, old: Tensor, inputs: Tensor, teacher: Network | None) -> Tensor:
        """Return lambda_1 L_GC + lambda_2 L_RD."""
        method: Any = self.config.method
        wanted = F.one_hot(targets, logits.shape[1]).float()
        each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(1)
        measure = (torch.sigmoid(logits.detach())[torch.arange(len(targets)), targets] - 1).abs()
        weights = torch.ones_like(measure)
        for group in (old, ~old):  # a sample is weighed against the samples of its kind
            if group.any() and measure[group].mean() > 0:
                weights[group] = measure[group] / measure[group].mean()
        compensated = (weights * each).mean()
        if teacher is None:
            return compensated
        softened = wanted.clone()
        with torch.no_grad():
            softened[:, : teacher.classes] = torch.sigmoid(teacher(inputs))
        distilled = F.binary_cross_entropy_with_logits(logits, softened)
        return method.compensation_weight * compensated + method.relation_weight * distilled

    def prototype_gradients(self, encoder: Encoder, outputs: dict[int, int]) -> list[list[Tensor]]:
        """Return, for each new class, the encoder's gradient at the perturbed sample nearest to the class mean."""
        gradients = []
        for label in self.new_classes:
            own = self.images[self.labels == label]
            features = self.features(own)
            nearest = int((features - features.mean(0)).norm(dim=1).argmin())
            image, target = to_tensor(Image.fromarray(own[nearest]))[None], torch.tensor([outputs[label]])
            perturbed = self.perturb(image, target, features.std(0, correction=0))
            gradients.append(encoder.gradient(perturbed, target))
        return gradients

    def perturb(self, image: Tensor, target: Tensor, deviation: Tensor) -> Tensor:
        """Return the prototype after gradient steps on the image, with noise added to its features."""
        method: Any = self.config.method
        image.requires_grad_(True)
        optimiser = torch.optim.SGD([image], method.perturb_learning_rate)
        wanted = F.one_hot(target, self.model.classes).float()
        for _ in range(method.perturb_steps):
            features = self.model.features(self.transforms.normalise(image))
            noise = method.perturb_noise * deviation * torch.randn_like(features)
            loss = F.binary_cross_entropy_with_logits(self.model.head(features + noise), wanted)
            optimiser.zero_grad()
            loss.backward(inputs=[image])
            optimiser.step()
        return image.detach()


def herd(features: Tensor, count: int) -> list[int]:
    """Return the samples whose running mean follows the class mean best, each at most once, best first."""
    mean, total = features.mean(0), torch.zeros(features.shape[1])
    chosen: list[int] = []
    for step in range(min(count, len(features))):
        distance = (mean - (total + features) / (step + 1)).norm(dim=1)
        distance[chosen] = float("inf")
        chosen.append(int(distance.argmin()))
        total = total + features[chosen[-1]]
    return chosen


# --- the proxy and the server -------------------------------------------------------------------------------------


class Proxy:
    """Rebuilds prototypes and keeps the best model of the current task and of the last one."""

    def __init__(self, config: Config, transforms: Transforms, shape: tuple[int, int, int], clock: Clock) -> None:
        self.config, self.transforms, self.shape, self.clock = config, transforms, shape, clock
        self.images: list[Tensor] = []
        self.labels: list[int] = []
        self.current: Network | None = None
        self.last: Network | None = None
        self.score = -1.0
        self.evaluations = 0

    def next_task(self) -> None:
        """Make the best model of the task that ends the best of the last one."""
        self.last, self.current = self.current or self.last, None
        self.images, self.labels, self.score = [], [], -1.0

    def take(self, gradients: list[list[Tensor]], encoder: Encoder, old_width: int) -> None:
        """Rebuild an image from each gradient of a new class, one after another."""
        random.shuffle(gradients)
        for gradient in gradients:
            label = int(gradient[-2].sum(1).argmin())  # the only row of the head with a negative sum
            if label < old_width:
                continue
            with self.clock.part("inversion"):
                self.images.append(self.rebuild(gradient, torch.tensor([label]), encoder))
            self.labels.append(label)
        if self.labels and self.current is not None:  # more to be judged by
            self.score = self.accuracy(self.current)

    def rebuild(self, gradient: list[Tensor], label: Tensor, encoder: Encoder) -> Tensor:
        """Return the image whose gradient comes nearest to the one given: L-BFGS from noise, all published steps."""
        method: Any = self.config.method
        best, best_loss = torch.zeros(1, *self.shape), float("inf")
        image = torch.randn(1, *self.shape, requires_grad=True)
        optimiser = torch.optim.LBFGS([image], method.rebuild_learning_rate, LBFGS_EVALUATIONS)

        def closure() -> Tensor:
            nonlocal best, best_loss
            self.evaluations += 1
            optimiser.zero_grad()
            found = encoder.gradient(image, label, differentiable=True)
            loss = torch.stack([(a - b).square().sum() for a, b in zip(found, gradient, strict=True)]).sum()
            loss.backward(inputs=[image])
            if loss.item() < best_loss:
                best, best_loss = image.detach().clone(), loss.item()
            return loss

        for _ in range(method.rebuild_evaluations // LBFGS_EVALUATIONS):
            if not torch.isfinite(optimiser.step(closure)):
                break
        return best

    def consider(self, model: Network) -> None:
        """Keep the model if it does at least as well on the rebuilt images as the one that is kept."""
        with self.clock.part("scoring"):
            score = self.accuracy(model) if self.labels else -1.0
        if score >= self.score:
            self.current, self.score = copy.deepcopy(model), score

    @torch.no_grad()
    def accuracy(self, model: Network) -> float:
        """Return the share of the rebuilt images that a model gets right."""
        logits = model.eval()(self.transforms.normalise(torch.cat(self.images)))
        return float((logits.argmax(1) == torch.tensor(self.labels)).float().mean())


def average(models: list[Network]) -> Network:
    """Return the mean of the models, parameter by parameter."""
    mean, states = copy.deepcopy(models[0]), [model.state_dict() for model in models]
    mean.load_state_dict(
        {
            name: torch.stack([state[name].double() for state in states]).mean(0).to(tensor.dtype)
            for name, tensor in states[0].items()
        }
    )
    return mean


class Experiment:
    """The whole federation in one process."""

    def __init__(self, config: Config) -> None:
        if (config.method_name, config.method_edition, config.model.stem) != ("glfc", "fcil", "cifar"):
            raise ValueError("the plain implementation knows only GLFC with its edition fcil on the cifar stem")
        torch.manual_seed(config.seed)
        random.seed(config.seed)
        self.config, self.clock = config, Clock()
        self.source = load_source(config.data)
        self.scenario = Scenario(config.scenario, self.source.train.labels, self.source.classes, config.seed)
        self.transforms = Transforms(config, self.source)
        self.proxy = Proxy(config, self.transforms, self.source.image_shape, self.clock)
        self.clients: dict[int, Client] = {}
        self.holdings: dict[int, Tensor] = {}
        self.outputs: dict[int, int] = {}  # class id -> output, in the order of arrival
        self.old_width = self.began = 0
        self.model: Network
        self.encoder: Encoder

    def run(self) -> list[float]:
        """Run all rounds and return the accuracy over all classes seen, in percent, after each task."""
        accuracies = []
        for number in range(self.scenario.rounds):
            self.run_round(number)
            if self.config.run.evaluate == "round" or self.scenario.ends_task(number):
                with self.clock.part("evaluation"):
                    accuracy = self.evaluate()
            if self.scenario.ends_task(number):
                accuracies.append(accuracy)
        return accuracies

    def run_round(self, round: int) -> None:
        """Run one round: new data, every client's start, the participants' training, the proxy, the average."""
        present, participants = self.scenario.clients(round), self.scenario.participants(round)
        for number in present:
            self.deliver(round, number)
        self.grow_head({label for number in present for label in self.clients[number].labels.tolist()}, round)
        teachers = [model for model in (self.proxy.current, self.proxy.last) if model is not None]
        rates = self.learning_rates(round)
        trained, gradients = [], []
        for number in present:
            client = self.clients[number]
            client.begin_round(self.model)
            if number not in participants or not (len(client.labels) or client.memory):
                continue
            with self.clock.part("training"):
                client.train(rates, teachers if self.old_width else [], self.outputs, self.old_width)
            with self.clock.part("perturbation"):
                gradients += client.prototype_gradients(self.encoder, self.outputs)
            trained.append(client.model)
        sent, self.model = self.model, average(trained) if trained else self.model
        if round == self.began:
            self.proxy.next_task()
        self.proxy.take(gradients, self.encoder, self.old_width)
        self.proxy.consider(sent)
        self.proxy.consider(self.model)

    def deliver(self, round: int, number: int) -> None:
        """Give a client copies of the images it holds now, if they are others than before."""
        if number not in self.clients:
            self.clients[number] = Client(self.config, self.transforms, self.clock)
            self.holdings[number] = torch.empty(0, dtype=torch.int64)
        holding = self.scenario.holding(round, number)
        if not torch.equal(holding, self.holdings[number]):
            self.holdings[number] = holding
            data = self.source.train.select(holding)
            self.clients[number].receive(copy_pixels(data.images), data.labels.numpy().copy())

    def grow_head(self, announced: set[int], round: int) -> None:
        """Give the classes that are new to the federation their outputs."""
        new = sorted(announced - self.outputs.keys())
        if not new:
            return
        self.old_width, self.began = len(self.outputs), round
        self.outputs.update({label: self.old_width + place for place, label in enumerate(new)})
        if self.old_width == 0:
            self.model = Network(self.source.image_shape[0], self.config.model.width, len(self.outputs))
        else:
            self.model.grow(len(self.outputs))
        self.encoder = Encoder(self.source.image_shape, len(self.outputs))

    def learning_rates(self, round: int) -> list[float]:
        """Return the rate of each local epoch; milestones count the epochs since the head grew."""
        settings, first = self.config.train, (round - self.began) * self.config.train.epochs
        rates = []
        for epoch in range(first, first + settings.epochs):
            divisors = [milestone.divisor for milestone in settings.milestones if milestone.epoch <= epoch]
            rates.append(settings.learning_rate / (divisors[-1] if divisors else 1))
        return rates

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the share of the test images of all classes seen that the global model gets right, in percent."""
        test = self.source.test.select(torch.isin(self.source.test.labels, torch.tensor(list(self.outputs))))
        data = Pictures(copy_pixels(test.images), test.labels.numpy(), self.transforms.evaluate)
        right = 0
        self.model.eval()
        for images, labels in DataLoader(data, self.config.train.batch_size):
            wanted = torch.tensor([self.outputs[label] for label in labels.tolist()])
            right += int((self.model(images).argmax(1) == wanted).sum())
        return 100 * right / len(test)
