"""A broker inside another program."""

from __future__ import annotations

import json
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest

from commitbus.broker import Broker
from commitbus.broker.cli.admin_client import AdminClient
from commitbus.broker.config import ConfigError
from commitbus.broker.embedded.broker import BrokerError
from commitbus.broker.metadata.groups import CustomizedBackoff, ExponentialBackoff
from commitbus.broker.rpc.address import ListenError
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb
from commitbus.commitlog.errors import NotAStoreError, StoreLockedError
from commitbus.flush.policy import FlushMode


def test_a_broker_takes_calls_and_leaves_nothing_behind() -> None:
    """Ready once made; stopped, its directory and its threads are gone."""
    before = set(threading.enumerate())
    with Broker() as broker:
        broker.create_topic("orders", queues=4)
        with AdminClient(broker.endpoint) as client:
            assert [topic.name for topic in client.topics()] == ["orders"]
            client.send(pb.SendMessageRequest(topic="orders", body=b"x"))
        assert broker.directory.is_dir()
    assert not broker.directory.exists()
    ours = {thread for thread in threading.enumerate() if thread.name.startswith("commitbus")}
    assert ours <= before


@pytest.mark.parametrize("flush_mode", FlushMode)
def test_a_directory_of_one_s_own_stays(tmp_path: Path, flush_mode: FlushMode) -> None:
    """A second broker finds what the first one stored."""
    with Broker(tmp_path / "store", flush_mode=flush_mode) as broker:
        broker.create_topic("orders", queues=1)
        with AdminClient(broker.endpoint) as client:
            sent = client.send(pb.SendMessageRequest(topic="orders", body=b"kept"))
    with Broker(tmp_path / "store", flush_mode=flush_mode) as broker:
        with AdminClient(broker.endpoint) as client:
            place = pb.GetMessageRequest.QueuePlace(topic="orders", queue_id=0, queue_offset=0)
            found = client.message(pb.GetMessageRequest(place=place))
        assert found.message.body == b"kept"
        assert found.message.properties["UNIQ_KEY"] == sent.message_id


def test_what_goes_wrong_at_the_start_is_raised_in_the_caller(tmp_path: Path) -> None:
    """Not in some thread whose log nobody reads."""
    (tmp_path / "file").write_text("no store")
    with pytest.raises(NotAStoreError):
        Broker(tmp_path / "file")
    with pytest.raises(ConfigError, match="listen"):
        Broker(listen="nowhere")
    with Broker(tmp_path / "store") as broker:
        with pytest.raises(StoreLockedError):
            Broker(tmp_path / "store")
        with pytest.raises(ListenError):
            Broker(listen=broker.endpoint)


def test_a_topic_that_cannot_be_is_refused() -> None:
    """With the broker's own words."""
    with Broker() as broker:
        with pytest.raises(BrokerError, match="is no topic"):
            broker.create_topic("no/slash")
        with pytest.raises(BrokerError, match="must be one of"):
            broker.create_topic("orders", message_type="NOPE")
    with pytest.raises(BrokerError, match="is stopped"):
        broker.create_topic("orders")


