"""What an operator may set, and what each setting costs.

A configuration is a flat TOML file. A key is the field's name here, or the name that RocketMQ's
`broker.conf` has for it; an unknown key is refused, because a misspelt setting that is silently
ignored is a setting nobody has.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, cast, final

from commitbus.broker.common.address import check_unix_path, join_host_port, split_host_port
from commitbus.broker.common.small_file import SmallFileError, read_small_file
from commitbus.broker.config.error import (
    ConfigError,
    check_length,
    checked,
    is_name,
    require,
    shown_value,
)
from commitbus.broker.config.limit_settings import LimitSettings
from commitbus.broker.config.listen_settings import (
    BROKER_NAME_MAX,
    CLUSTER_NAME_BYTES_MAX,
    ListenSettings,
    Transport,
)
from commitbus.broker.config.setting import PORT_ALIASES, Doc, doc_of
from commitbus.broker.config.store_settings import StoreSettings
from commitbus.broker.config.tls_mode import TlsMode
from commitbus.commitlog.retention import parse_delete_hours
from commitbus.commitlog.types import Host


@final
@dataclass(frozen=True)
class BrokerConfig(LimitSettings, StoreSettings, ListenSettings):
    """The settings of one broker process; validated when made.

    Raises:
        ConfigError: a value cannot be used.
    """

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
        for entry in fields(self):
            if limits := doc_of(entry).allowed:
                low, high = limits
                fits = low <= getattr(self, entry.name) <= high
                require(entry.name, fits, f"must be from {low} to {high}")
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
            if key in PORT_ALIASES and type(value) is int:
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
    return [(entry.name, entry.default, doc_of(entry)) for entry in fields(BrokerConfig)]


_NAMES: Final[Mapping[str, str]] = {
    key: entry.name
    for entry in fields(BrokerConfig)
    for key in (entry.name, *doc_of(entry).aliases)
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
