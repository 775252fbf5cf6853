"""A broker inside another program."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from commitbus.broker import Broker
from commitbus.broker.cli.admin_client import AdminClient
from commitbus.broker.config import ConfigError
from commitbus.broker.embedded import BrokerError
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
