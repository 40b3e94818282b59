"""The Ray engine when workers are lost, and where there is no Ray."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
from support.cluster import start_cluster, without_ray

from fcil.core.errors import ConfigError
from fcil.core.messages import model_digest
from fcil.federation.engines.ray_address import check_address
from fcil.testing import trial


@without_ray
def test_a_killed_actor_is_replaced_and_its_order_repeated_once() -> None:
    import ray

    start_cluster()
    made = trial("icarl", engine="ray", scenario={"participants": 4}, train={"epochs": 1})
    plain = trial("icarl", scenario={"participants": 4}, train={"epochs": 1})
    engine: Any = made.simulation.engine
    honest, victims = engine.submit, []

    def submit(worker: int, job: Any) -> None:
        round_played = made.simulation.engine.number  # type: ignore[attr-defined]
        honest(worker, job)
        if round_played == 1 and not victims:
            victims.append(job.order.client)
            ray.kill(engine.actors[worker])

    engine.submit = submit
    try:
        rounds, expected = (
            made.simulation.rounds(made.simulation.start()),
            plain.simulation.rounds(plain.simulation.start()),
        )
        (state, record), (wanted, _) = next(rounds), next(expected)
        assert len(victims) == 1
        assert record.failures == []
        assert model_digest(state.model) == model_digest(wanted.model)
    finally:
        engine.close()


@without_ray
def test_a_cluster_that_cannot_be_started_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    made = trial("icarl", engine="ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def refuse(**_: Any) -> None:
        raise ConnectionError("no\nanswer")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(
        ConfigError, match=r"run.engine: Ray does not start on this machine \(no answer\); set run.engine to"
    ):
        next(made.simulation.rounds(made.simulation.start()))


@without_ray
def test_a_real_cluster_answers_the_greeting() -> None:
    import ray

    start_cluster()
    check_address(ray.get_runtime_context().gcs_address)


@without_ray
def test_its_workers_get_as_much_of_the_processors_as_this_process() -> None:
    """By default Ray's workers yield to everybody else, and on a busy machine they do not come up in time."""
    import ray

    start_cluster()
    assert ray.get(ray.remote(lambda: os.nice(0)).remote()) == os.nice(0)


def test_without_ray_the_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"install fcil with its extra"):
        trial("icarl", engine="ray")
