"""The contract of data sets; a test class that names a registered data set is held to all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from pydantic import ValidationError

from fcil.data.datasets import DATASETS, DataConfig, load_source
from fcil.data.datasets.dataset import Source
from fcil.experiment.config import parse_config

SIZE = 8  # pixels per side


class DatasetContract:
    """Derive from it, name the data set, and pytest holds it to every contract.

    `settings` are further settings of `[data]`, its own table included; override `data` where they depend on files.
    """

    dataset: ClassVar[str]
    settings: ClassVar[Mapping[str, Any]] = {}

    def data(self) -> dict[str, Any]:
        """Return the table [data]."""
        return {"source": self.dataset, **self.settings}

    def load(self, **changed: Any) -> Source:
        """Return the data set."""
        return load_source(DataConfig(**{**self.data(), **changed}))

    def test_every_class_has_images_in_both_parts(self) -> None:
        """Labels are class ids; each class can be learned and tested."""
        source = self.load()
        assert source.classes > 1
        assert len(set(source.class_names)) == source.classes
        for part in (source.train, source.test):
            assert torch.unique(part.labels).tolist() == list(range(source.classes))
            assert part.images.shape[1] in (1, 3) or source.kind != "image"
            assert part.images.shape[1:] == source.image_shape

    def test_is_the_same_each_time_and_leaves_global_generators_alone(self) -> None:
        """Two loads give the same bits."""
        before = torch.random.get_rng_state()
        assert self.load().digest == self.load().digest
        assert torch.equal(torch.random.get_rng_state(), before)

    def test_comes_in_the_size_and_number_that_are_asked_for(self) -> None:
        """`data.samples_per_class` holds for every data set, and `data.image_size` for those of images."""
        if DATASETS[self.dataset].kind != "image":
            with pytest.raises(ValidationError, match="whose samples are no images"):
                self.load(image_size=SIZE)
            assert len(self.load(samples_per_class=1).train) == self.load().classes
            return
        sizes = DATASETS[self.dataset].sizes
        size = sizes[0] if sizes else SIZE
        source = self.load(samples_per_class=1, image_size=size)
        assert source.image_shape[1:] == (size, size)
        assert len(source.train) == source.classes

    def test_its_settings_are_written_with_the_run(self) -> None:
        """A configuration gives itself back."""
        config = parse_config({"data": self.data()})
        assert parse_config(config.document()) == config
        assert set(config.document()["data"].get(self.dataset, {})) == set(DATASETS[self.dataset].settings.model_fields)
