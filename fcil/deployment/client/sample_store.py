"""A site's samples on disk: one index, and the files of pixels that it names.

    STATE/index.fcil           files, samples, hold-out, current batch and frozen rounds
    STATE/images-000001.fcil   decoded pixels of some samples

Pixels are written before the index that names them, and files without a name in the index are removed after it. So a
kill at any moment leaves the state before or after the change. Only the owner may read these files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import torch
from torch import Tensor

from fcil.core.errors import DamagedError, FcilError, FileError, reason
from fcil.core.files import exists, read_sealed, remove_partial, write_sealed
from fcil.core.messages import CodecError, Message, Shape, decode, encode

INDEX, IMAGES = "index.fcil", "images-"  # and a number
NAME = re.compile(r"images-([0-9]{6,18})\.fcil")
IMAGES_LIMIT = 256 << 20  # bytes of pixels in one file
CROWD = 32  # with more files than this, small ones are merged

Indices = Annotated[Tensor, Shape(("indices",), torch.int64)]
M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class SiteImages(Message):
    """Pixels of some samples."""

    pixels: Annotated[Tensor, Shape(("samples", "channels", "height", "width"), torch.uint8)]


@dataclass(frozen=True)
class SiteRows(Message):
    """Encoded values of some samples that are no images."""

    pixels: Annotated[Tensor, Shape(("samples", "channels", "height", "width"), torch.float32)]


@dataclass(frozen=True)
class ImageFile(Message):
    """A file with pixels: its name, its digest and the indices of its samples."""

    name: str
    digest: str
    indices: Indices

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name of a file with images")


@dataclass(frozen=True)
class FrozenRound(Message):
    """The samples of a round."""

    round: int
    arrival: Indices


@dataclass(frozen=True)
class SiteIndex(Message):
    """Everything about a site's images except the pixels; samples in the order of their indices."""

    image_shape: tuple[int, int, int]
    hold_out: float
    class_names: tuple[str, ...]
    ids: tuple[str, ...]
    starts: tuple[int, ...]  # the first sample of each scan
    origins: tuple[str, ...]  # the file of each sample
    digests: Annotated[Tensor, Shape(("samples", 32), torch.uint8)]  # of these files
    labels: Annotated[Tensor, Shape(("samples",), torch.int64)]
    held_out: Annotated[Tensor, Shape(("samples",), torch.bool)]
    files: tuple[str, ...]  # names of all files ever read
    stats: Annotated[Tensor, Shape(("files", 4), torch.int64)]  # size, two times, and the sample or -1
    batch: Annotated[Tensor, Shape(("batch",), torch.int64)]  # the current one
    frozen: tuple[FrozenRound, ...] = ()  # the latest two, the latest last
    images: tuple[ImageFile, ...] = ()
    columns: str = ""  # digest of the agreed columns, under which all rows are encoded; of images none

    @classmethod
    def empty(cls, image_shape: tuple[int, int, int], hold_out: float, columns: str) -> SiteIndex:
        """Return the index of a new site."""
        none = torch.empty(0, dtype=torch.int64)
        digests, stats = torch.empty(0, 32, dtype=torch.uint8), torch.empty(0, 4, dtype=torch.int64)
        flags = none.to(torch.bool)
        return cls(image_shape, hold_out, (), (), (0,), (), digests, none, flags, (), stats, none, columns=columns)

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of the samples' values."""
        return torch.float32 if self.columns else torch.uint8

    def __post_init__(self) -> None:
        samples = len(self.labels)
        if not len(self.origins) == len(self.digests) == len(self.held_out) == samples:
            raise ValueError("the numbers of samples and of their records differ")
        if len(self.files) != len(self.stats) or len(self.class_names) != len(self.ids):
            raise ValueError("files or classes and what is known of them differ in number")
        if samples and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.ids):
            raise ValueError(f"a label stands for none of {len(self.ids)} classes")
        for listed in (self.batch, *(each.arrival for each in self.frozen), *(file.indices for file in self.images)):
            if len(listed) and not 0 <= int(listed.min()) <= int(listed.max()) < samples:
                raise ValueError(f"an index names none of {samples} samples")
        if list(self.starts) != sorted(self.starts) or not self.starts or not 0 <= self.starts[-1] <= samples:
            raise ValueError("additions do not begin at samples")


