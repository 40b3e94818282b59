"""A trained network at work: images, rows or series as people have them to class names with probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fcil.core.errors import ConfigError, DataError
from fcil.data.augment import as_floats
from fcil.data.columns import Columns
from fcil.data.datasets.image import Pixels
from fcil.data.datasets.user_images import Inputs, prepare
from fcil.data.datasets.user_rows import RowInputs, prepare_rows
from fcil.models.classifier import Classifier

NONE = "none of these"  # the answer where no class is likely enough
BATCH = 256  # images that are in memory at once, and fewer
BATCH_PIXELS = 1 << 18  # if they are larger than 32 x 32


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes of one image, best first, each with its probability."""

    ranking: tuple[tuple[str, float], ...]
    rejected: bool = False  # the likeliest class is less likely than the model's threshold

    @property
    def answer(self) -> str:
        """Return the likeliest class, or `NONE` where it is not likely enough."""
        return NONE if self.rejected else self.name

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
    """A trained classifier, the names of its classes and the images it takes: (channels, height, width).

    One that takes rows of a table or series has their encoding, `columns`. Outputs are divided by the temperature and
    become probabilities. Below the threshold the answer is "none of these".
    """

    net: Classifier
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    columns: Columns | None = None
    temperature: float = 1.0
    threshold: float = 0.0

    def predict(self, images: Inputs | RowInputs, top: int = 1) -> list[Prediction]:
        """Return the `top` likeliest classes of each image; one image gives a list of one.

        An image is a path, the bytes of a file, a PIL image, a numpy array or a tensor, of any size; many are a list of
        these, or an array of four dimensions, read as `fcil.data.datasets.user_images.prepare` says. A probability is
        the softmax over the outputs at the model's temperature: it adds up to 1 over the classes. Rows of a table or
        series come as `fcil.data.datasets.user_rows.prepare_rows` says.
        """
        self._check_top(top)
        if self.columns is not None:
            return list(self.ranked(prepare_rows(images, self.columns), top))
        prepared = prepare(cast(Inputs, images), self.image_shape)
        found: list[Prediction] = []
        while batch := list(islice(prepared, self._batch_size)):
            found += self._predict(batch, top)
        return found

    def stream(
        self, files: Iterable[Path], unreadable: Callable[[DataError], object], top: int = 1
    ) -> Iterator[tuple[Path, Prediction]]:
        """Yield each file with its prediction, batch by batch; one that is no image is reported and left out."""
        self._check_top(top)
        readable = self._readable(files, unreadable)
        while batch := list(islice(readable, self._batch_size)):
            predictions = self._predict([pixels for _, pixels in batch], top)
            yield from ((file, prediction) for (file, _), prediction in zip(batch, predictions, strict=True))

    def ranked(self, inputs: Tensor, top: int = 1) -> Iterator[Prediction]:
        """Yield the likeliest classes of encoded samples, batch by batch."""
        self._check_top(top)
        for part in torch.split(inputs, self._batch_size) if len(inputs) else ():
            yield from self._ranked(part, top)

    @torch.inference_mode()
    def probabilities(self, images: Tensor) -> Tensor:
        """Return the probability of each class, in double precision, for samples as a data set stores them."""
        return self._logits(images).softmax(1)

    def _check_top(self, top: int) -> None:
        if type(top) is not int or not 1 <= top <= len(self.class_names):
            raise ConfigError(
                f"top: found {top!r}, should be a whole number from 1 to {len(self.class_names)}, the number of classes"
            )

    @property
    def _batch_size(self) -> int:
        _, height, width = self.image_shape
        return max(1, min(BATCH, BATCH_PIXELS // (height * width)))

    def _readable(
        self, files: Iterable[Path], unreadable: Callable[[DataError], object]
    ) -> Iterator[tuple[Path, Pixels]]:
        for file in files:
            try:
                (pixels,) = prepare(file, self.image_shape)
            except DataError as error:
                unreadable(error)
            else:
                yield file, pixels

    def _logits(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.net(as_floats(images.to(self.net.mean.device))).cpu().double()
        if not outputs.isfinite().all():
            raise DataError("the model's outputs are not finite, so it cannot predict; its training diverged")
        return outputs / self.temperature

    def _predict(self, images: list[Pixels], top: int) -> list[Prediction]:
        return self._ranked(torch.from_numpy(np.stack(images)), top)

    @torch.inference_mode()
    def _ranked(self, samples: Tensor, top: int) -> list[Prediction]:
        outputs = self._logits(samples)
        classes = outputs.sort(dim=1, descending=True, stable=True).indices[:, :top]
        probabilities = outputs.softmax(1).gather(1, classes)
        return [
            Prediction(
                tuple((self.class_names[output], value) for output, value in zip(*row, strict=True)),
                row[1][0] < self.threshold,
            )
            for row in zip(classes.tolist(), probabilities.tolist(), strict=True)
        ]
