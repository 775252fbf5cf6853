"""Shares of connections, as numbers; `test_shares.py` tries them over sockets."""

from __future__ import annotations

from commitbus.broker.rpc.http2.connection_places import (
    ConnectionLimits,
    ConnectionPlace,
    ConnectionPlaces,
)


def enter(places: ConnectionPlaces, address: str, *, is_local: bool = False) -> ConnectionPlace:
    """A connection that begins to speak HTTP/2 at once."""
    place = places.enter(address, is_local=is_local)
    assert place is not None
    place.is_known()
    return place


def is_given_up(place: ConnectionPlace | None) -> bool:
    """Whether the connection was ended for another's sake."""
    return place is None or place.kind.value == "none"


def test_an_address_has_four_of_five_connections_and_then_the_reserve() -> None:
    """Whoever is idle in the reserve goes when the next one comes; others stay."""
    places = ConnectionPlaces(ConnectionLimits(100, strangers_max=100, reserve=2))
    first = [enter(places, "a") for _ in range(80)]
    assert not any(place.is_restricted for place in first)
    late = [enter(places, "a") for _ in range(2)]
    assert all(place.is_restricted for place in late)
    late[0].is_idle = lambda: False
    last = enter(places, "a")
    assert [is_given_up(place) for place in (*late, last)] == [False, True, False]
    last.is_idle = lambda: False
    assert places.enter("a") is None
    assert not enter(places, "b").is_restricted
    # The one in the reserve is like any other as soon as there is room.
    for place in first[:20]:
        place.leave()
    last.promote()
    assert not last.is_restricted


def test_addresses_share_the_reserve() -> None:
    """Calls that never end do not keep it: whoever comes has room at the cost of who has most."""
    places = ConnectionPlaces(ConnectionLimits(100, strangers_max=100, reserve=8))

    def busy(address: str) -> ConnectionPlace | None:
        place = places.enter(address)
        if place is not None:
            place.is_known()
            place.is_idle = lambda: False
        return place

    for address in "abcdef":
        for _ in range(200):
            busy(address)
    operator = busy("operator")
    assert operator is not None
    for address in "abcdef":
        for _ in range(200):
            busy(address)
    assert not is_given_up(operator)


def test_the_unix_socket_has_a_reserve_of_its_own() -> None:
    """And any call may come by it."""
    places = ConnectionPlaces(ConnectionLimits(5, strangers_max=100, reserve=2))
    for _ in range(4):
        enter(places, "a")
    enter(places, "b")
    local = [enter(places, "unix", is_local=True) for _ in range(2)]
    assert not any(place.is_restricted for place in local)
    assert places.enter("unix", is_local=True) is None


def test_behind_a_proxy_the_address_is_the_clients() -> None:
    """All come from one address, and are counted by another as soon as it is known."""
    places = ConnectionPlaces(ConnectionLimits(100, strangers_max=10, reserve=0))
    clients = []
    for number in range(90):
        place = places.enter("proxy")
        assert place is not None
        assert place.move(f"client {number % 3}")
        place.is_known()
        clients.append(place)
    assert places.count == 90
    hog = [place for _ in range(30) if (place := places.enter("proxy")) and place.move("client 0")]
    assert len(hog) < 10
    for place in [*clients, *hog]:
        place.leave()
    assert places.count == 0
    assert not places._addresses


def test_the_oldest_stranger_of_an_address_makes_room() -> None:
    """For another of its address, and nobody else's."""
    places = ConnectionPlaces(ConnectionLimits(100, strangers_max=5, reserve=0))
    silent = [places.enter("a") for _ in range(4)]
    other = places.enter("b")
    newer = places.enter("a")
    assert newer is not None
    assert other is not None
    assert [is_given_up(place) for place in silent] == [True, False, False, False]
    assert not is_given_up(other)
