"""`commitbus serve`: run a broker until a signal."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, final

import trio

from commitbus.broker.cli.common_options import path
from commitbus.broker.cli.long_collections import set_aside_after_long_collections
from commitbus.broker.cli.open_files import raise_open_files_limit
from commitbus.broker.cli.output import EXIT_OK, CommandError
from commitbus.broker.cli.progress import progress_bar
from commitbus.broker.common.log_format import set_up_logging
from commitbus.broker.config import BrokerConfig, ConfigError, Transport, load_config
from commitbus.broker.rpc.address import ListenError
from commitbus.broker.rpc.listen.certificate import CertificateError
from commitbus.commitlog.errors import StoreError
from commitbus.commitlog.kernels import when_loaded
from commitbus.commitlog.recovery import Progress
from commitbus.flush.policy import FlushMode

if TYPE_CHECKING:
    from commitbus.broker.server import RunningBroker

_FLUSH_MODES: Final = {"sync": FlushMode.SYNC_FLUSH, "async": FlushMode.ASYNC_FLUSH}

_SWITCH_S: Final = 0.0005
"""How long a worker may compute before the thread that answers goes on. By default 5 ms, at each of
its system calls."""

_log = logging.getLogger(__name__)


@final
class _StoppedError(Exception):
    """Leaves the start of a broker that was told to stop meanwhile."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command. None has a default: what is not given is not changed."""
    defaults = BrokerConfig()
    add = parser.add_argument
    add("--config", type=path, metavar="FILE", help="settings as TOML; see `commitbus config`")
    add(
        "--store",
        metavar="DIR",
        dest="store_directory",
        help=f"the store's directory, made when missing; {defaults.store_directory} if not given",
    )
    add("--listen", metavar="HOST:PORT", help=f"{defaults.listen} if not given; port 0: a free one")
    add("--advertise", metavar="HOST:PORT", help="the address that clients are told")
    add(
        "--transport",
        choices=list(Transport),
        help=f"what carries the calls; {defaults.transport} if not given",
    )
    add("--tls-certificate", metavar="FILE", help="PEM; a self-signed one if not given")
    add("--tls-key", metavar="FILE", help="PEM; in the certificate's file if not given")
    add("--unix-socket", metavar="PATH", help="listen here as well, for clients on this machine")
    add(
        "--flush",
        choices=_FLUSH_MODES,
        help="answer a send once it is durable, or before; async if not given",
    )
    add(
        "--metrics-port",
        type=int,
        metavar="N",
        help="serve Prometheus metrics; 0: a free port, none if not given",
    )
    add(
        "--auto-create-topics",
        action="store_true",
        default=None,
        help="create a topic when a client first names it",
    )


def run(options: argparse.Namespace) -> int:
    """Run a broker until SIGTERM or SIGINT."""
    config = _config(options)
    set_up_logging()
    raise_open_files_limit()
    try:
        trio.run(_serve, config)
    except BaseExceptionGroup as group:
        stopped, failed = group.split(_StoppedError)
        if failed is not None:
            raise _explanation(failed) from None
        assert stopped is not None, "a group is not empty"
        print("stopped before the start was complete", file=sys.stderr)
    return EXIT_OK


def _explanation(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what to say about the first thing that went wrong, or `group` if it is our mistake."""
    expected, unexpected = group.split(
        (StoreError, ListenError, CertificateError, CommandError, OSError)
    )
    if unexpected is not None or expected is None:
        return group
    error: BaseException = expected
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return CommandError(str(error))


def _config(options: argparse.Namespace) -> BrokerConfig:
    given = {
        "store_directory": options.store_directory,
        "listen": options.listen,
        "advertise": options.advertise,
        "transport": options.transport,
        "tls_certificate": options.tls_certificate,
        "tls_key": options.tls_key,
        "unix_socket": options.unix_socket,
        "flush_mode": _FLUSH_MODES.get(options.flush),
        "metrics_port": options.metrics_port,
        "auto_create_topics": options.auto_create_topics,
    }
    try:
        config = load_config(options.config) if options.config else BrokerConfig()
        return config.with_changes({k: v for k, v in given.items() if v is not None})
    except ConfigError as error:
        raise CommandError(str(error)) from None


@contextmanager
def _pandas_hidden() -> Iterator[None]:
    """Keep sqlite-utils from importing pandas, whose types we never store: 0.4 s and 60 MB."""
    if "pandas" in sys.modules:
        yield
        return
    sys.modules["pandas"] = None  # type: ignore[assignment] # which makes its import fail
    try:
        yield
    finally:
        del sys.modules["pandas"]


async def _serve(config: BrokerConfig) -> None:
    with _pandas_hidden():
        from commitbus.broker.server import run_broker  # noqa: PLC0415 - not before it is hidden

    stop = trio.Event()
    async with trio.open_nursery() as watching:
        # Before the store is opened: a signal during recovery must not leave it half done.
        await watching.start(_stop_on_signal, stop)
        async with trio.open_nursery() as serving:
            with progress_bar() as on_progress:
                running: RunningBroker = await serving.start(
                    partial(run_broker, config, stop, on_progress=_until(stop, on_progress))
                )
            _say(running.recovery_summary)
            if running.metrics_endpoint:
                _say(f"metrics at http://{running.metrics_endpoint}/metrics")
            _keep_from_collector()
            sys.setswitchinterval(_SWITCH_S)
            _say(f"listening on {running.endpoint}")
        watching.cancel_scope.cancel()


def _say(line: str) -> None:
    """Print a line to standard output, for a process that waits for the broker.

    Raises:
        CommandError: it cannot be written.
    """
    try:
        print(line, flush=True)
    except OSError as error:
        raise CommandError(f"standard output: {error.strerror}") from None


def _until(stop: trio.Event, on_progress: Progress) -> Progress:
    """Return a progress listener that ends a recovery once the broker is to stop.

    A recovery may take minutes, and may be killed at any line: the next one does the same again.
    """

    def go_on(what: str, done: int, total: int) -> None:
        if stop.is_set():
            raise _StoppedError
        on_progress(what, done, total)

    return go_on


def _keep_from_collector() -> None:
    """Have no garbage collection look again at what stays until the end.

    Modules and the store are 50,000 objects, the compiled kernels, once they are needed, 80,000: a
    full collection took 30 and then 65 ms, and nobody is answered meanwhile. Only here, where the
    process is ours.
    """
    gc.freeze()
    when_loaded(gc.freeze)
    set_aside_after_long_collections()


async def _stop_on_signal(
    stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Set `stop` at the first signal; at the second leave at once, as `kill -9` would."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            if stop.is_set():
                _log.warning("stopping at once", extra={"signal": number})
                os._exit(128 + number)
            _log.info("stopping", extra={"signal": number})
            stop.set()
