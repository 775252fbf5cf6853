"""The whole broker: what runs, in which order it starts, and in which it stops.

    store (recovered)          threads of its own: flush, reput, allocation
      metadata, progress       a SQLite thread each
        messaging, rates       tasks on trio
          metrics              HTTP on a port of its own
          transport            takes calls last, and stops taking them first

What is further in starts later and stops earlier.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import final

import trio

from commitbus.broker.admin.context import AdminContext
from commitbus.broker.admin.methods import admin_methods
from commitbus.broker.admin.v2.methods import admin_v2_methods
from commitbus.broker.bulk.methods import bulk_methods
from commitbus.broker.common.address import join_host_port
from commitbus.broker.common.version import version
from commitbus.broker.config import BrokerConfig, Transport
from commitbus.broker.core.broker import BrokerCore
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.methods import messaging_methods, run_messaging
from commitbus.broker.metadata.metadata_store import MetadataStore
from commitbus.broker.metadata.sqlite_metadata import SqliteMetadata
from commitbus.broker.observe.rates import Rates
from commitbus.broker.observe.rpc_latency import RpcLatency
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.progress.sqlite_rows import SqliteRows
from commitbus.broker.rpc.defaults import MAX_MESSAGE_BYTES, TRIO_CALLS_MAX
from commitbus.broker.rpc.interceptor import Interceptor
from commitbus.broker.rpc.method import Method
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.clock import Clock, SystemClock
from commitbus.commitlog.errors import StoreError
from commitbus.commitlog.file_system import FileSystem, RealFileSystem
from commitbus.commitlog.recovery import Progress, no_progress
from commitbus.commitlog.retention import RetentionPolicy, parse_delete_hours
from commitbus.flush.policy import FlushPolicy

_log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class RunningBroker:
    """What there is to know of a broker that takes calls."""

    endpoint: str
    """host:port to connect to."""
    metrics_endpoint: str | None
    """host:port of `/metrics`, if it is served."""
    recovery_summary: str
    context: AdminContext
    """For who lives in the same process. Its parts belong to the trio thread."""


async def run_broker(
    config: BrokerConfig,
    stop: trio.Event,
    *,
    clock: Clock | None = None,
    file_system: FileSystem | None = None,
    on_progress: Progress = no_progress,
    is_patient: bool = False,
    task_status: trio.TaskStatus[RunningBroker] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker until `stop` is set, then drain it and close the store.

    With `is_patient` no client is given up because it is silent or slow: for a clock that is moved,
    which leaves them no time.

    Raises:
        StoreError: the store cannot be opened; or it failed while the broker ran, which has then
            acknowledged nothing more and stopped by itself.
        ListenError: the address, or the metrics' port, cannot be listened on.
        CertificateError: the configured certificate cannot be used.
        OSError: a file cannot be opened.
    """
    clock, file_system = clock or SystemClock(), file_system or RealFileSystem()
    failures: list[StoreError] = []
    async with (
        _open_state(config, clock, file_system, on_progress) as state,
        trio.open_nursery() as services,
    ):
        _stop_on_failure((state.store, state.metadata, state.progress), stop, failures)
        await services.start(run_messaging, state)
        rates = Rates(state.counters, clock)
        services.start_soon(rates.run)
        context = AdminContext(
            messaging=state,
            rates=rates,
            version=version(),
            boot_ms=clock.now_ms(),
            file_system=file_system,
        )
        await _serve_until(stop, context, task_status, is_patient=is_patient)
        services.cancel_scope.cancel()
    if failures:
        raise failures[0]


async def _serve_until(
    stop: trio.Event,
    context: AdminContext,
    task_status: trio.TaskStatus[RunningBroker],
    *,
    is_patient: bool,
) -> None:
    """Take calls until `stop` is set; return when the last one is answered."""
    state, config = context.messaging, context.config
    latency = RpcLatency()
    methods = [
        *messaging_methods(state),
        *admin_v2_methods(context),
        *admin_methods(context),
        *bulk_methods(state.broker),
    ]
    interceptors = [state.clients.intercept]
    if config.metrics_port >= 0:
        interceptors.insert(0, latency.intercept)
    async with _metrics(state, latency) as metrics_endpoint, trio.open_nursery() as transports:
        state.listen_port = await transports.start(
            _transport(config, methods, interceptors, is_patient=is_patient)
        )
        running = RunningBroker(
            endpoint=join_host_port(config.listen_host, state.listen_port),
            metrics_endpoint=metrics_endpoint,
            recovery_summary=state.store.recovery_summary,
            context=context,
        )
        _log.info("listening", extra={"endpoint": running.endpoint})
        task_status.started(running)
        await stop.wait()
        _log.info("draining")
        transports.cancel_scope.cancel()


