"""A software bill of materials of fcil and all that is installed with it, as CycloneDX 1.6 JSON on standard output.

python .ci/sbom.py WHEEL, with the interpreter of an environment in which the wheel is installed.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from typing import Any

TOOLS = {"pip", "setuptools", "wheel"}  # of the environment, not of fcil


def canonical(name: str) -> str:
    """Return a distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def reference(found: Distribution) -> str:
    """Return the package URL of a distribution, by which the document refers to it."""
    return f"pkg:pypi/{canonical(found.name)}@{found.version.replace('+', '%2B')}"


def component(found: Distribution, kind: str = "library") -> dict[str, Any]:
    """Return the entry of a distribution."""
    entry = {"type": kind, "bom-ref": reference(found), "name": found.name, "version": found.version}
    return {**entry, "purl": reference(found), **_licences(found)}


def _licences(found: Distribution) -> dict[str, Any]:
    """Return the licence that a distribution names: an SPDX expression, or a name of its own."""
    if expression := found.metadata.get("License-Expression"):
        return {"licenses": [{"expression": expression}]}
    classifiers = found.metadata.get_all("Classifier") or []
    names = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License :: ")]
    written = (found.metadata.get("License") or "").strip()
    if not names and written and "\n" not in written:
        names = [written]
    return {"licenses": [{"license": {"name": name}} for name in names]} if names else {}


def required(found: Distribution, installed: dict[str, Distribution]) -> list[str]:
    """Return the package URLs of the installed distributions that a distribution requires."""
    names = (re.match(r"[A-Za-z0-9._-]+", line) for line in found.requires or [])
    wanted = {canonical(match.group()) for match in names if match}
    return sorted(reference(installed[name]) for name in wanted if name in installed)


def document(wheel: Path) -> dict[str, Any]:
    """Return the bill of materials of the environment that fcil's wheel was installed into."""
    installed = {canonical(one.name): one for one in distributions() if canonical(one.name) not in TOOLS}
    own = distribution("fcil")
    others = [installed[name] for name in sorted(installed) if name != "fcil"]
    digest = {"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**component(own, "application"), "hashes": [digest]}},
        "components": [component(one) for one in others],
        "dependencies": [{"ref": reference(one), "dependsOn": required(one, installed)} for one in (own, *others)],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(document(Path(sys.argv[1])), indent=2) + "\n")
