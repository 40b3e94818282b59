from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from torch import Tensor

import fcil.local as local_module
from fcil.data.source import Source, Split
from fcil.data.transforms import AugmentConfig, augment
from fcil.local import BLOCK, Local, Outputs, TrainConfig, batches
from fcil.maths.entropy import softmax_entropy
from fcil.models import Classifier, ModelConfig, grow, initial_state
from fcil.wire import ModelState, derive_seed, generator, model_digest

MODEL = ModelConfig(width=2)
PUBLISHED = TrainConfig()


def make_source(samples: int) -> Source:
    images = torch.randint(0, 256, (samples, 1, 8, 8), generator=generator(11), dtype=torch.uint8)
    split = Split(images, torch.arange(samples) % 4)
    return Source("noise", split, split.select(torch.arange(4)), ("a", "b", "c", "d"))


SOURCE = make_source(2 * BLOCK + 40)
SORTED = SOURCE.train.labels.argsort(stable=True)  # blocks are cut from the samples in this order
MODELS = [grow(initial_state(MODEL, 1, seed), 3 + seed, seed) for seed in range(3)]


def make_local(train: TrainConfig = PUBLISHED, source: Source = SOURCE) -> Local:
    return Local(source, MODEL, train)


def ask(local: Local, model: ModelState, indices: Tensor) -> Outputs:
    return local.infer(model_digest(model), model, indices)


@pytest.fixture(scope="module")
def whole() -> list[Outputs]:
    return [ask(make_local(), model, torch.arange(len(SOURCE.train))) for model in MODELS]


def assert_same_bits(found: Outputs, whole: Outputs, indices: Tensor) -> None:
    assert torch.equal(found.features, whole.features[indices])
    assert torch.equal(found.logits, whole.logits[indices])


def test_inference_is_the_network_in_evaluation_mode(whole: list[Outputs]) -> None:
    net = make_local().net(MODELS[1])
    first = SORTED[:BLOCK]
    images = SOURCE.train.images[first].float() / 255
    with torch.no_grad():
        assert torch.equal(whole[1].features[first], net.extract(images))
        assert torch.equal(whole[1].logits[first], net(images))
        alone = net(SOURCE.train.images[-7:].float() / 255)
    assert torch.allclose(whole[1].logits[-7:], alone, atol=1e-5)


samples = st.lists(st.integers(0, len(SOURCE.train) - 1), max_size=30)


@examples(20)
@given(questions=st.lists(st.tuples(st.integers(0, 2), samples), min_size=1, max_size=6))
def test_inference_gives_the_same_bits_for_any_subset_in_any_order_with_models_interleaved(
    whole: list[Outputs], questions: list[tuple[int, list[int]]]
) -> None:
    cached = make_local()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_module, "CACHE_BYTES", 60_000)
        for number, asked in questions:
            indices = torch.tensor(asked, dtype=torch.int64)
            assert_same_bits(ask(cached, MODELS[number], indices), whole[number], indices)
    number, asked = questions[-1]
    indices = torch.tensor(asked, dtype=torch.int64)
    assert_same_bits(ask(make_local(), MODELS[number], indices), whole[number], indices)


def test_inference_leaves_augmentation_to_training(whole: list[Outputs]) -> None:
    local, few = make_local(TrainConfig(augment=AugmentConfig(crop_padding=2, flip=True))), torch.arange(5)
    assert_same_bits(ask(local, MODELS[1], few), whole[1], few)


def test_no_sample_gives_no_output() -> None:
    outputs = ask(make_local(), MODELS[0], torch.empty(0, dtype=torch.int64))
    assert outputs.features.shape == (0, 16)
    assert outputs.logits.shape == (0, 3)


