"""A model as an ONNX file; needs the extra `onnx`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import onnxscript  # noqa: F401 (PyTorch's exporter imports it, and should not be the one that misses it)
import torch
from torch import Tensor

from fcil.core.errors import DataError, reason
from fcil.experiment.export import INPUT, OUTPUT, Exported, Format, Run, described, example, undisturbed
from fcil.experiment.predictor import Predictor

LARGEST = 2_000_000_000  # bytes of weights; a file of this format cannot have more than 2 GiB


def _content(model: bytes, predictor: Predictor) -> bytes:
    net = Exported(predictor)
    size = sum(tensor.nbytes for tensor in net.state_dict().values())
    if size > LARGEST:
        raise DataError(f"the model has {size:,} bytes of weights, an ONNX file holds 2 GB; use the format safetensors")
    batch = torch.export.Dim("batch")
    try:
        with undisturbed(), torch.no_grad():
            program = torch.onnx.export(
                net,
                (example(predictor),),
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: batch},),
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise DataError(f"it cannot be written as ONNX by PyTorch {torch.__version__}: {reason(error)}") from error
    assert program is not None
    written = program.model_proto
    _forget_source(written)
    onnx.helper.set_model_props(written, described(predictor))
    content: bytes = written.SerializeToString(deterministic=True)
    return content


def _forget_source(written: Any) -> None:
    """Remove the lines of source code, with paths on this machine, that the exporter notes at every node."""
    graph = written.graph
    for part in (written, graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


def _opened(path: Path) -> Run:
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])

    return run


ONNX = Format(_content, _opened)
