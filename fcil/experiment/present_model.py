"""The model of a simulation between two rounds, as its final model would be written."""

from __future__ import annotations

from fcil.data.datasets import load_source
from fcil.data.samples import Samples
from fcil.data.scenario.scenario import Scenario
from fcil.experiment.build import make_recipe
from fcil.experiment.config import Config
from fcil.experiment.kinds import prepared
from fcil.experiment.model_file import model_bytes
from fcil.federation.server import ServerState


def present_model(config: Config, state: ServerState) -> bytes | None:
    """Return the file of a simulation's model in the middle of its run, or None if it knows no class."""
    if not state.catalogue.classes:
        return None
    config = config.model_copy(update={"model": config.model.without_file()})
    source = load_source(config.data)
    world = Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    source = prepared(config, source, world)
    recipe, ids = make_recipe(config, source), Samples.of(source).ids
    model = recipe.server().predictor(state.role_state, state.model)
    return model_bytes(model, tuple(map(ids.index, state.catalogue.classes)), source, recipe.model)
