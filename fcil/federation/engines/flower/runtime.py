"""Flower's simulation runtime in the background of this process, for an engine that was given no grid."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from typing import Any

import ray
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fcil.core.errors import ConfigError
from fcil.federation.engines.flower.app import client_app
from fcil.federation.engines.pool import refuse_start

PATIENCE = 120.0  # seconds until all nodes are there
LOOK = 0.05  # seconds between looks at whether they are


class Runtime:
    """Nodes on this machine, and the grid that reaches them; close it, or nothing else may use Ray in this process."""

    def __init__(self, nodes: int, device: str = "cpu") -> None:
        if ray.is_initialized():
            raise ConfigError(
                "run.engine: Ray is in use in this process, and Flower would stop it when its simulation ends; "
                "end it first (ray.shutdown()), or set run.engine to ray"
            )
        self.nodes = nodes
        self.device = device
        self.processes: set[int] = set()  # those that have answered; before its first job a process asks for parts
        self.closing = threading.Event()
        self._grid: Grid | None = None
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._simulate, name="fcil-flower", daemon=True)
        # An executor of Flower's is waited for when the interpreter ends, before anything registered with atexit runs;
        # so a caller that forgets to close would hang.
        threading._register_atexit(self.close)  # type: ignore[attr-defined]
        self.thread.start()

    def grid(self) -> Grid:
        """Return the grid once Ray is there and all nodes are registered."""
        until = time.monotonic() + PATIENCE
        while not self._ready():
            self.check()
            if time.monotonic() > until:
                raise refuse_start(f"Flower's simulation has no nodes after {PATIENCE:.0f} seconds")
            time.sleep(LOOK)
        assert self._grid is not None
        return self._grid

    def check(self) -> None:
        """Raise a FederationError if the simulation has ended by itself."""
        if self.thread.is_alive():
            return
        why = " ".join(str(self.failure.__cause__ or self.failure).split()) if self.failure else "no reason given"
        raise refuse_start(f"Flower's simulation ended ({why})")

    def close(self, at_once: bool = False) -> None:
        """End the simulation and wait until its processes are gone; Flower waits for jobs unless it is done at once."""
        self.closing.set()
        if at_once:
            logging.getLogger("flwr").setLevel(logging.CRITICAL)  # it would report each job that is lost
            for number in self.processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
        self.thread.join()

    def _ready(self) -> bool:
        return (
            self._grid is not None and len(list(self._grid.get_node_ids())) == self.nodes and bool(ray.is_initialized())
        )

    def _simulate(self) -> None:
        server = ServerApp()
        server.main()(self._hold)
        logging.getLogger("flwr").setLevel(logging.ERROR)
        resources = {"num_cpus": 1, "num_gpus": 1.0 if self.device == "cuda" else 0.0}
        options = {"address": "local", "num_cpus": self.nodes, "log_to_driver": False, "logging_level": "ERROR"}
        backend: Any = {"client_resources": resources, "init_args": options}
        path = os.environ.get("PYTHONPATH")
        try:
            run_simulation(server, client_app, self.nodes, "ray", backend)
        except BaseException as error:  # including SystemExit, with which Flower ends
            self.failure = error
        finally:
            _restore("PYTHONPATH", path)  # Flower adds to it each time

    def _hold(self, grid: Grid, context: Context) -> None:
        """Hand the grid over and keep the simulation up until it is closed."""
        self._grid = grid
        self.closing.wait()


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
