"""Sealed boxes, signatures and the consortium's secret."""

from __future__ import annotations

import hashlib
import hmac
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fcil.deployment.keys.sealing import (
    STEP,
    SealError,
    Secret,
    make_sealing_key,
    make_signing_key,
    public_sealing_key,
    public_signing_key,
    seal,
    sign,
    unseal,
    verify,
)

KEY, OTHER = make_sealing_key(), make_sealing_key()
PUBLIC = public_sealing_key(KEY)
SIGNER = make_signing_key()
SIGNER_PUBLIC = public_signing_key(SIGNER)
SECRET = Secret(bytes(range(32)))
CONTENTS = st.binary(max_size=300)
LENGTHS = st.integers(0, 4 * STEP)


def by_hand(purpose: bytes, secret: Secret = SECRET) -> bytes:
    return hmac.new(secret.value, purpose, hashlib.sha256).digest()


@given(CONTENTS)
@example(bytes(STEP - 8))
@example(bytes(STEP - 7))
def test_what_was_sealed_opens_again(content: bytes) -> None:
    assert unseal(seal(content, PUBLIC), KEY) == content


@given(LENGTHS)
def test_the_size_shows_the_length_to_a_step_only(length: int) -> None:
    steps = (8 + length + STEP - 1) // STEP
    assert len(seal(bytes(length), PUBLIC)) == 48 + steps * STEP


def test_contents_of_different_lengths_look_alike_by_default() -> None:
    assert {len(seal(bytes(length), PUBLIC)) for length in (0, 1, 100, 4088)} == {4096 + 48}
    assert len(seal(bytes(4089), PUBLIC)) == 2 * 4096 + 48


def test_the_same_content_is_never_sealed_alike() -> None:
    assert seal(b"cat", PUBLIC) != seal(b"cat", PUBLIC)


@given(CONTENTS, st.data())
def test_a_flipped_bit_never_opens(content: bytes, data: st.DataObject) -> None:
    sealed = bytearray(seal(content, PUBLIC))
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(SealError, match="do not open"):
        unseal(bytes(sealed), KEY)


@given(CONTENTS)
def test_another_key_never_opens(content: bytes) -> None:
    with pytest.raises(SealError, match="sealed for another key, or damaged"):
        unseal(seal(content, PUBLIC), OTHER)


@given(st.binary(max_size=100))
def test_anything_else_never_opens(data: bytes) -> None:
    with pytest.raises(SealError):
        unseal(data, KEY)


@pytest.mark.parametrize(
    "padded",
    [b"", b"\0" * 7, (9).to_bytes(8, "big") + bytes(8), (1).to_bytes(8, "big") + b"ab", b"\xff" * 16],
    ids=["empty", "no length", "too long", "rest is not zero", "huge"],
)
def test_a_box_that_was_filled_otherwise_is_refused(padded: bytes) -> None:
    from nacl.public import PublicKey, SealedBox

    with pytest.raises(SealError, match="which say that they hold"):
        unseal(SealedBox(PublicKey(PUBLIC)).encrypt(padded), KEY)


@pytest.mark.parametrize("key", [b"", b"short", bytes(33)])
def test_what_is_no_key_is_refused_in_a_sentence(key: bytes) -> None:
    with pytest.raises(SealError, match="should be 32 bytes of an X25519 key"):
        seal(b"", key)
    with pytest.raises(SealError):
        unseal(seal(b"", PUBLIC), key)


@given(CONTENTS, CONTENTS)
def test_a_signature_is_of_one_content_by_one_key(content: bytes, other: bytes) -> None:
    signature = sign(content, SIGNER)
    assert verify(content, signature, SIGNER_PUBLIC)
    assert verify(other, signature, SIGNER_PUBLIC) == (other == content)
    assert not verify(content, signature, public_signing_key(make_signing_key()))


@pytest.mark.parametrize(
    ("signature", "public"),
    [(b"", SIGNER_PUBLIC), (bytes(64), SIGNER_PUBLIC), (bytes(64), b"")],
    ids=["none", "zeros", "no key"],  # the key is another one in each process
)
def test_what_is_no_signature_is_not_believed(signature: bytes, public: bytes) -> None:
    assert not verify(b"content", signature, public)


@given(st.text())
def test_a_class_id_is_the_keyed_hash_of_the_name(name: str) -> None:
    key = by_hand(b"fcil class id")
    expected = hmac.new(key, unicodedata.normalize("NFC", name).strip().encode(), hashlib.sha256).hexdigest()
    assert SECRET.class_id(name) == expected[:32]


def test_a_class_is_the_same_however_its_name_is_written() -> None:
    assert SECRET.class_id(" cafe\u0301\n") == SECRET.class_id("caf\u00e9")
    assert SECRET.class_id("cat") != SECRET.class_id("Cat")
    assert SECRET.class_id("\udcff") != SECRET.class_id("\udcfe")  # names that are not UTF-8 on the disk
    assert SECRET.class_id("cat") != Secret(bytes(32)).class_id("cat")


def test_the_encoder_seed_is_63_bits_of_the_secrets_hash() -> None:
    assert SECRET.encoder_seed == int.from_bytes(by_hand(b"fcil encoder seed")[:8], "big") // 2
    assert all(0 <= Secret.random().encoder_seed < 2**63 for _ in range(20))
    assert SECRET.check == by_hand(b"fcil check")[:8].hex()


def test_a_secret_is_random_and_does_not_show_itself() -> None:
    secret = Secret.random()
    assert secret != Secret.random()
    assert repr(secret) == "Secret()"
    assert len(secret.value) == 32
    with pytest.raises(SealError, match="has 32 bytes, found 31"):
        Secret(bytes(31))
