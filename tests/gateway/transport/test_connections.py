"""Who leaves when all connections are taken."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transport.connections import EvictionQueue, network_of


class Evictable:
    def __init__(self, network: str) -> None:
        self.network = network

    def evict(self) -> None:
        raise AssertionError("it is only looked at")


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("enter"), st.integers(0, 11)),
            st.tuples(st.just("leave"), st.integers(0, 11)),
        )
    )
)
def test_the_oldest_of_whoever_has_most_is_the_first_to_leave(
    steps: list[tuple[str, int]],
) -> None:
    waiting = [Evictable("abc"[number % 3]) for number in range(12)]
    evictions, inside = EvictionQueue(), dict[Evictable, None]()
    for action, number in steps:
        connection = waiting[number]
        if action == "enter":
            evictions.add(connection, connection.network)
            inside.setdefault(connection)
        else:
            evictions.remove(connection, connection.network)
            inside.pop(connection, None)
        assert len(evictions) == len(inside)
        count = Counter(each.network for each in inside)
        first = evictions.first()
        if not inside:
            assert first is None
            continue
        assert isinstance(first, Evictable)
        assert count[first.network] == max(count.values())
        assert first is next(each for each in inside if each.network == first.network)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("a:socket", "a:socket"),
    ],
)
def test_a_client_is_known_by_what_it_cannot_choose(host: str, network: str) -> None:
    assert network_of(host) == network
