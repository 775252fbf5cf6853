"""The real RocketMQ 5.4.0 in one JVM: name server, and proxy in local mode with the broker in it.

What its defaults need here: it must know its topics before a client of the gRPC protocol names
them; brokerIP1 because it would tell clients the address of some network card; ports that are free.
Its proxy takes calls on all addresses and cannot be told otherwise; to keep it from the network run
`unshare --map-root-user --net sh -c "ip link set lo up && make bench-compare"` once all is built.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.broker import Server
from bench.load import send_request, until_accepted
from bench.measure import Row
from bench.peers.jvm import class_path, java, run_program, tail
from bench.peers.rocketmq_store import DISK

QUEUES: Final = 8
G1: Final = (
    # As its bin/runserver.sh, which bin/mqproxy goes through, has them.
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
)
HEAP_MAX_GB: Final = 4
"""Of bin/runserver.sh."""
OUTPUT: Final = "output"
BULK_BATCH: Final = 64
BULK_THREADS: Final = 8
BULK_SECONDS: Final = 5


def heap() -> tuple[str, ...]:
    """Return its own heap, or a quarter of the memory of a machine that is too small for it."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    megabytes = min(HEAP_MAX_GB * 1024, memory // 4)
    return f"-Xms{megabytes}m", f"-Xmx{megabytes}m"


class Rocketmq:
    """Starts it. Keeps the ports it found, as a store that is opened again holds addresses.

    Raises:
        PeerMissingError: There is no JDK or no Maven.
    """

    name: Final = "RocketMQ"

    def __init__(self) -> None:
        self._classes = class_path("rocketmq")
        self._namesrv, self._broker, self._grpc, self._remoting = free_ports(4)

    @property
    def remark(self) -> str:
        """How it is set up."""
        return (
            "RocketMQ 5.4.0: name server, broker and proxy (local mode) in one JVM, "
            f"{' '.join((*heap(), *G1))}, otherwise its defaults."
        )

    @contextmanager
    def serve(self, store: Path, *, flush: str, topics: tuple[str, ...]) -> Iterator[Server]:
        """Start it; the end is by SIGKILL, as its own stop takes half a minute."""
        self._configure(store, flush, topics)
        work = store.parent
        options = [*heap(), *G1, *DISK, f"-Drocketmq.home.dir={work}"]
        names = ("namesrv.properties", "broker.properties", "proxy.json")
        started = time.perf_counter()
        with (work / OUTPUT).open("wb") as output:
            process = subprocess.Popen(
                [*java(self._classes, work, *options), "RocketmqServer",
                 f"127.0.0.1:{self._namesrv}", *(str(work / name) for name in names)],
                env={**os.environ, "ROCKETMQ_HOME": str(work), "RMQ_PROXY_HOME": str(work)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )  # fmt: skip
        with process:
            try:
                yield Server(process, f"127.0.0.1:{self._grpc}", started)
            except Exception as error:
                error.add_note(f"RocketMQ said: {tail(work / OUTPUT)}")
                raise
            finally:
                process.kill()

    def _configure(self, store: Path, flush: str, topics: tuple[str, ...]) -> None:
        work, config = store.parent, store / "config"
        config.mkdir(parents=True, exist_ok=True)
        namesrv = {"listenPort": self._namesrv, "bindAddress": "127.0.0.1"}
        broker = {
            "brokerName": "bench",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": self._broker,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "flushDiskType": f"{flush.upper()}_FLUSH",
            # A disk that others filled, and one that they keep busy, must not make it refuse.
            "diskMaxUsedSpaceRatio": 95,
            "osPageCacheBusyTimeOutMills": 10_000,
            # Its bulk consumer asks for more than the 32 messages that it hands out by default.
            "maxTransferCountOnMessageInMemory": 1024,
            "maxTransferBytesOnMessageInMemory": 4 << 20,
        }
        for name, settings in (("namesrv", namesrv), ("broker", broker)):
            lines = [f"{key}={value}\n" for key, value in settings.items()]
            (work / f"{name}.properties").write_text("".join(lines))
        proxy = {"rocketMQClusterName": "DefaultCluster",
                 "grpcServerPort": self._grpc, "remotingListenPort": self._remoting}  # fmt: skip
        (work / "proxy.json").write_text(json.dumps(proxy))
        (config / "topics.json").write_text(json.dumps(topics_json(topics)))

    def bulk(self) -> list[Row]:
        """Measure its own fastest ways: batches through remoting, and the pull consumer."""
        topic = "Bulk"
        with ExitStack() as stack:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="commitbus-bench-")))
            server = stack.enter_context(self.serve(work / "store", flush="async", topics=(topic,)))
            until_accepted(server.endpoint, send_request(0, topic=topic))
            printed = run_program(
                *java(self._classes, work, "-Xmx1g"), "RemotingBench",
                f"127.0.0.1:{self._namesrv}", topic,
                *map(str, (BULK_BATCH, BULK_THREADS, BULK_SECONDS)),
            )  # fmt: skip
        found = json.loads(printed)
        return [
            ("bulk append, acknowledged per batch", "msg/s", found["produced"],
             f"remoting, {BULK_THREADS} threads with batches of {BULK_BATCH}, second time"),
            ("bulk fetch", "msg/s", found["consumed"],
             f"remoting pull consumer, a thread for each of {QUEUES} queues, second time"),
        ]  # fmt: skip


def topics_json(topics: tuple[str, ...]) -> dict[str, object]:
    """Return the content of config/topics.json that makes a broker know these topics."""
    table = {
        name: {"topicName": name, "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6,
               "order": False, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
        for name in topics
    }  # fmt: skip
    return {"dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 0},
            "topicConfigTable": table}  # fmt: skip


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
