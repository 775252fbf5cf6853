"""What an operator may set, and what each setting costs.

A configuration is a flat TOML file. A key is the field's name here, or the name that RocketMQ's
`broker.conf` has for it; an unknown key is refused, because a misspelt setting that is silently
ignored is a setting nobody has.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, cast, final

from commitbus.broker.address import check_unix_path, join_host_port, split_host_port
from commitbus.broker.config_error import (
    ConfigError,
    check_length,
    checked,
    is_name,
    require,
    shown_value,
)
from commitbus.broker.messaging.receipt_handle import BROKER_NAME_MAX
from commitbus.broker.rpc.listen.tls_mode import TlsMode
from commitbus.broker.small_file import SmallFileError, read_small_file
from commitbus.commitlog.retention import NEVER_PERCENT, parse_delete_hours
from commitbus.commitlog.types import Host
from commitbus.flush.policy import FlushMode

DEFAULT_PORT: Final = 8081
"""The port of RocketMQ's proxy, which every client's examples use."""


CLUSTER_NAME_BYTES_MAX: Final = 1024
"""Each message carries it. A record has room for 32,767 bytes of properties: 16,384 are a message's
own, and ids, trace context and what a dead letter remembers take most of the rest."""

_PORT_ALIASES: Final = ("listenPort", "grpcServerPort")
"""RocketMQ's names for the port of `listen` alone."""


@final
class Transport(StrEnum):
    """What carries the calls."""

    GRPCIO = "grpcio"
    """gRPC's own server, the conservative choice: plaintext on TCP."""
    TRIO = "trio"
    """HTTP/2 on trio: TLS, the PROXY protocol and a Unix socket as well."""


@final
@dataclass(frozen=True, slots=True)
class Doc:
    """What a reader of the configuration has to know about one setting."""

    unit: str
    reason: str
    """Why the default is what it is."""
    danger: str
    """What goes wrong when it is set badly."""
    aliases: tuple[str, ...]
    """RocketMQ's names for it."""
    live: bool
    """Whether it may change while the broker runs."""


def _doc(
    *, unit: str, reason: str, danger: str, aliases: tuple[str, ...] = (), live: bool = False
) -> dict[str, Doc]:
    return {"doc": Doc(unit, reason, danger, aliases, live)}


