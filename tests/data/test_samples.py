from __future__ import annotations

import pytest
import torch

from fcil.core.messages import RoundContext
from fcil.data.datasets.dataset import Source, Split
from fcil.data.samples import Samples

DIGESTS = ("f" * 64, "0" * 64, "short")


def split(*labels: int) -> Split:
    """Return images each of which is filled with its label, plus ten times its place."""
    values = [10 * place + label for place, label in enumerate(labels)]
    images = torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()
    return Split(images, torch.tensor(labels, dtype=torch.int64))


def context(*catalogue: str) -> RoundContext:
    return RoundContext(0, catalogue, (len(catalogue),), 0)


def test_the_classes_of_a_data_set_are_known_by_their_numbers() -> None:
    samples = Samples.of(Source("toy", split(1, 0), split(0, 1), ("zero", "one")))
    assert (samples.ids, len(samples)) == (("0", "1"), 2)


def test_outputs_follow_the_catalogue_whatever_the_ids_are() -> None:
    samples = Samples(split(2, 0, 1, 0), DIGESTS)
    assert samples.outputs(torch.arange(4), context("short", "other", "f" * 64)).tolist() == [0, 2, -1, 2]
    assert samples.outputs(torch.arange(4), context()).tolist() == [-1] * 4
    assert samples.outputs(torch.empty(0, dtype=torch.int64), context("short")).tolist() == []


def test_unknown_classes_come_by_label_each_once() -> None:
    samples = Samples(split(2, 0, 1, 0), DIGESTS)
    assert samples.unknown(torch.arange(4), ()) == DIGESTS
    assert samples.unknown(torch.tensor([3, 0, 1]), ("short",)) == ("f" * 64,)
    assert samples.unknown(torch.arange(4), DIGESTS) == ()
    assert samples.classes(torch.tensor([0, 1, 3])) == {0, 2}
    assert samples.classes(torch.empty(0, dtype=torch.int64)) == set()


def test_an_index_names_the_same_image_for_ever() -> None:
    samples = Samples(split(1, 0), DIGESTS[:2])
    first, later = samples.pixels(torch.tensor([0, 1])), samples.append(split(2, 1), DIGESTS)
    assert later.tolist() == [2, 3]
    assert torch.equal(samples.pixels(torch.tensor([0, 1])), first)
    assert samples.labels(torch.tensor([1, 3, 2, 0])).tolist() == [0, 1, 2, 1]
    assert samples.append(split(0)).tolist() == [4]
    assert samples.unknown(torch.tensor([2]), ()) == ("short",)


@pytest.mark.parametrize(
    ("more", "ids", "refusal"),
    [
        (split(2), None, "an image has the label 2, but there are 2 class ids"),
        (split(0, 3), DIGESTS, "an image has the label 3, but there are 3 class ids"),
        (split(0), ("0" * 64, "f" * 64), "class ids can be added, not changed"),
        (split(0), DIGESTS[:1], "class ids can be added, not changed"),
        (
            Split(torch.zeros(1, 3, 2, 2, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)),
            DIGESTS,
            "Sizes of tensors",
        ),
    ],
    ids=["label without an id", "label beyond the new ids", "other ids", "fewer ids", "other images"],
)
def test_a_refused_addition_changes_nothing(more: Split, ids: tuple[str, ...] | None, refusal: str) -> None:
    samples = Samples(split(1, 0), DIGESTS[:2])
    with pytest.raises((ValueError, RuntimeError), match=refusal):
        samples.append(more, ids)
    assert (len(samples), samples.ids) == (2, DIGESTS[:2])


def test_labels_need_ids_from_the_beginning() -> None:
    with pytest.raises(ValueError, match="an image has the label 1, but there are 1 class ids"):
        Samples(split(0, 1), DIGESTS[:1])