def test_a_block_is_computed_once_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    extract = Classifier.extract

    def counting(self: Classifier, images: Tensor) -> Tensor:
        computed.append(len(images))
        return extract(self, images)

    monkeypatch.setattr(Classifier, "extract", counting)
    local = make_local()
    for indices in ([0, 1], [5], [1, BLOCK], [2 * BLOCK, 3], [2, BLOCK + 9]):
        ask(local, MODELS[0], SORTED[torch.tensor(indices)])
    assert computed == [BLOCK, BLOCK, 40]
    ask(local, MODELS[1], SORTED[4:5])
    assert computed == [BLOCK, BLOCK, 40, BLOCK]


@examples(20)
@given(questions=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), samples), min_size=1, max_size=8))
def test_entropies_are_those_of_the_whole_source_whoever_asked_before(
    whole: list[Outputs], questions: list[tuple[int, int, list[int]]]
) -> None:
    local = make_local()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_module, "CACHE_BYTES", 30_000)
        patch.setattr(local_module, "ENTROPIES_KEPT", 2)
        for number, outputs, asked in questions:
            indices = torch.tensor(asked, dtype=torch.int64)
            found = local.entropies(model_digest(MODELS[number]), MODELS[number], indices, outputs)
            assert torch.equal(found, softmax_entropy(whole[number].logits[:, :outputs])[indices])
            assert len(local._entropies) <= 2


def test_entropies_that_are_no_number_stay_so() -> None:
    broken = {**MODELS[0], "head.bias": torch.full((3,), float("nan"))}
    found = make_local().entropies("broken", broken, torch.tensor([0, 1]), 3)
    assert bool(found.isnan().all())


def test_the_classes_of_samples() -> None:
    assert make_local().classes(torch.tensor([2, 5, 6])) == {1, 2}
    assert make_local().classes(torch.empty(0, dtype=torch.int64)) == set()


def held_bytes(local: Local) -> int:
    return sum(outputs.features.nbytes + outputs.logits.nbytes for outputs in local._cache.values())


def test_the_cache_stays_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 3 * BLOCK * (16 + 5) * 4
    monkeypatch.setattr(local_module, "CACHE_BYTES", bound)
    local = make_local()
    for _ in range(2):
        for model in MODELS:
            for block in range(3):
                ask(local, model, SORTED[block * BLOCK][None])
                assert held_bytes(local) <= bound
    assert len(local._cache) >= 3


def test_a_cache_smaller_than_one_block_still_answers(monkeypatch: pytest.MonkeyPatch, whole: list[Outputs]) -> None:
    monkeypatch.setattr(local_module, "CACHE_BYTES", 1)
    local, everything = make_local(), torch.arange(len(SOURCE.train))
    for number in (0, 1, 0):
        assert_same_bits(ask(local, MODELS[number], everything), whole[number], everything)
        assert len(local._cache) <= 1


def test_changing_an_answer_does_not_change_the_next(whole: list[Outputs]) -> None:
    local, indices = make_local(), torch.tensor([3, 300])
    ask(local, MODELS[0], indices).features.fill_(7.0)
    assert_same_bits(ask(local, MODELS[0], indices), whole[0], indices)


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
    net = local.net(MODELS[1])
    labels = local.labels(indices)

    def loss(images: Tensor, rows: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(net(images), labels[rows])

    value = local.fit(net, indices, loss, rates, seed)
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
    net = make_local().net(MODELS[1]).train()
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
    net = make_local().net(once).train()
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
    net = make_local().net(model)
    assert not net.training
    with torch.no_grad():
        for tensor in [*net.parameters(), *net.buffers()]:
            tensor.zero_()
    assert model_digest(model) == before


def test_images_and_labels_are_those_of_the_training_set() -> None:
    local, indices = make_local(), torch.tensor([7, 2])
    assert local.labels(indices).tolist() == [3, 2]
    assert torch.equal(local.images(indices), SOURCE.train.images[[7, 2]].float() / 255)


def test_a_stage_is_remembered_when_it_fails() -> None:
    local = make_local()
    with pytest.raises(RuntimeError), local.stage("herding"):
        raise RuntimeError("broken")
    assert local.current_stage == "herding"
