"""Which values the fields of the file may have: every range and every rule for text, in one place.

A rule for a field of several texts holds for each of them; one for a mapping holds for its keys. The checks of text raise ValueError
with a text for the owner, as pydantic expects of a validator; they never name the value. Used by `models` only.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import urlsplit

from cronsim import CronSimError

from hearth.config import active_hours
from hearth.config.settings import (
    Announcement,
    BackendSettings,
    BudgetSettings,
    CallerLimits,
    GpuAlertSettings,
    GpuSettings,
    KeepaliveSettings,
    KeySettings,
    ModelSettings,
    OllamaSettings,
    QueueSettings,
    RateLimitSettings,
    SchedulingSettings,
    ServerSettings,
    Settings,
    StorageSettings,
)

MAX_TEXT_CHARS = 1000
MAX_NAME_CHARS = 256
MAX_CRON_CHARS = 100
_YEAR_S = 366.0 * 86400
_SOME_MONDAY_S = 1_704_067_200.0
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?", re.ASCII)
_DIGEST = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The numbers that a field takes; `above` excludes its bound, the others include theirs."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None


_DURATION = Range(at_least=0, at_most=_YEAR_S)
_TIMEOUT = Range(above=0, at_most=_YEAR_S)
_COUNT = Range(at_least=0, at_most=1_000_000_000)
_DEPTH = Range(at_least=1, at_most=1_000_000)
_PERCENTAGE = Range(at_least=0, at_most=100)
_GIBIBYTES = Range(at_least=0, at_most=1_000_000)
_MEBIBYTES = Range(above=0, at_most=1_000_000)
_SLOTS = Range(at_least=1, at_most=1024)

RANGES: Mapping[tuple[type, str], Range] = MappingProxyType(
    {
        (SchedulingSettings, "schedule_drain_minutes"): Range(at_least=0, at_most=1440),
        (SchedulingSettings, "max_swap_wait_s"): _DURATION,
        (SchedulingSettings, "residency_factor"): Range(at_least=0, at_most=1000),
        (SchedulingSettings, "preempt_min_remaining_s"): _DURATION,
        (SchedulingSettings, "preempt_finish_bound_s"): _DURATION,
        (SchedulingSettings, "replay_limit_mib"): Range(at_least=0, at_most=1024),
        (KeepaliveSettings, "after_s"): _TIMEOUT,
        (KeepaliveSettings, "every_s"): _TIMEOUT,
        (QueueSettings, "max_external_depth"): _DEPTH,
        (QueueSettings, "max_internal_depth"): _DEPTH,
        (QueueSettings, "max_interrupt_count"): _COUNT,
        (QueueSettings, "max_wait_s"): _DURATION,
        (CallerLimits, "requests_per_minute"): _COUNT,
        (CallerLimits, "requests_per_hour"): _COUNT,
        (BudgetSettings, "daily_external_usd"): Range(at_least=0, at_most=1_000_000),
        (BudgetSettings, "alert_pct"): _PERCENTAGE,
        (GpuAlertSettings, "swaps_per_hour_warning"): _COUNT,
        (GpuAlertSettings, "swap_wait_ms_warning"): Range(at_least=0, at_most=_YEAR_S * 1000),
        (GpuAlertSettings, "swap_overhead_pct_warning"): _PERCENTAGE,
        (GpuSettings, "swap_timeout_s"): _TIMEOUT,
        (GpuSettings, "restore_home_delay_s"): _DURATION,
        (GpuSettings, "vram_gb"): _GIBIBYTES,
        (GpuSettings, "parallel"): _SLOTS,
        (GpuSettings, "swap_cost_prior_s"): _DURATION,
        (ModelSettings, "vram_gb"): _GIBIBYTES,
        (ModelSettings, "parallel"): _SLOTS,
        (ModelSettings, "num_ctx"): Range(at_least=1, at_most=100_000_000),
        (BackendSettings, "wait_when_down_s"): _DURATION,
        (BackendSettings, "check_interval_s"): _TIMEOUT,
        (OllamaSettings, "connect_timeout_s"): _TIMEOUT,
        (OllamaSettings, "first_byte_timeout_s"): _TIMEOUT,
        (OllamaSettings, "idle_timeout_s"): _TIMEOUT,
        (ServerSettings, "port"): Range(at_least=1, at_most=65535),
        (ServerSettings, "max_body_mib"): _MEBIBYTES,
        (ServerSettings, "write_buffer_mib"): _MEBIBYTES,
        (ServerSettings, "write_deadline_s"): _TIMEOUT,
        (ServerSettings, "shutdown_grace_s"): _DURATION,
        (StorageSettings, "retention_days"): Range(above=0, at_most=36_600),
        (StorageSettings, "max_mib"): Range(at_least=1, at_most=1_000_000),
        (StorageSettings, "reserve_mib"): Range(at_least=0, at_most=1_000_000),
    }
)


def plain_text(text: str) -> str:
    """Printable, without white space around it, at most `MAX_TEXT_CHARS` long."""
    if not text.isprintable():
        raise ValueError("must not contain line breaks or control characters")
    if text != text.strip():
        raise ValueError("must not begin or end with a space")
    if len(text) > MAX_TEXT_CHARS:
        raise ValueError(f"must not be longer than {MAX_TEXT_CHARS} characters")
    return text


def name(text: str) -> str:
    """The name of a caller or of a task type."""
    if not text:
        raise ValueError("must not be empty")
    if len(text) > MAX_NAME_CHARS:
        raise ValueError(f"must not be longer than {MAX_NAME_CHARS} characters")
    return plain_text(text)


def model_name(text: str) -> str:
    """The name of a model, such as `llama3.1:8b`."""
    if any(each.isspace() for each in text):
        raise ValueError("is not a model name: it must not contain spaces")
    return name(text)


def model_name_or_nothing(text: str) -> str:
    """The name of a model, or the empty string."""
    return model_name(text) if text else text


def time_zone(text: str) -> str:
    """`local`, or a zone that this machine knows."""
    active_hours.zone_of(text)
    return text


def cron(text: str) -> str:
    """A five-field cron expression that names some instant."""
    if len(text) > MAX_CRON_CHARS or len(text.split()) != 5:
        raise ValueError("must have five fields: minute, hour, day of month, month, day of week")
    try:
        first = active_hours.next_cron(text, active_hours.zone_of("UTC"), _SOME_MONDAY_S)
    except CronSimError as error:
        raise ValueError(f"is not a cron expression: {str(error).lower()}") from None
    if first is None:
        raise ValueError("names a time that never comes")
    return text


def http_url(text: str) -> str:
    """An absolute http or https URL of a host, without user, query or fragment; returned without a trailing slash."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(each.isspace() for each in text):
        raise ValueError("must be a URL such as http://127.0.0.1:11434")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("must be a URL without user, password, query or fragment")
    return text.rstrip("/")


