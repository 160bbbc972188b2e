"""Which values the fields of the file may have: every range and every rule for text, in one place.

A rule for a field of several texts holds for each; one for a mapping for its keys; `plain_text` for every text, before its own rule. Checks
of text raise ValueError with a text for the owner, as pydantic expects, and never name the value.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import SplitResult, urlsplit

from cronsim import CronSimError

from hearth.config import active_hours
from hearth.config.settings import (
    AgingSettings,
    AlertSettings,
    Announcement,
    BackendSettings,
    BatchSettings,
    BudgetSettings,
    CallerLimits,
    CloudPriceSettings,
    CloudSettings,
    CostAwareSettings,
    EmbeddingSettings,
    GpuAlertSettings,
    GpuSettings,
    JobSettings,
    KeepaliveSettings,
    KeySettings,
    ModelSettings,
    OllamaSettings,
    PackingSettings,
    QueueSettings,
    RateLimitSettings,
    SchedulingSettings,
    ServerSettings,
    Settings,
    StorageSettings,
    TelemetrySettings,
    TimeSliceSettings,
    WebhookSettings,
)

MAX_TEXT_CHARS = 1000
MAX_NAME_CHARS = 256
MAX_CRON_CHARS = 100
MIN_SECRET_CHARS = 16
_YEAR_S = 366.0 * 86400
_SOME_MONDAY_S = 1_704_067_200.0
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?", re.ASCII)
_GPU_DEVICE = re.compile(r"[0-9]{1,3}|(GPU|MIG)-[0-9A-Za-z/-]{1,80}", re.ASCII)
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(\*|(\*\.)?[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(\*|\d{1,5}))?")
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
_USD = Range(at_least=0, at_most=1_000_000)
_TOKEN_PRICE = Range(at_least=0, at_most=100_000)
_SLOTS = Range(at_least=1, at_most=1024)

RANGES: Mapping[tuple[type, str], Range] = MappingProxyType(
    {
        (SchedulingSettings, "schedule_drain_minutes"): Range(at_least=0, at_most=1440),
        (SchedulingSettings, "max_swap_wait_s"): _DURATION,
        (SchedulingSettings, "residency_factor"): Range(at_least=0, at_most=1000),
        (SchedulingSettings, "preempt_min_remaining_s"): _DURATION,
        (SchedulingSettings, "preempt_finish_bound_s"): _DURATION,
        (SchedulingSettings, "preempt_restart_bound_s"): _DURATION,
        (SchedulingSettings, "replay_limit_mib"): Range(at_least=0, at_most=1024),
        (CostAwareSettings, "coalesce_window_s"): _DURATION,
        (CostAwareSettings, "amortization_factor"): Range(at_least=0, at_most=1000),
        (CostAwareSettings, "max_wait_s"): _DURATION,
        (CostAwareSettings, "min_active_s"): _DURATION,
        (TimeSliceSettings, "min_slice_factor"): Range(at_least=0, at_most=1000),
        (AgingSettings, "promote_after_s"): _DURATION,
        (PackingSettings, "lookahead"): Range(at_least=1, at_most=10_000),
        (PackingSettings, "prefill_max_tokens"): Range(at_least=1, at_most=100_000_000),
        (PackingSettings, "force_fifo_every"): _COUNT,
        (KeepaliveSettings, "after_s"): _TIMEOUT,
        (KeepaliveSettings, "every_s"): _TIMEOUT,
        (EmbeddingSettings, "max_inputs"): Range(at_least=1, at_most=128),
        (EmbeddingSettings, "max_wait_ms"): Range(at_least=0, at_most=10_000),
        (QueueSettings, "max_external_depth"): _DEPTH,
        (QueueSettings, "max_internal_depth"): _DEPTH,
        (QueueSettings, "max_interrupt_count"): _COUNT,
        (QueueSettings, "max_wait_s"): _DURATION,
        (CallerLimits, "requests_per_minute"): _COUNT,
        (CallerLimits, "requests_per_hour"): _COUNT,
        (BudgetSettings, "daily_external_usd"): _USD,
        (BudgetSettings, "alert_pct"): _PERCENTAGE,
        (AlertSettings, "debounce_minutes"): Range(at_least=0, at_most=10_080),
        (AlertSettings, "rate_limit_alert_threshold"): Range(at_least=1, at_most=10_000),
        (AlertSettings, "queue_depth_warning"): _COUNT,
        (AlertSettings, "loop_lag_warning_s"): Range(at_least=0.05, at_most=3600),
        (AlertSettings, "disk_free_warning_mib"): Range(at_least=0, at_most=1_000_000_000),
        (GpuAlertSettings, "swaps_per_hour_warning"): _COUNT,
        (GpuAlertSettings, "swap_wait_ms_warning"): Range(at_least=0, at_most=_YEAR_S * 1000),
        (GpuAlertSettings, "swap_overhead_pct_warning"): _PERCENTAGE,
        (GpuSettings, "swap_timeout_s"): _TIMEOUT,
        (GpuSettings, "restore_home_delay_s"): _DURATION,
        (GpuSettings, "vram_gb"): _GIBIBYTES,
        (GpuSettings, "parallel"): _SLOTS,
        (GpuSettings, "task_vram_gb"): _GIBIBYTES,
        (GpuSettings, "sample_interval_s"): Range(at_least=1, at_most=3600),
        (GpuAlertSettings, "temperature_c"): Range(at_least=1, at_most=150),
        (GpuSettings, "swap_cost_prior_s"): _DURATION,
        (ModelSettings, "vram_gb"): _GIBIBYTES,
        (ModelSettings, "parallel"): _SLOTS,
        (ModelSettings, "num_ctx"): Range(at_least=1, at_most=100_000_000),
        (BackendSettings, "wait_when_down_s"): _DURATION,
        (BackendSettings, "check_interval_s"): _TIMEOUT,
        (OllamaSettings, "connect_timeout_s"): _TIMEOUT,
        (OllamaSettings, "first_byte_timeout_s"): _TIMEOUT,
        (OllamaSettings, "idle_timeout_s"): _TIMEOUT,
        (OllamaSettings, "answer_timeout_s"): _TIMEOUT,
        (KeySettings, "daily_usd"): _USD,
        (CloudSettings, "when_wait_over_s"): _DURATION,
        (CloudSettings, "max_per_request_usd"): _USD,
        (CloudSettings, "daily_external_usd"): _USD,
        (CloudSettings, "default_max_tokens"): Range(at_least=1, at_most=1_000_000),
        (CloudSettings, "timeout_s"): _TIMEOUT,
        (CloudSettings, "max_retries"): Range(at_least=0, at_most=10),
        (CloudPriceSettings, "input_usd"): _TOKEN_PRICE,
        (CloudPriceSettings, "output_usd"): _TOKEN_PRICE,
        (CloudPriceSettings, "cache_read_usd"): _TOKEN_PRICE,
        (CloudPriceSettings, "cache_write_usd"): _TOKEN_PRICE,
        (ServerSettings, "port"): Range(at_least=1, at_most=65535),
        (ServerSettings, "max_body_mib"): _MEBIBYTES,
        (ServerSettings, "max_bodies_mib"): _MEBIBYTES,
        (ServerSettings, "write_buffer_mib"): _MEBIBYTES,
        (ServerSettings, "write_deadline_s"): _TIMEOUT,
        (ServerSettings, "shutdown_grace_s"): _DURATION,
        (StorageSettings, "retention_days"): Range(above=0, at_most=36_600),
        (StorageSettings, "max_mib"): Range(at_least=1, at_most=1_000_000),
        (StorageSettings, "reserve_mib"): Range(at_least=0, at_most=1_000_000),
        (JobSettings, "max_in_queue"): Range(at_least=1, at_most=1000),
        (JobSettings, "max_queued"): _DEPTH,
        (JobSettings, "max_stored_mib"): _MEBIBYTES,
        (JobSettings, "caller_share_pct"): Range(at_least=1, at_most=100),
        (JobSettings, "internal_room_pct"): Range(at_least=0, at_most=99),
        (JobSettings, "max_result_mib"): _MEBIBYTES,
        (JobSettings, "max_attempts"): Range(at_least=1, at_most=100),
        (JobSettings, "keep_results_days"): Range(at_least=1, at_most=36_600),
        (JobSettings, "pool_workers"): Range(at_least=1, at_most=256),
        (TelemetrySettings, "sample_ratio"): Range(at_least=0, at_most=1),
        (BatchSettings, "max_file_mib"): _MEBIBYTES,
        (BatchSettings, "max_requests"): _DEPTH,
        (BatchSettings, "max_open"): Range(at_least=1, at_most=1000),
        (BatchSettings, "keep_files_days"): Range(at_least=1, at_most=36_600),
        (WebhookSettings, "max_attempts"): Range(at_least=1, at_most=20),
        (WebhookSettings, "timeout_s"): Range(above=0, at_most=300),
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
    return text


def model_name(text: str) -> str:
    """The name of a model, such as `llama3.1:8b`."""
    if any(each.isspace() for each in text):
        raise ValueError("is not a model name: it must not contain spaces")
    return name(text)


def model_name_or_nothing(text: str) -> str:
    """The name of a model, or the empty string."""
    return model_name(text) if text else text


def gpu_device(text: str) -> str:
    """The number of a card, or its UUID as `nvidia-smi -L` prints it."""
    if _GPU_DEVICE.fullmatch(text) is None:
        raise ValueError('must be the number of a card in quotes, such as "0", or its UUID, such as "GPU-..." (`nvidia-smi -L`)')
    return text


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
    parts = _url_parts(text)
    if parts is None:
        raise ValueError("must be a URL that begins with http:// or https:// and names a host")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("must be a URL without user, password, query or fragment")
    return text.rstrip("/")


def webhook_url(text: str) -> str:
    """An absolute http or https URL to post to, or the empty string; it may carry credentials, so no problem quotes it."""
    if not text:
        return text
    parts = _url_parts(text)
    if parts is None or not text.isascii():
        raise ValueError("must be the whole URL that messages are posted to, beginning with https://, or empty")
    if parts.fragment:
        raise ValueError("must be a URL without fragment (`#...`)")
    return text


def _url_parts(text: str) -> SplitResult | None:
    """None for what is no absolute http or https URL of a host."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if usable and not any(each.isspace() for each in text) else None


