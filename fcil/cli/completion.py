"""Shell completion of names: presets, methods and settings."""

from __future__ import annotations

from pathlib import Path

import fcil


def complete_config(incomplete: str) -> list[str]:
    """Return the presets and the TOML files that begin with a word; nothing is imported for them."""
    presets = (Path(fcil.__file__).parent / "experiment" / "presets").glob("*.toml")
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    files = [str(path) + "/" * path.is_dir() for path in _entries(folder) if path.is_dir() or path.suffix == ".toml"]
    return [name for name in [*sorted(path.stem for path in presets), *files] if name.startswith(incomplete)]


def complete_method(incomplete: str) -> list[str]:
    """Return the methods that begin with a word; importing them takes about a second."""
    from fcil.methods import methods

    return [name for name in methods() if name.startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """Return lists of methods with commas between, of which the last begins with a word."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in complete_method(last)]


def complete_setting(incomplete: str) -> list[str]:
    """Return the settings whose keys begin with a word, each with the sign that a value follows."""
    from fcil.experiment.config import setting_rows

    keys = dict.fromkeys(f"{row[0]}=" for row in setting_rows())
    return [key for key in keys if key.startswith(incomplete)]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError:
        return []
