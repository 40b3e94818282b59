"""Key files in a folder: written once, private ones readable by their owner only, checked when they are read."""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fcil.core.errors import ConfigError, DamagedError, FileError, reason
from fcil.core.files import exists, read_bytes, remove_partial, write_atomically
from fcil.core.lock import locked
from fcil.deployment.keys.sealing import KEY_SIZE

CA, CA_KEY, SERVER, SERVER_KEY = "ca.crt", "ca.key", "server.crt", "server.key"
SITE_KEY, SITE_PUBLIC, SITE_SEED = "site.key", "site.pub", "site.seed"
NODE_KEY, NODE_PUBLIC, PROXY_SEED = "node.key", "node.pub", "proxy.seed"
SEALING_KEY, SIGNING_KEY, PROXY_PUBLIC = "sealing.key", "signing.key", "proxy.pub"
BOX_KEY = "box.key"  # of a site: opens the secret that another site has sealed for it
SECRET = "consortium.secret"

OWN = {  # files that tell whose folder it is
    "server": (CA_KEY, SERVER, SERVER_KEY),
    "site": (SITE_KEY, SITE_PUBLIC, SITE_SEED, BOX_KEY),
    "proxy": (NODE_KEY, NODE_PUBLIC, SEALING_KEY, SIGNING_KEY, PROXY_SEED),
}
PUBLIC = (".crt", ".pub", ".json")  # suffixes of files that others may read; all others are private
PROVIDERS = {  # how to get a missing or damaged file; ends an error message
    CA_KEY: "`fcil federation keys server` makes it, once; put it back from your copy",
    **dict.fromkeys(
        (SERVER, SERVER_KEY), "`fcil federation keys server` makes it, and with --renew a new one under the same ca.key"
    ),
    **dict.fromkeys(OWN["site"], "`fcil federation keys site NAME` makes it"),
    **dict.fromkeys(OWN["proxy"], "`fcil federation keys proxy` makes it"),
    CA: "the server's administrator has it: `fcil federation keys server` makes it; sites and the proxy get a copy",
    SECRET: "another site or the proxy has it; the first of them makes it with `fcil federation keys secret`",
    PROXY_PUBLIC: "the proxy's administrator has it: `fcil federation keys proxy` makes it, and every site gets a copy",
}
SEED_BITS = 63
PROXY = "proxy"  # the name by which the proxy is registered
RESERVED = (PROXY, "server")  # names of other parties' folders


class ExposedError(FileError):
    """A private key that others on this machine can read."""


def check_name(name: str) -> str:
    """Return the name of a site, or raise a ConfigError if it is none."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ConfigError(
            f"{name!r} cannot be the name of a site; use 1 to 64 letters, digits, -, _ and ., a letter or digit first"
        )
    if name.lower() in RESERVED:
        raise ConfigError(f"{name!r} cannot be the name of a site: it is the name of another party; choose another")
    return name


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a folder of keys against other commands that write there; a missing one is made, for its owner only."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(folder / ".keys"):
            remove_partial(folder)
            yield
    except OSError as error:
        raise FileError(f"{folder} cannot hold keys: {reason(error)}; name another folder") from error


def write_new(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write new keys into a locked folder: all of them or, if one cannot be written, none."""
    for path in (folder / name for name in files):
        if exists(path):
            raise ConfigError(f"{path} exists, and a key is never overwritten; move it away or name another --out")
    with ExitStack() as undo:
        for name, content in files.items():
            undo.callback((folder / name).unlink, missing_ok=True)
            write_atomically(folder / name, content, private=not name.endswith(PUBLIC))
        undo.pop_all()


def kind_of(folder: Path) -> str | None:
    """Return the owner of a folder's keys: `server`, `site`, `proxy` or None."""
    return next((kind for kind, names in OWN.items() if any(exists(folder / name) for name in names)), None)


def check_kind(folder: Path, kind: str) -> None:
    """Refuse a folder that holds the keys of another party."""
    found = kind_of(folder)
    if found not in (None, kind):
        raise ConfigError(f"{folder} holds the keys of a {found}; name another --out for those of a {kind}")


def provider(path: Path) -> str:
    """Return how to get a file of a key folder; only the secret may have another name."""
    return PROVIDERS.get(path.name, PROVIDERS[SECRET])


def damaged(path: Path, wrong: str) -> DamagedError:
    """Return the error for a damaged file, with the way to replace it."""
    return DamagedError(f"{path} is damaged: {wrong}; {provider(path)}")


def read_key(path: Path) -> bytes:
    """Return the content of a key file; a DamagedError says how to get a missing one.

    A private key that others can read is refused, as ssh does.
    """
    if not exists(path):
        raise DamagedError(f"{path} is missing; {provider(path)}")
    if not path.name.endswith(PUBLIC):
        _check_private(path)
    return read_bytes(path)


def _check_private(path: Path) -> None:
    """Refuse a private key that others than its owner can read."""
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if os.name == "posix" and others_may_open(mode, found.st_uid, os.geteuid()):
        raise ExposedError(
            f"{path} can be read by others on this machine; make it yours alone with `chmod 600 {path}` (its mode is "
            f"{mode:03o}), and replace it if somebody may have read it"
        )


def others_may_open(mode: int, owner: int, reader: int) -> bool:
    """Return True if a private file's mode lets in others than its owner.

    Root may lend a file to the group of a service that runs as another user, as container platforms do with secrets.
    """
    lent = owner == 0 and reader != 0
    return bool(mode & (0o037 if lent else 0o077))


def folder_warning(folder: Path, public: bool = False) -> str | None:
    """Return a warning if others can change a folder's files, or read them although they are not `public`."""
    mode = stat.S_IMODE(folder.stat().st_mode) if os.name == "posix" else 0
    if not mode & (0o022 if public else 0o077):
        return None
    able = "change" if mode & 0o022 else "read"
    right = mode & ~0o022 if public else mode & 0o700
    return f"others on this machine can {able} what is in {folder} (its mode is {mode:03o}): `chmod {right:o} {folder}`"


def dump_hex(content: bytes) -> bytes:
    """Return bytes as a line of text."""
    return f"{content.hex()}\n".encode()


def read_hex(path: Path) -> bytes:
    """Return the bytes of a key that is written as hexadecimal digits."""
    text = read_key(path).strip()
    if not re.fullmatch(rb"[0-9a-fA-F]{%d}" % (2 * KEY_SIZE), text):  # private, so not quoted
        raise damaged(
            path, f"it should hold {2 * KEY_SIZE} hexadecimal digits, found {len(text)} bytes of other content"
        )
    return bytes.fromhex(text.decode())


def make_seed() -> bytes:
    """Return a party's random root as a line of text."""
    return f"{secrets.randbits(SEED_BITS)}\n".encode()


def read_seed(path: Path) -> int:
    """Return a party's random root."""
    text = read_key(path).strip()
    if not re.fullmatch(rb"[0-9]{1,19}", text) or int(text) >= 2**SEED_BITS:
        raise damaged(
            path, f"it should hold a whole number below 2**{SEED_BITS}, found {len(text)} bytes of other content"
        )
    return int(text)
