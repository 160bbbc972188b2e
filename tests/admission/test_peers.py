"""Whom an address stands for, and the limit on wrong keys in instants that the test makes up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hearth.admission.http_checks import MAX_PEERS, PER_WINDOW, THIS_MACHINE, WINDOW_S, WrongKeys, is_loopback, peer_of

PEER = "192.168.1.9"
PEERS = {
    **dict.fromkeys(("127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", None), THIS_MACHINE),
    "192.168.1.9": "192.168.1.9",
    "::ffff:192.168.1.9": "192.168.1.9",
    "fd00:1:2:3::9": "fd00:1:2:3::/64",
    "fd00:1:2:3:ffff::1": "fd00:1:2:3::/64",
    "fd00:1:2:4::9": "fd00:1:2:4::/64",
    "fe80::1%eth0": "fe80::/64",
    "not an address": "unknown",
    "localhost": "unknown",
    "": "unknown",
}


def test_a_machine_is_its_ipv4_address_or_the_network_in_which_it_may_choose_any():
    for address, peer in PEERS.items():
        assert peer_of(address) == peer, address
        assert address is None or is_loopback(address) is (peer == THIS_MACHINE), address


def tried(keys: WrongKeys, at: list[float], peer: str = PEER) -> list[bool]:
    """Which of the wrong keys at these instants got an answer."""
    return [keys.note(peer, now) is None for now in at]


def test_some_wrong_keys_in_a_minute_are_answered_and_the_next_is_told_when_to_come_again():
    keys = WrongKeys()
    assert all(tried(keys, [float(at) for at in range(PER_WINDOW)]))
    slowed = keys.note(PEER, 30.0)
    assert slowed is not None
    assert slowed.wait_s == WINDOW_S - 30.0
    assert keys.note(PEER, 30.0 + slowed.wait_s) is None


def test_one_peer_does_not_slow_another():
    keys = WrongKeys()
    tried(keys, [0.0] * 100)
    assert keys.note("192.168.1.8", 0.0) is None


def test_the_house_is_told_once_a_minute_how_many_there_were():
    keys = WrongKeys()
    said = [(at, slowed.wrong) for at in range(180) if (slowed := keys.note(PEER, float(at))) is not None and slowed.wrong]
    assert said == [(10, 11), (70, 60), (130, 60)]


def test_what_was_long_ago_is_not_counted_with_what_is_now():
    keys = WrongKeys()
    tried(keys, [0.0] * 5)
    slowed = [keys.note(PEER, 1000.0) for _ in range(PER_WINDOW + 1)][-1]
    assert slowed is not None
    assert slowed.wrong == PER_WINDOW + 1


def test_a_program_that_looks_in_now_and_then_with_an_old_key_is_never_slowed():
    assert all(tried(WrongKeys(), [at * 10.0 for at in range(1000)]))


def test_many_peers_take_bounded_memory_and_who_was_quiet_for_longest_is_forgotten():
    keys = WrongKeys()
    tried(keys, [0.0] * PER_WINDOW)
    tried(keys, [0.0] * PER_WINDOW, "the other")
    for number in range(MAX_PEERS - 2):
        keys.note(f"10.0.{number}.1", 1.0)
    assert keys.note(PEER, 2.0) is not None
    keys.note("one more", 2.0)
    assert len(keys) == MAX_PEERS
    assert keys.note(PEER, 2.0) is not None
    assert keys.note("the other", 2.0) is None


@given(st.lists(st.floats(min_value=0, max_value=20, allow_nan=False), max_size=200))
def test_no_minute_has_more_answers_than_the_limit_and_a_promised_instant_is_kept(gaps: list[float]):
    keys, now, answered = WrongKeys(), 0.0, list[float]()
    for gap in gaps:
        now += gap
        slowed = keys.note(PEER, now)
        if slowed is None:
            answered.append(now)
            assert sum(at > now - WINDOW_S for at in answered) <= PER_WINDOW
        else:
            assert 0 < slowed.wait_s <= WINDOW_S
            assert sum(at > now + slowed.wait_s - WINDOW_S + 1e-6 for at in answered) < PER_WINDOW
