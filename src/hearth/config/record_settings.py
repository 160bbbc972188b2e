"""The settings of what is kept and reported: the store, saved conversations, traces and alerts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hearth.config import fields
from hearth.config.choices import AlertType
from hearth.config.fields import RESTART, Section


class StorageSettings(Section):
    """The SQLite file that outlives a restart: a row per finished request, without its text, and
    the jobs.
    """

    enabled: Annotated[fields.Flag, RESTART] = True
    """Use this file.

    Without it, rate limits and statistics start from zero after a restart, and `hearth log` and
    jobs do not work.
    """
    path: Annotated[fields.FilePath, RESTART] = ""
    """Path of the file, absolute or beginning with `~/`.

    Empty: `$XDG_STATE_HOME/hearth/hearth.db` (in `~/.local/state`).
    """
    retention_days: Annotated[fields.Number, Field(gt=0, le=36_600), RESTART] = 90.0
    """Days to keep rows."""
    max_mib: Annotated[fields.Number, Field(ge=1, le=1_000_000), RESTART] = 512.0
    """Maximum size of the data, in MiB. Beyond it, the oldest rows are deleted."""
    reserve_mib: Annotated[fields.Number, Field(ge=0, le=1_000_000), RESTART] = 8.0
    """Disk space to reserve in a second file, in MiB. Hearth frees it when the disk is full.

    0: none.
    """


class ConversationSettings(Section):
    """Conversations that outlive an unload, of llama.cpp servers that Hearth starts itself
    (docs/conversations.md).
    """

    directory: Annotated[fields.FilePath, RESTART] = ""
    """Directory of the saved conversations, absolute or beginning with `~/`; it may be in main
    memory. What was said can be read from its files, so only Hearth's user may read them.

    Empty: `conversations` beside the file of `storage`; without one, none are saved.
    """
    quota_gb: Annotated[fields.Gibibytes, RESTART] = 8.0
    """Maximum size of all of them in GiB. Beyond it, those that were not used for longest are
    deleted. 0: none are saved.
    """
    keep_s: Annotated[fields.Duration, RESTART] = 3600.0
    """Seconds to keep one after its last use."""


class TelemetrySettings(Section):
    """Traces of finished requests for an OpenTelemetry collector (docs/telemetry.md)."""

    otlp_endpoint: Annotated[fields.HttpUrlOrNothing, RESTART] = ""
    """URL of a collector for OTLP over HTTP, such as `http://127.0.0.1:4318`. Empty: no traces.

    Requires the extra `otel`.
    """
    service_name: Annotated[fields.Name, RESTART] = "hearth"
    """Service name in the traces."""
    sample_ratio: Annotated[fields.Number, Field(ge=0, le=1), RESTART] = 1.0
    """Share of requests to trace, 0 to 1.

    A caller that sends a trace context decides for its own.
    """


class AlertSettings(Section):
    """Alerts to you. Without any of the three URLs, none is sent.

    `hearth admin alert test` sends a test message.
    """

    discord_webhook_url: fields.WebhookUrl = Field(default="", repr=False)
    """Discord webhook (channel settings, Integrations); `${NAME}` is read from the environment.

    Anyone who has it can post there.
    """
    webhook_url: fields.WebhookUrl = Field(default="", repr=False)
    """URL that gets alerts as JSON by POST (docs/alerts.md).

    `${NAME}` is read from the environment.
    """
    ntfy_url: fields.WebhookUrl = Field(default="", repr=False)
    """Topic of an ntfy server, such as `https://ntfy.sh/my-topic`.

    `${NAME}` is read from the environment.
    """
    debounce_minutes: Annotated[fields.Number, Field(ge=0, le=10_080)] = 10.0
    """Minutes between two alerts of one type about one caller.

    The next one counts those left out.
    """
    mute: fields.Items[AlertType] = ()
    """Alert types that are never sent, such as `residency_drifted`. docs/alerts.md lists them."""
    rate_limit_alert_threshold: Annotated[fields.Integer, Field(ge=1, le=10_000)] = 5
    """Alert if one caller is refused by its rate limit this many times within 5 minutes."""
    queue_depth_warning: fields.Count = 10
    """Alert if more external requests than this wait. The alert ends when half as many wait."""
    loop_lag_warning_s: Annotated[fields.Number, Field(ge=0.05, le=3600)] = 1.0
    """Alert if Hearth is blocked for this many seconds, which delays all requests.

    Less is normal while a model loads.
    """
    disk_free_warning_mib: Annotated[fields.Number, Field(ge=0, le=1_000_000_000)] = 512.0
    """Alert if the disk of the database has less free space than this, in MiB.

    0 turns the alert off.
    """
