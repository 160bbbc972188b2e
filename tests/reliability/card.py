"""What is in the memory of an imagined card, by what the system says: a server of a model holds its
part from when its process is there until it is gone. Beside it stand the leases as their holders
know them, so nothing of this is the gateway's word but that a lease was taken, and that it is
granted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

SERVER = "tests.engines.llamacpp.server_command"
LOOK_S = 0.05
DECIDED_BEFORE_S = 1.0
"""A server may still start so long after a lease was taken: its load had been decided before, and a
guard and an interpreter had to start for it.
"""


@dataclass
class Claim:
    """A lease of a holder. Instants are monotonic.

    Attributes:
        gb: None for all. asked_at: when it was asked for. known_at: when the gateway had said that
        it is taken. until: when it ends at the earliest, None where only its holder ends it.
    """

    gb: float | None
    asked_at: float
    known_at: float
    until: float | None = None
    granted_at: float | None = None

    def is_in_force(self, now: float) -> bool:
        return self.until is None or now < self.until


@dataclass(frozen=True)
class Server:
    """The process of a model's server, and when it started, by the clock of `time.monotonic`."""

    pid: int
    model: str
    started_at: float


@dataclass
class Card:
    """Looks for servers whose command line names a folder, and holds them against the claims."""

    folder: Path
    sizes_gb: Mapping[str, float]
    capacity_gb: float
    claims: dict[str, Claim] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    looks: int = 0
    _strange: set[int] = field(default_factory=set)
    _seen: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._strange = set(_processes())

    def servers(self) -> list[Server]:
        """Those that are alive now."""
        found = []
        for pid in _processes():
            if pid not in self._strange:
                with suppress(OSError, IndexError):  # it has ended meanwhile
                    if server := self._server(pid):
                        found.append(server)
        return found

    def _server(self, pid: int) -> Server | None:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        if words[1:3] != ["-m", SERVER] or not any(str(self.folder) in word for word in words):
            return None
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        since_boot_s = int(fields[19]) / 100
        slept_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
        if fields[0] in "ZX":
            return None
        return Server(pid, words[words.index("--alias") + 1], since_boot_s - slept_s)

    async def watch(self) -> NoReturn:
        """Look again and again, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """No server beyond what granted leases leave, and none that started into what a lease has
        taken. Nothing else of this loop runs meanwhile, so the claims stay as they are.
        """
        servers = self.servers()
        now = time.monotonic()
        self.looks += 1
        held_gb = sum(self.sizes_gb[server.model] for server in servers)
        granted = [claim for claim in self._in_force(now) if claim.granted_at is not None]
        if held_gb > self._room_gb(granted):
            self._report("in granted room", servers, granted)
        for server in servers:
            if server.pid not in self._seen:
                self._seen.add(server.pid)
                self._check_start(server, servers, held_gb, now)

    def _check_start(
        self, server: Server, servers: list[Server], held_gb: float, now: float
    ) -> None:
        before = server.started_at - DECIDED_BEFORE_S
        taken = [claim for claim in self._in_force(now) if claim.known_at < before]
        if held_gb > self._room_gb(taken):
            self._report(f"{server.model} started into leased room", servers, taken)

    def _in_force(self, now: float) -> Iterator[Claim]:
        return (claim for claim in self.claims.values() if claim.is_in_force(now))

    def _room_gb(self, claims: list[Claim]) -> float:
        if any(claim.gb is None for claim in claims):
            return 0.0
        return max(0.0, self.capacity_gb - sum(claim.gb or 0.0 for claim in claims))

    def _report(self, what: str, servers: list[Server], claims: list[Claim]) -> None:
        models = ", ".join(server.model for server in servers)
        sizes = ", ".join("all" if claim.gb is None else f"{claim.gb:g} GiB" for claim in claims)
        self.wrong.append(f"at {time.monotonic():.2f}: {what}: {models} beside leases of {sizes}")


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
