"""A trained network at work: images as people have them to class names with probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from fcil.data.inputs import Inputs, prepare
from fcil.data.pictures import Pixels
from fcil.data.transforms import as_floats
from fcil.errors import ConfigError, DataError
from fcil.models import Classifier

BATCH = 256  # images that are in memory at once, and fewer
BATCH_PIXELS = 1 << 18  # if they are larger than 32 x 32


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes of one image, best first, each with its probability."""

    ranking: tuple[tuple[str, float], ...]

    @property
    def name(self) -> str:
        """Return the likeliest class."""
        return self.ranking[0][0]

    @property
    def probability(self) -> float:
        """Return the probability of the likeliest class."""
        return self.ranking[0][1]


@dataclass(frozen=True)
class Predictor:
    """A trained classifier, the names of its classes and the images it takes: (channels, height, width)."""

    net: Classifier
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]

    def predict(self, images: Inputs, top: int = 1) -> list[Prediction]:
        """Return the `top` likeliest classes of each image; one image gives a list of one.

        An image is a path, the bytes of a file, a PIL image, a numpy array or a tensor, of any size; many are a list of
        these, or an array of four dimensions. `fcil.data.inputs.prepare` says how they are read. A probability is the
        softmax over the outputs, whatever loss they were trained with: it adds up to 1 over the classes.
        """
        if type(top) is not int or not 1 <= top <= len(self.class_names):
            raise ConfigError(
                f"top: found {top!r}, should be a whole number from 1 to {len(self.class_names)}, the number of classes"
            )
        prepared = prepare(images, self.image_shape)
        return [prediction for batch in self._batches(prepared) for prediction in self._predict(batch, top)]

    def _batches(self, images: Iterator[Pixels]) -> Iterator[Tensor]:
        _, height, width = self.image_shape
        size = max(1, min(BATCH, BATCH_PIXELS // (height * width)))
        while batch := list(islice(images, size)):
            yield torch.from_numpy(np.stack(batch))

    @torch.inference_mode()
    def _predict(self, images: Tensor, top: int) -> list[Prediction]:
        outputs = self.net(as_floats(images.to(self.net.mean.device))).cpu().double()
        if not outputs.isfinite().all():
            raise DataError("the model's outputs are not finite, so it cannot predict; its training diverged")
        classes = outputs.sort(dim=1, descending=True, stable=True).indices[:, :top]
        probabilities = outputs.softmax(1).gather(1, classes)
        return [
            Prediction(tuple((self.class_names[output], value) for output, value in zip(*row, strict=True)))
            for row in zip(classes.tolist(), probabilities.tolist(), strict=True)
        ]