@final
@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The settings of one broker process; validated when made.

    Raises:
        ConfigError: a value cannot be used.
    """

    store_directory: Path = field(
        default=Path("commitbus-store"),
        metadata=_doc(
            unit="path",
            reason="beside the work at hand, so that a first try needs no rights and no set-up",
            danger="a relative path depends on where the process is started: set an absolute one "
            "for a service",
            aliases=("storePathRootDir",),
        ),
    )
    listen: str = field(
        default=f"127.0.0.1:{DEFAULT_PORT}",
        metadata=_doc(
            unit="host:port",
            reason="this machine only: there is no authentication yet; port 0 takes a free one",
            danger="another host lets everyone who reaches it read and write all topics",
            aliases=_PORT_ALIASES,
        ),
    )
    advertise: str = field(
        default="",
        metadata=_doc(
            unit="host:port",
            reason="empty: each client is told the address that it used itself",
            danger="clients connect to exactly this address after their first call; one that they "
            "cannot reach leaves them without a broker",
        ),
    )
    transport: Transport = field(
        default=Transport.TRIO,
        metadata=_doc(
            unit="grpcio or trio",
            reason="several times as fast, and TLS on the same port as clients expect it",
            danger="grpcio knows neither TLS nor the PROXY protocol nor Unix sockets",
        ),
    )
    tls_mode: TlsMode = field(
        default=TlsMode.PERMISSIVE,
        metadata=_doc(
            unit="disabled, permissive or enforcing",
            reason="as in RocketMQ: the same port takes TLS and plaintext, as the client begins; "
            "grpcio takes plaintext only",
            danger="permissive lets a client talk in plaintext that should not: with enforcing it "
            "is refused",
        ),
    )
    tls_certificate: Path | None = field(
        default=None,
        metadata=_doc(
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
        metadata=_doc(
            unit="path of a PEM file, not encrypted",
            reason="empty: the key is in the certificate's file",
            danger="who can read it can pretend to be this broker",
            aliases=("tlsKeyPath",),
        ),
    )
    proxy_protocol: bool = field(
        default=False,
        metadata=_doc(
            unit="true or false",
            reason="off: whether there is a proxy in front cannot be guessed",
            danger="on, connections to listen without its header are refused, and who can connect "
            "past the proxy can claim any address",
        ),
    )
    unix_socket: Path | None = field(
        default=None,
        metadata=_doc(
            unit="path",
            reason="empty: none; else a socket beside listen, for clients on this machine",
            danger="everyone in the process's group may connect; some 100 bytes at most",
        ),
    )
    metrics_port: int = field(
        default=-1,
        metadata=_doc(
            unit="port",
            reason="-1: off; 0 takes a free one; RocketMQ's own is 5557",
            danger="topic and group names are shown to everyone who reaches the port",
            aliases=("metricsPromExporterPort",),
        ),
    )
    broker_name: str = field(
        default="broker-a",
        metadata=_doc(
            unit=f"name of at most {BROKER_NAME_MAX} characters, without blanks",
            reason="RocketMQ's default in its examples",
            danger="part of every receipt handle: after a change, messages in flight cannot be "
            "acknowledged and are delivered again",
            aliases=("brokerName",),
        ),
    )
    cluster_name: str = field(
        default="DefaultCluster",
        metadata=_doc(
            unit=f"name of at most {CLUSTER_NAME_BYTES_MAX} bytes, without blanks",
            reason="RocketMQ's default",
            danger="dashboards and alerts select by it, and each message carries it",
            aliases=("brokerClusterName",),
        ),
    )
    flush_mode: FlushMode = field(
        default=FlushMode.ASYNC_FLUSH,
        metadata=_doc(
            unit="SYNC_FLUSH or ASYNC_FLUSH",
            reason="RocketMQ's default; an acknowledged message survives the process in both",
            danger="ASYNC_FLUSH loses up to flush_interval_ms of acknowledged messages at a power "
            "cut; SYNC_FLUSH makes each send wait for the disk",
            aliases=("flushDiskType",),
        ),
    )
    flush_interval_ms: int = field(
        default=500,
        metadata=_doc(
            unit="milliseconds",
            reason="RocketMQ's default",
            danger="with ASYNC_FLUSH, this much is lost at a power cut",
            aliases=("flushIntervalCommitLog",),
        ),
    )
    auto_create_topics: bool = field(
        default=False,
        metadata=_doc(
            unit="true or false",
            reason="off: a misspelt topic is an error, not a second topic",
            danger="every client can make topics, and each takes disk space",
            aliases=("autoCreateTopicEnable",),
        ),
    )
    max_body_bytes: int = field(
        default=4 * 1024 * 1024,
        metadata=_doc(
            unit="bytes",
            reason="the limit of RocketMQ's proxy, which clients assume",
            danger="a body is held in memory several times on its way",
            aliases=("maxMessageSize",),
        ),
    )
    log_file_bytes: int = field(
        default=1024 * 1024 * 1024,
        metadata=_doc(
            unit="bytes",
            reason="RocketMQ's default; files are allocated in full",
            danger="for a new store only: one that exists keeps the size of its files",
            aliases=("mappedFileSizeCommitLog",),
        ),
    )
    queue_file_bytes: int = field(
        default=300_000 * 20,
        metadata=_doc(
            unit="bytes, a multiple of 20",
            reason="RocketMQ's default: 300,000 messages of one queue",
            danger="for a new store only: one that exists keeps what its files say",
            aliases=("mappedFileSizeConsumeQueue",),
        ),
    )
    warm_queue_files: bool = field(
        default=False,
        metadata=_doc(
            unit="true or false",
            reason="off: a start reads next to nothing, and what is consumed is read when it is",
            danger="on, a start reads the newest file of every queue from the disk, and those "
            "displace other files from memory",
        ),
    )
    index_slots: int = field(
        default=5_000_000,
        metadata=_doc(
            unit="hash slots in an index file",
            reason="RocketMQ's default",
            danger="for a new store only: one that exists keeps what its files say",
            aliases=("maxHashSlotNum",),
        ),
    )
    index_entries: int = field(
        default=20_000_000,
        metadata=_doc(
            unit="keys in an index file",
            reason="RocketMQ's default: a file of 420 MB, allocated when first needed",
            danger="for a new store only: one that exists keeps what its files say",
            aliases=("maxIndexNum",),
        ),
    )
    file_reserved_hours: int = field(
        default=48,
        metadata=_doc(
            unit="hours",
            reason="two days, as in RocketMQ's example; counted from a log file's last message",
            danger="what no consumer has fetched by then is deleted with the rest",
            aliases=("fileReservedTime",),
        ),
    )
    delete_when: str = field(
        default="04",
        metadata=_doc(
            unit="hours of the day, local time, separated by semicolons",
            reason="RocketMQ's default: at night, because deleting large files loads the disk",
            danger="between these hours expired files fill the disk, up to disk_delete_percent",
            aliases=("deleteWhen",),
        ),
    )
    disk_delete_percent: int = field(
        default=75,
        metadata=_doc(
            unit="percent of the disk in use, 100 for never",
            reason="RocketMQ's default: from here on expired files go at any hour",
            danger="a high one leaves little room before sends are refused",
            aliases=("diskMaxUsedSpaceRatio",),
        ),
    )
    disk_force_percent: int = field(
        default=100,
        metadata=_doc(
            unit="percent of the disk in use, 100 for never",
            reason="never: what is acknowledged and unexpired is not deleted because somebody else "
            "fills the disk; sends are refused instead",
            danger="with RocketMQ's 85, on a disk that is 85 % full already, every message goes "
            "within seconds of its file's end",
            aliases=("diskSpaceCleanForciblyRatio",),
        ),
    )
    disk_refuse_percent: int = field(
        default=90,
        metadata=_doc(
            unit="percent of the disk in use, 100 for never",
            reason="RocketMQ's default: sends are refused until less is used",
            danger="with 100, queues, progress and everybody else on the disk find it full",
            aliases=("diskSpaceWarningLevelRatio",),
        ),
    )
    seal_after_s: int = field(
        default=0,
        metadata=_doc(
            unit="seconds since a log file's first message",
            reason="0: a file ends when it is full",
            danger="a file takes its full size on the disk however early it ends: with a short "
            "time, set a small log_file_bytes",
            aliases=("sealAfter",),
        ),
    )
    progress_save_interval_ms: int = field(
        default=100,
        metadata=_doc(
            unit="milliseconds",
            reason="one small SQLite transaction for all groups; the journal covers the time since",
            danger="a long one makes the journal, and with it a restart, longer",
            aliases=("flushConsumerOffsetInterval",),
        ),
    )

    def __post_init__(self) -> None:
        for name in ("listen", "advertise"):
            if text := getattr(self, name):
                checked(name, text, split_host_port)
        require(
            "advertise", not self.advertise.endswith(":0"), "must name a port, 0 cannot be reached"
        )
        for name in ("store_directory", "tls_certificate", "tls_key", "unix_socket"):
            require(name, "\0" not in str(getattr(self, name)), "must be a path")
        if self.unix_socket is not None:
            checked("unix_socket", str(self.unix_socket), check_unix_path)
        self._check_transport()
        for name in ("broker_name", "cluster_name"):
            require(name, is_name(getattr(self, name)), "must be a name without blanks")
        check_length("broker_name", len(self.broker_name), BROKER_NAME_MAX, "characters")
        size = len(self.cluster_name.encode(errors="surrogatepass"))
        check_length("cluster_name", size, CLUSTER_NAME_BYTES_MAX, "bytes")
        require("metrics_port", -1 <= self.metrics_port <= 65535, "must be a port, or -1 for off")
        for name, (minimum, maximum) in _RANGE.items():
            require(
                name,
                minimum <= getattr(self, name) <= maximum,
                f"must be from {minimum} to {maximum}",
            )
        require("queue_file_bytes", self.queue_file_bytes % 20 == 0, "must be a multiple of 20")
        # A record of the largest body, properties and topic must fit into one file.
        require(
            "log_file_bytes",
            self.log_file_bytes >= self.max_body_bytes + 64 * 1024,
            f"must hold a message of max_body_bytes ({self.max_body_bytes}) with its properties",
        )
        checked("delete_when", self.delete_when, parse_delete_hours)

    def _check_transport(self) -> None:
        require("tls_key", not self.tls_key or bool(self.tls_certificate), "lacks tls_certificate")
        if self.transport is Transport.GRPCIO:
            # Set and ignored, each of these would be believed to be in force.
            for name in ("tls_certificate", "proxy_protocol", "unix_socket"):
                require(name, not getattr(self, name), "needs transport = trio")
            enforcing = self.tls_mode is TlsMode.ENFORCING
            require("tls_mode", not enforcing, "enforcing needs transport = trio")

    @property
    def listen_host(self) -> str:
        """The host to listen on."""
        return split_host_port(self.listen)[0]

    @property
    def store_host(self) -> Host:
        """The address that records name as the broker's: 127.0.0.1 where only a name is known."""
        host, port = split_host_port(self.advertise or self.listen)
        try:
            return Host.parse(host, port)
        except ValueError:
            return Host.parse("127.0.0.1", port)

    def with_changes(self, changes: Mapping[str, object], *, source: str = "") -> BrokerConfig:
        """Return a configuration with some settings changed.

        Args:
            changes: setting or RocketMQ alias to value, as TOML gives them.
            source: where they come from, for the message of an error.

        Raises:
            ConfigError: a setting is unknown or given twice, or a value cannot be used.
        """
        values: dict[str, object] = {}
        for key, value in changes.items():
            name = _NAMES.get(key)
            if name is None:
                raise ConfigError(key, f"no such setting{_suggestion(key)}", source=source)
            if name in values:
                raise ConfigError(key, f"{name} is set twice", source=source)
            if key in _PORT_ALIASES and type(value) is int:
                values[name] = join_host_port(self.listen_host, value)
            else:
                values[name] = _converted(name, key, value, source)
        try:
            return replace(self, **cast("dict[str, Any]", values))
        except ConfigError as error:
            raise ConfigError(error.key, error.reason, source=source) from None


