"""What Hearth listens on, what it stands in front of, and the habits of clients."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BackendMode(StrEnum):
    """Where answers come from."""

    AUTO = "auto"
    OLLAMA = "ollama"
    EMULATOR = "emulator"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """How model servers are treated."""

    mode: BackendMode = BackendMode.AUTO
    """`ollama`, `emulator`, or `auto`: Ollama where one answers at start, else the embedded emulator. restart"""
    wait_when_down_s: float = 10.0
    """Seconds that requests wait for a model server that is down before they get 503. hot"""
    check_interval_s: float = 5.0
    """Seconds between looks at what the model server holds in memory. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaSettings:
    """The Ollama behind Hearth."""

    url: str = "http://127.0.0.1:11434"
    """Where it listens. restart"""
    connect_timeout_s: float = 5.0
    """Seconds for a connection. restart"""
    first_byte_timeout_s: float = 60.0
    """Seconds without any byte before a model counts as stuck (prompt time is added for long prompts). hot"""
    idle_timeout_s: float = 120.0
    """Seconds between two chunks of a running answer. hot"""
    answer_timeout_s: float | None = None
    """Seconds that an answer may take which does not stream; unset is twice what its longest form should take, 30 at least. A stream has
    no such limit: it ends when it stops moving. hot"""


class LogFormat(StrEnum):
    """How the log is written."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """How much is logged."""

    INFO = "info"
    DEBUG = "debug"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepaliveSettings:
    """Signs of life for streaming callers who wait."""

    after_s: float = 10.0
    """Seconds of waiting after which the answer begins with a sign of life; before it, real status codes are possible. hot"""
    every_s: float = 15.0
    """Seconds between further signs of life while nothing else is sent. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Hearth's own door."""

    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback needs `auth.keys`. restart"""
    port: int = 8411
    """Port to listen on. restart"""
    allowed_hosts: tuple[str, ...] = ()
    """Host names callers may use besides loopback names and `host` (`gpu-box.lan`, without port). hot"""
    allowed_origins: tuple[str, ...] = ()
    """Pages that may use the model APIs from a browser (`app://obsidian.md`, `http://localhost:*`, `vscode-webview://*`). hot"""
    max_body_mib: float = 32.0
    """Largest request body in MiB. hot"""
    max_bodies_mib: float = 256.0
    """All request bodies together that are held at one time, in MiB; never less than three times `max_body_mib`. hot"""
    prompt_previews: bool = False
    """Show the first 80 characters of each prompt in the status and its stream, to everybody who may read them. hot"""
    write_buffer_mib: float = 4.0
    """Unread bytes held for a slow reader, in MiB, before the model server is made to wait. hot"""
    write_deadline_s: float = 10.0
    """Seconds a full buffer may stand still before its reader is dropped. hot"""
    shutdown_grace_s: float = 10.0
    """Seconds that running work gets at shutdown. hot"""
    log_format: LogFormat = LogFormat.AUTO
    """`text`, `json`, or `auto`: text in a terminal, JSON elsewhere. restart"""
    log_level: LogLevel = LogLevel.INFO
    """`info`: one line for each finished item; `debug`: also its steps on the way. restart"""


class BackgroundTasks(StrEnum):
    """Which model answers what a chat client asks for on its own account."""

    RESIDENT = "resident"
    AS_ASKED = "as_asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Habits of well-known clients, and what is done about them."""

    background_tasks: BackgroundTasks = BackgroundTasks.RESIDENT
    """Open WebUI's titles, tags and follow-ups: answered by whatever model is `resident`, so that they never cause a swap, or by the model
    `as_asked`. hot"""
    strip_attribution: bool = True
    """Take Claude Code's changing attribution line out of its system prompt, which else spoils the prompt cache on every turn. hot"""
