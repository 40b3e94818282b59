"""Images that can be let go of: what stays is the same to the bit, and what is gone takes no memory."""

from __future__ import annotations

import pytest
import torch
from support.noise import MODELS, SOURCE, make_local
from torch import Tensor

from fcil.core.messages import model_digest
from fcil.data.datasets.dataset import Split
from fcil.deployment.client.samples import SiteSamples
from fcil.federation.engines.base import SharedSamples
from fcil.models.client_context import ClientContext
from fcil.models.inference_cache import Outputs

IDS = tuple(str(label) for label in range(SOURCE.classes))
FIRST, KEPT = 300, torch.tensor([2, 40, 41, 299, 310])


def grown() -> SiteSamples:
    """Return samples that came in two additions."""
    samples = SiteSamples(SOURCE.image_shape)
    everything = torch.arange(len(SOURCE.train))
    samples.append(SOURCE.train.select(everything[:FIRST]), IDS)
    samples.append(SOURCE.train.select(everything[FIRST:]))
    return samples


def at(samples: SiteSamples) -> ClientContext:
    return ClientContext.at(samples, make_local().machine)


def ask(local: ClientContext, indices: Tensor) -> Outputs:
    return local.inference.infer(model_digest(MODELS[1]), MODELS[1], indices)


def restored(samples: SiteSamples) -> SiteSamples:
    return SiteSamples.restored(
        samples.split.labels, samples.ids, samples.starts, samples.held, samples.pixels(samples.held)
    )


def test_samples_that_are_all_in_use_are_like_any_others() -> None:
    samples = grown()
    assert torch.equal(samples.split.images, SOURCE.train.images)
    assert torch.equal(samples.labels(KEPT), SOURCE.train.labels[KEPT])
    assert torch.equal(SharedSamples.of(samples).samples().pixels(KEPT), SOURCE.train.images[KEPT])


def test_retired_samples_keep_their_labels_read_as_zeros_and_take_no_memory() -> None:
    samples = grown()
    samples.keep_only(KEPT)
    assert torch.equal(samples.pixels(KEPT), SOURCE.train.images[KEPT])
    assert torch.equal(samples.held, KEPT)
    assert samples.has_pixels(KEPT)
    assert not samples.has_pixels(torch.tensor([2, 42]))
    assert not samples.pixels(torch.tensor([0, 42, 309])).any()
    assert torch.equal(samples.split.labels, SOURCE.train.labels)
    assert samples._images.numel() == (len(KEPT) + 1) * SOURCE.train.images[0].numel()


def test_what_is_let_go_of_does_not_come_back() -> None:
    samples = grown()
    samples.keep_only(KEPT)
    samples.keep_only(torch.tensor([0, 1, 2, 310]))
    assert samples.held.tolist() == [2, 310]
    later = samples.append(SOURCE.train.select(torch.arange(4)))
    assert samples.held.tolist() == [2, 310, *later.tolist()]
    assert torch.equal(samples.pixels(later), SOURCE.train.images[:4])
    samples.keep_only(torch.empty(0, dtype=torch.int64))
    assert len(samples.held) == 0
    assert not samples.pixels(torch.arange(len(samples))).any()


@pytest.mark.numeric
def test_inference_gives_the_same_bits_once_other_members_of_a_block_are_gone() -> None:
    whole = ask(at(grown()), KEPT)
    samples = grown()
    samples.keep_only(KEPT)
    found = ask(at(samples), KEPT)
    assert torch.equal(found.logits, whole.logits)
    assert torch.equal(found.features, whole.features)


@pytest.mark.numeric
def test_a_site_that_starts_again_gives_the_same_bits() -> None:
    samples = grown()
    local = at(samples)
    ask(local, KEPT)
    fresh = samples.append(SOURCE.train.select(torch.arange(7)))
    samples.keep_only(torch.cat([KEPT, fresh]))
    again = restored(samples)
    assert torch.equal(again.split.images, samples.split.images)
    assert (again.ids, again.starts) == (samples.ids, samples.starts)
    for indices in (KEPT, fresh):
        assert torch.equal(ask(at(again), indices).logits, ask(local, indices).logits)


@pytest.mark.numeric
def test_a_machine_trains_on_what_is_in_use() -> None:
    samples = grown()
    samples.keep_only(KEPT)
    local = at(samples)
    net = local.machine.net(MODELS[1])
    targets = samples.labels(KEPT) % 2
    loss = local.machine.fit(
        net, samples, KEPT, lambda images, rows: torch.nn.functional.cross_entropy(net(images), targets[rows]), [0.1], 1
    )
    assert 0 < loss < 10


def test_a_refused_addition_changes_nothing() -> None:
    samples = grown()
    wrong = Split(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="Sizes of tensors"):
        samples.append(wrong)
    assert len(samples) == len(samples.held) == len(SOURCE.train)
