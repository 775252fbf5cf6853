"""Shares of calls by address, as numbers; `http2/test_shares.py` tries them over sockets."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from commitbus.broker.admin.methods import admin_methods
from commitbus.broker.admin.v2.methods import admin_v2_methods
from commitbus.broker.common.address import share_address
from commitbus.broker.config import BrokerConfig
from commitbus.broker.messaging.methods import messaging_methods
from commitbus.broker.rpc.access import NOTHING
from commitbus.broker.rpc.call import RpcError
from commitbus.broker.rpc.health import Health
from commitbus.broker.rpc.method import Method, MethodKind
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.rpc.shares import CallLimits, CallShares, ConnectionCalls


def method(*, is_for_operators: bool = False, lasts: bool = False) -> Method:
    def handler(*_: object) -> Any:
        raise AssertionError

    types = (pb.RecallMessageRequest, pb.RecallMessageResponse)
    return Method(
        "/test.Any/Ask",
        MethodKind.UNARY,
        *types,
        handler,
        is_for_operators=is_for_operators,
        lasts=lasts,
        access=NOTHING,
    )


ORDINARY, OPERATORS, LASTING = method(), method(is_for_operators=True), method(lasts=True)


def take_all(calls: ConnectionCalls, wanted: Method = ORDINARY, count_max: int = 100_000) -> int:
    """Begin calls until one is refused; return how many were not."""
    for number in range(count_max):
        try:
            is_counted = calls.admit(wanted, number)
        except RpcError:
            return number
        calls.count(calls.calls + is_counted)
    return count_max


@pytest.mark.parametrize(
    ("peer", "shared"),
    [
        ("127.0.0.1:5000", "127.0.0.1"),
        ("[2001:db8:1:2:3:4:5:6]:9", "2001:db8:1:2::/64"),
        ("[2001:db8::1]:4", "2001:db8:0:0::/64"),
        ("[::1]:80", "0:0:0:0::/64"),
        ("[1::]:80", "1:0:0:0::/64"),
        ("[1:2:3::]:80", "1:2:3:0::/64"),
        ("unix:", "unix"),
        ("unknown", "unknown"),
    ],
)
def test_an_address_is_a_host_or_a_network(peer: str, shared: str) -> None:
    """Whoever has one address of IPv6 has 2**64 of them."""
    assert share_address(peer) == shared


def test_who_comes_later_finds_room() -> None:
    """However many came before, each with many connections."""
    shares = CallShares(CallLimits(30_000))
    taken = [sum(take_all(shares.connect(f"host {host}")) for _ in range(50)) for host in range(6)]
    assert taken == sorted(taken, reverse=True)
    assert 20_000 <= taken[0] <= 24_000
    assert taken[-1] >= 8
    assert shares.calls <= 30_000


def test_alone_a_connection_has_a_half_and_an_address_two_thirds() -> None:
    """What one client that is large may need: 10,000 of 20,000."""
    shares = CallShares(CallLimits(30_000))
    assert take_all(shares.connect("a")) == 15_000
    assert take_all(shares.connect("a")) > 3_000


def test_what_lasts_leaves_room_for_what_does_not() -> None:
    """Telemetry of ever more connections ends at a half of all calls."""
    shares = CallShares(CallLimits(3_000, lasting_of_connection=100))
    taken = [take_all(shares.connect("a"), LASTING) for _ in range(40)]
    assert taken[:10] == [100] * 10
    assert sum(taken) <= 1_500
    assert take_all(shares.connect("a")) > 100


def test_the_reserve_is_for_operators_and_has_shares_too() -> None:
    """Of a connection and of an address; those who have another one still find some."""
    shares = CallShares(CallLimits(100, reserve=40, reserve_of_address=20, reserve_of_connection=8))
    for host in range(20):
        take_all(shares.connect(f"host {host}"))
    assert [take_all(shares.connect("a"), OPERATORS) for _ in range(4)] == [8, 8, 4, 0]
    assert take_all(shares.connect("b"), OPERATORS) == 8
    assert shares.reserved == 28


def test_four_addresses_do_not_take_all_of_the_reserve() -> None:
    """Each leaves half of what is free, so the next one finds a place."""
    shares = CallShares(CallLimits(100))
    for host in range(20):
        take_all(shares.connect(f"host {host}"))
    for host in range(4):
        for _ in range(10):
            take_all(shares.connect(f"host {host}"), OPERATORS)
    assert take_all(shares.connect("operator"), OPERATORS) == 10


def test_nothing_stays_of_a_connection_that_is_closed() -> None:
    """Neither of its calls nor of its address."""
    shares = CallShares(CallLimits(100))
    for _ in range(3):
        calls = [shares.connect("a"), shares.connect("b")]
        taken = [take_all(each, wanted) for each in calls for wanted in (LASTING, ORDINARY)]
        assert take_all(calls[0], OPERATORS) == 10
        for each in calls:
            each.close()
        assert (shares.calls, shares.reserved, shares.is_tight) == (0, 0, False)
        assert not shares._addresses
        assert taken[0] > 16


def test_which_calls_are_operators_and_which_last() -> None:
    """Health's Watch is no operators' call: it would keep its place in the reserve."""
    check, watch = Health([]).methods()
    assert (check.is_for_operators, check.lasts) == (True, False)
    assert (watch.is_for_operators, watch.lasts) == (False, True)
    context: Any = MagicMock(config=BrokerConfig())
    messaging = messaging_methods(context)
    assert [each.path.rpartition("/")[2] for each in messaging if each.lasts] == ["Telemetry"]
    assert not any(each.is_for_operators for each in messaging)
    admin = [*admin_methods(context), *admin_v2_methods(context)]
    assert len(admin) > 30
    assert all(each.is_for_operators for each in admin)
