"""What the rest of Hearth asks of a configuration."""

from __future__ import annotations

from datetime import datetime

from hearth.config.loading import effectless, parse_config
from hearth.config.settings import GatewayConfig, SchedulerSettings
from hearth.types import Priority
from tests.support.cases import for_each


def config_of(text: str) -> GatewayConfig:
    return parse_config(text, source="f.yaml", environ={})


def instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@for_each(
    ("task_type", "priority"),
    [("parse_task", Priority.CRITICAL), ("nudge", Priority.BACKGROUND), ("PARSE_TASK", Priority.NORMAL), (None, Priority.NORMAL)],
)
def test_a_task_type_has_the_priority_that_the_map_gives_it_else_normal(task_type: str | None, priority: Priority) -> None:
    assert config_of("priority_map: {parse_task: critical, nudge: background}").priority_for_task_type(task_type) is priority


@for_each(
    ("limits", "per_minute", "per_hour"),
    [
        ("{}", 120, 2000),
        ("{default: {requests_per_minute: 4, requests_per_hour: 50}}", 4, 50),
        ("{callers: {a: {requests_per_minute: 7}}}", 7, 2000),
        ("{callers: {a: {requests_per_hour: 0}}}", 120, 0),
        ("{default: {requests_per_hour: 9}, callers: {a: {requests_per_minute: 7}, b: {requests_per_hour: 3}}}", 7, 9),
    ],
)
def test_a_caller_has_its_own_limits_else_the_owners_else_ours(limits: str, per_minute: int, per_hour: int) -> None:
    config = config_of(f"rate_limits: {limits}")
    assert (config.rpm_for_caller("a"), config.rph_for_caller("a")) == (per_minute, per_hour)


def test_active_hours_and_announcements_are_read_in_the_configured_zone() -> None:
    announced = "announcements: [{task_type: digest, cron: '30 6 * * *'}]"
    config = config_of(f"scheduling: {{active_hours: '06:00-22:00', time_zone: Asia/Kolkata, {announced}}}")
    assert config.is_active_hours(instant("2026-01-10T00:30:00+00:00")) is True
    assert config.is_active_hours(instant("2026-01-10T00:29:59+00:00")) is False
    assert config.next_mode_change(instant("2026-01-10T01:00:00+00:00")) == instant("2026-01-10T16:30:00+00:00")
    found = config.next_announcements(instant("2026-01-10T00:00:00+00:00"))
    assert found is not None
    assert (found[0][0].task_type, found[1]) == ("digest", instant("2026-01-10T01:00:00+00:00"))
    assert config_of("{}").next_announcements(0.0) is None


def test_the_scheduler_gets_its_part_of_the_settings() -> None:
    config = config_of("queue: {max_interrupt_count: 9}\nbackend: {wait_when_down_s: 1}\ngpu: {parallel: 2}\nmodels: {m: {parallel: 3}}")
    scheduler = config.scheduler_settings
    assert scheduler == SchedulerSettings.of(config.settings)
    assert (scheduler.queue.max_interrupt_count, scheduler.wait_when_down_s) == (9, 1.0)
    assert [scheduler.parallel(model) for model in ("m:latest", "other:latest")] == [3, 2]


def test_equal_files_make_equal_configurations() -> None:
    assert config_of("queue: {max_wait_s: 5}") == config_of("queue:\n  max_wait_s: 5.0\n")


KEYS = f"auth: {{keys: [{{name: a, sha256: '{'1' * 64}'}}, {{name: boss, sha256: '{'2' * 64}', lane: internal}}]}}\n"


@for_each(
    ("text", "says"),
    [
        ("rate_limits: {callers: {ghost: {requests_per_minute: 3}}}", "rate_limits.callers.ghost: no key in auth.keys has this name"),
        ("rate_limits: {callers: {local: {requests_per_minute: 3}}}", None),
        (KEYS + "rate_limits: {callers: {a: {requests_per_minute: 3}}}", None),
        (KEYS + "rate_limits: {callers: {boss: {requests_per_minute: 3}}}", "rate_limits.callers.boss: its key is in the internal lane"),
        (KEYS + "rate_limits: {callers: {local: {requests_per_minute: 3}}}", "rate_limits.callers.local: no key"),
        (KEYS.replace("lane: internal", "allow_cloud: true"), "auth.keys[1].allow_cloud: cloud.api_key is not set"),
        (KEYS.replace("lane: internal", "daily_usd: 1"), "auth.keys[1].daily_usd: has no effect without allow_cloud"),
    ],
)
def test_a_setting_that_can_have_no_effect_is_named_with_the_reason(text: str, says: str | None) -> None:
    found = tuple(effectless(config_of(text).settings))
    assert [each.startswith(says or "") for each in found] == ([] if says is None else [True])
