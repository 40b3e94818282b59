"""The contract of networks: a test class that names a registered network inherits every test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from fcil.core.messages import ModelState, generator, model_digest
from fcil.data.columns import Kind
from fcil.data.datasets.dataset import Source, Split
from fcil.data.samples import Samples
from fcil.federation.engines import Recipe
from fcil.federation.server import FederationConfig
from fcil.maths.losses import labelled_bce
from fcil.methods import Setting, get_method
from fcil.models.classifier import Classifier, grow, initial_state, load_classifier
from fcil.models.config import ModelConfig
from fcil.models.cost import cost_of, measured, measured_bytes, parameter_bytes
from fcil.models.registry import NETWORKS
from fcil.models.trainer import TrainConfig, Trainer
from fcil.testing.trial import blobs

OUTPUTS = 3


class NetworkContract:
    """Derive from it, name the network, and pytest holds it to every contract.

    `settings` are further settings of `[model]`; `size` is the side of the images that it is shown.
    """

    network: ClassVar[str]
    settings: ClassVar[Mapping[str, Any]] = {}
    size: ClassVar[int] = 16

    def config(self, **changed: Any) -> ModelConfig:
        """Return the settings of the network for samples of three channels."""
        normalised = {"mean": (0.5,) * 3, "deviation": (0.25,) * 3}
        return ModelConfig(**{"name": self.network, **normalised, **self.settings, **changed})

    @property
    def kind(self) -> Kind:
        """Return the kind of samples that the network is shown."""
        kinds = NETWORKS[self.network].kinds
        return "image" if "image" in kinds else min(kinds)

    def shape(self, channels: int = 3) -> tuple[int, int, int]:
        """Return the shape of a sample."""
        height, width = {"image": (self.size, self.size), "series": (1, self.size), "vector": (1, 1)}[self.kind]
        return channels, height, width

    def images(self, count: int = 6, channels: int = 3) -> Tensor:
        """Return random samples."""
        return torch.rand(count, *self.shape(channels), generator=generator(1))

    def source(self) -> Source:
        """Return a small data set of three channels."""
        if self.kind == "image":
            return blobs(per_class=4, size=self.size, channels=3)
        labels = torch.arange(OUTPUTS).repeat(8)
        split = Split(self.images(len(labels)), labels)
        return Source("noise", split, split, tuple(map(str, range(OUTPUTS))))

    def state(self, **changed: Any) -> ModelState:
        """Return fresh weights with a few outputs."""
        return grow(initial_state(self.config(**changed), 3, 0), OUTPUTS, 1)

    def net(self, **changed: Any) -> Classifier:
        """Return the network in evaluation mode."""
        machine = Trainer(self.config(**changed), TrainConfig())
        return machine.net(self.state(**changed))

    def test_gives_a_finite_row_of_features_per_image(self) -> None:
        """Grey and coloured images give rows of the size that the network names."""
        for channels in (1, 3):
            config = self.config(mean=(0.5,) * channels, deviation=(0.25,) * channels)
            state = initial_state(config, channels, 0)
            net = Trainer(config, TrainConfig()).net(state)
            features = net.extract(self.images(channels=channels))
            assert features.shape == (6, state["head.weight"].shape[-1])
            assert features.dtype == torch.float32
            assert bool(torch.isfinite(features).all())

    def test_a_gradient_reaches_every_parameter(self) -> None:
        """No parameter is without a part in the features."""
        net = self.net().train()
        net(self.images()).square().sum().backward()
        without = [
            name for name, value in net.named_parameters() if value.grad is None or not value.grad.isfinite().all()
        ]
        assert not without
        assert any(bool(value.grad.any()) for value in net.backbone.parameters() if value.grad is not None)

    def test_looks_at_each_image_alone_when_it_does_not_train(self) -> None:
        """In evaluation mode an image's features do not depend on its batch."""
        net = self.net().double()
        with torch.no_grad():
            together = net.extract(self.images().double())
            alone = torch.cat([net.extract(image[None]) for image in self.images().double()])
        torch.testing.assert_close(together, alone)

    def test_starts_from_its_seed_alone(self) -> None:
        """The first weights follow from the seed, and no global generator is drawn from."""
        before = torch.random.get_rng_state()
        first = model_digest(self.state())
        assert torch.equal(torch.random.get_rng_state(), before)
        torch.rand(1)
        assert model_digest(self.state()) == first
        assert model_digest(grow(initial_state(self.config(), 3, 5), OUTPUTS, 1)) != first

    def test_is_all_in_its_state(self) -> None:
        """A network that is loaded from a state is the same, and has weights of its own."""
        state = self.state()
        digest = model_digest(state)
        net = load_classifier(self.config(), (0.5,) * 3, (0.25,) * 3, state, torch.device("cpu"))
        assert model_digest(dict(net.state_dict())) == digest
        assert all(tensor.device.type == "cpu" for tensor in (*net.parameters(), *net.buffers()))
        images = self.images()
        with torch.no_grad():
            assert torch.equal(net.eval()(images), self.net()(images))
        net.train()(images).sum().backward()
        assert model_digest(state) == digest

    def test_its_head_grows_and_keeps_old_outputs(self) -> None:
        """A wider head gives the old outputs for the old classes, bit for bit in its rows."""
        state = self.state()
        wider = grow(state, OUTPUTS + 2, 7)
        assert torch.equal(wider["head.weight"][:OUTPUTS], state["head.weight"])
        net = Trainer(self.config(), TrainConfig()).net(wider)
        assert net(self.images()).shape == (6, OUTPUTS + 2)

    def test_travels_as_text(self) -> None:
        """A worker builds the same network from a recipe's JSON."""
        method = get_method("finetune")
        setting = Setting(0, self.shape(), None)
        recipe = Recipe("finetune", method.config(), setting, self.config(), TrainConfig(), FederationConfig())
        read = Recipe.read(recipe.text())
        assert read == recipe
        with torch.no_grad():
            found = read.machine().net(self.state())(self.images())
        assert torch.equal(found, self.net()(self.images()))

    def test_has_the_stages_that_it_declares(self) -> None:
        """The features are the mean of the last map over its positions, which is its own last map."""
        if not self.config().network.stages:
            return
        net = self.net().double()
        with torch.no_grad():
            maps = net.maps(self.images().double())
            torch.testing.assert_close(net.pool(maps), net.extract(self.images().double()))
            twice = net.last_map([net.last_map(maps)])
            assert torch.equal(twice, net.last_map(maps))
        assert {one.ndim for one in maps} == {4}

    def test_says_what_it_costs(self) -> None:
        """Operations and memory are known, and agree with the count of a forward pass."""
        config, shape = self.config(), self.shape()
        known, counted = cost_of(config, shape), measured(config, shape)
        assert (known.multiply_adds, known.largest) == (counted.multiply_adds, counted.largest)
        assert 0 < known.kept <= counted.kept <= 1.5 * known.kept
        assert parameter_bytes(config, 3) == measured_bytes(config, 3) > 0

    def test_trains_and_when_frozen_trains_its_head_alone(self) -> None:
        """A fit changes the backbone, or with `model.freeze` not one bit of it, statistics included."""
        assert self.fitted(freeze=False) == {"backbone", "head"}
        assert self.fitted(freeze=True) == {"head"}

    def fitted(self, freeze: bool) -> set[str]:
        """Return the parts of the network that a fit changes."""
        source = self.source()
        samples, indices = Samples.of(source), torch.arange(len(source.train))
        machine, state = Trainer(self.config(freeze=freeze), TrainConfig(batch_size=8)), self.state()
        state = grow(state, source.classes, 2)
        net, labels = machine.net(state), source.train.labels
        machine.fit(
            net, samples, indices, lambda images, rows: labelled_bce(net(images), labels[rows]).mean(), [0.1], 3
        )
        changed = [name for name, value in net.state_dict().items() if not torch.equal(value, state[name])]
        return {name.partition(".")[0] for name in changed}
