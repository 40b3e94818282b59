from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.noise import MODEL, MODELS, SOURCE, make_local, make_machine
from torch import Tensor

import fcil.models.trainer as machine_module
from fcil.core.messages import ModelState, derive_seed, generator, model_digest
from fcil.data.augment import AugmentConfig, augment
from fcil.models.trainer import TrainConfig, Trainer, batches


@examples(50)
@given(st.integers(1, 40), st.integers(1, 12))
def test_batches_cover_the_order_in_as_few_equal_parts_as_the_size_allows(count: int, size: int) -> None:
    order = torch.randperm(count, generator=generator(0))
    parts = batches(order, size)
    assert torch.equal(torch.cat(parts), order)
    sizes = [len(part) for part in parts]
    assert len(sizes) == -(-count // size)
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1


def test_what_is_left_over_is_spread_and_no_batch_of_its_own() -> None:
    assert [len(part) for part in batches(torch.arange(578), 32)] == [31] * 8 + [30] * 11
    assert [part.tolist() for part in batches(torch.arange(7), 3)] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [part.tolist() for part in batches(torch.arange(1), 3)] == [[0]]


def fit_once(train: TrainConfig, indices: Tensor, rates: list[float], seed: int) -> tuple[ModelState, float]:
    local = make_local(train)
    net = local.machine.net(MODELS[1])
    labels = SOURCE.train.labels[indices]

    def loss(images: Tensor, rows: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(net(images), labels[rows])

    value = local.machine.fit(net, local.samples, indices, loss, rates, seed)
    assert not net.training
    return net.state_dict(), value


def test_training_depends_on_its_seed_and_leaves_the_global_generator_alone() -> None:
    train = TrainConfig(batch_size=8, augment=AugmentConfig(crop_padding=1, flip=True))
    indices = torch.arange(30)
    before = torch.random.get_rng_state()
    first, again, other = (fit_once(train, indices, [0.1, 0.1], seed) for seed in (4, 4, 5))
    assert model_digest(first[0]) == model_digest(again[0])
    assert first[1] == again[1]
    assert model_digest(first[0]) != model_digest(other[0])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_one_step_is_plain_sgd_with_weight_decay_on_the_augmented_batch() -> None:
    augmentation = AugmentConfig(crop_padding=1, flip=True, brightness=0.2)
    train = TrainConfig(batch_size=12, weight_decay=0.01, augment=augmentation)
    indices, rate, seed = torch.arange(3, 15), 0.3, derive_seed(1, "fit")
    trained, value = fit_once(train, indices, [rate], seed)

    draw = generator(seed)
    rows = torch.randperm(12, generator=draw)
    images = augment(SOURCE.train.images[indices[rows]].float() / 255, augmentation, draw)
    net = make_machine().net(MODELS[1]).train()
    loss = torch.nn.functional.cross_entropy(net(images), SOURCE.train.labels[indices[rows]])
    loss.backward()
    assert value == pytest.approx(loss.item(), rel=1e-6)
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        stepped = parameter.detach() - rate * (parameter.grad + 0.01 * parameter.detach())
        assert torch.allclose(trained[name], stepped, atol=1e-6), name
    for name, buffer in net.named_buffers():
        if name in trained:
            assert torch.equal(trained[name], buffer), name


def test_each_epoch_has_its_own_rate_and_the_loss_is_that_of_the_last() -> None:
    train = TrainConfig(batch_size=16, weight_decay=0.0)
    indices = torch.arange(16)
    once, _ = fit_once(train, indices, [0.2], 3)
    frozen_after, loss = fit_once(train, indices, [0.2, 1e-30], 3)
    for name in ("head.weight", "backbone.stem.0.weight"):
        assert torch.equal(once[name], frozen_after[name])
    net = make_machine().net(once).train()
    logits = net(SOURCE.train.images[:16].float() / 255)
    expected = torch.nn.functional.cross_entropy(logits, SOURCE.train.labels[:16])
    assert loss == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_very_few_samples_are_trained_on_without_their_statistics(count: int) -> None:
    trained, value = fit_once(TrainConfig(batch_size=8), torch.arange(count), [0.1], 0)
    assert 0 < value < 100
    assert all(torch.isfinite(tensor).all() for tensor in trained.values())
    assert torch.equal(trained["backbone.stem.1.running_mean"], MODELS[1]["backbone.stem.1.running_mean"])
    assert not torch.equal(trained["head.weight"], MODELS[1]["head.weight"])


def test_a_network_of_its_own_leaves_the_model_alone() -> None:
    model = {name: tensor.clone() for name, tensor in MODELS[0].items()}
    before = model_digest(model)
    net = make_machine().net(model)
    assert not net.training
    with torch.no_grad():
        for tensor in [*net.parameters(), *net.buffers()]:
            tensor.zero_()
    assert model_digest(model) == before


def test_a_machine_needs_the_agreed_normalisation() -> None:
    for missing in ("mean", "deviation"):
        with pytest.raises(ValueError, match="the mean and the deviation that images are normalised with"):
            Trainer(MODEL.model_copy(update={missing: None}), TrainConfig())


def test_features_are_those_of_the_network_in_chunks_of_images_or_their_mirror_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine_module, "CHUNK", 4)
    local, indices = make_local(), torch.arange(9).flip(0)
    net = make_machine().net(MODELS[0])
    images = SOURCE.train.images[indices].float() / 255
    with torch.no_grad():
        plain, mirrored = net.extract(images), net.extract(images.flip(3))
    found = local.features(net, indices)
    assert not found.requires_grad
    torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(local.features(net, indices, flipped=True), mirrored, atol=1e-5, rtol=1e-4)


def test_the_rows_of_an_epoch_may_be_drawn_by_the_method() -> None:
    local, trained_on = make_local(), list[list[int]]()
    net = local.machine.net(MODELS[0])

    def loss(images: Tensor, rows: Tensor) -> Tensor:
        trained_on.append(rows.tolist())
        assert torch.equal(images, SOURCE.train.images[rows + 8].float() / 255)
        return net(images).square().mean()

    local.machine.fit(
        net, local.samples, torch.arange(8, 16), loss, [0.1, 0.1], 0, epoch=lambda draw: [torch.tensor([7, 7, 1, 0])]
    )
    assert trained_on == [[7, 7, 1, 0]] * 2
