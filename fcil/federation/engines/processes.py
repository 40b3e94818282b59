"""Worker processes, kept alive over the rounds; models cross in shared memory, everything else as messages.

A worker is a fresh interpreter that imports neither the caller's script nor its state, so this engine can be used from
a script without a guard, from a notebook and from tests.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait

from fcil.core.allocator import with_allocator
from fcil.core.errors import system_words
from fcil.core.messages import (
    Message,
    ModelParcel,
    decode,
    encode,
    encode_into,
    encoded_size,
)
from fcil.core.parent_watch import leave_with
from fcil.core.registry import Member
from fcil.federation.client import Done, Job
from fcil.federation.engines.base import Publication, Recipe, SharedSamples, Worker, Workplace, register_engine
from fcil.federation.engines.pool import Pool, refuse_start
from fcil.federation.engines.shared_memory import Arena

ALIGNMENT = 64  # bytes; tensors are views of shared memory
STARTS = 3  # a worker that dies this often before its first job does not work on this machine


@dataclass(frozen=True)
class Hello(Message):
    """The first message to a worker: what to build."""

    recipe: str
    number: int
    samples: int  # bytes of them in the arena


@dataclass(frozen=True)
class Ready(Message):
    """The first message from a worker."""


@dataclass(frozen=True)
class Publish(Message):
    """A new broadcast lies in the arena; the worker's own former arena is no longer needed."""

    size: int


@dataclass(frozen=True)
class Placed(Message):
    """An answer whose model lies in the worker's arena."""

    done: Done
    start: int
    end: int


class Process:
    """One worker process as its owner sees it."""

    def __init__(self, hello: Hello, samples: Arena, broadcast: Arena) -> None:
        ours, theirs = socket.socketpair()
        self.answers = Arena()
        self.published = 0  # number of the broadcast that it was told of
        self.ready = False
        self.busy = False
        with theirs:
            descriptors = [theirs.fileno(), samples.descriptor, broadcast.descriptor, self.answers.descriptor]
            command = [sys.executable, "-m", "fcil.federation.engines.processes", *map(str, descriptors)]
            path = os.pathsep.join(entry for entry in sys.path if entry)
            threads = {"OMP_NUM_THREADS": str(Recipe.read(hello.recipe).threads)}
            try:
                self.process = subprocess.Popen(
                    command, pass_fds=descriptors, env={**with_allocator(os.environ), **threads, "PYTHONPATH": path}
                )
            except OSError as error:
                ours.close()
                self.answers.close()
                raise refuse_start(system_words(error)) from error
        self.connection = Connection(ours.detach())
        self.send(hello)

    def send(self, message: Message) -> None:
        """Send a message, unless the process is dead: then reading from it will tell."""
        with contextlib.suppress(OSError):
            self.connection.send_bytes(encode(message))

    def receive(self) -> Done | None:
        """Return the next answer, or none from a worker that has just become ready."""
        message = decode(self.connection.recv_bytes(), Message)
        if isinstance(message, Ready):
            self.ready = True
            return None
        self.busy = False
        if isinstance(message, Done):
            return message
        assert isinstance(message, Placed)
        assert message.done.reply is not None
        assert message.done.reply.report is not None
        parcel = decode(
            self.answers.view(message.end)[message.start : message.end], ModelParcel, message.end, share=True
        )
        report = replace(message.done.reply.report, model=parcel.model)
        return replace(message.done, reply=replace(message.done.reply, report=report))

    def stop(self) -> None:
        """Kill the process and wait until it is gone."""
        self.connection.close()
        self.process.kill()
        self.process.wait()
        self.answers.close()