class SampleStore:
    """The folder of a site's samples."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, image_shape: tuple[int, int, int], hold_out: float, columns: str = "") -> SiteIndex:
        """Return the index, empty in a new folder; refuse one with other settings."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_partial(self.folder)
        except OSError as error:
            raise FileError(f"{self.folder} cannot be used as a state folder: {reason(error)}") from error
        path = self.folder / INDEX
        if not exists(path):
            if any(self._files()):
                raise DamagedError(f"{path} is missing, but there are files with images; restore it from a backup")
            self.write(SiteIndex.empty(image_shape, hold_out, columns))
        index, _ = _read(path, SiteIndex)
        for what, found, asked in (
            ("images of shape", index.image_shape, image_shape),
            ("a hold-out of", index.hold_out, hold_out),
            ("columns of digest", index.columns or "none", columns or "none"),
        ):
            if found != asked:
                raise FileError(f"{path} was begun with {what} {found}, not {asked}; use that, or another state folder")
        self._remove_unnamed(index)
        return index

    def index(self) -> SiteIndex:
        """Return the index as it is."""
        return _read(self.folder / INDEX, SiteIndex)[0]

    def read(self, index: SiteIndex) -> tuple[Tensor, Tensor]:
        """Return the indices and the pixels of the samples that have pixels."""
        none = torch.empty(0, dtype=torch.int64), torch.empty(0, *index.image_shape, dtype=index.dtype)
        parts = [none, *((file.indices, self._pixels(index, file)) for file in index.images)]
        return torch.cat([indices for indices, _ in parts]), torch.cat([pixels for _, pixels in parts])

    def _pixels(self, index: SiteIndex, file: ImageFile) -> Tensor:
        path = self.folder / file.name
        content: SiteRows | SiteImages
        content, digest = _read(path, SiteRows) if index.columns else _read(path, SiteImages)
        if digest != file.digest or content.pixels.shape != (len(file.indices), *index.image_shape):
            raise DamagedError(f"{path} is not the file that {INDEX} names: it has another digest or other images")
        return content.pixels

    def write_images(self, indices: Tensor, pixels: Tensor) -> tuple[ImageFile, ...]:
        """Write pixels to new files and return these; they are kept once an index names them."""
        try:
            return tuple(self._write_parts(indices, pixels))
        except FcilError:
            self._tidy()
            raise

    def _write_parts(self, indices: Tensor, pixels: Tensor) -> Iterator[ImageFile]:
        numbers = [int(found[1]) for path in self._files() if (found := NAME.fullmatch(path.name))]
        size = max(1, IMAGES_LIMIT // pixels[:1].nbytes) if len(pixels) else 1
        parts = zip(torch.split(indices, size), torch.split(pixels, size), strict=True) if len(indices) else ()
        for number, (some, images) in enumerate(parts, start=1 + max(numbers, default=0)):
            name = f"{IMAGES}{number:06d}.fcil"
            content = SiteImages(images) if images.dtype == torch.uint8 else SiteRows(images)
            digest = write_sealed(self.folder / name, encode(content), private=True)
            yield ImageFile(name, digest, some)

    def write(self, index: SiteIndex) -> None:
        """Replace the index, then remove the files that it no longer names."""
        try:
            write_sealed(self.folder / INDEX, encode(index), private=True)
        except FcilError:
            self._tidy()
            raise
        self._remove_unnamed(index)

    def _tidy(self) -> None:
        """Remove the files that the stored index does not name, to free a full disk."""
        with suppress(FcilError):
            self._remove_unnamed(_read(self.folder / INDEX, SiteIndex)[0])

    def _remove_unnamed(self, index: SiteIndex) -> None:
        names = {file.name for file in index.images}
        for path in self._files():
            if path.name not in names:
                with suppress(OSError):  # tried again after the next write
                    path.unlink()

    def _files(self) -> list[Path]:
        return [path for path in self.folder.glob(f"{IMAGES}*.fcil") if NAME.fullmatch(path.name)]


def to_rewrite(images: Sequence[ImageFile], keep: Tensor) -> list[ImageFile]:
    """Return the files with samples not in `keep`; with more than `CROWD` files, also the smaller half.

    Retired images must not stay on the disk, so a file is rewritten even for a single one: exemplars, the hold-out and
    the current batch are few.
    """
    by_size = sorted(images, key=lambda file: len(file.indices))
    joined = {file.name for file in by_size[: len(images) // 2]} if len(images) > CROWD else set()
    return [file for file in images if file.name in joined or not bool(torch.isin(file.indices, keep).all())]


def _read(path: Path, expected: type[M]) -> tuple[M, str]:
    content, digest = read_sealed(path)
    try:
        return decode(content, expected), digest
    except CodecError as error:
        raise DamagedError(f"{path} cannot be read: {error}") from error
