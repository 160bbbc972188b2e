"""The settings of callers: their keys and rights, how much each may ask for, and how Hearth adapts
to well-known programs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import ConfigDict

from hearth.config import fields
from hearth.config.choices import KeepaliveShow
from hearth.config.fields import Section
from hearth.types import Counted, Lane, Priority


class BackgroundRequest(Section):
    """A request that a program sends on its own account, known by how its prompt begins."""

    name: fields.Name
    """Name in status and logs."""
    place: Literal["system", "only", "last"] = "system"
    """Where the text stands: `system` (in one of the first instructions), `only` (in the only
    message beside the instructions) or `last` (in the user's last message).
    """
    starts_with: fields.PromptText
    """How the text begins, in exactly these letters; at least 8 characters."""
    then: fields.Items[fields.PromptPart] = ()
    """What follows anywhere behind that, in this order."""
    background: fields.Flag = True
    """`false`: a user waits for it, although an entry that ships with Hearth says otherwise."""


class ClientSettings(Section):
    """How Hearth adapts to well-known clients."""

    background: fields.Items[BackgroundRequest] = ()
    """Requests that go behind all other external ones, beside the titles and the like that Hearth
    knows (docs/background.md). The first entry that fits decides.
    """
    background_tasks: Literal["resident", "as_asked"] = "resident"
    """Model for Open WebUI's titles, tags and follow-ups: `resident` (one that is loaded, so no
    swap) or `as_asked` (as in the request).
    """
    strip_attribution: fields.Flag = True
    """Remove the changing attribution line from Claude Code's system prompt.

    With it, the prompt cache is lost on every turn.
    """


class CallerLimits(Section):
    """Limits of one caller."""

    requests_per_minute: fields.Count | None = None
    """Maximum requests in any 60 seconds, embeddings apart. Unset: see `rate_limits.default`."""
    requests_per_hour: fields.Count | None = None
    """Maximum requests in any 3600 seconds, embeddings apart. Unset: see `rate_limits.default`."""
    embeddings_per_minute: fields.Count | None = None
    """Maximum embedding calls to the model server in any 60 seconds; requests that share one are
    one. Unset: see `rate_limits.default`.
    """
    embeddings_per_hour: fields.Count | None = None
    """Maximum embedding calls to the model server in any 3600 seconds.

    Unset: see `rate_limits.default`.
    """
    reading_s_per_minute: fields.Duration | None = None
    """Maximum CPU seconds in any 60 that Hearth spends on reading the bodies of requests.

    Unset: see `rate_limits.default`.
    """
    when_exceeded: Literal["refuse", "wait"] | None = None
    """What becomes of requests over a limit: `refuse` (429) or `wait` (until they are within it, at
    most 240 s, else 429). Unset: see `rate_limits.default`, and `refuse`.
    """


def _first(limits: Iterable[float | None]) -> float:
    return next(limit for limit in limits if limit is not None)


_UNSET = CallerLimits()
_LIMITS = tuple(name for name in CallerLimits.model_fields if name != "when_exceeded")
_WITH_KEYS = CallerLimits(
    requests_per_minute=120,
    requests_per_hour=2000,
    embeddings_per_minute=600,
    embeddings_per_hour=20_000,
    reading_s_per_minute=3.0,
    when_exceeded="refuse",
)
"""More than any interactive program asks: Open WebUI sends three requests beside each answer, an
editor one for each pause in typing, and an upload of a thousand chunks is 125 calls. A prompt of
128,000 tokens takes 20 ms to read.
"""


class RateLimitSettings(Section):
    """How many requests callers may send. Internal callers have no limit."""

    default: CallerLimits = _UNSET
    """Limits of every external caller without its own. Unset, for callers with a key: 120 requests
    per minute and 2000 per hour, 600 and 20000 embedding calls, and 3 s of reading per minute; none
    without keys.
    """
    callers: fields.ReadOnlyTable[fields.Name, CallerLimits] = fields.EMPTY
    """Limits of single callers by name, such as `notebook: {requests_per_minute: 30}`."""

    def of_caller(self, caller: str, kind: Counted = "requests") -> tuple[int, int]:
        """Requests, or embedding calls, per minute and hour."""
        chain = self._chain(caller)
        if kind == "requests":
            return int(_first(each.requests_per_minute for each in chain)), int(
                _first(each.requests_per_hour for each in chain)
            )
        return int(_first(each.embeddings_per_minute for each in chain)), int(
            _first(each.embeddings_per_hour for each in chain)
        )

    def reading_s(self, caller: str) -> float:
        """Seconds per minute that reading this caller's bodies may take."""
        return _first(each.reading_s_per_minute for each in self._chain(caller))

    def when_exceeded(self, caller: str) -> Literal["refuse", "wait"]:
        """What becomes of a request over a limit of its caller."""
        chosen = (each.when_exceeded for each in self._chain(caller))
        return next(each for each in chosen if each is not None)

    def _chain(self, caller: str) -> tuple[CallerLimits, ...]:
        """The caller's own, then the owner's default, then ours."""
        return (self.callers.get(caller, _UNSET), self.default, _WITH_KEYS)

    def default_of(self, field: str) -> float:
        """A limit of callers who have none of their own."""
        return _first(getattr(each, field) for each in self._chain(""))

    def are_stated(self, caller: str) -> bool:
        """Whether the owner has set any limit for this caller."""
        stated = (self.default, self.callers.get(caller, _UNSET))
        return any(getattr(each, name) is not None for each in stated for name in _LIMITS)

    def setting_of(self, caller: str, field: str) -> str:
        """The path of the setting that decides a limit of a caller, such as
        `requests_per_minute`.
        """
        own = self.callers.get(caller)
        is_default = own is None or getattr(own, field) is None
        return f"rate_limits.{'default' if is_default else f'callers.{caller}'}.{field}"


