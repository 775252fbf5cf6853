"""The settings of where the broker listens and what it calls itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, final

from commitbus.broker.config.setting import PORT_ALIASES, documented
from commitbus.broker.config.tls_mode import TlsMode

DEFAULT_PORT: Final = 8081
"""The port of RocketMQ's proxy, which every client's examples use."""

CLUSTER_NAME_BYTES_MAX: Final = 1024
"""Each message carries it. A record has room for 32,767 bytes of properties: 16,384 are a message's
own, and ids, trace context and what a dead letter remembers take most of the rest."""

BROKER_NAME_MAX: Final = 898
"""Characters of a broker's name, which is part of every receipt handle."""


@final
class Transport(StrEnum):
    """The implementation that carries the calls."""

    GRPCIO = "grpcio"
    """gRPC's own server, the conservative choice: plaintext on TCP."""
    TRIO = "trio"
    """HTTP/2 on trio: TLS, the PROXY protocol and a Unix socket as well."""


@dataclass(frozen=True)
class ListenSettings:
    """Addresses, TLS and names."""

    listen: str = field(
        default=f"127.0.0.1:{DEFAULT_PORT}",
        metadata=documented(
            unit="host:port",
            reason="this machine only: there is no authentication yet; port 0 takes a free one",
            danger="another host lets everyone who reaches it read and write all topics",
            aliases=PORT_ALIASES,
        ),
    )
    advertise: str = field(
        default="",
        metadata=documented(
            unit="host:port",
            reason="empty: each client is told the address that it used itself",
            danger="clients connect to exactly this address after their first call; one that they "
            "cannot reach leaves them without a broker",
        ),
    )
    transport: Transport = field(
        default=Transport.TRIO,
        metadata=documented(
            unit="grpcio or trio",
            reason="several times as fast, and TLS on the same port as clients expect it",
            danger="grpcio knows neither TLS nor the PROXY protocol nor Unix sockets",
        ),
    )
    tls_mode: TlsMode = field(
        default=TlsMode.PERMISSIVE,
        metadata=documented(
            unit="disabled, permissive or enforcing",
            reason="as in RocketMQ: the same port takes TLS and plaintext, as the client begins; "
            "grpcio takes plaintext only",
            danger="permissive lets a client talk in plaintext that should not: with enforcing it "
            "is refused",
        ),
    )
    tls_certificate: Path | None = field(
        default=None,
        metadata=documented(
            unit="path of a PEM file, the server's certificate first",
            reason="empty: a self-signed one for each process, as in RocketMQ; its Java, Go and "
            "Node clients verify none. A changed file counts from the next connection on",
            danger="a client that does verify, the Python one with tls_enable, refuses a "
            "self-signed one",
            aliases=("tlsCertPath",),
        ),
    )
    tls_key: Path | None = field(
        default=None,
        metadata=documented(
            unit="path of a PEM file, not encrypted",
            reason="empty: the key is in the certificate's file",
            danger="who can read it can pretend to be this broker",
            aliases=("tlsKeyPath",),
        ),
    )
    proxy_protocol: bool = field(
        default=False,
        metadata=documented(
            unit="true or false",
            reason="off: whether there is a proxy in front cannot be guessed",
            danger="on, connections to listen without its header are refused, and who can connect "
            "past the proxy can claim any address",
        ),
    )
    unix_socket: Path | None = field(
        default=None,
        metadata=documented(
            unit="path",
            reason="empty: none; else a socket beside listen, for clients on this machine",
            danger="everyone in the process's group may connect; some 100 bytes at most",
        ),
    )
    metrics_port: int = field(
        default=-1,
        metadata=documented(
            unit="port",
            reason="-1: off; 0 takes a free one; RocketMQ's own is 5557",
            danger="topic and group names are shown to everyone who reaches the port",
            aliases=("metricsPromExporterPort",),
        ),
    )
    broker_name: str = field(
        default="broker-a",
        metadata=documented(
            unit=f"name of at most {BROKER_NAME_MAX} characters, without blanks",
            reason="RocketMQ's default in its examples",
            danger="part of every receipt handle: after a change, messages in flight cannot be "
            "acknowledged and are delivered again",
            aliases=("brokerName",),
        ),
    )
    cluster_name: str = field(
        default="DefaultCluster",
        metadata=documented(
            unit=f"name of at most {CLUSTER_NAME_BYTES_MAX} bytes, without blanks",
            reason="RocketMQ's default",
            danger="dashboards and alerts select by it, and each message carries it",
            aliases=("brokerClusterName",),
        ),
    )
