"""TinyImageNet in its official layout; its labelled validation set is the test set."""

from __future__ import annotations

from pathlib import Path

from fcil.core.errors import DataError
from fcil.data.datasets.class_folders import locate, of_files, pictures_in, read_lines, read_words
from fcil.data.datasets.config import DataConfig
from fcil.data.datasets.manifest import Collection, Origin
from fcil.data.datasets.registry import Dataset, register_dataset
from fcil.data.datasets.search_path import is_file

FOLDER = "tiny-imagenet-200"
SIZE = 64
ANNOTATIONS = Path("val", "val_annotations.txt")
LAYOUT = "wnids.txt, words.txt, train/<wnid>/images and val/ with its annotations, as tiny-imagenet-200.zip does"


def open_tinyimagenet(config: DataConfig) -> Origin:
    """Return TinyImageNet: the classes of wnids.txt in the order of their WordNet ids, named by words.txt."""
    root = locate(FOLDER, config.place, lambda folder: is_file(folder / "wnids.txt"), LAYOUT)
    wnids = sorted(line.strip() for line in read_lines(root / "wnids.txt"))
    ids = {wnid: label for label, wnid in enumerate(wnids)}
    train = [(path, ids[wnid]) for wnid in wnids for path in pictures_in(root / "train" / wnid / "images")]
    test = _annotated(root / ANNOTATIONS, ids)
    tables = [root / "wnids.txt", root / "words.txt", root / ANNOTATIONS]

    def read() -> Collection:
        words = read_words(root / "words.txt")
        return of_files(root, [words.get(wnid, wnid) for wnid in wnids], train, test)

    files = [*tables, *(path for path, _ in (*train, *test))]
    return Origin("tinyimagenet", root, files, config.image_size or SIZE, {}, read)


def _annotated(path: Path, ids: dict[str, int]) -> list[tuple[Path, int]]:
    """Return the validation images with their classes, class by class in the order of their names."""
    found = []
    for number, line in enumerate(read_lines(path), 1):
        name, *rest = line.split("\t")
        if not rest or rest[0] not in ids:
            raise DataError(
                f"{path} line {number}: found {line[:60]!r}, should be a file name, a tab and an id of wnids.txt"
            )
        found.append((path.parent / "images" / name, ids[rest[0]]))
    return sorted(found, key=lambda sample: (sample[1], sample[0]))


register_dataset(
    Dataset("tinyimagenet", "TinyImageNet, 64 x 64 pixels, 200 classes", open_tinyimagenet, path="optional")
)
