"""When the owner's file is looked at again, what was found there, and when that is tried.

`ReloadPlan` is a pure state machine: it learns of touches, looks, tries and orders with their instants, and says what comes next. A content
is tried only after two looks have found it alike with quiet before them, and only if it differs from what was tried last: a file that is
half written, or replaced in several steps, is never read as a configuration. `look_at` reads the file and never raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from hearth.config.gateway_config import GatewayConfig
from hearth.config.loading import digest_of, load_gateway_config, parse_bytes, read_bytes
from hearth.config.rendering import differences
from hearth.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """What a new configuration has changed: `changed` since the one before, `pending` (restart keys) since the start."""

    changed: tuple[str, ...]
    pending: tuple[str, ...]


class ReloadHistory:
    """Counts and names; instants are seconds since 1970-01-01 UTC.

    Attributes:
        generation: 1 at the start, one more with each configuration that differs from the one before.
        pending: changed keys that wait for a restart.
        problems: why the last file was refused; empty where it was not.
    """

    def __init__(self, config: GatewayConfig, wall_s: float) -> None:
        self._started_with = config.settings
        self._loaded_wall_s = wall_s
        self._tried_wall_s = wall_s
        self._accepted = 0
        self._rejected = 0
        self.generation = 1
        self.pending: tuple[str, ...] = ()
        self.problems: tuple[str, ...] = ()

    def accepted(self, old: GatewayConfig, new: GatewayConfig, wall_s: float) -> Replaced:
        """`new` has taken the place of `old`."""
        changed = tuple(differences(old.settings, new.settings))
        self.pending = tuple(path for path, hot in differences(self._started_with, new.settings).items() if not hot)
        self.generation += bool(changed)
        self.problems = ()
        self._accepted += 1
        self._loaded_wall_s = self._tried_wall_s = wall_s
        return Replaced(changed=changed, pending=self.pending)

    def rejected(self, problems: tuple[str, ...], wall_s: float) -> None:
        """A file was not usable."""
        self.problems = problems
        self._rejected += 1
        self._tried_wall_s = wall_s

    def shown(self, config: GatewayConfig) -> dict[str, object]:
        """The history as status and health show it, with where `config`, the one in force, comes from."""
        return {
            "generation": self.generation,
            "source": str(config.source or "defaults"),
            "problems": list(self.problems),
            "loaded_wall": round(self._loaded_wall_s, 3),
            "last_attempt": round(self._tried_wall_s, 3),
            "reload_count": self._accepted,
            "rejected_count": self._rejected,
            "restart_pending": list(self.pending),
        }


QUIET_S = 0.3
"""A file counts as written when nothing has happened to it for this long."""
RESTLESS_S = 0.6
"""Where something happens in its directory all the time, it is looked at this long after the first touch all the same."""
WRITING_S = 5.0
"""The longest that a program which holds the file open and writes to it is waited for."""
CONFIRM_S = 0.1
"""Between the two looks that have to find the same."""
GONE_S = 1.0
"""The same for a file that cannot be read: a program that deletes a file and writes it anew gets this long."""
POLL_S = 10.0
"""Between looks that nothing gave a reason for; some file systems report no changes."""
BLIND_POLL_S = 0.5
"""The same while no changes are reported."""
ORDER_GAP_S = 1.0
"""Orders that come faster than this share one try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was found at a path.

    Attributes:
        token: equal for equal findings: the digest of the content, or why there is none.
        content: the bytes, at most one more than a configuration may have; None where it could not be read, and `problems` say why.
    """

    token: str
    content: bytes | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A configuration, or the problems of what was found."""

    config: GatewayConfig | None
    problems: tuple[str, ...] = ()


def look_at(path: Path) -> Look:
    """Read the file at `path`, whatever is there."""
    try:
        content = read_bytes(path)
    except ConfigError as error:
        return Look(token="; ".join(error.problems), problems=error.problems)
    return Look(token=digest_of(content), content=content)


def attempt(look: Look, path: Path, environ: Mapping[str, str] | None = None) -> Attempt:
    """The configuration in what was found; parsing takes a while, so callers on an event loop use a thread."""
    if look.content is None:
        return Attempt(config=None, problems=look.problems)
    try:
        return Attempt(config=parse_bytes(look.content, path, environ))
    except ConfigError as error:
        return Attempt(config=None, problems=error.problems)


def read_attempt(path: Path | None, environ: Mapping[str, str] | None = None) -> Attempt:
    """Look and try in one; for a gateway that was started without a file, the default path where there is one by now, else the defaults."""
    try:
        return Attempt(config=load_gateway_config(path, environ))
    except ConfigError as error:
        return Attempt(config=None, problems=error.problems)


class Step(Enum):
    """What is to be done now: nothing; look, and say what was found; look and try, whatever was found."""

    WAIT = auto()
    LOOK = auto()
    OBEY = auto()


class ReloadPlan:
    """What comes next for one file.

    Args:
        tried: the token of the content that is in force; empty where it is unknown.
        polls: whether to look without a reason; the first such look comes at once.
    """

    def __init__(self, tried: str, now: float, *, polls: bool) -> None:
        self._tried = tried
        self._seen: str | None = None
        self._poll_at = now if polls else float("inf")
        self._polls = polls
        self._due_at: float | None = None
        self._first_at = now
        self._writing = False
        self._told = False
        self._ordered = False
        self._obeyed_at = float("-inf")

    def touched(self, now: float, *, writing: bool = False) -> None:
        """Something happened at the file or around it; `writing` says that its writer has not closed it yet."""
        if self._due_at is None or (self._writing and not writing):
            self._first_at = now
        self._writing = writing
        self._due_at = self._first_at + WRITING_S if writing else min(now + QUIET_S, self._first_at + RESTLESS_S)

    def ordered(self) -> None:
        """The owner wants the file tried, changed or not."""
        self._ordered = True

    def step(self, now: float) -> Step:
        """What is to be done at `now`; a step is given once."""
        if self._ordered and now >= self._obeyed_at + ORDER_GAP_S:
            self._ordered, self._obeyed_at = False, now
            return Step.OBEY
        if now < self._look_at():
            return Step.WAIT
        self._told = self._due_at is not None and now >= self._due_at
        if self._told:
            self._due_at, self._writing = None, False
        self._poll_at = float("inf")
        return Step.LOOK

    def looked(self, look: Look, now: float, *, blind: bool) -> bool:
        """Take note of what a look has found; `blind` says that no changes are reported at present.

        Returns:
            Whether this content is to be tried now.
        """
        if self._polls:
            self._poll_at = now + (BLIND_POLL_S if blind else POLL_S)
        if look.token in {self._tried, self._seen}:
            self._seen = None
            return look.token != self._tried
        self._seen = look.token
        if self._due_at is None:
            wait_s = CONFIRM_S if self._told and not blind else QUIET_S
            self._first_at, self._due_at = now, now + (GONE_S if look.content is None else wait_s)
        return False

    def tried(self, token: str) -> None:
        """The content with this token has been tried; it is not tried again before something else was."""
        self._tried = token

    def wake_at(self) -> float:
        """The next instant at which `step` may say something new; infinity where only a touch or an order can bring it."""
        return min(self._look_at(), self._obeyed_at + ORDER_GAP_S) if self._ordered else self._look_at()

    def _look_at(self) -> float:
        return self._poll_at if self._due_at is None else min(self._poll_at, self._due_at)
