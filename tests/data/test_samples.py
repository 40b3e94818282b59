"""Images by index for good, and what their classes are called on the wire."""

from __future__ import annotations

import pytest
import torch

from fcil.data.samples import Samples
from fcil.data.source import Split
from fcil.wire import Moment


def make_samples() -> Samples:
    images = torch.arange(6, dtype=torch.uint8)[:, None, None, None].expand(6, 1, 2, 2)
    return Samples(Split(images, torch.tensor([2, 0, 1, 0, 2, 2])), ["ant", "bee", "cow"])


def test_pixels_labels_and_classes_are_those_of_the_indices() -> None:
    samples = make_samples()
    some = torch.tensor([5, 1, 4])
    assert samples.pixels(some)[:, 0, 0, 0].tolist() == [5, 1, 4]
    assert samples.labels(some).tolist() == [2, 0, 2]
    assert samples.classes(some) == {0, 2}
    assert samples.classes(some[:0]) == set()
    assert samples.sorted_by_label().tolist() == [1, 3, 2, 0, 4, 5]


def test_outputs_and_unknown_ids_follow_the_catalogue_and_not_the_labels() -> None:
    samples, every = make_samples(), torch.arange(6)
    moment = Moment(0, ("zebra", "cow", "ant"), (3,), 0)
    assert samples.outputs(every, moment).tolist() == [1, 2, -1, 2, 1, 1]
    assert samples.unknown(every, moment.catalogue) == ("bee",)
    assert samples.unknown(every, ()) == ("ant", "bee", "cow")
    assert samples.unknown(every[:2], ("ant",)) == ("cow",)


def test_images_are_added_at_the_end_and_indices_stay_valid() -> None:
    samples = make_samples()
    more = Split(torch.full((2, 1, 2, 2), 9, dtype=torch.uint8), torch.tensor([3, 0]))
    with pytest.raises(ValueError, match="class ids can be added, not changed"):
        samples.append(more, ["bee", "ant", "cow", "dog"])
    assert samples.append(more, ["ant", "bee", "cow", "dog"]).tolist() == [6, 7]
    assert len(samples) == 8
    assert samples.pixels(torch.tensor([5, 6]))[:, 0, 0, 0].tolist() == [5, 9]
    assert samples.unknown(torch.arange(8), ("ant", "bee", "cow")) == ("dog",)
