"""What can be sent or stored: typed messages, their codec, and seeds derived from a purpose."""

from fcil.wire.codec import CodecError, TooLargeError, decode, encode, encode_into, encoded_size
from fcil.wire.messages import (
    Broadcast,
    Diagnostics,
    Failure,
    Message,
    ModelParcel,
    ModelState,
    Moment,
    Order,
    Reply,
    Report,
    Shape,
    model_digest,
)
from fcil.wire.seeds import derive_seed, generator

__all__ = [
    "Broadcast",
    "CodecError",
    "Diagnostics",
    "Failure",
    "Message",
    "ModelParcel",
    "ModelState",
    "Moment",
    "Order",
    "Reply",
    "Report",
    "Shape",
    "TooLargeError",
    "decode",
    "derive_seed",
    "encode",
    "encode_into",
    "encoded_size",
    "generator",
    "model_digest",
]