class ProcessEngine(Pool):
    """Runs a round's participants in worker processes of this machine."""

    def __init__(self, place: Workplace) -> None:
        super().__init__(place)
        self.recipe = place.recipe.text()
        self.held = place.local.samples
        self.processes: list[Process] = []
        self.samples, self.shared = Arena(), Arena()
        self.samples_size = 0
        self.size = 0  # bytes of the broadcast
        self.number = 0  # of the broadcast
        self.stillborn = 0

    def publish(self, published: Publication) -> None:
        if not self.processes:
            self._share_samples()
            for number in range(self.workers):
                self.processes.append(self._start(number))  # one by one: if a later one fails, these are stopped
        for number, process in enumerate(self.processes):
            if process.busy:  # with a round that its caller gave up
                self._replace(number)
        self.size = encoded_size(published)
        encode_into(published, self.shared.view(self.size))
        self.number += 1

    def idle(self) -> list[int]:
        return [number for number, process in enumerate(self.processes) if process.ready and not process.busy]

    def submit(self, worker: int, job: Job) -> None:
        process = self.processes[worker]
        process.busy = True
        if process.published != self.number:
            process.send(Publish(self.size))
            process.published = self.number
        process.send(job)

    def collect(self, timeout: float | None) -> list[tuple[int, Done | None]]:
        numbers = {process.connection: number for number, process in enumerate(self.processes)}
        found: list[tuple[int, Done | None]] = []
        for connection in wait(list(numbers), timeout):
            number = numbers[connection]  # type: ignore[index]
            process = self.processes[number]
            was_ready = process.ready
            try:
                done = process.receive()
            except (EOFError, OSError):
                self._bury(number, was_ready)
                found += [(number, None)] if was_ready else []
                continue
            found += [(number, done)] if done is not None else []
        return found

    def close(self) -> None:
        for process in self.processes:
            process.stop()
        self.processes = []
        self.samples.close()
        self.shared.close()

    def _bury(self, number: int, was_ready: bool) -> None:
        self.stillborn = 0 if was_ready else self.stillborn + 1
        if self.stillborn >= STARTS:
            code = self.processes[number].process.wait()
            raise refuse_start(f"a worker process ended with code {code} before its first job")
        self._replace(number)

    def _replace(self, number: int) -> None:
        self.processes[number].stop()
        self.processes[number] = self._start(number)

    def _start(self, number: int) -> Process:
        return Process(Hello(self.recipe, number, self.samples_size), self.samples, self.shared)

    def _share_samples(self) -> None:
        shared = SharedSamples.of(self.held)
        self.samples_size = encoded_size(shared)
        encode_into(shared, self.samples.view(self.samples_size))


def serve(connection: Connection, samples: Arena, broadcast: Arena, answers: Arena) -> None:
    """Serve the owner's requests until it is gone."""
    hello = decode(connection.recv_bytes(), Hello)
    held = decode(samples.view(hello.samples)[: hello.samples], SharedSamples, limit=hello.samples, share=True)
    worker = Worker(Recipe.read(hello.recipe), held.samples(), hello.number)
    connection.send_bytes(encode(Ready()))
    end = 0
    while True:
        message = decode(connection.recv_bytes(), Message)
        if isinstance(message, Publish):
            shared = broadcast.view(message.size)[: message.size]
            worker.published = decode(shared, Publication, message.size, share=True)
            end = 0
            continue
        assert isinstance(message, Job)
        done = worker.run(message)
        if done.reply is not None and done.reply.report is not None:
            start = end + -end % ALIGNMENT
            done, end = _place(done, answers, start)
            connection.send_bytes(encode(Placed(done, start, end)))
        else:
            connection.send_bytes(encode(done))


def _place(done: Done, answers: Arena, start: int) -> tuple[Done, int]:
    """Put the model of an answer into shared memory; return the answer without it, and where the model ends."""
    assert done.reply is not None
    assert done.reply.report is not None
    parcel = ModelParcel("", done.reply.report.model)
    end = start + encoded_size(parcel)
    encode_into(parcel, answers.view(end)[start:end])
    light = replace(done.reply, report=replace(done.reply.report, model={}))
    return replace(done, reply=light), end


def main() -> None:
    """Serve over the descriptors named on the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, which then ends its workers
    leave_with(os.getppid())
    connection, *arenas = map(int, sys.argv[1:])
    samples, broadcast, answers = (Arena(descriptor) for descriptor in arenas)
    try:
        serve(Connection(connection), samples, broadcast, answers)
    except (EOFError, OSError):
        os._exit(0)  # the owner has closed its end


if __name__ == "__main__":
    main()
else:
    register_engine(Member("processes", "participants in worker processes of this machine", ProcessEngine))
