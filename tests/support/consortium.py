"""A whole federation between real sites within one process: real keys, real folders, and requests carried by hand."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from fcil.core.errors import FederationError
from fcil.core.messages import Message, model_digest
from fcil.core.messages.codec import DEFAULT_LIMIT
from fcil.deployment.client.site import SiteParty
from fcil.deployment.keys.make import ProxyKeys, SiteKeys, make_site_keys
from fcil.deployment.party import Party
from fcil.deployment.party_limits import PartyLimits
from fcil.deployment.proxy import ProxyRunner
from fcil.deployment.server.rounds import ServerRunner
from fcil.deployment.server.run import ServedRun, terms_of
from fcil.deployment.transport.base import ConnectedParty, Envelope, Handler
from fcil.deployment.transport.messages import Answer, Request, decode_message, encode_message
from fcil.experiment.config import Config, load_config
from fcil.experiment.journal import Journal
from fcil.federation.round_record import RoundRecord
from support.folders import age
from support.in_process import InProcessTransport
from support.keyring import consortium

SITES = ("aachen", "berlin", "cork", "delft")  # a site's number is its place here
PROXY = 9
CLASSES = ("ant", "bee", "cow", "dog", "elk", "fox")
SIDE = 8
BRIEF = {
    "glfc": (
        "method.perturb_steps=1",
        "method.rebuild_evaluations=3",
        "method.rebuild_restarts=0",
    ),
    "target": (
        "method.images=40",
        "method.calls=3",
        "method.synthesis_batch=16",
        "method.generator_steps=2",
        "method.student_steps=2",
    ),
}
SMALL = (
    "model.width=2",
    "train.epochs=1",
    "train.batch_size=32",
    "scenario.participants=3",
    "scenario.memory=6",
    "federation.merge_rounds=0",
    "deployment.image_size=8",
    "deployment.channels=1",
    "deployment.patience=0",
    "deployment.attempts=2",
    "deployment.release_margin=100",  # of few images accuracy says little
)
Tamper = Callable[[Any], Message | bytes | None]


def small_config(method: str = "icarl", *settings: str, rounds: int = 4) -> Config:
    """Return a configuration in which a round takes a moment."""
    own = [f"method.name={method}", *BRIEF.get(method, ()), f"deployment.rounds={rounds}"]
    return load_config("digits", [*SMALL, *own, *settings])


class Keyring:
    """The keys of all parties, made once; the server's folder is `place / "server"`."""

    def __init__(self, place: Path) -> None:
        self.place = consortium(place)
        for name in SITES:
            if name != "berlin":
                make_site_keys(place / name, name)
                for file in ("consortium.secret", "proxy.pub", "ca.crt"):
                    shutil.copy(place / "berlin" / file, place / name)
        self.sites = {name: SiteKeys.load(place / name) for name in SITES}
        self.proxy = ProxyKeys.load(place / "proxy")