def listen_host(text: str) -> str:
    """A host name or an IP address to listen on."""
    if _is_address(text) or _HOST.fullmatch(text):
        return text
    raise ValueError("must be a host name or an IP address, without port")


def allowed_host(text: str) -> str:
    """A host name or an IP address as it stands in a Host header, without the port."""
    return listen_host(text.removeprefix("[").removesuffix("]") if text.startswith("[") else text)


def origin(text: str) -> str:
    """What browsers send as Origin; `*` stands for any host, any part of one, or any port. Returned in lower case."""
    if _ORIGIN.fullmatch(text) is None:
        raise ValueError('must be an origin such as "http://localhost:*", "app://obsidian.md" or "vscode-webview://*"')
    return text.lower()


def digest(text: str) -> str:
    """A SHA-256 digest in hex; returned in lower case."""
    if _DIGEST.fullmatch(text) is None:
        raise ValueError("must be 64 hex digits (the SHA-256 of the key; `hearth admin key new NAME` prints one)")
    return text.lower()


def api_key(text: str) -> str:
    """A credential that an HTTP header can carry, or the empty string."""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("holds a character that no HTTP header can carry")
    return text


def signing_secret(text: str) -> str:
    """What messages are signed with: long enough that nobody guesses it, or the empty string."""
    if text and len(text) < MIN_SECRET_CHARS:
        raise ValueError(f"must have at least {MIN_SECRET_CHARS} characters (`openssl rand -hex 32` makes a good one)")
    if text.startswith("whsec_") and not _is_webhook_key(text.removeprefix("whsec_")):
        raise ValueError("begins with whsec_, so base64 of 24 to 64 bytes must follow (`openssl rand -base64 32` makes it)")
    return text


