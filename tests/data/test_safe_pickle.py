from __future__ import annotations

import pickle
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest

from fcil.data.datasets import safe_pickle as plainpickle
from fcil.data.datasets.safe_pickle import PickleError, read_pickle

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6), dtype=np.uint8)
CONTENT = {b"numbers": [0, 300, -70_000, 1 << 40, True, None, 0.5], "text": ("é", b"\xff\x00", {}), b"empty": ()}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("order", ["C", "F"])
def test_plain_values_and_bytes_in_arrays_are_read_as_pickle_reads_them(protocol: int, order: str) -> None:
    array = np.asarray(PIXELS, order=order)
    found = read_pickle(pickle.dumps({**CONTENT, b"data": array}, protocol=protocol))
    assert np.array_equal(found.pop(b"data"), PIXELS)
    assert found == CONTENT


def test_strings_of_python_2_are_bytes() -> None:
    assert read_pickle(b"\x80\x02}q\x00U\x03abcq\x01T\x02\x00\x00\x00\xff\x00s.") == {b"abc": b"\xff\x00"}


CLAIMS = {
    "a long string": b"\x80\x04\x8e" + (1 << 46).to_bytes(8, "little") + b"x.",
    "a long buffer": b"\x80\x05\x96" + (1 << 46).to_bytes(8, "little") + b"x.",
    "a large frame": b"\x80\x04\x95" + (1 << 46).to_bytes(8, "little") + b"N.",
    "a large array": pickle.dumps({b"data": PIXELS}, protocol=2).replace(
        b"K\x04K\x06\x86", b"J\xff\xff\xff\x7fK\x06\x86"
    ),
    "a far place in the memo": b"\x80\x02}r\xff\xff\xff\x7f.",
    "an unknown codec": pickle.dumps({b"data": PIXELS}, protocol=2).replace(b"latin1", b"nosuch"),
    "a codec that grows": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.",
    "a key that is deep": b"\x80\x02}" + b")" + b"\x85" * 10_000 + b"Ns.",
    "another type": pickle.dumps({b"data": PIXELS.astype(np.float32)}, protocol=2),
}


@pytest.mark.parametrize("data", CLAIMS.values(), ids=CLAIMS)
def test_no_claim_of_a_file_takes_memory_or_leaves_the_reader(data: bytes) -> None:
    tracemalloc.start()
    with suppress(PickleError):
        assert not read_pickle(data)  # a sparse memo does no harm, nor does a frame
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()


def test_endless_instructions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plainpickle, "INSTRUCTIONS", 100)
    with pytest.raises(PickleError, match="more than 100 instructions"):
        read_pickle(b"\x80\x02" + b"]" * 200 + b".")


@pytest.mark.parametrize("data", [CLAIMS["an unknown codec"], b"\x80\x02cthis\nname\n.", b"\x80\x02cos\nsystem\n."])
def test_no_name_in_a_file_is_looked_up(data: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PickleError, match="is not admitted"):
        read_pickle(data)
    assert capsys.readouterr().out == ""  # to import `this` prints a poem


def test_damaged_bytes_are_read_or_refused_and_nothing_else() -> None:
    random = np.random.default_rng(3)
    for protocol in (2, 4, 5):
        whole = pickle.dumps({**CONTENT, b"data": PIXELS}, protocol=protocol)
        for _ in range(300):
            damaged = bytearray(whole)
            for place in random.integers(0, len(whole), random.integers(1, 4)):
                damaged[place] = random.integers(0, 256)
            with suppress(PickleError):
                read_pickle(bytes(damaged))
