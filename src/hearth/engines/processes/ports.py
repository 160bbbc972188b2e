"""Ports for the servers of one engine."""

from __future__ import annotations

import secrets
import socket

from hearth.errors import LoadError


class Ports:
    """A range of ports, none of which is given to two servers.

    Args:
        setting: where the range is written, for messages; empty where it is not.
    """

    def __init__(self, ports: range, setting: str) -> None:
        self._ports = ports
        self._setting = setting
        self._taken: set[int] = set()
        self._next = secrets.randbelow(len(ports))
        """By chance: another gateway with this range may start a server at the same moment, and a
        port is only seen as taken once its server listens.
        """

    def take(self) -> int:
        """A port that nobody listens on, the one that was given longest ago first, so that nobody
        takes the next server for the one before it. Raises LoadError.
        """
        for step in range(len(self._ports)):
            place = (self._next + step) % len(self._ports)
            port = self._ports[place]
            if port not in self._taken and _is_free(port):
                self._taken.add(port)
                self._next = place + 1
                return port
        remedy = (
            f"give {self._setting} another range" if self._setting else "end what listens on one"
        )
        raise LoadError(
            f"none of the ports {self._ports[0]} to {self._ports[-1]} is free: {remedy}"
        )

    def free(self) -> int:
        """How many nobody listens on."""
        return sum(_is_free(port) for port in self._ports if port not in self._taken)

    def give_back(self, port: int) -> None:
        self._taken.discard(port)


def _is_free(port: int) -> bool:
    """Nobody listens on it, at whatever address of this machine."""
    with socket.socket() as probe:
        # as servers do: what is left of closed connections keeps nobody from listening
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
