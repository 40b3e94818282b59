"""Outputs of the frozen part of a network: computed once, in fixed blocks, and the same bits ever after."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.noise import MODEL, SOURCE, make_source
from torch import Tensor

import fcil.models.frozen as frozen_module
from fcil.core.errors import ConfigError
from fcil.core.messages import ModelState, generator, model_digest
from fcil.data.augment import AugmentConfig
from fcil.data.blocks import BLOCK
from fcil.data.samples import Samples
from fcil.methods import methods
from fcil.models import Classifier, ModelConfig, grow, initial_state
from fcil.models.frozen import MIRRORED, PLAIN, BlockStore, FrozenOutputs, View
from fcil.models.trainer import TrainConfig, Trainer
from fcil.testing import trial
from fcil.testing.recorded import SHORT
from fcil.testing.robustness import is_finite

WHOLE = MODEL.model_copy(update={"freeze": True})
PARTLY = MODEL.model_copy(update={"freeze": "stages:2"})
CPU = torch.device("cpu")
SOME = torch.tensor([500, 3, 551, 3, 256, 41])  # of three blocks, which are cut from samples sorted by class


def state_of(seed: int = 0) -> ModelState:
    return grow(initial_state(MODEL, 1, seed), 3, seed)


def net_of(config: ModelConfig = WHOLE, seed: int = 0) -> tuple[Trainer, Classifier]:
    machine = Trainer(config, TrainConfig())
    return machine, machine.net(state_of(seed))


def forgetful(machine: Trainer) -> None:
    """Let a machine keep nothing."""
    machine.frozen = FrozenOutputs(machine.device, BlockStore(limit=0))
    machine.frozen.small = BlockStore(limit=0)


class Counted(BlockStore):
    """A store that counts what is put into it."""

    puts = 0

    def put(self, key: str, values: Tensor) -> None:
        self.puts += 1
        super().put(key, values)


def test_features_of_a_partly_frozen_network_are_kept_until_it_changes() -> None:
    machine, net = net_of(PARTLY)
    samples = Samples.of(SOURCE)
    machine.frozen.small = kept = Counted()
    wanted = net.head(net.extract(machine.images(samples, SOME)))
    for _ in range(2):
        torch.testing.assert_close(machine.logits(net, samples, SOME), wanted, atol=1e-5, rtol=1e-4)
    assert kept.puts == 2 * 3, "the maps of three blocks, and the features that follow"
    last = next(parameter for parameter in net.parameters() if parameter.requires_grad)
    last.data.mul_(2)
    wanted = net.head(net.extract(machine.images(samples, SOME)))
    torch.testing.assert_close(machine.logits(net, samples, SOME), wanted, atol=1e-5, rtol=1e-4)
    assert kept.puts == 3 * 3


@pytest.mark.parametrize("config", [WHOLE, PARTLY])
def test_a_network_gives_the_same_for_images_and_for_what_is_prepared(config: ModelConfig) -> None:
    machine, net = net_of(config)
    samples = Samples.of(SOURCE)
    prepared, images = machine.inputs(net, samples, SOME), machine.images(samples, SOME)
    assert prepared.ndim == (2 if config is WHOLE else 5)
    with torch.no_grad():
        torch.testing.assert_close(net(prepared), net(images), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(net.pool(net.maps(prepared)), net.extract(images), atol=1e-5, rtol=1e-4)
        for found, wanted in zip(reversed(net.maps(prepared)), reversed(net.maps(images)), strict=False):
            if config is PARTLY:
                torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("config", [WHOLE, PARTLY])
def test_what_is_prepared_is_the_same_bits_whoever_asks_and_wherever_it_is_kept(
    config: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen_module, "SMALLEST", 0)
    _, net = net_of(config)
    samples = Samples.of(SOURCE)
    asked = [FrozenOutputs(CPU, store).of(net, samples, SOME) for store in (BlockStore(limit=0), BlockStore())]
    for _ in range(2):  # written, then read by a second process
        asked.append(FrozenOutputs(CPU, BlockStore(tmp_path)).of(net, samples, SOME))
    alone = [FrozenOutputs(CPU, BlockStore()).of(net, samples, one[None]) for one in SOME]
    for found in (*asked, torch.cat(alone)):
        assert torch.equal(found, asked[0])
    assert len(list(tmp_path.glob("*.block"))) == 3
    assert not [path for path in tmp_path.iterdir() if path.stat().st_mode & 0o077 and path.suffix == ".block"]


def test_a_block_is_computed_once_per_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_module, "SMALLEST", 0)
    machine, net = net_of()
    samples, store = Samples.of(SOURCE), Counted(tmp_path)
    machine.frozen = FrozenOutputs(CPU, store)
    for _ in range(2):
        machine.inputs(net, samples, SOME)
        machine.features(net, samples, SOME)
    assert store.puts == 3
    machine.features(net, samples, SOME[:1], flipped=True)
    assert store.puts == 4
    again = Counted(tmp_path)
    FrozenOutputs(CPU, again).of(net, samples, SOME, MIRRORED)
    assert again.puts == 2  # of three blocks one is there


def test_the_key_tells_weights_pixels_views_and_normalisation_apart() -> None:
    _, net = net_of()
    _, other = net_of(seed=1)
    _, brighter = net_of(WHOLE.model_copy(update={"mean": (0.25,)}))
    _, larger = net_of(WHOLE.model_copy(update={"image_size": 16}))
    _, partly = net_of(PARTLY)
    frozen, samples = FrozenOutputs(CPU, BlockStore()), Samples.of(SOURCE)
    changed = Samples.of(replace(SOURCE, train=make_source(2 * BLOCK + 40).train))
    changed.pixels(torch.arange(1))
    dimmed = SOURCE.train.images.clone()
    dimmed[0, 0, 0, 0] ^= 1
    darker = Samples(replace(SOURCE.train, images=dimmed), samples.ids)
    views = [PLAIN, MIRRORED, *(View(number=one, augmentation=AugmentConfig(flip=True)) for one in range(2))]
    keys = [frozen._key(net, samples, 0, view) for view in views]
    keys += [frozen._key(one, samples, 0, PLAIN) for one in (other, brighter, larger, partly)]
    keys += [frozen._key(net, darker, 0, PLAIN), frozen._key(net, samples, 1, PLAIN)]
    assert len(set(keys)) == len(keys)
    assert frozen._key(net, changed, 0, PLAIN) == keys[0]  # the same pixels elsewhere


def test_a_changed_backbone_is_never_given_the_features_of_another() -> None:
    machine, net = net_of()
    samples, state = Samples.of(SOURCE), state_of()
    before = machine.inputs(net, samples, SOME)
    name = "backbone.stem.0.weight"
    state[name].mul_(2.0)  # in place: the same tensor object
    after = machine.inputs(machine.net(state), samples, SOME)
    assert not torch.equal(before, after)
    state[name].div_(2.0)
    assert torch.equal(machine.inputs(machine.net(state), samples, SOME), before)


@pytest.mark.parametrize("damage", ["cut", "bit", "empty"])
def test_a_damaged_file_is_computed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr(frozen_module, "SMALLEST", 0)
    _, net = net_of()
    samples = Samples.of(SOURCE)
    wanted = FrozenOutputs(CPU, BlockStore(tmp_path)).of(net, samples, SOME)
    for path in tmp_path.glob("*.block"):
        content = bytearray(path.read_bytes())
        content[100] ^= 1
        path.write_bytes({"cut": bytes(content[:-7]), "bit": bytes(content), "empty": b""}[damage])
    again = Counted(tmp_path)
    assert torch.equal(FrozenOutputs(CPU, again).of(net, samples, SOME), wanted)
    assert again.puts == 3
    assert torch.equal(FrozenOutputs(CPU, BlockStore(tmp_path)).of(net, samples, SOME), wanted)


def test_a_folder_that_cannot_be_written_to_costs_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_module, "SMALLEST", 0)
    _, net = net_of()
    file = tmp_path / "file"
    file.touch()
    frozen = FrozenOutputs(CPU, BlockStore(file / "features"))
    with pytest.warns(RuntimeWarning, match="cannot be written to"):
        found = frozen.of(net, Samples.of(SOURCE), SOME)
    assert torch.equal(found, frozen.of(net, Samples.of(SOURCE), SOME))


def test_outputs_of_images_that_are_gone_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_module, "SMALLEST", 0)
    _, net = net_of()
    samples, frozen = Samples.of(SOURCE), FrozenOutputs(CPU, BlockStore(tmp_path))
    frozen.of(net, samples, torch.arange(len(samples)))
    held = samples.blocks.members(1)[:5]
    frozen.keep_only(samples, held)
    (kept,) = tmp_path.glob("*.block")
    assert kept.name.startswith(samples.blocks.digest(1))


def test_views_are_a_fixed_number_and_drawn_by_the_seed() -> None:
    machine, net = net_of()
    machine.train = TrainConfig(augment=AugmentConfig(crop_padding=2, flip=True, views=3))
    samples, rows = Samples.of(SOURCE), torch.arange(30)
    first, again, other = (machine.batch(net, samples, rows, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    seen = [machine.batch(net, samples, rows[:1], generator(seed)) for seed in range(40)]
    assert len({tuple(one.flatten().tolist()) for one in seen}) == 3
    off = TrainConfig(augment=AugmentConfig(crop_padding=2, flip=True))
    machine.train = off
    assert torch.equal(machine.batch(net, samples, rows, generator(1)), machine.inputs(net, samples, rows))


def test_a_fit_leaves_what_is_frozen_and_trains_the_rest() -> None:
    machine, net = net_of(PARTLY)
    samples, indices, before = Samples.of(SOURCE), torch.arange(20), state_of()

    def loss(inputs: Tensor, rows: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(net(inputs), SOURCE.train.labels[indices[rows]] % 3)

    machine.fit(net, samples, indices, loss, [0.1], 3)
    changed = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    frozen = ("backbone.stem.", "backbone.stages.0.", "backbone.stages.1.")
    assert not [name for name in changed if name.startswith(frozen)]
    assert {name for name in before if not name.startswith(frozen)} == changed
    assert machine.model.trained(before).keys() == changed


@pytest.mark.parametrize("config", [WHOLE, PARTLY])
def test_the_statistics_of_what_is_frozen_stay_in_training(config: ModelConfig) -> None:
    machine, net = net_of(config)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.train()(machine.images(Samples.of(SOURCE), torch.arange(8)))
    moved = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    assert not [name for name in moved if not config.trains(name)]
    assert bool(moved) is (config is PARTLY)


def test_more_stages_than_there_are_cannot_be_frozen() -> None:
    with pytest.raises(ConfigError, match=r"model\.freeze: found stages:4, should be true or at most stages:3"):
        net_of(MODEL.model_copy(update={"freeze": "stages:4"}))


METHODS = [name for name, method in methods().items() if method.variant_of is None]
DIFFERENT = ("ewc", "geodl", "glfc", "lander", "mfcl", "podnet", "target")  # in what they do with a network


@pytest.mark.parametrize(
    ("method", "freeze"), [*((name, True) for name in METHODS), *((name, "stages:2") for name in DIFFERENT)]
)
def test_every_method_ends_with_the_same_bits_with_and_without_the_cache(method: str, freeze: bool | str) -> None:
    played = []
    for keeps in (True, False):
        made = trial(method, scenario=SHORT, model={"freeze": freeze})
        if not keeps:
            forgetful(made.local.machine)
        state, records = made.run()
        assert is_finite(state)
        assert [record.failures for record in records] == [[]] * len(records)
        played.append((model_digest(state.model), made.simulation.evaluate(state)))
    assert played[0] == played[1]


def test_a_report_carries_what_is_trained_alone() -> None:
    sizes = []
    for freeze in (False, True):
        _, records = trial("finetune", scenario=SHORT, model={"freeze": freeze}).run()
        sizes.append(sum(record.bytes_up for record in records))
    assert sizes[1] < sizes[0] / 4
