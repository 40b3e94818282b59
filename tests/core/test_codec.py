import itertools
import json
import math
import random
import struct
import tracemalloc
from dataclasses import dataclass, fields, replace
from typing import Annotated, ClassVar

import numpy
import pytest
import safetensors.torch
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support.examples import examples
from support.loops import for_each
from torch import Tensor

from fcil.core.messages import (
    CodecError,
    Diagnostics,
    Failure,
    Message,
    ModelParcel,
    Order,
    Report,
    Shape,
    TooLargeError,
    decode,
    encode,
    encoded_size,
)

FRAME = struct.Struct("<4sHIQ")
SENDABLE = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


@dataclass(frozen=True)
class CodecLeaf(Message):
    number: int
    text: str


@dataclass(frozen=True)
class CodecForeign(Message):
    header_limit: ClassVar[int] = 200
    words: tuple[str, ...] = ()
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class CodecNest(Message):
    inner: Message | None = None


@dataclass(frozen=True)
class CodecEveryKind(Message):
    whole: int
    real: float
    text: str
    flag: bool
    nothing: None
    maybe: int | None
    single: Tensor
    maybe_tensor: Tensor | None
    pair: tuple[int, str]
    numbers: tuple[float, ...]
    flags: dict[str, bool]
    state: dict[str, Tensor]
    states: dict[str, dict[str, Tensor]]
    nested: CodecLeaf
    several: tuple[Message, ...]
    anything: Message | None


@dataclass(frozen=True)
class CodecShaped(Message):
    images: Annotated[Tensor, Shape(("samples", 2), torch.float32)]
    labels: Annotated[Tensor, Shape(("samples",), torch.int64)]
    weights: Annotated[Tensor | None, Shape(("samples",), torch.float64)] = None


@dataclass(frozen=True)
class CodecReservedNames(Message):
    tensor: Tensor
    float: Tensor
    message: Tensor


@dataclass(frozen=True)
class CodecPicky(Message):
    share: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share {self.share} is not in [0, 1]")


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(left: object, right: object) -> bool:  # noqa: PLR0911 (one return a kind of value)
    if type(left) is not type(right):
        return False
    match left:
        case Tensor():
            return left.dtype == right.dtype and left.shape == right.shape and bits(left) == bits(right)
        case Message():
            return all(same(getattr(left, entry.name), getattr(right, entry.name)) for entry in fields(left))
        case tuple():
            return len(left) == len(right) and all(map(same, left, right))
        case dict():
            return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
        case float():
            return struct.pack("<d", left) == struct.pack("<d", right) or (math.isnan(left) and math.isnan(right))
    return left == right


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(SENDABLE))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    seed = draw(st.integers(0, 1000))
    values = torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(seed)) / 8
    if dtype.is_floating_point and draw(st.booleans()):
        values = torch.where(values > 5, math.nan, torch.where(values < -5, -math.inf, values))
    return values.to(dtype) if dtype != torch.bool else values > 0


words = st.text(st.characters(codec="utf-8"), max_size=6)
leaves = st.builds(CodecLeaf, st.integers(), words)
messages = st.builds(
    CodecEveryKind,
    whole=st.integers(-(2**80), 2**80),
    real=st.floats(),
    text=words,
    flag=st.booleans(),
    nothing=st.none(),
    maybe=st.none() | st.integers(),
    single=tensors(),
    maybe_tensor=st.none() | tensors(),
    pair=st.tuples(st.integers(), words),
    numbers=st.lists(st.floats(), max_size=3).map(tuple),
    flags=st.dictionaries(words, st.booleans(), max_size=3),
    state=st.dictionaries(words, tensors(), max_size=3),
    states=st.dictionaries(words, st.dictionaries(words, tensors(), max_size=2), max_size=2),
    nested=leaves,
    several=st.lists(leaves | st.builds(Diagnostics, entropy=st.floats()), max_size=2).map(tuple),
    anything=st.none() | leaves | st.builds(Report, st.dictionaries(words, tensors(), max_size=2), st.integers()),
)


