"""The pieces of `make bench NAME=deployment`, without its processes."""

from __future__ import annotations

import importlib.util
import json
import os
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from benchmarks import deployment, idle
from benchmarks.common import patterns
from benchmarks.owned import descendants
from benchmarks.parties import APP, Parties, fill, make_keys
from fcil.core.errors import FederationError
from fcil.deployment.keys.make import ProxyKeys, ServerKeys, SiteKeys
from fcil.deployment.server.roster import Roster
from fcil.deployment.server.run import deployment_config
from fcil.experiment.config import load_config


@pytest.mark.parametrize("method", ["finetune", "glfc"])
def test_the_settings_of_our_federations_are_settings(method: str) -> None:
    chosen = deployment.settings_of(method, 3)
    config = deployment_config(load_config("digits", [f"{key}={json.dumps(value)}" for key, value in chosen.items()]))
    assert (config.method_name, config.deployment.min_sites) == (method, 3)


def test_the_reference_has_the_settings_it_is_given_and_a_network_as_large_as_ours() -> None:
    document = tomllib.loads((APP / "pyproject.toml").read_text("utf-8"))
    assert set(deployment.PLAIN) | {"journal"} == set(document["tool"]["flwr"]["app"]["config"])
    spec = importlib.util.spec_from_file_location("plain_flower", APP / "plain_flower.py")
    assert spec is not None
    assert spec.loader is not None
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    state = app.network(deployment.PLAIN).state_dict()
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    assert size == deployment.model_bytes(deployment.WIDTH, deployment.CLASSES)


def test_both_sides_have_the_same_keys_and_images(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", ["site-1", "site-2"])
    assert [entry.role for entry in Roster.load(tmp_path / "keys" / "server").present] == ["proxy", "site", "site"]
    assert ServerKeys.load(tmp_path / "keys" / "server").certificate.is_file()
    assert SiteKeys.load(tmp_path / "keys" / "site-2").proxy is not None
    assert ProxyKeys.load(tmp_path / "keys" / "proxy").private_key.is_file()
    fill(tmp_path / "images", patterns(3, 2, 8), range(1, 3))
    found = sorted(path.relative_to(tmp_path / "images").parts[0] for path in tmp_path.glob("images/*/*.png"))
    assert found == ["class-1", "class-1", "class-2", "class-2"]


def test_rounds_are_taken_from_the_lines_of_a_journal(tmp_path: Path) -> None:
    journal = tmp_path / "records.jsonl"
    journal.write_text("{}\n{}\n")
    with Parties(tmp_path, until=float("inf")) as parties:
        assert len(parties.follow(journal, lines=5, enough=2, patience=0)) == 2
    assert deployment.lengths([1.0, 3.0, 6.0]) == [2.0, 3.0]
    with pytest.raises(FederationError, match="the time is over"):
        Parties(tmp_path, until=0.0).follow(journal, lines=5, enough=3, patience=0)


def test_figures_are_compared_with_their_references() -> None:
    assert deployment.pace("finetune", [2.0, 2.6, 9.0], [2.0, 2.0, 2.0], {}).holds
    assert deployment.pace("finetune", [2.0, 2.7, 9.0], [2.0, 2.0, 2.0], {}).holds is False
    model = deployment.model_bytes(deployment.WIDTH, deployment.CLASSES)
    one_way = deployment.FEW * model
    assert deployment.traffic("finetune", [{"bytes_up": one_way, "bytes_down": one_way}]).ratio == 1.0
    assert deployment.memory({"server_mb": 1000.0, "superlink_mb": 536.0}, 10).ours == 1.5
    with pytest.raises(FederationError, match="a round went wrong"):
        deployment.trained([{"reports": 2}])


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="processes are read from /proc")
def test_processes_are_found_with_what_has_started_them() -> None:
    assert os.getpid() in descendants([os.getppid()])


def test_an_idle_federation_has_bounds_for_its_sites_and_for_a_server_of_so_many() -> None:
    names = ["server", "site-1", "site-2", "site-3"]
    found = idle.Found(
        start={"site-1": 2.0, "site-2": 3.0, "site-3": 9.0},
        round=0.3,
        idle=dict(zip(names, [(1.0, 3.0), (0.5, 0.0), (0.25, 0.0), (9.0, 0.0)], strict=True)),
        seconds=180.0,
        memory=dict(zip(names, [500.0, 240.0, 310.0, 239.0], strict=True)),
    )
    figures = {one.name: one for one in idle.figures(found, 3)}
    assert figures["idle.start.3"].ours == 3.0
    assert figures["idle.round.3"].ours == pytest.approx(100.0)
    assert (figures["idle.server.3"].ours, figures["idle.server.3"].holds) == (80.0, True)
    assert figures["idle.server.3"].reference == 50 + 3 * 10
    assert (figures["idle.site.3"].ours, figures["idle.site.3"].holds) == (10.0, True)
    assert (figures["idle.memory.3"].ours, figures["idle.memory.3"].holds) == (310.0, False)
