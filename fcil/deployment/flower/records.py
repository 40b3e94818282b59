"""Our encoded messages as the arrays of one Flower record.

Flower sends a large array in chunks; it would send the bytes of a configuration in one piece.
"""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, RecordDict

RECORD = "fcil"
REQUEST = "request"  # the array with the server's request; all other arrays are models that go with it
ANSWER = "answer"  # the array with the answer
STYPE = "fcil"  # names our codec as the serialisation of an array's bytes


def unpack(content: RecordDict) -> dict[str, bytes]:
    """Return the encoded messages in the content of a Flower message."""
    return {name: array.data for name, array in content.array_records[RECORD].items()}


def as_array(data: bytes) -> Array:
    """Return bytes as an array of Flower's; recipients of the same array share its storage in the SuperLink."""
    return Array("uint8", (len(data),), STYPE, data)


def as_records(arrays: Mapping[str, Array]) -> RecordDict:
    """Return arrays by name as the content of a Flower message; `unpack` gives their bytes."""
    return RecordDict({RECORD: ArrayRecord(dict(arrays))})
