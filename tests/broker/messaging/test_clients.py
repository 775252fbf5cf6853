"""The registry of clients: who is alive, and for how long after its last sign."""

from __future__ import annotations

import pytest
import trio

from commitbus.broker.common.errors import ClientIdRequiredError
from commitbus.broker.messaging import clients as module
from commitbus.broker.messaging.clients import (
    DISCONNECT_GRACE_S,
    IDLE_S,
    ClientRegistry,
    Introduction,
    Subscription,
)
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


def call(client_id: str) -> Call:
    metadata = {
        "x-mq-client-id": client_id,
        "x-mq-language": "KLINGON",
        "x-mq-client-version": "9",
    }
    return Call("", metadata, "127.0.0.1:5", None, None)


def test_a_client_is_what_its_calls_say() -> None:
    """Any language is fine; the second call finds the same client."""
    registry = ClientRegistry(Clock())
    client = registry.seen(call("a"))
    assert (client.language, client.version, client.peer) == ("KLINGON", "9", "127.0.0.1:5")
    assert registry.seen(call("a")) is client
    assert (len(registry), list(registry.all()), registry.get("b")) == (1, [client], None)


def test_no_more_of_a_clients_words_is_kept_than_is_shown() -> None:
    """A header may have 16 KB, and there may be 100,000 clients."""
    metadata = {
        "x-mq-client-id": "a",
        "x-mq-language": "L" * 10_000,
        "x-mq-client-version": "V" * 10_000,
    }
    client = ClientRegistry(Clock()).seen(Call("", metadata, "127.0.0.1:5", None, None))
    assert (client.language, client.version) == ("L" * 64, "V" * 64)


@pytest.mark.parametrize("client_id", ["", "  ", "x" * 1025])
def test_a_call_without_a_usable_id_is_nobodys(client_id: str) -> None:
    """It is not registered either."""
    registry = ClientRegistry(Clock())
    with pytest.raises(ClientIdRequiredError):
        registry.seen(call(client_id))
    assert len(registry) == 0


def test_a_silent_client_is_gone_after_two_minutes() -> None:
    """Those with a sign of life stay."""
    clock = Clock()
    registry = ClientRegistry(clock)
    silent = registry.seen(call("silent"))
    registry.seen(call("loud"))
    clock.ms += round(IDLE_S * 1000) - 1
    registry.seen(call("loud"))
    assert registry.is_alive("silent")
    clock.ms += 1
    assert not registry.is_alive("silent")
    assert registry.drop_idle() == [silent.client_id]
    assert registry.get("silent") is None
    assert registry.is_alive("loud")


def test_a_client_with_a_stream_is_alive_however_silent() -> None:
    """And for the usual time after the stream's regular end."""
    clock = Clock()
    registry = ClientRegistry(clock)
    with registry.streaming(registry.seen(call("a"))):
        clock.ms += 10 * round(IDLE_S * 1000)
        assert registry.drop_idle() == []
    clock.ms += round(IDLE_S * 1000) - 1
    assert registry.is_alive("a")


def test_a_client_whose_stream_broke_is_gone_soon() -> None:
    """Unless it calls again: a heartbeat comes sooner than that."""
    clock = Clock()
    registry = ClientRegistry(clock)

    async def connection_lost() -> None:
        with trio.CancelScope() as scope, registry.streaming(registry.seen(call("a"))):
            scope.cancel()
            await trio.lowlevel.checkpoint()

    for _ in range(2):
        trio.run(connection_lost)
        clock.ms += round(DISCONNECT_GRACE_S * 1000) - 1
        assert registry.is_alive("a")
    clock.ms += 1
    assert not registry.is_alive("a")


def test_a_client_whose_request_was_refused_is_as_alive_as_any() -> None:
    """An error is an answer, not a lost connection."""
    clock = Clock()
    registry = ClientRegistry(clock)
    with pytest.raises(KeyError), registry.streaming(registry.seen(call("a"))):
        raise KeyError
    clock.ms += round(IDLE_S * 1000) - 1
    assert registry.is_alive("a")


