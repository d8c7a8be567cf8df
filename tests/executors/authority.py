"""A certificate authority of the test's own."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)
_MAY_ISSUE = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """Issues server certificates and makes contexts that trust them. Files go to ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test authority")])
        builder = _builder(self._name, self._name, self._key, datetime.now(UTC) + DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        builder = builder.add_extension(_MAY_ISSUE, True)
        self._certificate = builder.sign(self._key, hashes.SHA256())

    def trusted(self) -> ssl.SSLContext:
        """For a client that trusts this authority and nobody else."""
        pem = self._certificate.public_bytes(serialization.Encoding.PEM).decode()
        return ssl.create_default_context(cadata=pem)

    def serve_as(
        self, host: str, *, until: timedelta = DAY, self_signed: bool = False
    ) -> ssl.SSLContext:
        """For a server that shows a certificate for ``host``, valid for ``until`` from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        issuer, issuer_key = (name, key) if self_signed else (self._name, self._key)
        builder = _builder(name, issuer, key, datetime.now(UTC) + until, issuer_key)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), False)
        file = self._folder / f"{x509.random_serial_number()}.pem"
        file.write_bytes(
            builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def _builder(
    name: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    until: datetime,
    issuer_key: ec.EllipticCurvePrivateKey | None = None,
) -> x509.CertificateBuilder:
    """A certificate with the key identifiers that RFC 5280 §4.2.1 demands, as Python 3.13 does."""
    issued_by = (issuer_key or key).public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(until - 10 * DAY)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issued_by), False)
    )