def one_of_every_kind() -> CodecEveryKind:
    return CodecEveryKind(
        whole=-3,
        real=math.nan,
        text='quote " and \N{SNOWMAN}',
        flag=True,
        nothing=None,
        maybe=None,
        single=torch.tensor(1.5),
        maybe_tensor=torch.zeros(0, 3, dtype=torch.int16),
        pair=(7, "seven"),
        numbers=(0.1, math.inf, -math.inf, -0.0),
        flags={"a": False},
        state={"first": torch.arange(3), "second": torch.ones(2, 2, dtype=torch.bfloat16)},
        states={"model": {"weight": torch.tensor([0.25, -0.5]), "steps": torch.tensor(4)}},
        nested=CodecLeaf(1, "leaf"),
        several=(CodecLeaf(2, ""), Diagnostics(loss=0.5)),
        anything=Report({"weight": torch.ones(1)}, 3),
    )


def frame(header: object, payload: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return FRAME.pack(b"FCIL", 1, len(text), len(payload)) + text + payload


def payload(table: dict[str, object], data: bytes = b"") -> bytes:
    text = json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text + data


def parts(data: bytes) -> tuple[dict, bytes]:
    _, _, header_size, _ = FRAME.unpack_from(data)
    body = FRAME.size + header_size
    return json.loads(data[FRAME.size : body]), data[body:]


def order_with(**changes: object) -> bytes:
    body = {"client": 1, "participate": True}
    return frame({"message": "Order", "fields": body | changes}, payload({}))


def diagnostics_with(loss: str) -> bytes:
    body = '{"alarm":false,"entropy":null,"loss":LOSS,"memory":0,"prototypes":[]}'.replace("LOSS", loss)
    return frame(f'{{"message":"Diagnostics","fields":{body}}}'.encode(), payload({}))


def report_with(entry: object, data: bytes = b"", tensor: object = 0) -> bytes:
    body = {
        "model": {"dict": {"weight": {"tensor": tensor}}},
        "samples": 1,
        "rows": {"dict": {}},
        "parts": {"dict": {}},
    }
    return frame({"message": "Report", "fields": body}, payload({"0": entry}, data))


@given(messages)
@example(one_of_every_kind())
@example(replace(one_of_every_kind(), flags={"tensor": True, "float": False}))
@examples(60)
def test_a_message_survives_the_round_trip_bit_for_bit(message: CodecEveryKind) -> None:
    data = encode(message)
    assert same(decode(data, CodecEveryKind), message)
    assert encoded_size(message) == len(data)


@given(messages)
@example(replace(one_of_every_kind(), state={"tensor": torch.ones(1), "dict": torch.ones(2)}))
def test_what_was_decoded_encodes_to_the_same_bytes(message: CodecEveryKind) -> None:
    data = encode(message)
    assert encode(decode(data, CodecEveryKind)) == data


@for_each(itertools.product(SENDABLE, [(), (0,), (3,), (2, 0, 3), (2, 3)]))
def test_every_dtype_keeps_its_shape_and_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert same(decode(encode(Report({"t": tensor}, 1)), Report).model["t"], tensor)


@pytest.mark.parametrize("key", ["tensor", "float", "dict", "message", "fields", "0", "", "__metadata__"])
def test_a_dict_key_may_be_any_string_even_a_word_of_the_header(key: str) -> None:
    model = {key: torch.ones(2), "other": torch.zeros(3)}
    assert same(decode(encode(Report(model, 1)), Report).model, model)


def test_a_field_may_be_named_like_a_word_of_the_header() -> None:
    message = CodecReservedNames(torch.ones(1), torch.zeros(2), torch.arange(3))
    assert same(decode(encode(message), CodecReservedNames), message)


def test_strided_and_trained_tensors_are_sent_by_value() -> None:
    strided = torch.arange(12.0).view(3, 4).t()[1:]
    trained = torch.nn.Parameter(torch.ones(2))
    model = decode(encode(Report({"strided": strided, "trained": trained}, 1)), Report).model
    assert torch.equal(model["strided"], torch.tensor([[1.0, 5, 9], [2, 6, 10], [3, 7, 11]]))
    assert torch.equal(model["trained"], torch.ones(2))
    assert not model["trained"].requires_grad


def test_decoded_tensors_own_their_memory() -> None:
    data = encode(Report({"t": torch.ones(3)}, 1))
    decode(data, Report).model["t"].add_(5)
    assert torch.equal(decode(data, Report).model["t"], torch.ones(3))


def test_the_frame_is_magic_version_and_two_sizes() -> None:
    data = encode(Order(1, True))
    header = b'{"message":"Order","fields":{"client":1,"participate":true}}'
    header += b" " * (-(FRAME.size + len(header)) % 8)
    rest = data[FRAME.size + len(header) :]
    assert data == FRAME.pack(b"FCIL", 1, len(header), len(rest)) + header + rest


def test_the_payload_is_readable_by_safetensors() -> None:
    weight, labels = torch.rand(2, 3), torch.arange(4)
    _, tensors_part = parts(encode(Report({"weight": weight, "labels": labels}, 1)))
    loaded = safetensors.torch.load(tensors_part)
    assert set(loaded) == {"0", "1"}
    assert same(loaded["0"], weight)
    assert same(loaded["1"], labels)


def test_a_numpy_float_is_sent_as_a_float() -> None:
    sent = Diagnostics(entropy=numpy.float64("nan"), loss=numpy.float64(0.5))
    found = decode(encode(sent), Diagnostics)
    assert math.isnan(found.entropy)
    assert found.loss == 0.5


@pytest.mark.parametrize(
    "value",
    [[1, 2], {1, 2}, b"bytes", object(), 1j, torch.ones(2, dtype=torch.complex64), {"inner": [1]}, {1: torch.ones(1)}],
    ids=["list", "set", "bytes", "object", "complex", "complex tensor", "list in a dict", "number as key"],
)
def test_a_value_that_is_not_a_message_field_is_refused_when_encoding(value: object) -> None:
    with pytest.raises(CodecError):
        encode(Report(value, 1))
    with pytest.raises(CodecError):
        encoded_size(Report(value, 1))


def test_a_refusal_names_the_field() -> None:
    with pytest.raises(CodecError, match=r"Report\.model\['weight'\]: a list cannot be sent"):
        encode(Report({"weight": [1]}, 1))


def test_truncation_at_every_byte_is_refused() -> None:
    data = encode(one_of_every_kind())
    for size in range(len(data)):
        with pytest.raises(CodecError, match="truncated"):
            decode(data[:size], CodecEveryKind)


@pytest.mark.parametrize("extra", [b"\0", b" ", b"FCIL" * 10])
def test_trailing_bytes_are_refused(extra: bytes) -> None:
    with pytest.raises(CodecError, match="trailing"):
        decode(encode(one_of_every_kind()) + extra, CodecEveryKind)


def test_nothing_is_encoded_that_would_not_be_decoded() -> None:
    message = ModelParcel("digest", {"weight": torch.zeros(100)})
    size = encoded_size(message)
    assert decode(encode(message, limit=size), ModelParcel, limit=size).digest == "digest"
    with pytest.raises(TooLargeError, match=f"ModelParcel message takes {size} bytes, over the limit of {size - 1}"):
        encode(message, limit=size - 1)


def test_a_message_of_more_than_the_limit_is_refused_before_its_bytes_are_gathered() -> None:
    huge = torch.zeros(1).expand(1 << 31)  # as large as 8 GiB, in four bytes
    with pytest.raises(TooLargeError, match="over the limit of 4294967295"):
        encode(ModelParcel("digest", {"weight": huge}))


def test_the_limit_applies_to_the_declared_size_before_anything_is_read() -> None:
    data = encode(Order(1, True))
    assert decode(data, Order, limit=len(data)) == Order(1, True)
    with pytest.raises(CodecError, match="limit"):
        decode(data, Order, limit=len(data) - 1)
    for header_size, payload_size in [(2**32 - 1, 0), (0, 2**64 - 1), (2**32 - 1, 2**64 - 1)]:
        with pytest.raises(CodecError, match=r"limit|truncated"):
            decode(FRAME.pack(b"FCIL", 1, header_size, payload_size), Order)
    with pytest.raises(CodecError, match="limit"):
        decode(FRAME.pack(b"FCIL", 1, 10, 4 << 30), Order)


def test_the_header_of_what_others_send_has_a_limit_of_its_own() -> None:
    large = CodecForeign(tensors=(torch.zeros(1000),))
    assert same(decode(encode(large), CodecForeign), large), "tensors do not count"
    wordy = encode(CodecForeign(("a word",) * 20))
    assert decode(wordy, Message) == CodecForeign(("a word",) * 20), "a file of our own has no such limit"
    (size,) = struct.unpack_from("<I", wordy, 6)
    with pytest.raises(CodecError, match=f"declares a header of {size} bytes, over its limit of 200"):
        decode(wordy, CodecForeign)


def test_so_has_the_table_of_its_tensors() -> None:
    many = CodecForeign(tensors=(torch.zeros(0),) * 4)
    assert len(decode(encode(many), Message).tensors) == 4
    with pytest.raises(CodecError, match=r"the table of tensors declares \d+ bytes, over its limit of 200"):
        decode(encode(many), CodecForeign)


@pytest.mark.parametrize("place", ["header", "table"])
def test_json_over_the_limit_takes_no_memory(place: str) -> None:
    hollow = b"[" + b"[]," * 1_000_000 + b"[]]"  # 24 MB as Python's lists
    table = b"{}" if place == "header" else hollow
    data = frame(hollow if place == "header" else b"{}", struct.pack("<Q", len(table)) + table)
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            decode(data, CodecForeign)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_wrong_magic_and_wrong_version_are_refused() -> None:
    data = encode(Order(1, True))
    with pytest.raises(CodecError, match="not an fcil message"):
        decode(b"FCIM" + data[4:], Order)
    for version in (0, 2, 65535):
        with pytest.raises(CodecError, match=f"version {version}"):
            decode(data[:4] + struct.pack("<H", version) + data[6:], Order)


def test_a_message_of_another_type_is_refused() -> None:
    with pytest.raises(CodecError, match="Order message where a Failure"):
        decode(encode(Order(1, True)), Failure)
    assert decode(encode(Order(1, True)), Message) == Order(1, True)


def test_a_nested_message_of_another_type_is_refused() -> None:
    header, rest = parts(encode(one_of_every_kind()))
    header["fields"]["nested"] = {"message": "Failure", "fields": {"client": 1, "round": 1, "stage": "", "reason": ""}}
    with pytest.raises(CodecError, match="found Failure where tests:CodecLeaf belongs"):
        decode(frame(header, rest), CodecEveryKind)


@pytest.mark.parametrize("name", ["Nobody", "Message", "", 5, None, [], {"a": 1}], ids=repr)
def test_an_unknown_message_type_is_refused(name: object) -> None:
    with pytest.raises(CodecError, match="unknown message type"):
        decode(frame({"message": name, "fields": {}}, payload({})), Message)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"3",
        b'"Order"',
        b"{}",
        b'{"message":"Order"}',
        b'{"message":"Order","fields":[]}',
        b'{"message":"Order","fields":null}',
        b'{"message":"Order","fields":{},"more":1}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"1" * 10_000,
    ],
    ids=lambda header: repr(header[:40]),
)
def test_a_corrupt_header_is_refused(header: bytes) -> None:
    with pytest.raises(CodecError):
        decode(frame(header, payload({})), Message)


