"""Memory that processes share without a name that could be left behind: it is gone when the last of them is."""

from __future__ import annotations

import mmap
import os
import tempfile


class Arena:
    """A growing piece of shared memory behind a file descriptor; mappings made before it grew stay valid."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = _anonymous_file() if descriptor is None else descriptor
        self._map: mmap.mmap | None = None

    def view(self, size: int) -> memoryview:
        """Return the first `size` bytes at least, writable, after growing the memory if need be."""
        if self._map is None or len(self._map) < size:
            if os.fstat(self.descriptor).st_size < size:
                os.ftruncate(self.descriptor, size)
            self._map = mmap.mmap(self.descriptor, 0)  # a mapping that tensors still look at lives as long as they do
        return memoryview(self._map)

    def close(self) -> None:
        """Release the memory; mappings of other processes stay valid."""
        self._map = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fcil")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
