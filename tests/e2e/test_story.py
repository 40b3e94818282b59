"""The notebook, executed from its first cell to its last in a fresh directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "story.ipynb"


def test_it_is_kept_without_outputs() -> None:
    """What it shows is what this version does: outputs in the file would grow old, and differ between processors."""
    cells = [cell for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all((cell["outputs"], cell["execution_count"]) == ([], None) for cell in cells)


def test_the_notebook_tells_its_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed, so the notebook is not executed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed, so the notebook is not executed")
    import nbformat

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    metadata = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=metadata).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert kinds.count("image/png") == 9
    assert kinds.count("text/markdown") == 1
    for method in ("finetune", "glfc"):
        assert (tmp_path / "runs" / "story" / f"{method}-1" / "model.safetensors").is_file()
