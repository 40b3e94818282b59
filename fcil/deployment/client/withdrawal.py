"""Exact unlearning at a real site: samples that its next rounds take out of the server's sums."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fcil.core.errors import ConfigError
from fcil.core.files import read_json
from fcil.deployment.client.sample_store import SampleStore, SiteIndex
from fcil.deployment.party import TERMS
from fcil.deployment.party_store import STAMPS, DiskStore
from fcil.experiment.run_directory import lock_folder
from fcil.federation.engines.base import Recipe
from fcil.methods import methods
from fcil.methods.ledger import SampleLedger


def is_site(folder: Path) -> bool:
    """Say whether a folder is the state folder of a site."""
    return (folder / STAMPS).is_file()


def withdraw_at_site(folder: Path, class_name: str | None, files: Sequence[str]) -> int:
    """Take back a stopped site's images, or those of a class or of these files, and return their number."""
    methods()  # their modules define the messages in the state
    with lock_folder(folder):
        store = DiskStore(folder)
        state = store.latest.state if store.latest is not None else None
        if not isinstance(state, SampleLedger):
            raise ConfigError(f"{folder} is no state folder of a site that has sent sums; only analytic can forget")
        _check_privacy(folder)
        index = SampleStore(folder).index()
        gone = torch.cat([state.forgotten, store.withdrawn(1 << 62)])
        left = torch.unique(state.known[~torch.isin(state.known, gone)])
        samples = left[torch.isin(left, _chosen(index, class_name, files))]
        _check_pixels(index, samples, state)
        if len(samples):
            store.withdraw(samples)
        return len(samples)


def _check_privacy(folder: Path) -> None:
    """Refuse to withdraw where sums have noise: they would be sent a second time, with more epsilon."""
    if Recipe.read(str(read_json(folder / TERMS)["recipe"]), import_modules=False).privacy.on:
        raise ConfigError(f"{folder} is of a federation with privacy.epsilon, in which images are never sent again")


def _chosen(index: SiteIndex, class_name: str | None, files: Sequence[str]) -> Tensor:
    """Return the samples of a class and of some files; all of those that are not named."""
    chosen = torch.ones(len(index.labels), dtype=torch.bool)
    if class_name is not None:
        if class_name not in index.class_names:
            raise ConfigError(
                f"--class {class_name}: this site has no such class; it has {', '.join(index.class_names)}"
            )
        chosen &= index.labels == index.class_names.index(class_name)
    if files:
        unknown = [name for name in files if name not in index.origins]
        if unknown:
            raise ConfigError(f"--sample {unknown[0]}: no image of this site came from that file of its folder")
        chosen &= torch.tensor([origin in set(files) for origin in index.origins])
    return chosen.nonzero().squeeze(1)


def _check_pixels(index: SiteIndex, samples: Tensor, state: SampleLedger) -> None:
    """Refuse samples that were sent and whose pixels are gone: their features cannot be computed again."""
    held = torch.cat([torch.empty(0, dtype=torch.int64), *(file.indices for file in index.images)])
    lacking = int((~torch.isin(samples, torch.cat([held, state.waiting]))).sum())
    if lacking:
        raise ConfigError(f"{lacking} of {len(samples)} images are no longer kept, so they cannot be taken back")
