"""The settings of work beside plain requests: durable jobs and batches, their webhooks, embeddings
that are put together, and Claude.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hearth.config import fields
from hearth.config.fields import RESTART, Section
from hearth.types import Priority


class WebhookSettings(Section):
    """Webhooks at the end of a job."""

    allowed_hosts: fields.Items[fields.AllowedHost] = ()
    """Hosts that the `webhook` of a job may name, without port, such as `n8n.lan`.

    Empty: no job may have one.
    """
    secret: fields.SigningSecret = Field(default="", repr=False)
    """Secret that signs messages (HMAC-SHA256), 16 characters or more; `${NAME}` is read from the
    environment. Webhooks require it.
    """
    max_attempts: Annotated[fields.Integer, Field(ge=1, le=20)] = 8
    """Maximum attempts to deliver a message. The pauses between them grow."""
    timeout_s: Annotated[fields.Number, Field(gt=0, le=300)] = 10.0
    """Seconds one attempt may take."""


class JobSettings(Section):
    """Durable jobs (docs/jobs.md).

    They require `storage.enabled`; requests and results are kept in its file.
    """

    task_types: fields.Items[fields.Name] = ()
    """Task types that `submit_task` puts into the durable queue.

    Others run at once in a thread pool.
    """
    priority: fields.PriorityName = Priority.BACKGROUND
    """Internal priority of a job that names none.

    Jobs of external callers wait in the external queue.
    """
    max_in_queue: Annotated[fields.Integer, Field(ge=1, le=1000)] = 4
    """Maximum number of jobs in the queue for the GPU, running ones included.

    All others wait in the store.
    """
    max_queued: fields.Depth = 10_000
    """Maximum number of jobs waiting in the store. Further ones get 503."""
    max_stored_mib: fields.Mebibytes = 256.0
    """Maximum size of requests, results and files in the store, in MiB.

    Beyond it, new jobs and files get 503.
    """
    caller_share_pct: Annotated[fields.Number, Field(ge=1, le=100)] = 50.0
    """Percentage of `max_queued`, `max_stored_mib` and `batches.max_open` that one external key may
    use.
    """
    internal_room_pct: Annotated[fields.Number, Field(ge=0, le=99)] = 20.0
    """Percentage of `max_queued` and `max_stored_mib` that is reserved for internal callers."""
    max_result_mib: fields.Mebibytes = 16.0
    """Maximum size of an answer, in MiB. A job with a larger one fails."""
    max_attempts: Annotated[fields.Integer, Field(ge=1, le=100)] = 3
    """Starts of one job before it fails, if it crashes the gateway or its answer always fails."""
    on_restart: Annotated[Literal["requeue", "fail"], RESTART] = "requeue"
    """If the gateway crashes while a job runs: `requeue` runs it again, `fail` ends it."""
    keep_results_days: Annotated[fields.Number, Field(ge=1, le=36_600)] = 7.0
    """Days to keep an ended job and its result."""
    pool_workers: Annotated[fields.Integer, Field(ge=1, le=256), RESTART] = 4
    """Threads for tasks of `submit_task` that are not in `task_types`."""
    webhooks: WebhookSettings = WebhookSettings()


class BatchSettings(Section):
    """OpenAI's files and batches, and Anthropic's batches (docs/batches.md).

    They require `storage.enabled` and share `jobs.max_stored_mib` with jobs.
    """

    window: Literal["any", "offpeak"] = "any"
    """When requests of batches may start: `any` time, or `offpeak`, which is outside
    `scheduling.active_hours`.
    """
    max_file_mib: fields.Mebibytes = 100.0
    """Maximum size of an uploaded file, in MiB."""
    max_requests: fields.Depth = 50_000
    """Maximum number of requests in a batch."""
    max_open: Annotated[fields.Integer, Field(ge=1, le=1000)] = 50
    """Maximum number of open batches of all callers together. Further ones get 503."""
    keep_files_days: Annotated[fields.Number, Field(ge=1, le=36_600)] = 30.0
    """Days to keep an ended batch, and a file whose caller has set no other time."""


class EmbeddingSettings(Section):
    """Embedding requests with a single input (docs/embeddings.md).

    Those that arrive while one like them runs are sent together.
    """

    accumulate: fields.Flag = True
    """Combine such requests into one request to the model server."""
    max_inputs: Annotated[fields.Integer, Field(ge=1, le=128)] = 8
    """Maximum inputs per combined request. A full one is sent at once."""
    max_wait_ms: Annotated[fields.Number, Field(ge=0, le=10_000)] = 50.0
    """Maximum milliseconds an input waits for others. It does not wait if nothing like it runs."""


class CloudPriceSettings(Section):
    """Prices of one Claude model, in US dollars per million tokens."""

    input_usd: fields.TokenPrice
    """Tokens of the prompt."""
    output_usd: fields.TokenPrice
    """Tokens of the answer, including thinking."""
    cache_read_usd: fields.TokenPrice | None = None
    """Prompt tokens read from Claude's cache. Unset: a tenth of `input_usd`."""
    cache_write_usd: fields.TokenPrice | None = None
    """Prompt tokens written to the cache for five minutes. Unset: 1.25 times `input_usd`.

    For an hour, it is always twice `input_usd`.
    """


class CloudSettings(Section):
    """Claude, for callers with `allow_cloud`: for `claude-...` models, and if Ollama is down, lacks
    the model, or would take too long.
    """

    api_key: fields.ApiKey = Field(default="", repr=False)
    """Anthropic API key, as `${NAME}` from the environment. Empty: no cloud.

    Requires `storage.enabled`.
    """
    model: fields.ModelName = "claude-haiku-5-5"
    """Claude model that answers in place of a local one."""
    models: fields.ReadOnlyTable[fields.ModelName, fields.PlainText] = fields.EMPTY
    """Other Claude models by local model, with `*` as wildcard, such as `"qwen2.5:32b*":
    claude-sonnet-5`. The first match counts.
    """
    base_url: fields.HttpUrl = "https://api.anthropic.com"
    """URL of the API. `${NAME}` is read from the environment."""
    when_wait_over_s: fields.Duration | None = None
    """Estimated wait in seconds above which Claude answers instead. Unset: never."""
    max_per_request_usd: fields.Usd = 0.5
    """US dollars one request may cost at most, for internal callers too."""
    daily_external_usd: fields.Usd | None = None
    """US dollars that external callers may spend per day, if less than `budget.daily_external_usd`.

    Unset: only that limit.
    """
    default_max_tokens: Annotated[fields.Integer, Field(ge=1, le=1_000_000)] = 4096
    """Maximum answer tokens if the caller sets no limit. Claude requires one."""
    timeout_s: fields.Timeout = 300.0
    """Seconds without any text of the answer after which a request fails. Pings do not count."""
    max_retries: Annotated[fields.Integer, Field(ge=0, le=10)] = 2
    """Retries of a request that failed before its first byte."""
    allow_local: fields.Flag = False
    """Allow Claude for callers on this machine if there are no `auth.keys`."""
    prices: fields.ReadOnlyTable[fields.ModelName, CloudPriceSettings] = fields.EMPTY
    """Prices by Claude model, if the built-in list (genai-prices) is wrong or lacks one."""
