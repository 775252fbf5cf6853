"""Apache Kafka 4.3: a single node, its own controller (KRaft), driven with confluent-kafka."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from bench.peers.jvm import class_path, java, run_program
from bench.peers.rocketmq import free_ports
from bench.python_side import BODY, Client, closed_loop, need_module

TOPIC: Final = "bench"
HEAP: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""As its bin/kafka-server-start.sh and bin/kafka-run-class.sh have them."""
FETCH: Final = 10_000
START_LIMIT_S: Final = 60

OnDelivery: TypeAlias = Callable[[object, object], None]


class Kafka:
    """Starts it.

    Raises:
        PeerMissingError: There is no JDK, no Maven or no confluent-kafka.
    """

    name: Final = "Kafka"

    def __init__(self) -> None:
        need_module("confluent_kafka", "confluent-kafka")
        self._classes = class_path("kafka")

    @property
    def remark(self) -> str:
        """How it is set up."""
        return (
            f"Kafka 4.3.0, one KRaft node, JVM {' '.join(HEAP)}, confluent-kafka with its defaults "
            "(acks all, one partition; linger.ms 0 and max.in.flight 1 where sends are awaited); "
            "fsync is log.flush.interval.messages=1."
        )

    @contextmanager
    def start(self, directory: Path, *, fsync: bool) -> Iterator[Client]:
        """As the protocol says."""
        port, controller = free_ports(2)
        settings = directory / "server.properties"
        settings.write_text(properties(directory / "log", port, controller, fsync=fsync))
        command = java(self._classes, directory, *HEAP)
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # In one word, because an id may begin with a hyphen.
        run_program(*command, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}",
                    "-c", str(settings))  # fmt: skip
        with subprocess.Popen(
            [*command, "kafka.Kafka", str(settings)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                client = KafkaClient(f"127.0.0.1:{port}")
                client.until_ready()
                yield client
            finally:
                process.kill()


def properties(log: Path, port: int, controller: int, *, fsync: bool) -> str:
    """Return the configuration of a single node, with a factor of 1 where its default is 3."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "log.dirs": log,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        # A group of one consumer need not wait for others.
        "group.initial.rebalance.delay.ms": 0,
    }
    if fsync:
        settings["log.flush.interval.messages"] = 1
    return "".join(f"{name}={value}\n" for name, value in settings.items())


class Producer(Protocol):
    """What is used of confluent-kafka's, which is not always installed."""

    def produce(self, topic: str, value: bytes, *, on_delivery: OnDelivery) -> None: ...

    def poll(self, timeout: float) -> int: ...

    def flush(self) -> int: ...


class KafkaClient:
    """confluent-kafka."""

    def __init__(self, servers: str) -> None:
        self._servers = {"bootstrap.servers": servers}

    def _producer(self, **settings: object) -> Producer:
        import confluent_kafka  # noqa: PLC0415 - an option, which other benchmarks do not need

        producer: Producer = confluent_kafka.Producer({**self._servers, **settings})
        return producer

    def until_ready(self) -> None:
        """Create the topic, which is refused until the server is up."""
        from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415 - as above

        # Without this its thread prints every connection that is refused meanwhile.
        admin = AdminClient({**self._servers, "log_level": 0})
        created = admin.create_topics(
            [NewTopic(TOPIC, num_partitions=1)], operation_timeout=START_LIMIT_S,
            request_timeout=START_LIMIT_S,
        )  # fmt: skip
        created[TOPIC].result()

    def awaited(self, tasks: int, seconds: float) -> float:
        """As the protocol says; a thread polls for the acknowledgements."""
        return asyncio.run(self._awaited(tasks, seconds))

    async def _awaited(self, tasks: int, seconds: float) -> float:
        loop = asyncio.get_running_loop()
        # Faster than its defaults here: while a request is on its way the next batch fills, and
        # nobody waits for five milliseconds for what cannot come.
        producer = self._producer(**{"linger.ms": 0, "max.in.flight": 1})
        stopping = threading.Event()

        def poll() -> None:
            while not stopping.is_set():
                producer.poll(0.1)

        def send() -> asyncio.Future[None]:
            done: asyncio.Future[None] = loop.create_future()

            def acknowledged(error: object, _message: object) -> None:
                assert error is None, error
                loop.call_soon_threadsafe(done.set_result, None)

            producer.produce(TOPIC, BODY, on_delivery=acknowledged)
            return done

        poller = threading.Thread(target=poll)
        poller.start()
        try:
            return await closed_loop(send, tasks, seconds)
        finally:
            stopping.set()
            poller.join()

    def produce(self, messages: int) -> None:
        """As the protocol says."""
        producer = self._producer()
        failed: list[object] = []

        def acknowledged(error: object, _message: object) -> None:
            if error is not None:
                failed.append(error)

        for number in range(messages):
            while True:
                try:
                    producer.produce(TOPIC, BODY, on_delivery=acknowledged)
                except BufferError:
                    producer.poll(0.01)
                else:
                    break
            if number % 1000 == 0:
                producer.poll(0)
        producer.flush()
        assert not failed, failed[0]

    def consume(self, messages: int) -> None:
        """As the protocol says."""
        import confluent_kafka  # noqa: PLC0415 - as above

        group = f"bench-{time.monotonic_ns()}"
        consumer: Any = confluent_kafka.Consumer(
            {**self._servers, "group.id": group, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([TOPIC])
        seen = 0
        while seen < messages:
            for message in consumer.consume(FETCH, timeout=1.0):
                assert message.error() is None, message.error()
                assert len(message.value()) == len(BODY)
                seen += 1
        consumer.close()