@pytest.mark.parametrize(
    "change",
    [
        {"client": "1"},
        {"client": 1.0},
        {"client": True},
        {"client": None},
        {"client": [1]},
        {"client": {"tensor": 0}},
        {"participate": 1},
        {"participate": None},
        {"participate": "yes"},
    ],
    ids=repr,
)
def test_a_field_of_another_type_is_refused(change: dict[str, object]) -> None:
    assert decode(order_with(), Order) == Order(1, True)
    with pytest.raises(CodecError, match=next(iter(change))):
        decode(order_with(**change), Order)


def test_extra_and_missing_fields_are_refused_by_name() -> None:
    with pytest.raises(CodecError, match="surprise"):
        decode(order_with(surprise=1), Order)
    with pytest.raises(CodecError, match="client"):
        decode(frame({"message": "Order", "fields": {"participate": True}}, payload({})), Order)


@pytest.mark.parametrize("loss", ['"nan"', '{"float":"1.5"}', '{"float":1}', '{"float":[]}', "{}", "[]", "true"])
def test_a_float_is_a_number_or_a_named_non_finite(loss: str) -> None:
    assert decode(diagnostics_with('{"float":"-inf"}'), Diagnostics).loss == -math.inf
    with pytest.raises(CodecError, match="loss"):
        decode(diagnostics_with(loss), Diagnostics)


