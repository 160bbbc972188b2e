"""The shares of connections, in instants that the test makes up."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hearth.admission.http_checks import (
    MAX_PEERS,
    MAX_REJECTING,
    SAID_EVERY_S,
    THIS_MACHINE,
    Bound,
    ConnectionLimits,
    OpenConnections,
    Place,
)
from tests.support.cases import for_each

LIMITS = ConnectionLimits.sharing(80)
"""20 for one machine, 70 for this one and 70 for all others together."""


def fill(shares: OpenConnections, peer: str, connections: int) -> int:
    """How many of so many are let in."""
    return [shares.enter(peer, 0.0)[0] for _ in range(connections)].count(Place.ADMITTED)


def test_one_machine_gets_a_quarter_and_leaves_the_rest_to_others():
    shares = OpenConnections(LIMITS)
    assert fill(shares, "10.0.0.1", 1000) == 20
    assert fill(shares, "10.0.0.2", 10) == 10
    assert fill(shares, THIS_MACHINE, 1000) == 50
    assert (shares.open, shares.refused) == (80, 980 + 950)


def test_all_other_machines_together_leave_an_eighth_to_this_one():
    shares = OpenConnections(LIMITS)
    assert sum(fill(shares, f"10.0.0.{number}", 20) for number in range(10)) == 70
    assert fill(shares, THIS_MACHINE, 20) == 10


def test_this_machine_with_its_proxy_leaves_an_eighth_to_others():
    shares = OpenConnections(LIMITS)
    assert fill(shares, THIS_MACHINE, 1000) == 70
    assert fill(shares, "10.0.0.1", 20) == 10


@for_each(
    ("before", "peer", "bound"),
    [
        ({"10.0.0.1": 20}, "10.0.0.1", Bound.ONE_MACHINE),
        ({THIS_MACHINE: 70}, THIS_MACHINE, Bound.THIS_MACHINE),
        ({f"10.0.0.{number}": 20 for number in range(4)}, "10.0.1.1", Bound.ALL_OTHERS),
        ({THIS_MACHINE: 70, "10.0.0.1": 10}, "10.0.0.2", Bound.ALL),
    ],
)
def test_a_refusal_says_whose_share_is_full(before, peer, bound):
    shares = OpenConnections(LIMITS)
    for each, connections in before.items():
        fill(shares, each, connections)
    _, refusal = shares.enter(peer, 1000.0)
    assert refusal is not None
    assert refusal.bound is bound


def test_who_leaves_makes_room():
    shares = OpenConnections(LIMITS)
    fill(shares, "10.0.0.1", 20)
    shares.leave("10.0.0.1", Place.ADMITTED)
    assert fill(shares, "10.0.0.1", 2) == 1


def test_some_of_the_refused_wait_for_their_answer_and_the_rest_gets_none():
    shares = OpenConnections(LIMITS)
    fill(shares, "10.0.0.1", 20)
    places = [shares.enter("10.0.0.1", 0.0)[0] for _ in range(MAX_REJECTING + 5)]
    assert places == [Place.REJECTING] * MAX_REJECTING + [Place.CLOSED] * 5
    shares.leave("10.0.0.1", Place.CLOSED)
    assert shares.enter("10.0.0.1", 0.0)[0] is Place.CLOSED
    shares.leave("10.0.0.1", Place.REJECTING)
    assert shares.enter("10.0.0.1", 0.0)[0] is Place.REJECTING


def test_a_refused_peer_is_told_of_once_a_minute_with_the_number():
    shares = OpenConnections(LIMITS)
    fill(shares, "10.0.0.1", 20)
    refusals = [(at, shares.enter("10.0.0.1", float(at))[1]) for at in range(150)]
    assert [(at, refusal.unsaid) for at, refusal in refusals if refusal and refusal.unsaid] == [(0, 1), (60, 60), (120, 60)]


def test_many_refused_peers_take_bounded_memory():
    shares = OpenConnections(ConnectionLimits(all=0, this_machine=0, all_others=0, one_machine=0))
    for number in range(MAX_PEERS + 100):
        shares.enter(f"10.{number // 250}.{number % 250}.1", 0.0)
    assert len(shares._records) == MAX_PEERS
    _, refusal = shares.enter("10.0.0.1", SAID_EVERY_S / 2)
    assert refusal is not None
    assert refusal.unsaid == 1  # forgotten, so said again


@for_each("connections", [1, 2, 3, 7, 8, 64, 4096])
def test_every_total_has_room_for_everybody_alone(connections):
    limits = ConnectionLimits.sharing(connections)
    for peer in (THIS_MACHINE, "10.0.0.1"):
        assert fill(OpenConnections(limits), peer, 1) == 1


@given(st.lists(st.tuples(st.sampled_from([THIS_MACHINE, "a", "b", "c", "d", "e"]), st.booleans()), max_size=300))
def test_the_count_is_exact_and_no_share_is_passed_whatever_comes_and_goes(steps: list[tuple[str, bool]]):
    shares, held = OpenConnections(LIMITS), list[tuple[str, Place]]()
    for peer, comes in steps:
        if comes:
            held.append((peer, shares.enter(peer, 0.0)[0]))
        elif held:
            shares.leave(*held.pop(0))
        inside = Counter(peer for peer, place in held if place is Place.ADMITTED)
        assert shares.open == inside.total() <= LIMITS.all
        assert all(shares.of(peer) == inside[peer] for peer in ("a", "b", THIS_MACHINE))
        assert max([0, *(count for peer, count in inside.items() if peer != THIS_MACHINE)]) <= LIMITS.one_machine
        assert inside[THIS_MACHINE] <= LIMITS.this_machine
        assert inside.total() - inside[THIS_MACHINE] <= LIMITS.all_others
