"""The head that the analytic method must come to between real sites: that of all training pictures in one place."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from PIL import Image

from fcil.maths.analytic import Sums, feature_sums
from fcil.methods.analytic import AnalyticConfig, SumsState, solved
from support.consortium import SITES, Consortium


def of_all_sites(made: Consortium, gone: Collection[str] = ()) -> Sums:
    """Return the sums over the training pictures of all sites, but for files that are gone, taken in one place."""
    assert made.run is not None
    state = made.run.state.server
    found: Sums | None = None
    for number in sorted(made.parties):
        name = SITES[number]
        site = made.site(name)
        index = site.data._index
        stays = torch.tensor([f"{name}/{origin}" not in gone for origin in index.origins])
        trained = (~index.held_out & stays).nonzero().squeeze(1)
        files = [made.data(name) / index.origins[sample] for sample in trained.tolist()]
        images = torch.stack([torch.from_numpy(np.array(Image.open(file))) for file in files])[:, None]
        with torch.inference_mode():
            features = site.machine.net(state.model).extract(images / 255)
        more = feature_sums(features, site.data.samples.outputs(trained, state.context), state.context.classes)
        found = more if found is None else found + more
    assert found is not None
    return found


def kept_sums(made: Consortium) -> tuple[Sums, float]:
    """Return the sums at the server, and by how much their numbers may be wrong."""
    assert made.run is not None
    kept: Any = made.run.state.server.role_state
    assert isinstance(kept, SumsState)
    assert kept.sums is not None
    return kept.sums, kept.error


def assert_every_picture_counts_once(made: Consortium) -> None:
    """Compare the sums, which are whole only up to the rounding of masked ones."""
    (found, error), wanted = kept_sums(made), of_all_sites(made)
    assert found.counts.tolist() == wanted.counts.tolist()
    assert float((found.gram - wanted.gram).abs().max()) <= error + 1e-12
    assert float((found.classes - wanted.classes).abs().max()) <= error + 1e-12


def assert_the_head_of_one_place(made: Consortium, gone: Collection[str] = ()) -> None:
    (kept, _), expected = kept_sums(made), of_all_sites(made, gone)
    assert kept.counts.tolist() == expected.counts.tolist()
    found, wanted = (solved(AnalyticConfig(), sums)[0] for sums in (kept, expected))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