def test_a_non_finite_float_node_with_more_keys_is_refused() -> None:
    with pytest.raises(CodecError, match="loss"):
        decode(diagnostics_with('{"float":"nan","more":1}'), Diagnostics)


def test_an_integer_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(CodecError, match="loss"):
        decode(diagnostics_with("1" + "0" * 400), Diagnostics)


@pytest.mark.parametrize("depth", [50, 200, 300, 450, 1000, 20_000])
def test_nested_messages_are_read_or_refused_at_any_depth(depth: int) -> None:
    level = '{"message":"tests:CodecNest","fields":{"inner":'
    data = frame((level * depth + "null" + "}}" * depth).encode(), payload({}))
    try:
        message = decode(data, CodecNest)
    except CodecError:
        assert depth > 50
    else:
        assert depth < 20_000
        for _ in range(depth - 1):
            message = message.inner
        assert message == CodecNest()


@pytest.mark.parametrize("node", [[1, "a", 2], [1], [], ["a", 1], {"0": 1}, "ab", None], ids=repr)
def test_a_tuple_of_another_form_is_refused(node: object) -> None:
    header, rest = parts(encode(one_of_every_kind()))
    header["fields"]["pair"] = node
    with pytest.raises(CodecError, match="pair"):
        decode(frame(header, rest), CodecEveryKind)


