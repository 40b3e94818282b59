"""Our aggregators, data sets, loggers and engines are held to their contracts; a new file needs no line of test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cluster import start_cluster, without_ray
from support.trees import write_tiny

from fcil.core.registry import is_installed
from fcil.data.datasets import DATASETS
from fcil.experiment.logger import LOGGERS
from fcil.federation.aggregation import AGGREGATORS
from fcil.federation.engines import ENGINES
from fcil.testing import AggregatorContract, DatasetContract, EngineContract, LoggerContract, Trial, blobs

ELSEWHERE = {  # data sets that a test cannot make, or that a program passes
    "cifar100": "tests/data/test_cifar100.py",
    "imagenet-subset": "tests/data/test_class_folders.py",
    "python": "tests/data/test_in_memory.py",
}
OTHERS = {name for name in AGGREGATORS if AGGREGATORS.package_of(name) != "fcil"}  # of other tests


def arrays(folder: Path) -> str:
    """Write the blobs as a NumPy archive."""
    source = blobs()
    parts = {"train": source.train, "test": source.test}
    saved = {
        f"{part}_{key}": getattr(split, key).numpy() for part, split in parts.items() for key in ("images", "labels")
    }
    np.savez(folder / "data.npz", **saved)
    return str(folder / "data.npz")


def pictures(folder: Path) -> str:
    """Write the blobs as image files."""
    from PIL import Image

    source = blobs(per_class=4)
    for number, (image, label) in enumerate(zip(source.train.images, source.train.labels, strict=True)):
        place = folder / "pictures" / source.class_names[int(label)]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(place / f"{number}.png")
    return str(folder / "pictures")


def table(folder: Path) -> str:
    """Write the blobs as a parquet file."""
    import io

    import pyarrow
    import pyarrow.parquet
    from PIL import Image

    source, images = blobs(per_class=4), []
    for image in source.train.images:
        file = io.BytesIO()
        Image.fromarray(image[0].numpy()).save(file, "PNG")
        images.append({"bytes": file.getvalue(), "path": None})
    columns = {"image": images, "label": source.train.labels.tolist()}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "data.parquet")
    return str(folder / "data.parquet")


def rows(folder: Path) -> str:
    """Write the blobs as a CSV file."""
    source = blobs(per_class=4, size=2)
    lines = [",".join(["label", *(f"pixel {place}" for place in range(4))])]
    for image, label in zip(source.train.images, source.train.labels.tolist(), strict=True):
        lines.append(",".join([source.class_names[label], *map(str, image.flatten().tolist())]))
    (folder / "data.csv").write_text("\n".join(lines))
    return str(folder / "data.csv")


def waves(folder: Path) -> str:
    """Write the blobs as series of eight channels."""
    source = blobs(per_class=4)
    np.savez(folder / "series.npz", series=source.train.images[:, 0].numpy(), labels=source.train.labels.numpy())
    return str(folder / "series.npz")


FILES: dict[str, Any] = {
    "table": lambda folder: {"path": rows(folder), "test_fraction": 0.5},
    "series": lambda folder: {"path": waves(folder), "test_fraction": 0.5},
    "npz": lambda folder: {"path": arrays(folder)},
    "imagefolder": lambda folder: {"path": pictures(folder), "image_size": 8, "test_fraction": 0.5},
    "parquet": lambda folder: {"path": table(folder), "image_size": 8, "test_fraction": 0.5},
    "tinyimagenet": lambda folder: {"path": str(write_tiny(folder / "tiny"))},
}


class Files(DatasetContract):
    """A contract whose data set is made of files."""

    @pytest.fixture(autouse=True)
    def _write(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        self.made = FILES[self.dataset](tmp_path) if self.dataset in FILES else {}

    def data(self) -> dict[str, Any]:
        return {"source": self.dataset, **self.made}


class Cluster(EngineContract):
    """A contract whose engine uses the cluster of all tests."""

    def trial(self, method: str) -> Trial:
        if self.engine == "ray":
            start_cluster()
        return super().trial(method)


def kind(name: str) -> str:
    return f"Test_{name.replace('-', '_')}"


for name in sorted(AGGREGATORS.keys() - OTHERS):
    globals()[f"{kind(name)}_aggregator"] = type(kind(name), (AggregatorContract,), {"aggregator": name})
for name in sorted(DATASETS.keys() - ELSEWHERE.keys()):
    globals()[f"{kind(name)}_dataset"] = type(kind(name), (Files,), {"dataset": name})
for name, member in LOGGERS.items():
    if member.requires is None or is_installed(member.requires):
        globals()[f"{kind(name)}_logger"] = type(kind(name), (LoggerContract,), {"logger": name})
for name in ENGINES:
    contract = type(kind(name), (Cluster,), {"engine": name})
    globals()[f"{kind(name)}_engine"] = without_ray(contract) if name == "ray" else contract


def test_a_data_set_without_a_contract_is_tested_elsewhere() -> None:
    for place in ELSEWHERE.values():
        assert (Path(__file__).parents[2] / place).is_file()
