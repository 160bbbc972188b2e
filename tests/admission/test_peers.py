"""Whom an address stands for."""

from __future__ import annotations

import pytest

from hearth.admission.peers import THIS_MACHINE, is_loopback, peer_of


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", None])
def test_all_that_is_on_this_machine_is_one_peer(address):
    assert peer_of(address) == THIS_MACHINE


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        ("192.168.1.9", "192.168.1.9"),
        ("::ffff:192.168.1.9", "192.168.1.9"),
        ("fd00:1:2:3::9", "fd00:1:2:3::/64"),
        ("fd00:1:2:3:ffff::1", "fd00:1:2:3::/64"),
        ("fd00:1:2:4::9", "fd00:1:2:4::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("not an address", "unknown"),
        ("", "unknown"),
    ],
)
def test_a_machine_is_its_ipv4_address_or_the_network_in_which_it_may_choose_any(address, peer):
    assert peer_of(address) == peer


@pytest.mark.parametrize("address", ["192.168.1.9", "::ffff:10.0.0.1", "fe80::1", "", "localhost"])
def test_other_addresses_are_not_this_machine(address):
    assert not is_loopback(address)