@pytest.mark.parametrize("node", [{"dict": []}, {"dict": {"a": 1}}, {"a": True}, {"dict": {}, "more": 1}, [], None])
def test_a_dict_of_another_form_is_refused(node: object) -> None:
    header, rest = parts(encode(one_of_every_kind()))
    header["fields"]["flags"] = node
    with pytest.raises(CodecError, match="flags"):
        decode(frame(header, rest), CodecEveryKind)


@pytest.mark.parametrize("tensor", [1, -1, None, [], {}, "x", 0.5], ids=repr)
def test_a_tensor_that_is_not_in_the_payload_is_refused(tensor: object) -> None:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    assert decode(report_with(entry, b"\0" * 4), Report).model["weight"].tolist() == [0.0]
    with pytest.raises(CodecError, match="not in the payload"):
        decode(report_with(entry, b"\0" * 4, tensor), Report)


def test_a_tensor_that_nobody_uses_is_refused() -> None:
    header, _ = parts(encode(Order(1, True)))
    unused = payload({"0": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4)
    with pytest.raises(CodecError, match="1 tensors of the payload belong to no field"):
        decode(frame(header, unused), Order)


@pytest.mark.parametrize(
    ("entry", "data"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, b"\0" * 4),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}, b"\0" * 4),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}, b"\0" * 4),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, b"\0" * 4),
        ({"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}, b"\0" * 4),
        ({"dtype": "X32", "shape": [1], "data_offsets": [0, 4]}, b"\0" * 4),
        ({"dtype": "F32", "shape": [1]}, b"\0" * 4),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, b"\0" * 5),
        (7, b""),
        ({"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}, b""),
        ({"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}, b""),
        ({"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]}, b"\0" * 4),
        ({"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}, b"\0" * 4),
    ],
    ids=repr,
)
def test_a_corrupt_tensor_table_is_refused(entry: object, data: bytes) -> None:
    with pytest.raises(CodecError):
        decode(report_with(entry, data), Report)


@pytest.mark.parametrize("dtype", ["U16", "U32", "C64", "F8_E4M3"])
def test_a_tensor_type_that_cannot_be_sent_is_refused_when_decoding(dtype: str) -> None:
    items = {"U16": 4, "U32": 2, "C64": 1, "F8_E4M3": 8}[dtype]
    with pytest.raises(CodecError):
        decode(report_with({"dtype": dtype, "shape": [items], "data_offsets": [0, 8]}, b"\0" * 8), Report)


@pytest.mark.parametrize(
    "rest", [b"", b"\0" * 7, b"\xff" * 8, struct.pack("<Q", 3) + b"{}", struct.pack("<Q", 2) + b"[]"]
)
def test_a_corrupt_payload_is_refused(rest: bytes) -> None:
    header, _ = parts(encode(Order(1, True)))
    with pytest.raises(CodecError):
        decode(frame(header, rest), Order)


def test_shape_annotations_accept_matching_tensors() -> None:
    message = CodecShaped(torch.rand(3, 2), torch.arange(3), torch.rand(3, dtype=torch.float64))
    assert same(decode(encode(message), CodecShaped), message)
    empty = CodecShaped(torch.rand(0, 2), torch.arange(0))
    assert same(decode(encode(empty), CodecShaped), empty)


@pytest.mark.parametrize(
    ("images", "labels", "weights", "culprit"),
    [
        (torch.rand(3, 3), torch.arange(3), None, "images"),
        (torch.rand(3), torch.arange(3), None, "images"),
        (torch.rand(3, 2, 1), torch.arange(3), None, "images"),
        (torch.rand(3, 2).double(), torch.arange(3), None, "images"),
        (torch.rand(3, 2), torch.arange(4), None, "labels"),
        (torch.rand(3, 2), torch.arange(3).int(), None, "labels"),
        (torch.rand(3, 2), torch.tensor(3), None, "labels"),
        (torch.rand(3, 2), torch.arange(3), torch.rand(2).double(), "weights"),
        (torch.rand(3, 2), torch.arange(3), torch.rand(3), "weights"),
    ],
    ids=lambda value: str(tuple(value.shape)) if isinstance(value, Tensor) else str(value),
)
def test_shape_annotations_refuse_other_shapes_types_and_sizes(
    images: Tensor, labels: Tensor, weights: Tensor | None, culprit: str
) -> None:
    with pytest.raises(CodecError, match=culprit):
        decode(encode(CodecShaped(images, labels, weights)), CodecShaped)


def test_a_message_that_its_own_class_refuses_is_a_codec_error() -> None:
    header, rest = parts(encode(CodecPicky(0.5)))
    header["fields"]["share"] = 2
    with pytest.raises(CodecError, match="not a valid CodecPicky: share"):
        decode(frame(header, rest), CodecPicky)


def test_changed_bytes_give_a_message_or_a_codec_error_and_nothing_else() -> None:
    original = encode(one_of_every_kind())
    draw = random.Random(20)
    refused = 0
    for trial in range(3000):
        data = bytearray(original)
        for _ in range(1 + trial % 3):
            data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            assert isinstance(decode(bytes(data), CodecEveryKind), CodecEveryKind)
        except CodecError:
            refused += 1
    assert refused > 2000


@given(st.binary(max_size=200))
@example(b"FCIL")
@examples(60)
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode(data, Message)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.sampled_from(["", "nan", "tests:CodecLeaf"]),
        lambda children: (
            st.lists(children, max_size=3)
            | st.dictionaries(
                st.sampled_from(["message", "fields", "tensor", "dict", "float", "number", "text"]),
                children,
                max_size=3,
            )
        ),
        max_leaves=10,
    )
)
@examples(120)
def test_random_header_trees_give_a_message_or_a_codec_error(node: object) -> None:
    header, rest = parts(encode(one_of_every_kind()))
    for name in header["fields"]:
        altered = {**header, "fields": {**header["fields"], name: node}}
        try:
            assert isinstance(decode(frame(altered, rest), CodecEveryKind), CodecEveryKind)
        except CodecError:
            continue


def test_a_tensor_used_twice_is_refused() -> None:
    header, body = parts(encode(Report({"a": torch.ones(2), "b": torch.zeros(2)}, 1)))
    header["fields"]["model"]["dict"]["b"] = {"tensor": 0}
    with pytest.raises(CodecError, match="used before"):
        decode(frame(header, body), Report)
