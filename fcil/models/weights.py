"""Weights from a file on this machine: read as tensors and nothing else, and fitted to the backbone by name."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fcil.core.errors import ConfigError, reason
from fcil.models.config import BACKBONE, IMAGENET

if TYPE_CHECKING:
    from fcil.models.config import ModelConfig
    from fcil.models.registry import Pretrained

HEAD = "head."
ZIP = (
    b"PK\x03\x04"  # what `torch.save` has written since 2020; of the format before it, released weights alone are read
)
INSTALL = "pip install 'fcil[pretrained]'"
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
    digest = config.released.sha256 if config.released else weights_digest(config.weights)
    return config.model_copy(update={"weights_digest": digest})


def weights_file(config: ModelConfig) -> str:
    """Return the file that the settings name; `imagenet` is the one of the network's own package."""
    assert config.weights is not None
    if config.weights != IMAGENET or config.released is None:
        return config.weights
    file = installed_file(config.released)
    if file is None:
        raise ConfigError(
            f"model.weights: the ImageNet weights of {config.name} are not installed; they come with `{INSTALL}`, in "
            f"{config.released.distribution}"
        )
    return str(file)


def installed_file(released: Pretrained) -> Path | None:
    """Return the file of released weights, if their package is installed; nothing of the package is run."""
    try:
        found = find_spec(released.package)
    except (ImportError, ValueError):
        return None
    files = [Path(place) / released.file for place in (found.submodule_search_locations or ())] if found else []
    return next((file for file in files if file.is_file()), None)


def read_weights(config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the backbone's tensors in the file of `model.weights`, which must be those of the state, name by name."""
    file = weights_file(config)
    data = _content(file)
    found = hashlib.sha256(data).hexdigest()
    wanted = config.weights_digest or (config.released.sha256 if config.released else found)
    if found != wanted:
        raise ConfigError(
            f"model.weights: {file} has the SHA-256 {found}, should be the file with {wanted}, as "
            "model.weights_digest says"
        )
    given = _ours(_tensors(data, file, known=config.released is not None), config)
    own = {name.removeprefix(BACKBONE): tensor for name, tensor in state.items() if name.startswith(BACKBONE)}
    problems = _misfits(given, own)
    if problems:
        raise ConfigError(
            f"model.weights: {file} does not fit model.name {config.name} with model.width {config.width} "
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


def _tensors(data: bytes, file: str, known: bool) -> dict[str, Tensor]:
    """Return the tensors in a safetensors file or a state dict of `torch.save`, whose digest may be known already."""
    if not data.startswith(ZIP) and not known:
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
    """Return the tensors that do not fit, by kind."""
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
