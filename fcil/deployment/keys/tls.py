"""The federation's own certificate authority, and the certificate of its server."""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fcil.core.errors import ConfigError, DamagedError
from fcil.deployment.keys.files import damaged, read_key

ALWAYS = ("localhost", "127.0.0.1", "::1")  # every server can be reached from its own machine
AUTHORITY_LIFE = timedelta(days=3650)
SERVER_LIFE = timedelta(days=825)  # the longest that common platforms accept
SKEW = timedelta(hours=1)  # a site's clock may be slow
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(\*\.)?({_LABEL}\.)*(?![0-9]+$){_LABEL}", re.IGNORECASE)


def parse_addresses(given: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses of a server in canonical form, with those of its own machine."""
    return tuple(dict.fromkeys(_address(text) for text in (*given, *ALWAYS)))


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        if len(text) <= 253 and _HOST.fullmatch(text):
            return text.lower()
    raise ConfigError(
        f"--address {text}: it should be a host's name or an IP address, without a port, as sites will write it"
    )


def make_key() -> bytes:
    """Return a new private key for a certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make_authority(key: bytes, now: datetime) -> bytes:
    """Return the certificate of a new authority, signed by its own key."""
    # Authorities of two federations have different names: a wrong ca.crt differs from a forged certificate.
    name = _name(f"fcil federation {secrets.token_hex(4)}")
    public = _ec_key(key).public_key()
    builder = _builder(name, name, public, now, now + AUTHORITY_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
    return _signed(builder, key)


def issue(authority: bytes, authority_key: bytes, key: bytes, addresses: Iterable[str], now: datetime) -> bytes:
    """Return the certificate of a server for these addresses, signed by the authority."""
    above = x509.load_pem_x509_certificate(authority)
    subject = above.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    until = min(now + SERVER_LIFE, above.not_valid_after_utc)
    builder = _builder(_name("fcil server"), above.subject, _ec_key(key).public_key(), now, until)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(digital_signature=True), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(subject), critical=False
    )
    names = x509.SubjectAlternativeName([_alternative(address) for address in addresses])
    return _signed(builder.add_extension(names, critical=False), authority_key)


def read_authority(path: Path, now: datetime | None = None) -> x509.Certificate:
    """Return the authority's certificate in a file, or raise a DamagedError if it is invalid or expired."""
    return parse_authority(read_key(path), path, now)


def parse_authority(content: bytes, path: Path, now: datetime | None = None) -> x509.Certificate:
    """Return an authority's certificate from the content of a file."""
    certificate = parse_certificate(content, path)
    try:
        authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        authority = False
    if not authority:
        raise damaged(path, "it is the certificate of a server, not of the authority that signed it")
    check_valid(path, certificate, "the server needs new keys in a new folder, and every site its new ca.crt", now)
    return certificate


def read_certificate(path: Path) -> x509.Certificate:
    """Return the certificate in a file, or raise a DamagedError."""
    return parse_certificate(read_key(path), path)


def parse_certificate(content: bytes, path: Path) -> x509.Certificate:
    """Return a certificate from the content of a file, or raise a DamagedError."""
    try:
        certificate = x509.load_pem_x509_certificate(content)
        certificate.public_key()  # damage inside fails here rather than later
        certificate.extensions  # noqa: B018
    except (ValueError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise damaged(path, "it is no certificate in PEM format") from error
    return certificate


def check_valid(path: Path, certificate: x509.Certificate, remedy: str, now: datetime | None = None) -> None:
    """Refuse a certificate that has expired or is not yet valid."""
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= timestamp(now) <= last:
        raise DamagedError(f"{path} has expired or is not yet valid ({first:%Y-%m-%d} to {last:%Y-%m-%d}); {remedy}")


def read_private_key(path: Path) -> bytes:
    """Return the private key of a certificate, or raise a DamagedError."""
    content = read_key(path)
    try:
        _ec_key(content)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise damaged(path, "it is no EC private key in PEM format without a passphrase") from error
    return content


def check_pair(path: Path, key: bytes, certificate: x509.Certificate) -> None:
    """Refuse a private key that belongs to another certificate."""
    if _ec_key(key).public_key() != certificate.public_key():
        raise damaged(path, f"it does not belong to {path.with_suffix('.crt').name}")


def check_issued(path: Path, certificate: x509.Certificate, authority: x509.Certificate) -> None:
    """Refuse a certificate that another authority signed."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise damaged(path, "it was not signed by the authority in ca.crt") from error


def addresses_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the addresses for which a server's certificate is valid."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    hosts = names.get_values_for_type(x509.DNSName)
    return (*hosts, *(str(address) for address in names.get_values_for_type(x509.IPAddress)))


def timestamp(now: datetime | None = None) -> datetime:
    """Return a time in whole seconds, as certificates have it; by default the current time."""
    return (now or datetime.now(UTC)).replace(microsecond=0)


def _alternative(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def sign(path: Path, content: bytes) -> bytes:
    """Return the signature of the private key in a file under some content."""
    return _ec_key(read_private_key(path)).sign(content, ec.ECDSA(hashes.SHA256()))


def _signed(builder: x509.CertificateBuilder, key: bytes) -> bytes:
    return builder.sign(_ec_key(key), hashes.SHA256()).public_bytes(Encoding.PEM)


def _ec_key(content: bytes) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(content, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"it is a {type(key).__name__}")
    return key