def load_config(path: Path) -> BrokerConfig:
    """Return the defaults with the settings of a TOML file.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or has a setting that cannot be used.
    """
    try:
        settings = tomllib.loads(read_small_file(path).decode())
    except SmallFileError as error:
        raise ConfigError("--config", error.reason, source=str(path)) from None
    # ValueError: TOML's errors, those of UTF-8, and Python's for a number of thousands of digits.
    except ValueError as error:
        raise ConfigError("--config", f"is not TOML: {error}", source=str(path)) from None
    except RecursionError:
        raise ConfigError("--config", "is nested too deeply", source=str(path)) from None
    return BrokerConfig().with_changes(settings, source=str(path))


def setting_docs() -> list[tuple[str, object, Doc]]:
    """Return name, default and documentation of every setting, in the order of the class."""
    return [(entry.name, entry.default, _doc_of(entry)) for entry in fields(BrokerConfig)]


def _doc_of(entry: Field[Any]) -> Doc:
    doc = entry.metadata["doc"]
    assert isinstance(doc, Doc)
    return doc


_FILE_BYTES_MAX: Final = 2**31 - 1
"""RocketMQ addresses a file's bytes with a signed 32-bit number."""
_DAY_MS: Final = 24 * 3600 * 1000
_HOURS_MAX: Final = 100 * 366 * 24

