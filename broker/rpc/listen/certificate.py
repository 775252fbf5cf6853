"""The server's certificate: the operator's, read again when it is renewed, or one of our own."""

from __future__ import annotations

import logging
import socket
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final, final

import trio

from commitbus.broker.common.small_file import SmallFileError, read_small_file

_log = logging.getLogger(__name__)

_VALID_DAYS: Final = 3650

# RFC 9113, 9.2.2 forbids most suites of TLS 1.2; these are the ones left. TLS 1.3 has its own.
_TLS_1_2_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"


@final
class CertificateError(Exception):
    """A certificate or its key cannot be used."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"TLS certificate: {path}: {reason}")


@final
class TlsContexts:
    """Gives each handshake the certificate that is valid now. Belongs to the trio thread."""

    def __init__(self, certificate: Path | None = None, key: Path | None = None) -> None:
        """Load the certificate, so that a bad one is noticed before the first client.

        Args:
            certificate: a PEM file with the certificate, then those that lead to the root; None
                for a self-signed one, which is made for the first client that wants TLS: it takes
                60 ms and 12 MB, nearly all of them to import what makes it.
            key: a PEM file with its private key; None when the certificate's file has it too.

        Raises:
            CertificateError: it cannot be used.
        """
        assert certificate is not None or key is None, "a key alone is no certificate"
        self._paths = None if certificate is None else (certificate, key or certificate)
        self._loading = trio.Lock()
        self._context: ssl.SSLContext | None = None
        self._state: object = None
        if self._paths is not None:
            self._state = _state(self._paths)
            self._context = load_context(*self._paths)

    async def current(self) -> ssl.SSLContext:
        """Return the context for a new connection.

        A certificate whose files have changed is loaded again; while they do not fit together (one
        is written before the other) the last good one stays.
        """
        if self._paths is not None:
            self._reload(self._paths)
        else:
            async with self._loading:
                if self._context is None:
                    self._context = await trio.to_thread.run_sync(self_signed_context)
        assert self._context is not None
        return self._context

    def _reload(self, paths: tuple[Path, Path]) -> None:
        # Two files of a few KB that were written a moment ago: no need for a thread.
        try:
            state = _state(paths)
            if state == self._state:
                return
            self._state = state
            self._context = load_context(*paths)
        except CertificateError as error:
            _log.warning(
                "certificate not renewed", extra={"path": str(error.path), "reason": error.reason}
            )
        else:
            _log.info("certificate renewed", extra={"path": str(paths[0])})


def load_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a context with the certificate of these PEM files.

    Raises:
        CertificateError: a file cannot be read or is none, the key is another's, or is encrypted.
    """

    def refuse_password() -> str:
        raise CertificateError(key, "the key is encrypted; store it without a passphrase")

    for path in (certificate, key):
        try:
            # load_cert_chain does not say which of the two, and reads an endless device for ever.
            read_small_file(path)
        except SmallFileError as error:
            raise CertificateError(path, error.reason) from None
    context = new_context()
    try:
        context.load_cert_chain(certificate, key, password=refuse_password)
    except ssl.SSLError as error:
        if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
            raise CertificateError(key, f"is not the key of {certificate}") from None
        raise CertificateError(
            certificate, f"no certificate and key in PEM: {error.reason or 'there is none'}"
        ) from None
    return context


def self_signed_context() -> ssl.SSLContext:
    """Return a context with a new key and a certificate that nobody vouches for.

    It is for clients that do not verify, as RocketMQ's for Java, Go and Node do not. P-256, because
    a handshake then costs the server 0.27 ms of CPU, not the 0.48 of RSA with 2048 bits.
    """
    context = new_context()
    # OpenSSL takes a certificate from a file only; this one is nobody else's to read.
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(_self_signed_pem())
        file.flush()
        context.load_cert_chain(file.name)
    return context


def _self_signed_pem() -> bytes:
    # 40 to 60 ms and 12 MB, for those brokers only that are asked for TLS and have no certificate.
    from cryptography import x509  # noqa: PLC0415 - see above
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - see above
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - see above

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    hosts = dict.fromkeys(["localhost", socket.gethostname()])
    alternatives = [
        *(x509.DNSName(host) for host in hosts if host.isascii() and host),
        *(x509.IPAddress(ip_address(text)) for text in ("127.0.0.1", "::1")),
    ]
    now = datetime.now(tz=UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # A client's clock may be behind.
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)


def new_context() -> ssl.SSLContext:
    """Return a context for HTTP/2 as RFC 9113, 9.2 wants it, still without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(_TLS_1_2_CIPHERS)
    context.set_alpn_protocols(["h2"])
    return context


def _state(paths: tuple[Path, Path]) -> list[tuple[int, int] | None]:
    """Return what is different once one of the files has been written, replaced or removed."""
    return [_file_state(path) for path in paths]


def _file_state(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