def picture(name: str, seed: int) -> np.ndarray:
    """Return a grey picture of a class: one of its six regions is bright, the rest is noise."""
    place = CLASSES.index(name)
    drawn = np.random.default_rng([place, seed]).integers(0, 70, (SIDE, SIDE), dtype=np.uint8)
    row, column = 4 * (place // 3), 3 * (place % 3)
    drawn[row : row + 4, column : column + 3] += 150
    return drawn


class Wire(InProcessTransport):
    """Carries requests, keeps every byte, and does to them what a test asks for."""

    def __init__(self) -> None:
        super().__init__({})
        self.sent: list[Envelope] = []
        self.received: list[tuple[int, bytes]] = []
        self.away: set[int] = set()  # not connected
        self.silent: set[int] = set()  # connected, but no request reaches them
        self.deaf: set[int] = set()  # their next answer is lost on its way
        self.losses = 0
        self.lost: Callable[[int], object] = lambda _: None  # what happens when one is
        self.tampered: dict[int, Tamper] = {}  # what becomes of an answer; None: what it was
        self.order: Callable[[list[Any]], list[Any]] = list
        self.before: Callable[[Request], object] = lambda _: None  # what happens before a request is sent to anybody

    def members(self) -> list[ConnectedParty]:
        return [member for member in super().members() if member.number not in self.away]

    def exchange(
        self, envelopes: Sequence[Envelope], group: str, deadline: float, limit: int
    ) -> Iterator[tuple[int, bytes | FederationError]]:
        for one in envelopes[:1]:
            self.before(decode_message(one.content, Request, DEFAULT_LIMIT))
        self.sent += envelopes
        heard = [one for one in envelopes if one.to not in self.silent]
        for one in envelopes:
            if one.to in self.silent:
                yield one.to, FederationError("no answer in time")
        for number, answer in self.order(list(super().exchange(heard, group, deadline, limit))):
            assert isinstance(answer, bytes)
            if number in self.deaf:
                self.deaf.remove(number)
                self.losses += 1
                self.lost(number)
                yield number, FederationError("no answer in time")
                continue
            changed = self._changed(number, answer)
            self.received.append((number, changed))
            yield number, changed

    def _changed(self, number: int, answer: bytes) -> bytes:
        tamper = self.tampered.get(number)
        found = decode_message(answer, Answer, DEFAULT_LIMIT)
        changed = tamper(found.content) if tamper else None
        if changed is None:
            return answer
        return changed if isinstance(changed, bytes) else encode_message(Answer(found.held, changed))

    def requests(self, kind: type[Request], to: int | None = None) -> list[Any]:
        """Return the requests of a kind that were sent, to one party or to all."""
        found = [(one.to, decode_message(one.content, Request, DEFAULT_LIMIT)) for one in self.sent]
        return [request for number, request in found if isinstance(request, kind) and to in (None, number)]

    def answers(self, kind: type[Message]) -> list[Any]:
        """Return the contents of a kind that answers had."""
        found = [decode_message(content, Answer, DEFAULT_LIMIT).content for _, content in self.received]
        return [answer for answer in found if isinstance(answer, kind)]


class Consortium:
    """Folders, parties and a server; all of them can be closed and opened again at any moment."""

    def __init__(self, place: Path, keys: Keyring, config: Config, sites: Sequence[str] = SITES[:3]) -> None:
        self.place, self.keys, self.config = place, keys, config
        self.wire = Wire()
        self.parties: dict[int, Party] = {}
        self.said: dict[int, list[str]] = {}
        self.warned: list[str] = []
        self.run: ServedRun | None = None
        self.server: ServerRunner | None = None
        self.hold_out = 0.1
        self.limits = PartyLimits(hold_out_images=1)
        self.proxied, self.accepted = ServedRun(config, place / "unused").proxied, terms_of(config).digest
        for name in sites:
            self.join(name)
        if self.proxied:
            self.join("proxy")

    # --- parties --------------------------------------------------------------------------------------------------

    def data(self, name: str) -> Path:
        return self.place / "data" / name

    def state(self, name: str) -> Path:
        return self.place / "state" / name

    def join(self, name: str, **changed: Any) -> Party:
        """Let a party connect; `changed` are fields of its keys."""
        number = PROXY if name == "proxy" else SITES.index(name)
        said = self.said.setdefault(number, [])
        if name == "proxy":
            own_keys = replace(self.keys.proxy, **changed)
            party: Party = ProxyRunner(own_keys, self.state(name), said.append, accept=self.accepted)
        else:
            self.data(name).mkdir(parents=True, exist_ok=True)
            own = replace(self.keys.sites[name], **changed)
            agreed: dict[str, Any] = {"limits": self.limits, "accept": self.accepted}
            party = SiteParty(own, self.data(name), self.state(name), said.append, self.hold_out, **agreed)
        self.parties[number] = party
        self.wire.parties[number] = ConnectedParty(number, name, "proxy" if name == "proxy" else "site"), party.handle
        return party

    def site(self, name: str) -> SiteParty:
        party = self.parties[SITES.index(name)]
        assert isinstance(party, SiteParty)
        return party

    def reopen(self, name: str) -> Party:
        """Close a party and open it again from its folder."""
        self.parties[PROXY if name == "proxy" else SITES.index(name)].close()
        return self.join(name)

    def add(self, site: str, name: str, *seeds: int) -> list[Path]:
        """Put pictures of a class into a site's folder, a minute ago."""
        paths = [self.data(site) / name / f"{name}-{seed:03}.png" for seed in seeds]
        for path, seed in zip(paths, seeds, strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture(name, seed)).save(path)
            age(path, 60)
        return paths

    def handler(self, name: str) -> Handler:
        return self.wire.parties[PROXY if name == "proxy" else SITES.index(name)][1]

    # --- the server -----------------------------------------------------------------------------------------------

    def serve(self, config: Config | None = None) -> ServerRunner:
        """Start the server, or start it again from its checkpoint."""
        if self.run is not None:
            self.run.close()
        folder = self.place / "run"
        begin = ServedRun.resume if folder.exists() else ServedRun.start
        self.run = begin(config or self.config, folder)
        self.warned += self.run.warnings
        self.server = self.run.serve(self.wire, self.warned.append)
        return self.server

    def rounds(self) -> Iterator[RoundRecord]:
        """Play the rounds that are left."""
        if self.server is None:
            self.serve()
        assert self.run is not None
        assert self.server is not None
        yield from self.run.rounds(self.server)

    def play(self, between: Mapping[int, Callable[[], object]] | None = None) -> list[RoundRecord]:
        """Play all rounds; what a test does between them is named by the number of the round that follows."""
        acts = dict(between or {})
        records = []
        if 0 in acts:
            acts[0]()
        for record in self.rounds():
            records.append(record)
            if len(records) in acts:
                acts[len(records)]()
        return records

    @property
    def journal(self) -> list[RoundRecord]:
        """Return the records as they are read back from the disk, where they must be sound."""
        assert self.run is not None
        return Journal.read(self.run.folder, self.run.state.round, self.run.journal.digest).records

    @property
    def rounds_played(self) -> int:
        return self.run.state.round if self.run is not None else 0

    @property
    def digest(self) -> str:
        """Return the digest of the global model."""
        assert self.run is not None
        return model_digest(self.run.state.server.model)

    def close(self) -> None:
        for party in self.parties.values():
            party.close()
        if self.run is not None:
            self.run.close()


class Build(Protocol):
    """Makes a consortium for a test; see `tests/deployment/conftest.py`."""

    def __call__(
        self, method: str = "icarl", *settings: str, rounds: int = 4, sites: Sequence[str] = SITES[:3]
    ) -> Consortium: ...


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder, by their path within it."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place) / name
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found
