"""The guard by itself: what a node sends at the same time comes from one allowance, and what is not taken is free."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("flwr")

from fcil.deployment.flower.auth_middleware import (
    ALLOWANCE,
    HEADER,
    LARGEST,
    OBJECT,
    AuthMiddleware,
    Event,
    Receive,
    Scope,
    Send,
)

SECRET = "the owner's"
NODE = 7
MIB = 1 << 20
GONE: Event = {"type": "http.disconnect"}


class Counting:
    """An application that counts the bytes of what reaches it."""

    def __init__(self) -> None:
        self.bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.bytes += len((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})


@pytest.fixture
def middleware(monkeypatch: pytest.MonkeyPatch) -> AuthMiddleware:
    """Return a guard that takes every request for one of the same registered node."""
    monkeypatch.setattr(AuthMiddleware, "_signer", lambda self, path, scope: NODE)
    return AuthMiddleware(Counting(), SECRET, lambda key: NODE)


def passed(middleware: AuthMiddleware) -> int:
    assert isinstance(middleware.inner, Counting)
    return middleware.inner.bytes


async def allow(middleware: AuthMiddleware, size: int) -> None:
    """Begin an exchange, as the owner does."""

    async def send(event: Event) -> None:
        pass

    scope = {"type": "http", "path": f"{ALLOWANCE}{size}", "headers": [(HEADER.encode(), SECRET.encode())]}
    await middleware(scope, nothing, send)


async def nothing() -> Event:
    raise AssertionError("nobody asks for more")


def arriving(size: int, piece: int = MIB) -> list[Event]:
    """Return what a server hands on of a body, piece by piece."""
    pieces = [bytes(min(piece, size - start)) for start in range(0, size, piece)]
    return [{"type": "http.request", "body": one, "more_body": True} for one in pieces] + [
        {"type": "http.request", "body": b"", "more_body": False}
    ]


async def push(
    middleware: AuthMiddleware, events: Sequence[Event], declared: int | None = None, reads: list[int] | None = None
) -> int:
    """Send a part of an answer, and return the status; others get their turn before each piece."""
    waiting, status = list(events), [0]

    async def receive() -> Event:
        await asyncio.sleep(0)
        event = waiting.pop(0)
        if reads is not None:
            reads.append(len(event.get("body", b"")))
        return event

    async def send(event: Event) -> None:
        status[0] = event.get("status", status[0])

    headers = [] if declared is None else [(b"content-length", str(declared).encode())]
    await middleware({"type": "http", "path": OBJECT, "headers": headers}, receive, send)
    return status[0]


async def push_at_once(middleware: AuthMiddleware, times: int, size: int, **known: Any) -> list[int]:
    return await asyncio.gather(*(push(middleware, arriving(size), **known) for _ in range(times)))


@pytest.mark.parametrize("declared", [LARGEST, None])
def test_requests_at_the_same_time_share_one_allowance(middleware: AuthMiddleware, declared: int | None) -> None:
    async def played() -> list[int]:
        await allow(middleware, 2 * LARGEST)
        return await push_at_once(middleware, 12, LARGEST, declared=declared)

    assert sorted(asyncio.run(played())) == [200] * 2 + [413] * 10
    assert passed(middleware) == 2 * LARGEST


def test_small_parts_that_say_so_go_side_by_side(middleware: AuthMiddleware) -> None:
    """A node sends several parts at a time: none may reserve more than it has."""

    async def played() -> list[int]:
        await allow(middleware, 10 * MIB)
        return await push_at_once(middleware, 10, MIB, declared=MIB)

    assert asyncio.run(played()) == [200] * 10
    assert middleware.spent == {NODE: 10 * MIB}


def test_what_says_that_it_is_too_large_is_refused_unread(middleware: AuthMiddleware) -> None:
    async def played() -> tuple[int, list[int]]:
        reads: list[int] = []
        await allow(middleware, MIB)
        return await push(middleware, arriving(2 * MIB), 2 * MIB, reads), reads

    assert asyncio.run(played()) == (413, [])


def test_what_was_reserved_and_not_sent_is_given_back(middleware: AuthMiddleware) -> None:
    async def played() -> list[int]:
        await allow(middleware, 4 * MIB)
        cut = await push(middleware, [*arriving(MIB)[:-1], GONE], 4 * MIB)
        too_large = await push(middleware, arriving(5 * MIB))
        with pytest.raises(ZeroDivisionError):
            await broken()
        return [cut, too_large, await push(middleware, arriving(3 * MIB)), await push(middleware, arriving(MIB), MIB)]

    async def broken() -> None:
        async def receive() -> Event:
            raise ZeroDivisionError

        await middleware({"type": "http", "path": OBJECT, "headers": []}, receive, None)  # type: ignore[arg-type]

    assert asyncio.run(played()) == [413, 413, 200, 200]
    assert passed(middleware) == 4 * MIB, "nothing of a request that was cut off is passed on"


def test_what_is_under_way_when_an_exchange_begins_takes_nothing_from_it_and_adds_nothing(
    middleware: AuthMiddleware,
) -> None:
    async def played() -> None:
        await allow(middleware, 4 * MIB)
        former = asyncio.create_task(push(middleware, arriving(2 * MIB), 4 * MIB))
        await asyncio.sleep(0)
        await allow(middleware, 4 * MIB)
        await former
        assert middleware.spent.get(NODE, 0) == 0
        assert await push_at_once(middleware, 2, 4 * MIB, declared=4 * MIB) == [200, 413]

    asyncio.run(played())
