"""Whom an address stands for, and the limits of connections and wrong keys, in instants that the
test makes up.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.admission.peers import (
    MAX_PEERS,
    MAX_REJECTING,
    PER_WINDOW,
    THIS_MACHINE,
    WINDOW_S,
    Admittance,
    ConnectionLimits,
    Connections,
    WrongKeys,
    peer_of,
)
from hearth.config.addresses import is_loopback
from hearth.events import ConnectionsCrowded
from tests.support.recorder import Recorder
from tests.support.stopped_clock import StoppedClock

PEER = "192.168.1.9"
PEERS = {
    **dict.fromkeys(("127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", None), THIS_MACHINE),
    **dict.fromkeys((PEER, f"::ffff:{PEER}"), PEER),
    **dict.fromkeys(("fd00:1:2:3::9", "fd00:1:2:3:ffff::1"), "fd00:1:2:3::/64"),
    "fd00:1:2:4::9": "fd00:1:2:4::/64",
    "fe80::1%eth0": "fe80::/64",
    **dict.fromkeys(("not an address", "localhost", ""), "unknown"),
}


@pytest.mark.parametrize(("address", "peer"), PEERS.items())
def test_a_machine_is_its_ipv4_address_or_its_ipv6_network(address, peer):
    assert peer_of(address) == peer
    assert address is None or is_loopback(address) is (peer == THIS_MACHINE)


@pytest.mark.parametrize(
    ("tried_at", "reported"),
    [
        (range(180), [(10, 11), (70, 60), (130, 60)]),
        ([0] * 5 + [1000] * 11, [(1000, 11)]),  # what was long ago is not counted with what is now
        (range(0, 10_000, 10), []),  # a program that looks in now and then with an old key
    ],
)
def test_the_owner_is_told_once_a_minute_how_many_wrong_keys_there_were(tried_at, reported):
    keys = WrongKeys()
    slowed = [(at, keys.note(PEER, float(at))) for at in tried_at]
    assert [(at, found[1]) for at, found in slowed if found and found[1]] == reported
    assert keys.note("192.168.1.8", 0.0) is None  # nobody slows another


def test_many_peers_take_bounded_memory_and_the_quietest_is_forgotten():
    keys = WrongKeys()
    for peer in (PEER, "the other"):
        assert [keys.note(peer, 0.0) for _ in range(PER_WINDOW)] == [None] * PER_WINDOW
    for number in range(MAX_PEERS - 2):
        keys.note(f"10.0.{number}.1", 1.0)
    assert keys.note(PEER, 2.0) is not None
    keys.note("one more", 2.0)
    assert len(keys._records) == MAX_PEERS
    assert (keys.note(PEER, 2.0) is None, keys.note("the other", 2.0) is None) == (False, True)


@given(st.lists(st.floats(min_value=0, max_value=20, allow_nan=False), max_size=200))
def test_no_minute_has_more_answers_than_allowed_and_promises_are_kept(gaps: list[float]):
    keys = WrongKeys()
    now = 0.0
    answered = list[float]()
    for gap in gaps:
        now += gap
        slowed = keys.note(PEER, now)
        if slowed is None:
            answered.append(now)
            assert sum(at > now - WINDOW_S for at in answered) <= PER_WINDOW
        else:
            assert 0 < slowed[0] <= WINDOW_S
            assert sum(at > now + slowed[0] - WINDOW_S + 1e-6 for at in answered) < PER_WINDOW


LIMITS = ConnectionLimits.sharing(80)
"""20 for one machine, 70 for this one and 70 for all others together."""
OTHERS = {f"10.0.0.{number}": 20 for number in range(4)}


class Shares(Recorder):
    def __init__(self, limits: ConnectionLimits = LIMITS) -> None:
        super().__init__()
        self.clock = StoppedClock()
        self.connections = Connections(events=self, clock=self.clock, limits=limits)

    def fill(self, peer: str, count: int) -> int:
        """How many of so many are admitted."""
        return [self.connections.enter(peer) for _ in range(count)].count("admitted")


@pytest.mark.parametrize(
    ("before", "peer", "admitted", "bound"),
    [
        ({}, "10.0.0.1", 20, "one_machine"),
        ({}, THIS_MACHINE, 70, "this_machine"),
        ({"10.0.0.1": 20, "10.0.0.2": 10}, THIS_MACHINE, 50, "all"),
        ({"10.0.0.1": 20, "10.0.0.2": 20, "10.0.0.3": 20}, "10.0.0.4", 10, "all_others"),
        (OTHERS, THIS_MACHINE, 10, "all"),
        (OTHERS, "10.0.1.1", 0, "all_others"),
        ({THIS_MACHINE: 70}, "10.0.0.1", 10, "all"),
    ],
)
def test_each_gets_its_share_and_a_refusal_says_whose_is_full(before, peer, admitted, bound):
    shares = Shares()
    for each, count in before.items():
        shares.fill(each, count)
    shares.all.clear()
    shares.clock.advance(WINDOW_S)
    assert shares.fill(peer, 1000) == admitted
    (crowded,) = shares.of(ConnectionsCrowded)
    assert (crowded.peer, crowded.bound, crowded.open, crowded.refused) == (
        peer,
        bound,
        admitted,
        1,
    )


@pytest.mark.parametrize("connections", [1, 2, 3, 7, 8, 64, 4096])
@pytest.mark.parametrize("peer", [THIS_MACHINE, PEER])
def test_totals_leave_room_for_all(connections, peer):
    assert Shares(ConnectionLimits.sharing(connections)).fill(peer, 1) == 1


def test_who_leaves_makes_room():
    shares = Shares()
    enter = shares.connections.enter
    leave = shares.connections.leave
    shares.fill(PEER, 20)
    assert [enter(PEER) for _ in range(MAX_REJECTING + 5)] == ["rejecting"] * MAX_REJECTING + [
        "closed"
    ] * 5
    leave(PEER, "closed")
    assert enter(PEER) == "closed"
    leave(PEER, "rejecting")
    assert enter(PEER) == "rejecting"
    leave(PEER, "admitted")
    assert shares.fill(PEER, 2) == 1


def test_a_refused_peer_is_reported_once_a_minute_in_bounded_memory():
    shares = Shares(ConnectionLimits(all=0, this_machine=0, all_others=0, one_machine=0))
    for _ in range(150):
        shares.connections.enter(PEER)
        shares.clock.advance(1.0)
    assert [(event.at - 1000.0, event.refused) for event in shares.of(ConnectionsCrowded)] == [
        (0, 1),
        (60, 60),
        (120, 60),
    ]
    for number in range(MAX_PEERS):
        shares.connections.enter(f"10.{number // 250}.{number % 250}.1")
    shares.connections.enter(PEER)
    assert shares.of(ConnectionsCrowded)[-1].peer == PEER  # forgotten, so reported again


@given(
    st.lists(
        st.tuples(st.sampled_from([THIS_MACHINE, "a", "b", "c", "d", "e"]), st.booleans()),
        max_size=300,
    )
)
def test_the_count_is_exact_and_no_share_is_passed_whatever_comes_and_goes(
    steps: list[tuple[str, bool]],
):
    shares = Shares()
    held = list[tuple[str, Admittance]]()
    for peer, comes in steps:
        if comes:
            held.append((peer, shares.connections.enter(peer)))
        elif held:
            shares.connections.leave(*held.pop(0))
        inside = Counter(peer for peer, place in held if place == "admitted")
        assert shares.connections.shown()["open"] == inside.total() <= LIMITS.all
        assert (
            max([0, *(count for peer, count in inside.items() if peer != THIS_MACHINE)])
            <= LIMITS.one_machine
        )
        assert inside[THIS_MACHINE] <= LIMITS.this_machine
        assert inside.total() - inside[THIS_MACHINE] <= LIMITS.all_others