class BudgetSettings(Section):
    """The daily budget for cloud models."""

    daily_external_usd: fields.Usd = 5.0
    """US dollars that all external callers together may spend per day.

    Days begin at midnight in `scheduling.time_zone`.
    """
    alert_pct: fields.Percentage = 80.0
    """Percentage of the budget at which you get an alert."""


def _allow_key(schema: dict[str, Any]) -> None:
    """In the file a key from the environment may stand in place of its digest; it is hashed before
    the settings are made.
    """
    schema["properties"]["key"] = {
        "type": "string",
        "pattern": r"^\$\{[A-Za-z_][A-Za-z0-9_]*(:-)?\}$",
        "description": (
            "Instead of `sha256`: the key itself, as `${NAME}` from the environment, 16 characters"
            " or more. `${NAME:-}` may be unset; then nobody has the key. hot"
        ),
    }
    schema["required"] = ["name"]
    schema["oneOf"] = [{"required": ["sha256"]}, {"required": ["key"]}]


class KeySettings(Section):
    """One API key and the rights of its caller. Exactly one of `sha256` and `key` is given."""

    model_config = ConfigDict(json_schema_extra=_allow_key)

    name: fields.Name
    """Name of the caller in status, limits and logs."""
    sha256: fields.Digest
    """SHA-256 of the key in hex; `hearth key new NAME` prints both.

    Or `key: ${NAME}`: the key itself, from the environment.
    """
    lane: Lane = Lane.EXTERNAL
    """`internal` requests go before all others.

    `external` requests are served in order of arrival, or by `queue.sharing`.
    """
    max_priority: fields.PriorityName = Priority.CRITICAL
    """Highest internal priority the caller may ask for: `critical`, `normal` or `background`."""
    priority: fields.PriorityName = Priority.NORMAL
    """Internal priority of requests that name no task type.

    `critical` for an assistant that somebody talks to.
    """
    models: fields.Items[fields.ModelName] = ()
    """Models the caller may use, with `*` as wildcard. Empty: all."""
    users_from: fields.HeaderName = ""
    """Header in which the program behind this key names its users, such as `x-openwebui-user-id`.
    Each then has a share of its own (`queue.sharing`), half of the key's rate limits at most, and
    is shown in status and history; rights are those of the key. Empty: its users are one caller.
    """
    admin: fields.Flag = False
    """Allow interrupting, cancelling requests of others, reloading, and managing Ollama's
    models.
    """
    may_lease: fields.Flag = False
    """Allow taking the GPU for another program (`/llm/gpu/leases`). Admins may anyway."""
    may_set_mode: fields.Flag = False
    """Allow switching the mode (`/llm/mode`). Admins may anyway."""
    allow_cloud: fields.Flag = False
    """Allow answers from Claude (`cloud`).

    This costs money and sends prompts out of your network.
    """
    local_only: fields.Flag = False
    """Keep the caller's requests on this machine: no Claude, whatever `allow_cloud` says, and no
    model of an `openai` or elastic engine.
    """
    daily_usd: fields.Usd | None = None
    """US dollars the caller may spend on Claude per day. Unset: no limit of its own."""
    keepalive_show: KeepaliveShow | None = None
    """What the caller's waiting streams show a person, `thinking` or `nothing`.

    Unset: as `keepalive.show`.
    """


class AuthSettings(Section):
    """Who may use Hearth."""

    keys: fields.Items[KeySettings] = ()
    """API keys. Empty: only callers on this machine."""