def file_path(text: str) -> str:
    """An absolute path, one under the user's home, or the empty string: what is relative would depend on where Hearth was started."""
    if text and not text.startswith(("/", "~/")):
        raise ValueError("must be an absolute path, or begin with ~/")
    return text


def _is_webhook_key(text: str) -> bool:
    try:
        return 24 <= len(base64.b64decode(text, validate=True)) <= 64
    except ValueError:  # also for letters that are not ASCII
        return False


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
        (GpuSettings, "task_vram_gb"): name,
        (GpuSettings, "device"): gpu_device,
        (Settings, "models"): model_name,
        (OllamaSettings, "url"): http_url,
        (AlertSettings, "discord_webhook_url"): webhook_url,
        (AlertSettings, "webhook_url"): webhook_url,
        (AlertSettings, "ntfy_url"): webhook_url,
        (ServerSettings, "host"): listen_host,
        (ServerSettings, "allowed_hosts"): allowed_host,
        (KeySettings, "name"): name,
        (KeySettings, "sha256"): digest,
        (KeySettings, "models"): model_name,
        (StorageSettings, "path"): file_path,
        (JobSettings, "task_types"): name,
        (ServerSettings, "allowed_origins"): origin,
        (WebhookSettings, "allowed_hosts"): allowed_host,
        (WebhookSettings, "secret"): signing_secret,
        (CloudSettings, "api_key"): api_key,
        (CloudSettings, "model"): model_name,
        (CloudSettings, "models"): model_name,
        (CloudSettings, "base_url"): http_url,
        (TelemetrySettings, "otlp_endpoint"): lambda text: text and http_url(text),
        (TelemetrySettings, "service_name"): name,
        (CloudSettings, "prices"): model_name,
    }
)
