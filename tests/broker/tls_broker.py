"""Brokers with settings that `Broker` does not take, and certificates that an authority signed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from commitbus.broker import Broker
from commitbus.broker.embedded.broker import SMALL_FILES


@contextmanager
def broker_with(**settings: object) -> Iterator[Broker]:
    """A broker with these settings beside its usual ones."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setitem(SMALL_FILES, name, value)
        broker = Broker(auto_create_topics=True)
    # Other brokers may be made meanwhile: these settings are not theirs.
    with broker:
        yield broker


@dataclass(frozen=True)
class Signed:
    """A server's certificate and who signed it."""

    authority: Path
    """PEM: whom clients are to trust."""
    server: Path
    """PEM: certificate and key of `mq.test` and 127.0.0.1."""


def signed_certificate(directory: Path) -> Signed:
    """Make an authority, and a certificate that it signed."""
    now = datetime.now(tz=UTC)
    root_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root_name, name = (
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
        for text in ("Test Authority", "mq.test")
    )

    def builder(
        subject: x509.Name, public_key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder(root_name, subject, public_key, x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )

    root = (
        builder(root_name, root_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(root_key, hashes.SHA256())
    )
    names = [x509.DNSName("mq.test"), x509.IPAddress(ip_address("127.0.0.1"))]
    certificate = (
        builder(name, key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(root_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    signed = Signed(directory / "authority.pem", directory / "server.pem")
    signed.authority.write_bytes(root.public_bytes(pem))
    signed.server.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(pem)
    )
    return signed
