"""The available memory: of the machine, of the process, and of the container it runs in."""

from __future__ import annotations

import os
import resource
from pathlib import Path

CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_bytes() -> int:
    """Return the memory that this process may use: the machine's, or less if it or its container has a limit."""
    known = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    own, _ = resource.getrlimit(resource.RLIMIT_AS)
    known += [own] if own != resource.RLIM_INFINITY else []
    for name in CONTAINER_LIMITS:
        text = Path(name).read_text().strip() if Path(name).is_file() else ""
        known += [int(text)] if text.isdigit() else []
    return min(known)
