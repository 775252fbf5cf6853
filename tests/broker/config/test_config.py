"""The settings of a broker."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from commitbus.broker.config import (
    CLUSTER_NAME_BYTES_MAX,
    BrokerConfig,
    ConfigError,
    Transport,
    load_config,
    setting_docs,
)
from commitbus.broker.config.listen_settings import BROKER_NAME_MAX
from commitbus.broker.config.tls_mode import TlsMode
from commitbus.flush.policy import FlushMode


def test_every_setting_is_documented() -> None:
    """Unit, reason and danger of each are said, in the order of the class."""
    docs = setting_docs()
    assert [name for name, _, _ in docs] == [entry.name for entry in fields(BrokerConfig)]
    for name, _, doc in docs:
        assert doc.unit, name
        assert doc.reason, name
        assert doc.danger, name


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("deleteWhen", "25"),
        ("deleteWhen", ""),
        ("fileReservedTime", -1),
        ("diskMaxUsedSpaceRatio", 0),
        ("diskSpaceWarningLevelRatio", 101),
        ("sealAfter", -1),
    ],
)
def test_retention_that_makes_no_sense_is_refused(key: str, value: object) -> None:
    """An hour that never comes would keep everything in silence."""
    with pytest.raises(ConfigError):
        BrokerConfig().with_changes({key: value})


def test_aliases_are_unique() -> None:
    """No name means two settings."""
    names = [name for name, _, _ in setting_docs()]
    names += [alias for _, _, doc in setting_docs() for alias in doc.aliases]
    assert len(names) == len(set(names))


def test_a_file_sets_what_it_names(tmp_path: Path) -> None:
    """Our names and RocketMQ's may be mixed; the rest keeps its default."""
    path = tmp_path / "broker.toml"
    path.write_text(
        'flushDiskType = "SYNC_FLUSH"\n'
        'brokerName = "broker-b"\n'
        'storePathRootDir = "/var/lib/commitbus"\n'
        "mappedFileSizeCommitLog = 67108864\n"
        "listenPort = 9000\n"
        "auto_create_topics = true\n"
    )
    assert load_config(path) == BrokerConfig(
        flush_mode=FlushMode.SYNC_FLUSH,
        broker_name="broker-b",
        store_directory=Path("/var/lib/commitbus"),
        log_file_bytes=64 << 20,
        listen="127.0.0.1:9000",
        auto_create_topics=True,
    )


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("flushDiskTyp", "did you mean flushDiskType?"),
        ("listn", "did you mean listen?"),
        ("LISTEN", "did you mean listen?"),
        ("metrics-port", "did you mean metrics_port?"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(key: str, suggestion: str) -> None:
    """A misspelt setting must not be ignored."""
    with pytest.raises(ConfigError, match=suggestion.replace("?", r"\?")) as caught:
        BrokerConfig().with_changes({key: 1}, source="broker.toml")
    assert caught.value.key == key
    assert str(caught.value).startswith("broker.toml: ")


def test_an_unknown_key_near_to_nothing_is_refused_without_a_guess() -> None:
    """A wild guess would only mislead."""
    with pytest.raises(ConfigError, match=r"no such setting$"):
        BrokerConfig().with_changes({"zzzzzz": 1})


def test_a_setting_cannot_be_given_twice_under_two_names() -> None:
    """Which of the two would count?"""
    with pytest.raises(ConfigError, match="flush_mode is set twice"):
        BrokerConfig().with_changes({"flush_mode": "SYNC_FLUSH", "flushDiskType": "ASYNC_FLUSH"})


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("flush_mode", "sync", "one of SYNC_FLUSH, ASYNC_FLUSH"),
        ("flush_mode", 1, "one of"),
        ("metrics_port", True, "must be a whole number"),
        ("metrics_port", 65536, "must be a port"),
        ("metrics_port", -2, "must be a port"),
        ("auto_create_topics", 1, "must be true or false"),
        ("broker_name", 5, "must be a text"),
        ("broker_name", "", "must be a name"),
        ("broker_name", "two words", "must be a name"),
        ("broker_name", "x" * (BROKER_NAME_MAX + 1), "characters, at most"),
        ("cluster_name", "x" * (CLUSTER_NAME_BYTES_MAX + 1), "has 1025 bytes, at most 1024"),
        ("cluster_name", "é" * 513, "has 1026 bytes, at most 1024"),
        ("flush_mode", "x" * 5000, r"\(5000 long\)"),
        ("advertise", "a..b:1", "is not a host name"),
        ("listen", f"{'x' * 64}:1", "is not a host name"),
        ("unix_socket", "x" * 108, "has 108 bytes, at most 107"),
        ("store_directory", "", "must be a text"),
        ("listen", "8081", "not host:port"),
        ("listen", "::1:8081", "brackets"),
        ("listen", "localhost:70000", "not a port"),
        ("advertise", "example", "not host:port"),
        ("queue_file_bytes", 30, "multiple of 20"),
        ("queue_file_bytes", 0, "from 20"),
        ("log_file_bytes", 1000, "must hold a message"),
        ("log_file_bytes", 2**31, "to 2147483647"),
        ("flush_interval_ms", 0, "from 1"),
        ("transport", "http", "one of grpcio, trio"),
        ("tls_mode", "on", "one of disabled, permissive, enforcing"),
        ("tls_key", "server.key", "lacks tls_certificate"),
        ("unix_socket", "a\0b", "must be a path"),
        ("unix_socket", 1, "must be a text"),
        ("tls_certificate", False, "must be a text"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(key: str, value: object, reason: str) -> None:
    """The error names the setting and says what it should be."""
    with pytest.raises(ConfigError, match=reason) as caught:
        BrokerConfig().with_changes({key: value})
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tls_mode", "enforcing"),
        ("tls_certificate", "server.pem"),
        ("proxy_protocol", True),
        ("unix_socket", "broker.sock"),
    ],
)
def test_what_grpcio_does_not_offer_is_refused_with_it(key: str, value: object) -> None:
    """Set and ignored, each would be believed to be in force."""
    with pytest.raises(ConfigError, match="needs transport = trio") as caught:
        BrokerConfig().with_changes({"transport": "grpcio", key: value})
    assert caught.value.key == key


