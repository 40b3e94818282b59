"""Weights from a file on this machine: read as tensors and nothing else, and fitted to the backbone by name."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fcil.core.errors import ConfigError, reason

if TYPE_CHECKING:
    from fcil.models.config import ModelConfig

BACKBONE, HEAD = "backbone.", "head."
ZIP = b"PK\x03\x04"  # what `torch.save` has written since 2020; the format before it is not read
OUTER = ("state_dict", "model")  # keys under which training scripts put the state dict
COUNTER = "num_batches_tracked"  # which older files lack, and which decides nothing
NAMED = 3  # tensors that a sentence names before it counts the rest


def weights_digest(file: str) -> str:
    """Return the SHA-256 of a file of weights."""
    return hashlib.sha256(_content(file)).hexdigest()


def with_digest(config: ModelConfig) -> ModelConfig:
    """Return the settings with the digest of the file that they name, by which two runs are told apart."""
    if config.weights is None or config.weights_digest is not None:
        return config
    return config.model_copy(update={"weights_digest": weights_digest(config.weights)})


def read_weights(config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the backbone's tensors in the file of `model.weights`, which must be those of the state, name by name."""
    assert config.weights is not None
    data = _content(config.weights)
    found, wanted = hashlib.sha256(data).hexdigest(), config.weights_digest
    if wanted is not None and found != wanted:
        raise ConfigError(
            f"model.weights: {config.weights} has the SHA-256 {found}, should be the file with {wanted}, as "
            "model.weights_digest says"
        )
    given = _ours(_tensors(data, config.weights), config)
    own = {name.removeprefix(BACKBONE): tensor for name, tensor in state.items() if name.startswith(BACKBONE)}
    problems = _misfits(given, own)
    if problems:
        raise ConfigError(
            f"model.weights: {config.weights} does not fit model.name {config.name} with model.width {config.width} "
            f"and model.norm {config.norm}: {'; '.join(problems)}"
        )
    return {f"{BACKBONE}{name}": tensor.to(own[name].dtype).contiguous() for name, tensor in given.items()}


def _content(file: str) -> bytes:
    try:
        return Path(file).expanduser().read_bytes()
    except (OSError, ValueError, MemoryError, RuntimeError) as error:
        raise ConfigError(
            f"model.weights: {file} cannot be read: {reason(error)}; it should be a file of weights"
        ) from error


def _tensors(data: bytes, file: str) -> dict[str, Tensor]:
    """Return the tensors in a safetensors file or in a state dict that `torch.save` wrote."""
    if not data.startswith(ZIP):
        try:
            found: dict[str, Tensor] = load(data)
        except (SafetensorError, ValueError, KeyError, MemoryError, RuntimeError) as error:
            raise ConfigError(
                f"model.weights: {file} is neither a safetensors file nor a state dict of torch.save: {reason(error)}"
            ) from error
        return found
    try:
        content: Any = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the file makes the reader stumble over
        raise ConfigError(
            f"model.weights: {file} is refused: it is damaged, or holds more than tensors, which could run code; "
            "save the state dict alone, or as safetensors"
        ) from error
    for key in OUTER:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise ConfigError(f"model.weights: {file} holds no state dict, that is, tensors by name")
    return {str(name): tensor.detach() for name, tensor in content.items()}


def _ours(tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Return the backbone's tensors by our names; a head belongs to the classes that it was trained on."""
    if any(name.startswith(BACKBONE) for name in tensors):
        named = {name.removeprefix(BACKBONE): tensor for name, tensor in tensors.items()}
    else:
        named = {config.network.rename(name): tensor for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in named.items() if not name.startswith(HEAD)}


def _misfits(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    """Return what does not fit, by kind."""
    shared = [name for name in own if name in given]
    kinds = {
        "missing": [name for name in own if name not in given and not name.endswith(COUNTER)],
        "unknown": sorted(name for name in given if name not in own),  # a file has no order
        "of another shape or type": [
            f"{name} {tuple(given[name].shape)} for {tuple(own[name].shape)}"
            for name in shared
            if given[name].shape != own[name].shape or given[name].is_floating_point() != own[name].is_floating_point()
        ],
        "not finite": [name for name in shared if not bool(torch.isfinite(given[name]).all())],
    }
    return [f"{kind}: {_listed(names)}" for kind, names in kinds.items() if names]


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
