"""The cryptography of masked sums against the vectors of the standards."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest

from fcil.core.errors import FederationError
from fcil.federation.masking import primitives
from fcil.federation.masking.primitives import PIECE

ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")


def test_keys_agree_as_in_rfc_7748() -> None:
    alice, bob = primitives.public_key(ALICE), primitives.public_key(BOB)
    assert alice.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert primitives.agree(ALICE, bob).hex() == primitives.agree(BOB, alice).hex() == shared


def test_a_key_of_low_order_is_refused() -> None:
    with pytest.raises(FederationError, match="no X25519 key"):
        primitives.agree(ALICE, bytes(32))


def test_keys_are_derived_as_in_rfc_5869() -> None:
    """Its third case, which has no salt and no info; and the definition with an info."""
    secret = bytes([0x0B] * 22)
    assert primitives.derive(secret, b"").hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    extracted = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    assert primitives.derive(secret, b"info") == hmac.new(extracted, b"info\x01", hashlib.sha256).digest()


def test_each_circumstance_changes_a_derived_key() -> None:
    """Moving a byte from one circumstance to the next is a change."""
    found = {primitives.derive(b"s", *info) for info in [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"ab", b"c", b"")]}
    assert len(found) == 4


def test_the_stream_is_the_one_of_rfc_8439() -> None:
    """The first test vector of its appendix A.1: the key, the nonce and the counter are zero."""
    numbers = np.zeros(8, dtype=np.uint64)
    primitives.add_stream(numbers, bytes(32))
    wanted = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert numbers.astype("<u8").tobytes().hex() == wanted


@pytest.mark.parametrize("length", [0, 1, PIECE - 1, PIECE, 2 * PIECE + 3])
def test_a_stream_is_taken_away_as_it_was_added(length: int) -> None:
    """It does not depend on the length of the array, and is not used twice within it."""
    numbers = np.arange(length, dtype=np.uint64)
    primitives.add_stream(numbers, bytes([7] * 32))
    longer = np.arange(3 * PIECE, dtype=np.uint64)
    primitives.add_stream(longer, bytes([7] * 32))
    assert (longer[:length] == numbers).all()
    assert len(np.unique(longer - np.arange(3 * PIECE, dtype=np.uint64))) == 3 * PIECE
    primitives.add_stream(numbers, bytes([7] * 32), negative=True)
    assert (numbers == np.arange(length, dtype=np.uint64)).all()


def test_a_box_opens_for_its_key_and_its_circumstances_alone() -> None:
    box = primitives.seal(b"content", bytes(32), b"about")
    assert primitives.unseal(box, bytes(32), b"about") == b"content"
    changed = box[:-1] + bytes([box[-1] ^ 1])
    for wrong in [(box, b"k" * 32, b"about"), (box, bytes(32), b"other"), (changed, bytes(32), b"about")]:
        with pytest.raises(FederationError, match="does not open"):
            primitives.unseal(*wrong)
    assert primitives.seal(b"content", bytes(32), b"about") != box, "no nonce is used twice"


def test_a_proof_is_of_its_content_and_its_secret() -> None:
    """HMAC with SHA-256; RFC 4231, test case 2, has the same form with another content."""
    proof = primitives.vouch(b"Jefe", b"what do ya", b" want for nothing?")
    assert primitives.is_vouched(proof, b"Jefe", b"what do ya", b" want for nothing?")
    assert not primitives.is_vouched(proof, b"Jefe", b"what do ya ", b"want for nothing?")
    assert not primitives.is_vouched(proof, b"jefe", b"what do ya", b" want for nothing?")
