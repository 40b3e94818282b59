"""The data of a site: a folder of images that grows while the federation runs, and the samples taken from it.

FOLDER/CLASS/*.png (and so on) belongs to the user, who adds files at any time. The state folder belongs to the site; it
is enough to continue from, even if FOLDER is lost.

- **Rows.** With agreed columns, FOLDER/*.csv and so on hold a sample per row (`fcil.deployment.client.rows`).
- **Files.** A file is known by the SHA-256 of its content. Once ingested it is a sample with a permanent index. It is
  recognised by path, size and time, without being read. Known content of the same class is skipped; under a second
  class it is left out with a warning that names both files.
- **Files being written.** If a new file was modified within the last second, the scan waits for that second; a file
  that changes meanwhile or while it is read is left for the next round.
- **Links.** A folder that is a link is no class, and a file that links out of FOLDER is left out, each with a warning.
- **Broken files** are left out with one warning and tried again once their size or a time changes (new rights count).
  A file younger than ten seconds may be incomplete: it is tried again in the next round, without a warning. No file
  stops a site.
- **Hold-out.** Of a class with t >= 2 files in all, max(1, round(fraction * t)) are never trained on. They
  are drawn from the new files, in the order of their digests. A file never moves from one part to the other.
- **Freezing.** `freeze` fixes the samples of a round and stores them before it returns. The latest two frozen rounds
  can be repeated without a scan. Any other earlier round is refused.
- **Batches.** The current batch stays the same while no file arrives. New files form a new batch if the role's state
  uses all of the current one. Otherwise they join it: some samples wait for an output, or a round failed, or the site
  was killed before the role used them. So a role's current data is everything since its last alarm.
- **Retiring.** `retire` deletes the pixels of samples that are not in use, not held out and not in the current batch,
  from memory and from the state folder. Labels, digests and names stay: a retired file is never read again.

The caller must make sure that only one process uses a state folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fcil.core.errors import ConfigError, DataError, FederationError, FileError, one_line
from fcil.data.columns import Columns
from fcil.data.datasets.dataset import Split
from fcil.deployment.client.class_consent import ClassConsent
from fcil.deployment.client.ingest import BusyError, FolderReading, IndexLookup, count_new, ingest
from fcil.deployment.client.sample_store import FrozenRound, SampleStore, SiteIndex, to_rewrite
from fcil.deployment.client.samples import SiteSamples

READING = 20.0  # seconds for which a round waits until new files are read
LARGEST_HOLD_OUT = 0.5  # the rule can then always be kept, and some image of each class is trained on


class SiteData:
    """The samples of a real site, as a scenario gives them to a simulated client; the module states its guarantees."""

    def __init__(
        self,
        store: SampleStore,
        index: SiteIndex,
        data: Path,
        class_id: Callable[[str], str],
        consent: ClassConsent,
        columns: Columns | None = None,
    ) -> None:
        held, pixels = store.read(index)
        self.samples = SiteSamples.restored(index.labels, index.ids, index.starts, held, pixels)
        self._store = store
        self._index = index
        self._register = IndexLookup(index)
        self._data = data
        self._class_id = class_id
        self._consent = consent
        self._columns = columns
        self._reading: FolderReading | None = None  # since a round that did not wait for its end
        self._warnings: list[str] = []
        self._told: set[str] = set()  # warnings about folders, which the index does not store

    @classmethod
    def open(
        cls,
        state: Path,
        data: Path,
        image_shape: tuple[int, int, int],
        class_id: Callable[[str], str],
        hold_out: float = 0.1,
        consent: ClassConsent | None = None,
        columns: Columns | None = None,
    ) -> SiteData:
        """Return a site's data from its state folder, which is empty at first.

        `class_id` maps a class name to its id on the wire, always the same one. With `columns` the samples are rows.
        """
        if not 0 <= hold_out <= LARGEST_HOLD_OUT:
            raise ConfigError(f"hold_out: found {hold_out}, should be from 0 to {LARGEST_HOLD_OUT}")
        if not data.is_dir():
            holds = "a folder of images for each class" if columns is None else "tables with a row per sample"
            raise DataError(f"{data} is not a folder; it should hold {holds}")
        store = SampleStore(state)
        index = store.open(image_shape, hold_out, columns.digest if columns else "")
        for name, identity in zip(index.class_names, index.ids, strict=True):
            if class_id(name) != identity:
                raise FileError(f"{state} was begun with other class ids: {name} is no longer {identity}")
        return cls(store, index, data, class_id, consent or ClassConsent(), columns)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes, in the order of `samples.ids`."""
        return self._index.class_names

    def freeze(self, round: int, used: Tensor) -> Tensor:
        """Return the current batch of a round, ascending; a repeated round gets the same one.

        `used` are the samples in the role's state before the round (`ClientRole.in_use`).
        """
        frozen = self._index.frozen
        for former in frozen:
            if former.round == round:
                return former.arrival
        if frozen and round < frozen[-1].round:
            kept = " and ".join(str(former.round + 1) for former in frozen)
            raise FederationError(
                f"the server asks for round {round + 1}, but this site has gone on and knows only what it held in "
                f"round {kept}; a server that was restored from a backup starts with --restored"
            )
        index, split = self._ingested()
        indices = torch.arange(len(self.samples), len(index.labels))
        index = replace(index, images=(*index.images, *self._store.write_images(indices, split.images)))
        new = indices[~index.held_out[indices]]
        if len(new):
            taken_in = bool(torch.isin(index.batch, used).all())
            index = replace(index, batch=new if taken_in else torch.cat([index.batch, new]))
        self._keep(replace(index, frozen=(*frozen[-1:], FrozenRound(round, index.batch))))
        self.samples.append(split, index.ids)
        return index.batch

    def begin_epoch(self) -> None:
        """Fix no round any more: the server goes on at an earlier one, with the samples that are here now."""
        if self._index.frozen:
            self._keep(replace(self._index, frozen=()))

    def has_news(self, images: int) -> bool:
        """Return whether a look into the folder finds so many new files that would count, without reading them."""
        return (
            self._reading is not None or count_new(self._register, self._data, self._class_id, self._consent) >= images
        )

    def _ingested(self) -> tuple[SiteIndex, Split]:
        """Return the index with the new files, or raise a BusyError while they are read."""
        if self._reading is None:
            self._reading = FolderReading(
                lambda note: ingest(
                    self._register,
                    self._data,
                    self._class_id,
                    self._tell,
                    self._tell_once,
                    self._consent,
                    note,
                    self._columns,
                )
            )
        reading = self._reading
        if not reading.finished(READING):
            raise BusyError(f"reading {reading.done} of {reading.total} new files")
        self._reading = None
        return reading.result()

    @property
    def hold_out_indices(self) -> Tensor:
        """Return the samples that are never trained on."""
        return self._index.held_out.nonzero().squeeze(1)

    def hold_out(self) -> tuple[Tensor, Tensor]:
        """Return pixels and labels of the hold-out samples."""
        indices = self.hold_out_indices
        return self.samples.pixels(indices), self.samples.labels(indices)

    def retire(self, keep: Tensor) -> None:
        """Delete the pixels of all samples except `keep`, the hold-out and the current batch.

        `keep` are the samples in the role's state, and in the state before it while that is kept.
        """
        index, held = self._index, self.samples.held
        wanted = torch.cat([keep, index.batch, self.hold_out_indices])
        stays = held[torch.isin(held, wanted)]
        old = to_rewrite(index.images, stays)
        if not old:
            return
        names = {file.name for file in old}
        again = torch.cat([file.indices for file in old])
        again = again[torch.isin(again, stays)].sort().values
        new = self._store.write_images(again, self.samples.pixels(again))
        images = (*(file for file in index.images if file.name not in names), *new)
        # A round whose images are gone cannot be repeated: it is refused rather than trained on zeros.
        frozen = tuple(former for former in index.frozen if bool(torch.isin(former.arrival, stays).all()))
        self._keep(replace(index, images=images, frozen=frozen))
        self.samples.keep_only(stays)

    def drain_warnings(self) -> tuple[str, ...]:
        """Return the warnings since the last call."""
        warnings, self._warnings = tuple(self._warnings), []
        return warnings

    def _keep(self, index: SiteIndex) -> None:
        """Store the index, then use it."""
        self._store.write(index)
        if index.files is not self._index.files or index.digests is not self._index.digests:
            self._register = IndexLookup(index)
        self._register.index = self._index = index

    def _tell(self, warning: str) -> None:
        self._warnings.append(one_line(warning))

    def _tell_once(self, warning: str) -> None:
        if warning not in self._told:
            self._told.add(warning)
            self._tell(warning)