def test_a_group_is_made_as_an_operator_would() -> None:
    """What `mqadmin updateSubGroup` sets; a second call changes it."""
    with Broker() as broker, AdminClient(broker.endpoint) as client:
        broker.create_group("plain")
        broker.create_group("fifo", fifo=True, lock_unit="MESSAGE_GROUP", retries=2)
        broker.create_group(
            "slow", backoff=ExponentialBackoff(100, 1000, 3), attributes={"priority.factor": "7"}
        )
        broker.create_group(
            "shut", consume_enabled=False, backoff=CustomizedBackoff((5, 6)), retry_queues=3
        )
        groups = {summary.group.name: summary.group for summary in client.groups()}
        assert groups["plain"].retry_max_times == 16
        assert not groups["plain"].attributes
        assert groups["fifo"].consume_message_orderly
        assert groups["fifo"].retry_max_times == 2
        assert groups["fifo"].attributes == {"fifo.lock.unit": "MESSAGE_GROUP"}
        policy = json.loads(groups["slow"].group_retry_policy)
        assert policy["exponentialRetryPolicy"] == {"initial": 100, "max": 1000, "multiplier": 3}
        assert groups["slow"].attributes == {"priority.factor": "7"}
        assert json.loads(groups["shut"].group_retry_policy)["customizedRetryPolicy"]["next"] == [
            *(5, 6)
        ]
        assert not groups["shut"].consume_enable
        assert groups["shut"].retry_queue_nums == 3
        broker.create_group("fifo", fifo=True, retries=5)
        (changed,) = [s.group for s in client.groups() if s.group.name == "fifo"]
        assert changed.retry_max_times == 5
        assert changed.attributes == {"fifo.lock.unit": "MESSAGE_GROUP"}


def test_what_a_group_has_by_default_is_what_a_consumer_would_make() -> None:
    """Naming a group beforehand changes nothing about it."""
    with Broker() as broker, AdminClient(broker.endpoint) as client:
        by_default = client.put_group(pb.PutGroupRequest(name="group"))
        broker.create_group("group")
        (summary,) = client.groups()
        assert summary.group == by_default


def test_a_group_that_cannot_be_is_refused() -> None:
    """With the broker's own words."""
    with Broker() as broker:
        with pytest.raises(BrokerError, match="no/slash"):
            broker.create_group("no/slash")
        with pytest.raises(BrokerError, match="must be one of"):
            broker.create_group("orders", lock_unit="NOPE")
        with pytest.raises(BrokerError, match="retryMaxTimes"):
            broker.create_group("orders", retries=-2)
        with pytest.raises(BrokerError, match="unknown"):
            broker.create_group("orders", attributes={"no.such": "1"})
    with pytest.raises(BrokerError, match="is stopped"):
        broker.create_group("orders")


def wait_for_topic(admin: AdminClient, name: str) -> None:
    for _ in range(1000):
        if name in [topic.name for topic in admin.topics()]:
            return
        time.sleep(0.01)
    pytest.fail(f"there is no topic {name}")


def test_the_retries_of_a_group_decide_about_its_dead_letters() -> None:
    """With the official client: one retry, and the second attempt was the last."""
    client = import_module("rocketmq")
    with Broker() as broker:
        broker.create_topic("orders", queues=1)
        broker.create_group("billing", retries=1)
        with AdminClient(broker.endpoint) as admin:
            admin.send(pb.SendMessageRequest(topic="orders", body=b"poison"))
            configuration = client.ClientConfiguration(broker.endpoint, client.Credentials())
            billing = client.SimpleConsumer(configuration, "billing")
            billing.startup()
            try:
                billing.subscribe("orders")
                for attempt in (1, 2):
                    (message,) = billing.receive(1, 600)
                    assert message.delivery_attempt == attempt
                    broker.clock.advance(600)
                poll = billing.receive_async(1, 600)  # which moves the message instead
                wait_for_topic(admin, "%DLQ%billing")
                broker.clock.advance(60)
                assert poll.result() == []
            finally:
                billing.shutdown()
            assert admin.topic_status("%DLQ%billing").queues[0].max_offset == 1


def test_stopping_twice_is_stopping_once() -> None:
    """From any thread, and from several at once."""
    broker = Broker()
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(broker.stop) for _ in range(4)]:
            done.result()
    broker.stop()


def test_the_caller_s_signal_handlers_stay() -> None:
    """Ctrl-C in a notebook interrupts the cell, not the broker."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Broker():
        now = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        assert now == before


def test_several_brokers_live_side_by_side() -> None:
    """Each with a port and a store of its own."""
    with Broker() as first, Broker() as second:
        assert first.endpoint != second.endpoint
        first.create_topic("orders")
        with AdminClient(second.endpoint) as client:
            assert client.topics() == []
