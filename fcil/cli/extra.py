"""Commands that need an optional extra of fcil."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from fcil.core.errors import ConfigError

MODULES = {"flower": ("cryptography", "flwr", "nacl"), "onnx": ("onnx", "onnxruntime", "onnxscript")}  # by extra


def flower_extra() -> AbstractContextManager[None]:
    """Turn a failed import in the block into a sentence that names the extra `flower`."""
    return _extra("flower")


def onnx_extra() -> AbstractContextManager[None]:
    """Turn a failed import in the block into a sentence that names the extra `onnx`."""
    return _extra("onnx")


@contextmanager
def _extra(name: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in MODULES[name]:
            raise
        raise ConfigError(f"{missing} is not installed; install fcil with its extra `{name}`") from error