def listen_host(text: str) -> str:
    """A host name or an IP address to listen on."""
    if _is_address(text) or _HOST.fullmatch(text):
        return text
    raise ValueError("must be a host name or an IP address, without port")


def allowed_host(text: str) -> str:
    """A host name or an IP address as it stands in a Host header, without the port."""
    return listen_host(text.removeprefix("[").removesuffix("]") if text.startswith("[") else text)


def digest(text: str) -> str:
    """A SHA-256 digest in hex; returned in lower case."""
    if _DIGEST.fullmatch(text) is None:
        raise ValueError("must be 64 hex digits (the SHA-256 of the key; `hearth admin key new NAME` prints one)")
    return text.lower()


def log_format(text: str) -> str:
    """One of the formats that the log knows."""
    if text not in {"auto", "text", "json"}:
        raise ValueError("must be auto, text or json")
    return text


def file_path(text: str) -> str:
    """An absolute path, one under the user's home, or the empty string: what is relative would depend on where Hearth was started."""
    if text and not text.startswith(("/", "~/")):
        raise ValueError("must be an absolute path, or begin with ~/")
    return plain_text(text)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


TEXT_RULES: Mapping[tuple[type, str], Callable[[str], str]] = MappingProxyType(
    {
        (SchedulingSettings, "time_zone"): time_zone,
        (Announcement, "task_type"): name,
        (Announcement, "cron"): cron,
        (Settings, "priority_map"): name,
        (RateLimitSettings, "callers"): name,
        (GpuSettings, "home_model"): model_name_or_nothing,
        (Settings, "models"): model_name,
        (OllamaSettings, "url"): http_url,
        (ServerSettings, "host"): listen_host,
        (ServerSettings, "allowed_hosts"): allowed_host,
        (ServerSettings, "log_format"): log_format,
        (KeySettings, "name"): name,
        (KeySettings, "sha256"): digest,
        (KeySettings, "models"): model_name,
        (StorageSettings, "path"): file_path,
    }
)
