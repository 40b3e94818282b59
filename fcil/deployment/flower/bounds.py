"""Bounds on what a server may have a party take in: no redirects, nothing compressed, and so many bytes at most."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import cast

import httpx

LARGEST = 64 << 20  # bytes of one answer; Flower sends an array in pieces of 5 MiB
MOST = 8 << 30  # bytes of a request with its models


class _Bounded(httpx.SyncByteStream):
    def __init__(self, inner: httpx.SyncByteStream, most: int) -> None:
        self.inner, self.allowance = inner, Allowance(most)

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.inner:
            self.allowance.spend(len(piece))
            yield piece

    def close(self) -> None:
        self.inner.close()


class Allowance:
    """Bytes that may still be taken in; threads share it."""

    def __init__(self, most: int) -> None:
        self.most = self.left = most
        self._lock = threading.Lock()

    def spend(self, count: int) -> None:
        """Take away some bytes, or raise an error if there are not as many left."""
        with self._lock:
            self.left -= count
            if self.left < 0:
                raise ValueError(f"the server sends more than {self.most} bytes at once")


def bound(client: httpx.Client) -> None:
    """Let a client read at most `LARGEST` bytes of an answer, as they are sent, and go to no other server."""
    client.follow_redirects = False  # another server could use the signature that goes along

    def shorten(response: httpx.Response) -> None:
        response.headers.pop("content-encoding", None)
        response.stream = _Bounded(cast(httpx.SyncByteStream, response.stream), LARGEST)

    client.event_hooks = {"response": [shorten]}