_RANGE: Final = {
    "flush_interval_ms": (1, _DAY_MS),
    "max_body_bytes": (1, _FILE_BYTES_MAX),
    "log_file_bytes": (1, _FILE_BYTES_MAX),
    "queue_file_bytes": (20, _FILE_BYTES_MAX),
    # An index file: 40 bytes, then 4 for each slot and 20 for each entry.
    "index_slots": (1, _FILE_BYTES_MAX // 8),
    "index_entries": (2, _FILE_BYTES_MAX // 40),
    "progress_save_interval_ms": (1, _DAY_MS),
    "file_reserved_hours": (0, _HOURS_MAX),
    "disk_delete_percent": (1, NEVER_PERCENT),
    "disk_force_percent": (1, NEVER_PERCENT),
    "disk_refuse_percent": (1, NEVER_PERCENT),
    "seal_after_s": (0, _HOURS_MAX * 3600),
}

_NAMES: Final[Mapping[str, str]] = {
    key: entry.name
    for entry in fields(BrokerConfig)
    for key in (entry.name, *_doc_of(entry).aliases)
}


def _suggestion(key: str) -> str:
    """Return the nearest valid name as a half sentence; nothing when none is near."""
    by_lower = {name.lower(): name for name in _NAMES}
    near = get_close_matches(key.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


def _converted(name: str, key: str, value: object, source: str) -> object:
    """Return a TOML value as the field's type."""
    default = next(entry.default for entry in fields(BrokerConfig) if entry.name == name)
    if isinstance(default, StrEnum):
        words = list(type(default))
        if not isinstance(value, str) or value not in words:
            raise ConfigError(
                key, f"must be one of {', '.join(words)}, not {shown_value(value)}", source=source
            )
        return type(default)(value)
    # A path that may be missing: None is its default, and an empty text in a file.
    if default is None and value in ("", None):
        return None
    if isinstance(default, Path | None) and isinstance(value, str | Path) and str(value):
        return Path(value)
    # bool is an int to Python, but `metrics_port = true` is a mistake.
    if type(value) is not type(default):
        wanted = {bool: "true or false", int: "a whole number"}.get(type(default), "a text")
        raise ConfigError(key, f"must be {wanted}, not {shown_value(value)}", source=source)
    return value
