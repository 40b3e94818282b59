"""Benchmarks: each measures this code against a reference in the same run, and says whether its bound holds.

A benchmark is a file of `benchmarks/` with a function `measure` that yields measurements; `make bench` runs it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from fcil.core.errors import ConfigError

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Measurement:
    """One figure with its reference; `ratio` is what the bound is set on."""

    name: str
    ours: float | None
    reference: float | None
    ratio: float | None
    bound: float | None = None  # none: a figure to look at
    wanted: Literal["at least", "at most"] = "at least"
    unit: str = ""  # of ours and reference
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool | None:
        """Say whether the bound is met; none without a bound or without a reference to hold it against."""
        if self.bound is None or self.ratio is None:
            return None
        return self.ratio >= self.bound if self.wanted == "at least" else self.ratio <= self.bound

    def line(self) -> str:
        """Return the measurement as one line of JSON, figures cut to what they are good for."""
        document = {**asdict(self), "holds": self.holds}
        order = ("name", "ours", "reference", "ratio", "bound", "wanted", "holds", "unit", "details")
        return json.dumps({key: _rounded(document[key]) for key in order}, allow_nan=False)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def benchmarks() -> dict[str, Path]:
    """Return the benchmark files by name."""
    found = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
    return {name: path for name, path in found.items() if "\ndef measure() ->" in path.read_text("utf-8")}


def summaries() -> dict[str, str]:
    """Return the first line of each benchmark's description."""
    texts = {name: ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "" for name, path in benchmarks().items()}
    return {name: text.split("\n", 1)[0] for name, text in texts.items()}


def check_name(name: str) -> str:
    """Return the name of a benchmark that exists."""
    known = benchmarks()
    if name not in known:
        raise ConfigError(f"there is no benchmark {name!r}; there are {', '.join(known)}")
    return name


def run_benchmark(name: str) -> Iterator[Measurement]:
    """Yield a benchmark's measurements as they are made."""
    module = _load(name, benchmarks()[check_name(name)])
    measure: Callable[[], Iterator[Measurement]] = module.measure
    yield from measure()


def machine() -> dict[str, Any]:
    """Return what the figures were measured on."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        processor = f"{len(names)} x {names[0]}" if names else processor
    return {"processor": processor, "python": platform.python_version(), "torch": torch.__version__}


def _load(name: str, path: Path) -> ModuleType:
    """Import a benchmark as `benchmarks.NAME`, so that its own workers can import it too."""
    root = str(path.parent.parent)
    if root not in sys.path:
        sys.path.insert(0, root)
    spec = importlib.util.find_spec(f"benchmarks.{name}")
    if spec is None:
        raise ConfigError(f"{path} cannot be imported")
    return importlib.import_module(f"benchmarks.{name}")