def test_of_too_many_clients_the_longest_silent_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ids come from the network, so their number is bounded."""
    monkeypatch.setattr(module, "CLIENTS_MAX", 2)
    registry = ClientRegistry(Clock())
    for name in ("a", "b", "a", "c"):
        registry.seen(call(name))
    assert [client.client_id for client in registry.all()] == ["a", "c"]


def test_a_step_of_the_wall_clock_says_nothing_about_who_lives() -> None:
    """An hour forward kills nobody, an hour back keeps nobody alive."""

    class SteppedClock:
        def __init__(self) -> None:
            self.wall_ms, self.seconds = 10_000_000_000, 5.0

        def now_ms(self) -> int:
            return self.wall_ms

        def monotonic_s(self) -> float:
            return self.seconds

    clock = SteppedClock()
    registry = ClientRegistry(clock)
    registry.seen(call("a"))
    clock.wall_ms += 3_600_000
    assert registry.drop_idle() == []
    clock.wall_ms -= 7_200_000
    clock.seconds += IDLE_S
    assert registry.drop_idle() == ["a"]


def test_what_clients_say_of_themselves_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit they are served, but their topics are not kept until others leave."""
    monkeypatch.setattr(module, "INTRODUCTIONS_BYTES_MAX", 600)
    registry = ClientRegistry(Clock())
    said = Introduction(1, "h", ("topic",), {"T": Subscription(pb.TAG, "A || B")})
    a, b = registry.seen(call("a")), registry.seen(call("b"))
    registry.introduced(a, said)
    registry.introduced(a, said)
    registry.introduced(b, said)
    assert (a.introduction, b.introduction) == (said, Introduction(1, "h"))
    registry.remove("a")
    registry.introduced(b, said)
    assert b.introduction == said
    registry.introduced(a, said)
    assert registry.get("a") is None


def test_the_evicted_client_takes_its_introduction_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the room would be used up by clients that nobody knows any more."""
    monkeypatch.setattr(module, "INTRODUCTIONS_BYTES_MAX", 300)
    monkeypatch.setattr(module, "CLIENTS_MAX", 1)
    registry = ClientRegistry(Clock())
    for name in ("a", "b", "c"):
        client = registry.seen(call(name))
        registry.introduced(client, Introduction(1, "", ("a topic",)))
        assert client.introduction.published == ("a topic",)


def test_a_client_with_a_stream_is_not_pushed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever invents a hundred thousand ids takes nobody's place who is at work."""
    monkeypatch.setattr(module, "CLIENTS_MAX", 3)
    registry = ClientRegistry(Clock())
    at_work = registry.seen(call("at work"))
    with registry.streaming(at_work):
        for number in range(10):
            registry.seen(call(str(number)))
        assert registry.get("at work") is at_work
        assert len(registry) == 3
    for number in range(10):
        registry.seen(call(str(number)))
    assert registry.get("at work") is None
    assert registry._silent.keys() == registry._clients.keys()


def test_what_clients_say_of_themselves_takes_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Headers may have 16 KB; of ids there is room for as many as fit."""
    monkeypatch.setattr(module, "CLIENTS_BYTES_MAX", 10_000)
    registry = ClientRegistry(Clock())
    long = {"x-mq-language": "x" * 16_000, "x-mq-client-version": "y" * 16_000}
    for number in range(100):
        name = f"{number:01000}"
        client = registry.seen(Call("", {"x-mq-client-id": name, **long}, "[::1]:5", None, None))
        assert (len(client.language), len(client.version)) == (64, 64)
    assert 5 <= len(registry) <= 10
    assert registry._bytes <= 10_000
    for client in list(registry.all()):
        registry.remove(client.client_id)
    assert registry._bytes == 0


def test_the_consumers_of_a_group_are_known_without_a_look_at_others() -> None:
    """Also after they have changed it, left, or come again under the same id."""
    registry = ClientRegistry(Clock())
    first, second, other = (registry.seen(call(name)) for name in ("a", "b", "c"))
    for client, group in ((first, "G"), (second, "G"), (other, "H"), (second, "G")):
        registry.consumes(client, group, pb.SIMPLE_CONSUMER)
    assert registry.consumers("G") == [first, second]
    registry.consumes(second, "H", pb.PUSH_CONSUMER)
    assert (registry.consumers("G"), second.kind) == ([first], pb.PUSH_CONSUMER)
    registry.remove("a")
    again = registry.seen(call("a"))
    registry.consumes(first, "H", pb.SIMPLE_CONSUMER)
    registry.consumes(again, "G", pb.SIMPLE_CONSUMER)
    assert (registry.consumers("G"), registry.consumers("H")) == ([again], [other, second])
    for name in "abc":
        registry.remove(name)
    assert registry._by_group == {}