@pytest.mark.parametrize("text", ["= 1", "a = \xff"])
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, text: str) -> None:
    """The error names the file."""
    path = tmp_path / "broker.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="is not TOML") as caught:
        load_config(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """Starting with defaults instead would be a surprise."""
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "nothing.toml")


@pytest.mark.parametrize(
    ("listen", "advertise", "stored"),
    [
        ("127.0.0.1:8081", "", "127.0.0.1:8081"),
        ("0.0.0.0:8081", "10.0.0.7:80", "10.0.0.7:80"),
        ("[::1]:8081", "", "[::1]:8081"),
        ("localhost:8081", "", "127.0.0.1:8081"),
    ],
)
def test_records_name_an_address(listen: str, advertise: str, stored: str) -> None:
    """A record has room for an IP address only."""
    assert str(BrokerConfig(listen=listen, advertise=advertise).store_host) == stored


@pytest.mark.parametrize(
    "name", ["flush_interval_ms", "progress_save_interval_ms", "queue_file_bytes", "index_slots"]
)
def test_a_number_that_no_thread_can_wait_and_no_file_can_hold_is_refused(name: str) -> None:
    """Else it fails much later, in a thread that nobody watches."""
    with pytest.raises(ConfigError, match=f"{name}: must be from"):
        BrokerConfig().with_changes({name: 10**18})


def test_clients_are_not_told_of_port_zero() -> None:
    """It means a free port to who listens, and nothing to who connects."""
    with pytest.raises(ConfigError, match="advertise: must name a port"):
        BrokerConfig(advertise="mq.example:0")


def test_a_path_that_no_file_system_takes_is_refused() -> None:
    """U+0000 ends a name."""
    with pytest.raises(ConfigError, match="store_directory: must be a path"):
        BrokerConfig(store_directory=Path("a\0b"))


def test_what_the_trio_transport_offers_can_be_set(tmp_path: Path) -> None:
    """With RocketMQ's names for the files; the same transport takes an empty text for none."""
    path = tmp_path / "broker.toml"
    path.write_text(
        'transport = "trio"\n'
        'tls_mode = "enforcing"\n'
        'tlsCertPath = "server.pem"\n'
        'tlsKeyPath = "server.key"\n'
        "proxy_protocol = true\n"
        'unix_socket = ""\n'
    )
    assert load_config(path) == BrokerConfig(
        transport=Transport.TRIO,
        tls_mode=TlsMode.ENFORCING,
        tls_certificate=Path("server.pem"),
        tls_key=Path("server.key"),
        proxy_protocol=True,
        unix_socket=None,
    )


@pytest.mark.parametrize("mode", [TlsMode.DISABLED, TlsMode.PERMISSIVE])
def test_grpcio_takes_the_modes_that_allow_plaintext(mode: TlsMode) -> None:
    """It offers nothing else, and neither of them promises more."""
    config = BrokerConfig(transport=Transport.GRPCIO, tls_mode=mode)
    assert (config.transport, config.tls_mode) == (Transport.GRPCIO, mode)


def test_the_settings_import_no_large_library() -> None:
    """`serve` reads them before it hides pandas from sqlite-utils: 30 MB, and a second."""
    code = (
        "import sys, commitbus.broker.config; "
        "print([name for name in ('sqlite_utils', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
