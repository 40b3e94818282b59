"""Outputs of the frozen part of a network: they never change for an image, so they are computed once and kept.

They are computed in the fixed blocks of a store of samples, so they are the same bits for every caller, whether they
are read or computed. A block is one file, named by a digest of all that it depends on: the frozen weights, the pixels,
the view of them, and the machine's arithmetic. A file is written under another name and ends in its own digest, so that
it is whole or not used.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import OrderedDict
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

import fcil
from fcil.core.errors import FileError, reason
from fcil.core.files import write_atomically
from fcil.core.lock import Lock
from fcil.core.messages import derive_seed, generator, model_digest
from fcil.data.augment import AugmentConfig, as_floats, augment

if TYPE_CHECKING:
    from fcil.data.samples import Samples
    from fcil.models.classifier import Classifier

FORMAT = 2  # of the files and of the arithmetic, a part of their names
CHUNK = 32  # images of a block that go through the network at once, so that large ones need no more memory
SMALLEST = 1 << 20  # bytes of weights; what a smaller network gives is computed about as fast as it is read
HELD_BYTES = 512 << 20  # of blocks that no file holds
AXES = 7  # of a tensor, at most
HEADER, SEAL = 8 * (1 + AXES), hashlib.sha256().digest_size  # bytes before and after the numbers
LOCKS = 2  # digits of a key that name its lock
END = ".block"


@dataclass(frozen=True)
class View:
    """One version of every image: as it is, its mirror image, or one of a fixed number of augmented ones."""

    flipped: bool = False
    number: int | None = None  # of the augmented version
    augmentation: AugmentConfig | None = None

    def of(self, images: Tensor) -> Tensor:
        """Return this version of the images of a block."""
        if self.flipped:
            return images.flip(3)
        if self.augmentation is None:
            return images
        return augment(images, self.augmentation, generator(derive_seed(0, "view", self.number or 0)))


PLAIN, MIRRORED = View(), View(flipped=True)


class BlockStore:
    """Tensors by key: in files of a folder or, without one, as many as fit into some memory."""

    def __init__(self, folder: Path | None = None, limit: int = HELD_BYTES) -> None:
        self.folder, self.limit = folder, limit
        self._mapped: dict[str, Tensor] = {}
        self._held: OrderedDict[str, Tensor] = OrderedDict()

    def get(self, key: str) -> Tensor | None:
        """Return the tensor kept under a key, if it is whole."""
        for known in (self._mapped, self._held):
            if key in known:
                return known[key]
        found = _read(self.folder / f"{key}{END}") if self.folder is not None else None
        if found is not None:
            self._mapped[key] = found
        return found

    def put(self, key: str, values: Tensor) -> None:
        """Keep a tensor under a key; a folder that cannot be written to costs a warning, and memory is used."""
        if self.folder is not None:
            try:
                _write(self.folder / f"{key}{END}", values)
            except (FileError, OSError) as error:
                self._do_without(error)
        self._held[key] = values
        while self._held and sum(tensor.nbytes for tensor in self._held.values()) > self.limit:
            self._held.popitem(last=False)

    def _do_without(self, error: Exception) -> None:
        warnings.warn(
            f"{self.folder} cannot be written to ({reason(error)}), so the outputs of the frozen network are computed "
            "anew at each start",
            RuntimeWarning,
            stacklevel=3,
        )
        self.folder = None

    def lock(self, key: str, wait: bool) -> Lock | nullcontext[None] | None:
        """Return a lock against other processes that compute the same tensor, or None if one of them holds it."""
        if self.folder is None:
            return nullcontext()
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return Lock(self.folder / f"{key[:LOCKS]}.lock", wait=wait)
        except BlockingIOError:
            return None
        except OSError as error:
            self._do_without(error)
            return nullcontext()

    def keep_only(self, digests: set[str]) -> None:
        """Delete the kept outputs of other blocks."""
        known: MutableMapping[str, Tensor]
        for known in (self._mapped, self._held):
            for key in [key for key in known if _block_of(key) not in digests]:
                del known[key]
        for path in self.folder.glob(f"*{END}") if self.folder is not None else ():
            if _block_of(path.name) not in digests:
                path.unlink(missing_ok=True)


@dataclass(frozen=True)
class FrozenPart:
    """The frozen part of a network, and whether its outputs are worth a file."""

    digest: str
    is_kept: bool


class FrozenOutputs:
    """The outputs of frozen parts for samples, each block of them computed once per view."""

    def __init__(self, device: torch.device, store: BlockStore) -> None:
        self.device, self.store = device, store
        self.small = BlockStore()  # of networks that are as fast as a disk, or may change without a new version
        self._parts: WeakKeyDictionary[Classifier, FrozenPart] = WeakKeyDictionary()
        self._latest: tuple[list[tuple[ref[Tensor], int]], FrozenPart] | None = None

    def note(self, net: Classifier, tensors: Sequence[Tensor]) -> None:
        """Take the frozen part of a network for the latest one if it was made of the very same tensors."""
        if self._latest is not None:
            stamps, part = self._latest
            if len(stamps) == len(tensors) and all(
                known() is tensor and stamp == _stamp(tensor)
                for (known, stamp), tensor in zip(stamps, tensors, strict=True)
            ):
                self._parts[net] = part
                return
        self._latest = [(ref(tensor), _stamp(tensor)) for tensor in tensors], self._part(net)

    def _part(self, net: Classifier) -> FrozenPart:
        if net not in self._parts:
            ours = type(net.backbone).__module__.startswith("fcil.")
            size = sum(parameter.nbytes for parameter in net.backbone.parameters())
            self._parts[net] = FrozenPart(net.frozen_digest(), ours and size >= SMALLEST)
        return self._parts[net]

    def of(self, net: Classifier, samples: Samples, indices: Tensor, view: View = PLAIN) -> Tensor:
        """Return the outputs of the frozen part of a network for samples, a row each."""
        store = self._store(net)
        parts = list(samples.blocks.parts(indices))
        keys = {block: self._key(net, samples, block, view) for block, _, _ in parts}
        self._complete(net, samples, keys, view)
        found: Tensor | None = None
        for block, rows, places in parts:
            values = store.get(keys[block])
            if values is None:  # there was neither a disk nor memory for it
                values = self._computed(net, samples, block, view)
            if found is None:
                found = torch.empty(len(indices), *values.shape[1:])
            found[rows] = values[places]
        if found is None:
            return net.prepare(as_floats(samples.pixels(indices).to(self.device)))
        return found.to(self.device)

    def features(self, net: Classifier, samples: Samples, indices: Tensor) -> Tensor:
        """Return the features of samples from a network that is not trained now, kept in memory until it changes."""
        tensors = dict(net.backbone.state_dict())
        name = f"{model_digest(tensors)}-{self._part(net).digest}"
        found = torch.empty(len(indices), int(net.backbone.features))  # type: ignore[arg-type]
        for block, rows, places in samples.blocks.parts(indices):
            key = f"{samples.blocks.digest(block)}-{name}"
            values = self.small.get(key)
            if values is None:
                values = net.extract(self.of(net, samples, samples.blocks.members(block))).cpu()
                self.small.put(key, values)
            found[rows] = values[places]
        return found.to(self.device)

    def keep_only(self, samples: Samples, held: Tensor) -> None:
        """Delete all outputs but those of blocks that these samples are in, as their pixels are now."""
        digests = {samples.blocks.digest(block) for block, _, _ in samples.blocks.parts(held)}
        for store in (self.store, self.small):
            store.keep_only(digests)

    def _store(self, net: Classifier) -> BlockStore:
        return self.store if self._part(net).is_kept else self.small

    def _complete(self, net: Classifier, samples: Samples, keys: Mapping[int, str], view: View) -> None:
        """Compute the blocks that are not kept yet; blocks that another process computes come last."""
        store = self._store(net)
        missing = {block: key for block, key in keys.items() if store.get(key) is None}
        for wait in (False, True):
            for block, key in list(missing.items()):
                lock = store.lock(key, wait)
                if lock is None:
                    continue
                with lock:
                    if store.get(key) is None:
                        store.put(key, self._computed(net, samples, block, view))
                del missing[block]

    def _computed(self, net: Classifier, samples: Samples, block: int, view: View) -> Tensor:
        """Return a block's outputs, as tensors that can be trained on wherever they were asked for."""
        with torch.inference_mode(False), torch.no_grad():
            images = view.of(as_floats(samples.pixels(samples.blocks.members(block)).to(self.device)))
            return torch.cat([net.prepare(part) for part in torch.split(images, CHUNK)]).cpu()

    def _key(self, net: Classifier, samples: Samples, block: int, view: View) -> str:
        arithmetic = (torch.__version__, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads(), self.device)
        facts = (FORMAT, fcil.__version__, *arithmetic, self._part(net).digest, view)
        return f"{samples.blocks.digest(block)}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}"


def _stamp(tensor: Tensor) -> int:
    """Return a number that is another one once the tensor has been written to."""
    return -1 if tensor.is_inference() else int(tensor._version)


def _block_of(key: str) -> str:
    return key.partition("-")[0]


def _write(path: Path, values: Tensor) -> None:
    """Write a tensor: its shape, its numbers and a digest of both."""
    shape = torch.tensor([values.ndim, *values.shape, *[0] * (AXES - values.ndim)])
    pieces = [bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data) for tensor in (shape, values)]
    write_atomically(path, *pieces, hashlib.sha256(b"".join(pieces)).digest(), private=True)


def _read(path: Path) -> Tensor | None:
    """Return the tensor in a file, mapped into memory, or nothing unless it is there and whole."""
    try:
        size = path.stat().st_size
        content = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        header, values, seal = content[:HEADER], content[HEADER:-SEAL], content[-SEAL:]
        if hashlib.sha256(content[:-SEAL].numpy().data).digest() != bytes(seal.numpy().data):
            return None
        axes, *shape = header.view(torch.int64).tolist()
        return values.view(torch.float32).view(shape[:axes])
    except (OSError, RuntimeError, ValueError):
        return None
