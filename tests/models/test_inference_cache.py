from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.noise import MODELS, SOURCE, make_local, make_source
from torch import Tensor

import fcil.models.inference_cache as inference_module
from fcil.core.messages import ModelState, model_digest
from fcil.data.augment import AugmentConfig
from fcil.data.blocks import BLOCK
from fcil.maths.entropy import softmax_entropy
from fcil.models import Classifier
from fcil.models.client_context import ClientContext
from fcil.models.inference_cache import Outputs
from fcil.models.trainer import TrainConfig

SORTED = SOURCE.train.labels.argsort(stable=True)  # blocks are cut from the samples in this order


def ask(local: ClientContext, model: ModelState, indices: Tensor) -> Outputs:
    return local.inference.infer(model_digest(model), model, indices)


@pytest.fixture(scope="module")
def whole() -> list[Outputs]:
    return [ask(make_local(), model, torch.arange(len(SOURCE.train))) for model in MODELS]


def assert_same_bits(found: Outputs, whole: Outputs, indices: Tensor) -> None:
    assert torch.equal(found.features, whole.features[indices])
    assert torch.equal(found.logits, whole.logits[indices])


def test_inference_is_the_network_in_evaluation_mode(whole: list[Outputs]) -> None:
    net = make_local().machine.net(MODELS[1])
    first = SORTED[:BLOCK]
    images = SOURCE.train.images[first].float() / 255
    with torch.no_grad():
        assert torch.allclose(whole[1].features[first], net.extract(images), atol=1e-5)  # its norms are folded
        assert torch.allclose(whole[1].logits[first], net(images), atol=1e-5)
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
        patch.setattr(inference_module, "CACHE_BYTES", 60_000)
        for number, asked in questions:
            indices = torch.tensor(asked, dtype=torch.int64)
            assert_same_bits(ask(cached, MODELS[number], indices), whole[number], indices)
    number, asked = questions[-1]
    indices = torch.tensor(asked, dtype=torch.int64)
    assert_same_bits(ask(make_local(), MODELS[number], indices), whole[number], indices)


def test_inference_leaves_augmentation_to_training(whole: list[Outputs]) -> None:
    local, few = make_local(TrainConfig(augment=AugmentConfig(crop_padding=2, flip=True))), torch.arange(5)
    assert_same_bits(ask(local, MODELS[1], few), whole[1], few)


@pytest.mark.parametrize("more", [4, BLOCK + 3])
def test_images_that_are_added_later_change_no_bit_of_those_before(whole: list[Outputs], more: int) -> None:
    local, before = make_local(), torch.arange(len(SOURCE.train))
    digest = model_digest(MODELS[1])
    known = local.inference.entropies(digest, MODELS[1], before, 4).clone()
    fresh = local.samples.append(make_source(more).train)
    found = ask(local, MODELS[1], torch.cat([before, fresh]))
    assert_same_bits(Outputs(found.features[: len(before)], found.logits[: len(before)]), whole[1], before)
    with torch.no_grad():
        alone = local.machine.net(MODELS[1])(local.images(fresh))
    torch.testing.assert_close(found.logits[len(before) :], alone, rtol=1e-4, atol=1e-5)
    entropies = local.inference.entropies(digest, MODELS[1], torch.cat([before, fresh]), 4)
    assert torch.equal(entropies[: len(before)], known)
    torch.testing.assert_close(entropies[len(before) :], softmax_entropy(alone[:, :4]), rtol=1e-4, atol=1e-5)


def test_additions_have_the_same_bits_whether_they_are_asked_about_one_by_one_or_all_at_once() -> None:
    asked, silent = make_local(), make_local()
    for more in (5, 4, BLOCK + 1):
        fresh = asked.samples.append(make_source(more).train)
        silent.samples.append(make_source(more).train)
        ask(asked, MODELS[1], fresh)
    everything = torch.arange(len(asked.samples))
    assert_same_bits(ask(silent, MODELS[1], everything), ask(asked, MODELS[1], everything), everything)


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
        patch.setattr(inference_module, "CACHE_BYTES", 30_000)
        patch.setattr(inference_module, "ENTROPIES_KEPT", 2)
        for number, outputs, asked in questions:
            indices = torch.tensor(asked, dtype=torch.int64)
            found = local.inference.entropies(model_digest(MODELS[number]), MODELS[number], indices, outputs)
            assert torch.equal(found, softmax_entropy(whole[number].logits[:, :outputs])[indices])
            assert len(local.inference._entropies) <= 2


def test_entropies_that_are_no_number_stay_so() -> None:
    broken = {**MODELS[0], "head.bias": torch.full((3,), float("nan"))}
    found = make_local().inference.entropies("broken", broken, torch.tensor([0, 1]), 3)
    assert bool(found.isnan().all())


def held_bytes(local: ClientContext) -> int:
    return sum(outputs.features.nbytes + outputs.logits.nbytes for outputs in local.inference._cache.values())


def test_the_cache_stays_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 3 * BLOCK * (16 + 5) * 4
    monkeypatch.setattr(inference_module, "CACHE_BYTES", bound)
    local = make_local()
    for _ in range(2):
        for model in MODELS:
            for block in range(3):
                ask(local, model, SORTED[block * BLOCK][None])
                assert held_bytes(local) <= bound
    assert len(local.inference._cache) >= 3


def test_a_cache_smaller_than_one_block_still_answers(monkeypatch: pytest.MonkeyPatch, whole: list[Outputs]) -> None:
    monkeypatch.setattr(inference_module, "CACHE_BYTES", 1)
    local, everything = make_local(), torch.arange(len(SOURCE.train))
    for number in (0, 1, 0):
        assert_same_bits(ask(local, MODELS[number], everything), whole[number], everything)
        assert len(local.inference._cache) <= 1


def test_changing_an_answer_does_not_change_the_next(whole: list[Outputs]) -> None:
    local, indices = make_local(), torch.tensor([3, 300])
    ask(local, MODELS[0], indices).features.fill_(7.0)
    assert_same_bits(ask(local, MODELS[0], indices), whole[0], indices)


def test_small_results_are_computed_once_per_key_and_the_oldest_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_module, "RESULTS_KEPT", 2)
    inference, computed = make_local().inference, list[str]()

    def ask_for(key: str) -> Tensor:
        def compute() -> Tensor:
            computed.append(key)
            return torch.tensor(len(computed))

        return inference.once(key, compute)

    first = ask_for("a")
    assert ask_for("a") is first
    ask_for("b")
    ask_for("c")
    assert computed == ["a", "b", "c"]
    assert ask_for("a") is not first
