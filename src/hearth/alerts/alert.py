"""The values that travel: an alert, and the message that carries one or several of them. No behaviour beyond their own words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

from hearth.config.settings import AlertType

NAME_CHARS = 100
_MARKDOWN = frozenset("\\*_~`|>#[]()<:-+.!@")
_ELLIPSIS = "…"


def shown(text: str, limit: int = NAME_CHARS) -> str:
    """A name or a reason on one line: what is not printable (line breaks, ESC, direction overrides) becomes `?`, the end is cut."""
    head = "".join(each if each.isprintable() else "?" for each in text[: limit + 1])
    return head if len(head) <= limit else head[: limit - 1] + _ELLIPSIS


def discord_text(text: str, limit: int) -> str:
    """The text as Discord shows it literally, in at most `limit` UTF-16 units: no markup, mention, link or quote takes effect.

    Discord reads a backslash before punctuation as that character; `@everyone` takes a character of no width as well, since clients
    colour it even where it notifies nobody.
    """
    pieces = [_escaped(each) for each in text]
    if sum(map(_units, pieces)) <= limit:
        return "".join(pieces)
    kept: list[str] = []
    room = limit - _units(_ELLIPSIS)
    for piece in pieces:
        room -= _units(piece)
        if room < 0:
            break
        kept.append(piece)
    return "".join(kept) + _ELLIPSIS


def _escaped(char: str) -> str:
    if char == "@":
        return "\\@\u200b"
    return f"\\{char}" if char in _MARKDOWN else char


def _units(text: str) -> int:
    """Length as Discord's clients count."""
    return sum(2 if ord(each) > 0xFFFF else 1 for each in text)


AlertKey = tuple[AlertType, str]
"""What is debounced by itself: the type, and whom it is about."""


class Severity(IntEnum):
    """How bad it is; where room is short, the least bad goes first."""

    INFO = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something that the owner should know.

    Attributes:
        subject: whom it is about: a caller, a model, a part of Hearth; empty for the house as a whole.
        text: one or two plain sentences; never a prompt, an answer, a key or a URL.
        at: the monotonic instant of the fact in seconds.
        lasting: it goes on until an alert with the same key and `resolved` ends it.
        resolved: it is over.
        suppressed: alerts with this key that were left out since the last one that was sent.
    """

    type: AlertType
    text: str
    at: float
    subject: str = ""
    severity: Severity = Severity.WARNING
    lasting: bool = False
    resolved: bool = False
    suppressed: int = 0

    @property
    def key(self) -> AlertKey:
        return self.type, self.subject

    @property
    def title(self) -> str:
        """The type in words, ASCII only: HTTP headers carry it."""
        return f"Over: {TITLES[self.type]}" if self.resolved else TITLES[self.type]

    @property
    def sentences(self) -> str:
        """The text, and how many like it were left out."""
        if not self.suppressed:
            return self.text
        return f"{self.text} {self.suppressed} more like this since the last message."


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What one post says.

    Attributes:
        alerts: at least one; several make a digest.
        dropped: alerts that found no room on their way to this target since its last message.
        wall_at: seconds since 1970-01-01 UTC.
    """

    alerts: tuple[Alert, ...]
    dropped: int = 0
    wall_at: float

    @property
    def title(self) -> str:
        if len(self.alerts) == 1:
            return f"Hearth: {self.alerts[0].title}"
        return f"Hearth: {len(self.alerts)} alerts"

    @property
    def severity(self) -> Severity:
        """That of the worst of them; what is over is no longer bad."""
        return max(Severity.INFO if each.resolved else each.severity for each in self.alerts)

    @property
    def resolved(self) -> bool:
        """Whether all of it is over."""
        return all(each.resolved for each in self.alerts)

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.type.value for each in self.alerts))

    @property
    def lines(self) -> tuple[str, ...]:
        """One line per alert, each with its title where there are several, and one for what was dropped."""
        said = [each.sentences if len(self.alerts) == 1 else f"{each.title}: {each.sentences}" for each in self.alerts]
        lost = [f"Dropped, since it could not be sent in time: {self.dropped} more."] if self.dropped else []
        return (*said, *lost)


TITLES: Mapping[AlertType, str] = MappingProxyType(
    {
        AlertType.RATE_LIMITED: "Caller over its rate limit",
        AlertType.QUEUE_DEPTH: "Long queue",
        AlertType.QUEUE_FULL: "Queue full",
        AlertType.STARVATION: "Request interrupted again and again",
        AlertType.REPLAY_DIVERGED: "Interrupted answer could not be resumed",
        AlertType.GPU_SWAP_FREQUENCY: "Many model swaps",
        AlertType.GPU_SWAP_LATENCY: "Slow model swap",
        AlertType.GPU_SWAP_OVERHEAD: "Model swaps take much of the GPU's time",
        AlertType.GPU_LOST: "GPU lost",
        AlertType.GPU_HOT: "GPU hot",
        AlertType.SWAP_FAILED: "Model did not load",
        AlertType.MODEL_OFFLOADED: "Model runs partly on the CPU",
        AlertType.RESIDENCY_DRIFTED: "Models changed without Hearth",
        AlertType.BACKEND_DOWN: "Model server down",
        AlertType.BUDGET: "Cloud budget nearly spent",
        AlertType.BUDGET_EXHAUSTED: "Cloud budget spent",
        AlertType.CLOUD_DOWN: "Claude takes no work",
        AlertType.CONFIG_REJECTED: "Configuration not usable",
        AlertType.CLOCK_DOUBTED: "Clock in doubt",
        AlertType.STORAGE_FAILED: "Log cannot be written",
        AlertType.DISK_LOW: "Disk nearly full",
        AlertType.LOOP_LAG: "Hearth was held up",
        AlertType.WRONG_KEYS: "Wrong keys",
        AlertType.CONNECTIONS: "Too many connections",
        AlertType.INTERNAL_FAULT: "Defect in Hearth",
        AlertType.TEST: "Test message",
    }
)
