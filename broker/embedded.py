"""A broker inside another program: a test, a notebook, a demonstration."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, final

import trio

from commitbus.broker.admin.topics import put_topic
from commitbus.broker.config import BrokerConfig
from commitbus.broker.metadata.topics import MessageType
from commitbus.broker.rpc.call import RpcError
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb
from commitbus.broker.server import RunningBroker, run_broker
from commitbus.broker.virtual_clock import VirtualClock
from commitbus.flush.policy import FlushMode

SMALL_FILES: Final = {
    "log_file_bytes": 16 << 20,
    "queue_file_bytes": 20 * 4096,
    "index_slots": 5_000,
    "index_entries": 20_000,
    # A test must not fail because the developer's disk is nearly full.
    "disk_force_percent": 100,
    "disk_refuse_percent": 100,
}
"""Sizes with which a store takes a few megabytes, not gigabytes."""


@final
class BrokerError(RuntimeError):
    """The embedded broker refuses, or cannot do, what it was asked for."""


@final
class Broker:
    """A broker in a thread of its own. Any client can connect to `endpoint`.

    It installs no signal handlers and needs no event loop of the caller; all methods may be called
    from any thread. Its store is made for small tests: see `SMALL_FILES`. Its time is the machine's
    until `clock.advance` moves it.

    Args:
        directory: the store; a temporary directory that `stop` removes if not given.
        listen: host:port; a free port of the loopback interface if not given.
        auto_create_topics: create a topic when a client first names it.
        flush_mode: when a send is answered.

    Raises:
        StoreError: `directory` cannot be opened as a store.
        ListenError: the address cannot be listened on.
        ConfigError: an argument cannot be used.
    """

    def __init__(
        self,
        directory: Path | str | None = None,
        *,
        listen: str = "127.0.0.1:0",
        auto_create_topics: bool = True,
        flush_mode: FlushMode = FlushMode.ASYNC_FLUSH,
    ) -> None:
        with contextlib.ExitStack() as resources:
            if directory is None:
                directory = resources.enter_context(
                    tempfile.TemporaryDirectory(prefix="commitbus-")
                )
            self.directory: Final = Path(directory)
            self.clock: Final = VirtualClock()
            """What the broker takes for the time."""
            config = BrokerConfig().with_changes(
                {
                    **SMALL_FILES,
                    "store_directory": self.directory,
                    "listen": listen,
                    "auto_create_topics": auto_create_topics,
                    "flush_mode": flush_mode,
                }
            )
            self._token: trio.lowlevel.TrioToken
            self._stop: trio.Event
            self._running: RunningBroker | None = None
            self._failure: BaseException | None = None
            self._ready = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(config,), name="commitbus-broker", daemon=True
            )
            self._thread.start()
            self._ready.wait()
            if self._running is None:
                self._thread.join()
                self._raise_failure()
            self._resources = resources.pop_all()

    def __enter__(self) -> Broker:
        """Return the broker, which runs already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the broker."""
        self.stop()

    @property
    def endpoint(self) -> str:
        """host:port to connect to."""
        assert self._running is not None
        return self._running.endpoint

    def create_topic(
        self, name: str, *, message_type: MessageType | str = MessageType.NORMAL, queues: int = 8
    ) -> None:
        """Create a topic or change one; durable on return.

        Raises:
            BrokerError: the name, the type or the number of queues cannot be used, or the broker
                is stopped.
        """
        request = pb.PutTopicRequest(
            name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            set_attributes={"message.type": str(message_type)},
        )
        assert self._running is not None
        try:
            trio.from_thread.run(put_topic, self._running.context, request, trio_token=self._token)
        except RpcError as error:
            raise BrokerError(error.message) from None
        except trio.RunFinishedError:
            raise BrokerError("the broker is stopped") from None

    def stop(self) -> None:
        """Answer what is in flight, close the store, end the thread. A second call does nothing.

        Raises:
            StoreError: the store failed, while the broker ran or while it was closed.
        """
        with self._resources:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._stop.set)
            self._thread.join()
            if self._failure is not None:
                self._raise_failure()

    def _run(self, config: BrokerConfig) -> None:
        try:
            trio.run(self._main, config, clock=self.clock)
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._failure = error
        finally:
            self._ready.set()

    async def _main(self, config: BrokerConfig) -> None:
        self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()
        async with trio.open_nursery() as nursery:
            run = partial(run_broker, clock=self.clock, is_patient=True)
            self._running = await nursery.start(run, config, self._stop)
            self._ready.set()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        # Nurseries wrap what went wrong in groups; one cause is the rule.
        while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
            failure = failure.exceptions[0]
        assert failure is not None
        raise failure