def _transport(
    config: BrokerConfig,
    methods: Sequence[Method],
    interceptors: Sequence[Interceptor],
    *,
    is_patient: bool,
) -> Callable[..., Awaitable[None]]:
    """Return what serves the methods as the configuration wants it.

    Only that transport is imported: the other one's libraries cost memory and start-up time.

    Raises:
        CertificateError: the configured certificate cannot be used.
    """
    if config.transport is Transport.GRPCIO:
        from commitbus.broker.rpc import grpcio_transport  # noqa: PLC0415 - see above

        return partial(
            grpcio_transport.serve, methods, listen=config.listen, interceptors=interceptors
        )
    from commitbus.broker.rpc import trio_transport  # noqa: PLC0415 - see above
    from commitbus.broker.rpc.listen.accept import (  # noqa: PLC0415 - see above
        TIME_LIMIT_S,
        AcceptOptions,
    )
    from commitbus.broker.rpc.listen.certificate import TlsContexts  # noqa: PLC0415 - see above

    accept_options = AcceptOptions(
        tls=TlsContexts(config.tls_certificate, config.tls_key),
        tls_mode=config.tls_mode,
        proxy_protocol=config.proxy_protocol,
        time_limit_s=inf if is_patient else TIME_LIMIT_S,
    )
    limits = trio_transport.default_limits(MAX_MESSAGE_BYTES, TRIO_CALLS_MAX)
    # With large bodies configured, so large that a few of the largest requests still fit.
    largest_bytes = max(method.max_request_bytes for method in methods)
    held_bytes = max(limits.held_request_bytes, 2 * largest_bytes)
    limits = replace(limits, held_request_bytes=held_bytes)
    return partial(
        trio_transport.serve,
        methods,
        listen=config.listen,
        interceptors=interceptors,
        unix_socket=config.unix_socket,
        accept_options=accept_options,
        limits=limits.without_time_limits() if is_patient else limits,
    )


@asynccontextmanager
async def _metrics(state: MessagingContext, latency: RpcLatency) -> AsyncIterator[str | None]:
    config = state.config
    if config.metrics_port < 0:
        yield None
        return
    from commitbus.broker.observe.metrics import serve_metrics  # noqa: PLC0415 - 0.1 s, for who asks for it

    host = config.listen_host
    async with serve_metrics(state, latency, host, config.metrics_port) as port:
        yield join_host_port(host, port)


def _stop_on_failure(
    parts: Sequence[MessageStore | MetadataStore | ProgressTable],
    stop: trio.Event,
    failures: list[StoreError],
) -> None:
    """Set `stop` when one of these fails: the broker cannot keep its guarantees then."""
    token = trio.lowlevel.current_trio_token()

    def fail(error: StoreError) -> None:
        failures.append(error)
        stop.set()

    def on_failure(error: StoreError) -> None:
        # On a thread of that part. If the run is over already, there is nothing to stop.
        try:
            token.run_sync_soon(fail, error)
        except trio.RunFinishedError:
            _log.critical("the store failed while closing", exc_info=error)

    for part in parts:
        part.add_failure_listener(on_failure)


@asynccontextmanager
async def _open_state(
    config: BrokerConfig, clock: Clock, file_system: FileSystem, on_progress: Progress
) -> AsyncIterator[MessagingContext]:
    """Open everything that outlives a call, the store's lock first, and close it in reverse."""
    directory = config.store_directory
    store = await trio.to_thread.run_sync(
        lambda: MessageStore.open(
            directory,
            store_config(config),
            clock=clock,
            file_system=file_system,
            on_progress=on_progress,
        )
    )
    async with _closing(store):
        if store.full_disk is not None:
            # Retention first: databases need room to be opened.
            await trio.to_thread.run_sync(store.keep_house)
        metadata = await trio.to_thread.run_sync(_open_metadata, directory, clock, file_system)
        async with _closing(metadata):
            progress = _progress(config, clock, file_system)
            await trio.to_thread.run_sync(progress.open)
            async with _closing(progress):
                # A power cut may have taken the end of the log, and with it messages that a group
                # had seen already. Not max_offset: reput may still be on its way there.
                progress.clamp(store.queue_end)
                yield MessagingContext(
                    BrokerCore(
                        store=store,
                        metadata=metadata,
                        progress=progress,
                        config=config,
                        clock=clock,
                    )
                )


def _open_metadata(directory: Path, clock: Clock, file_system: FileSystem) -> MetadataStore:
    return SqliteMetadata(directory, clock=clock, file_system=file_system)


def _progress(config: BrokerConfig, clock: Clock, file_system: FileSystem) -> ProgressTable:
    return ProgressTable(
        config.store_directory,
        SqliteRows(config.store_directory, file_system),
        clock=clock,
        file_system=file_system,
        save_interval_ms=config.progress_save_interval_ms,
        sync=config.progress_sync,
        in_flight_max=config.in_flight_max,
    )


@asynccontextmanager
async def _closing(part: MessageStore | MetadataStore | ProgressTable) -> AsyncIterator[None]:
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(part.close)


def store_config(config: BrokerConfig) -> StoreConfig:
    """Return the part of the settings that the store has."""
    return StoreConfig(
        log_file_bytes=config.log_file_bytes,
        queue_file_bytes=config.queue_file_bytes,
        index_slots=config.index_slots,
        index_entries=config.index_entries,
        warm_queue_files=config.warm_queue_files,
        max_body_bytes=config.max_body_bytes,
        flush=FlushPolicy(mode=config.flush_mode, interval_ms=config.flush_interval_ms),
        retention=RetentionPolicy(
            reserved_hours=config.file_reserved_hours,
            delete_hours=parse_delete_hours(config.delete_when),
            delete_percent=config.disk_delete_percent,
            force_percent=config.disk_force_percent,
            refuse_percent=config.disk_refuse_percent,
        ),
        seal_after_s=config.seal_after_s,
        store_host=config.store_host,
    )
