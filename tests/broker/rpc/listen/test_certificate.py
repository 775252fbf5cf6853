"""The server's certificate."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import tempfile
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography import x509

from commitbus.broker.rpc.listen import certificate as module
from commitbus.broker.rpc.listen.accept import AcceptOptions
from commitbus.broker.rpc.listen.certificate import CertificateError, TlsContexts, load_context


def write(path: Path, content: bytes) -> Path:
    """Put a file in place as certbot and Kubernetes do: in one step."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    return new.replace(path)


def der(certificate: bytes) -> bytes:
    """The certificate as a TLS client sees it."""
    return ssl.PEM_cert_to_DER_cert(certificate.decode())


def test_a_self_signed_certificate_names_this_machine(open_front: Any, tls_client: Any) -> None:
    """Made for the first client, and the same for all."""

    async def main() -> None:
        async with open_front() as front, trio.open_nursery() as nursery:
            seen: list[Any] = []

            async def visit() -> None:
                seen.append(await tls_client.visit(front.port))

            for _ in range(3):
                nursery.start_soon(visit)
        assert len({each.certificate for each in seen}) == 1
        certificate = x509.load_der_x509_certificate(seen[0].certificate)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert set(names.get_values_for_type(x509.DNSName)) == {"localhost", socket.gethostname()}
        addresses = [ip_address(text) for text in ("127.0.0.1", "::1")]
        assert names.get_values_for_type(x509.IPAddress) == addresses
        now = datetime.now(tz=UTC)
        assert certificate.not_valid_before_utc < now < certificate.not_valid_after_utc

    trio.run(main)


def test_the_self_signed_key_does_not_stay_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL reads it from a file, which is gone afterwards."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    module.self_signed_context()
    assert list(tmp_path.iterdir()) == []


def test_a_broker_without_a_temporary_directory_refuses_tls_alone(
    open_front: Any, tls_client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is refused with the reason; plaintext goes on."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))

    async def main() -> None:
        async with open_front() as front:
            with pytest.raises(OSError, match=r"reset|EOF|closed"):
                await tls_client.visit(front.port)
            assert "No such file" in await front.refused()
            async with await front.connect() as client:
                await client.send_all(b"P")
                assert not (await front.accepted()).is_tls

    trio.run(main)


def test_certificate_and_key_may_share_a_file(tmp_path: Path, pairs: Any) -> None:
    """As HAProxy wants them."""
    both = write(tmp_path / "both.pem", pairs[0].certificate + pairs[0].key)
    assert trio.run(TlsContexts(both).current).minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("certificate", "key", "blamed", "reason"),
    [
        ("missing.crt", "0.key", "missing.crt", "cannot be read: No such file or directory"),
        ("0.crt", "missing.key", "missing.key", "cannot be read: No such file or directory"),
        ("0.crt", "", "", "cannot be read: Is a directory"),
        ("/dev/zero", "0.key", "/dev/zero", "cannot be read: not a regular file"),
        ("0.crt", "/dev/zero", "/dev/zero", "cannot be read: not a regular file"),
        ("0.crt", "pipe", "pipe", "cannot be read: not a regular file"),
        ("large", "0.key", "large", "cannot be read: 1048577 bytes, at most 1048576 are"),
        ("0.crt", "1.key", "1.key", "is not the key of "),
        ("0.crt", "encrypted.key", "encrypted.key", "the key is encrypted; store it without"),
        ("0.key", "0.key", "0.key", "no certificate and key in PEM"),
        ("0.crt", "0.crt", "0.crt", "no certificate and key in PEM"),
        ("garbage", "0.key", "garbage", "no certificate and key in PEM"),
        ("0.crt", "garbage", "0.crt", "no certificate and key in PEM"),
    ],
)
def test_what_cannot_be_used_is_refused(
    tmp_path: Path, pairs: Any, *, certificate: str, key: str, blamed: str, reason: str
) -> None:
    """At the start, with the file and the reason."""
    for number, pair in enumerate(pairs):
        write(tmp_path / f"{number}.crt", pair.certificate)
        write(tmp_path / f"{number}.key", pair.key)
    write(tmp_path / "encrypted.key", pairs[0].encrypted_key)
    write(tmp_path / "garbage", b"\0not PEM\n" * 10)
    write(tmp_path / "large", bytes(1024 * 1024 + 1))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CertificateError) as caught:
        TlsContexts(tmp_path / certificate, tmp_path / key)
    assert caught.value.path == tmp_path / blamed
    assert caught.value.reason.startswith(reason)
    assert str(tmp_path / blamed) in str(caught.value)


def test_a_renewed_certificate_counts_from_the_next_connection_on(
    open_front: Any,
    tls_client: Any,
    tmp_path: Path,
    pairs: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Between the two writes, and when a file is missing, the last good one stays."""
    certificate, key = tmp_path / "server.crt", tmp_path / "server.key"
    old, new = pairs
    write(certificate, old.certificate)
    write(key, old.key)
    options = AcceptOptions(TlsContexts(certificate, key))

    async def main() -> None:
        async with open_front(options) as front:

            async def served() -> bytes:
                certificate: bytes = (await tls_client.visit(front.port)).certificate
                return certificate

            assert await served() == der(old.certificate)
            write(certificate, new.certificate)
            assert [await served() for _ in range(3)] == [der(old.certificate)] * 3
            write(key, new.key)
            assert await served() == der(new.certificate)
            key.unlink()
            assert [await served() for _ in range(3)] == [der(new.certificate)] * 3
            write(key, new.key)
            assert await served() == der(new.certificate)

    with caplog.at_level(logging.INFO, logger="commitbus"):
        trio.run(main)
    # Once for each change, not for each connection.
    said = [record.message for record in caplog.records]
    assert said == [
        "certificate not renewed",
        "certificate renewed",
        "certificate not renewed",
        "certificate renewed",
    ]


def test_a_certificate_that_was_overwritten_in_place_is_renewed(tmp_path: Path, pairs: Any) -> None:
    """The file is the same, its time is not."""
    path = write(tmp_path / "both.pem", pairs[0].certificate + pairs[0].key)
    contexts = TlsContexts(path)
    before = trio.run(contexts.current)
    assert trio.run(contexts.current) is before
    path.write_bytes(pairs[1].certificate + pairs[1].key)
    # A file system's clock may tick slower than this test runs.
    os.utime(path, (2e9, 2e9))
    assert trio.run(contexts.current) is not before


def test_the_suites_that_http_2_forbids_are_not_offered(tmp_path: Path, pairs: Any) -> None:
    """RFC 9113, appendix A: what has no forward secrecy or no AEAD."""
    path = write(tmp_path / "both.pem", pairs[0].certificate + pairs[0].key)
    for suite in load_context(path, path).get_ciphers():
        assert suite["aead"], suite
        assert suite["protocol"] == "TLSv1.3" or suite["name"].startswith("ECDHE-")
