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


def test_a_task_type_has_the_priority_that_the_map_gives_it_else_normal() -> None:
    config = config_of("priority_map: {parse_task: critical, nudge: background}")
    found = [config.priority_for_task_type(each) for each in ("parse_task", "nudge", "PARSE_TASK", None)]
    assert found == [Priority.CRITICAL, Priority.BACKGROUND, Priority.NORMAL, Priority.NORMAL]


@for_each(
    ("limits", "per_minute", "per_hour"),
    [
        ("{}", 120, 2000),
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
    begins_at, ends_at = instant("2026-01-10T06:00:00+05:30"), instant("2026-01-10T22:00:00+05:30")
    assert [config.is_active_hours(at) for at in (begins_at - 1, begins_at)] == [False, True]
    assert config.next_mode_change(begins_at) == ends_at
    found = config.next_announcements(begins_at)
    assert found is not None
    assert (found[0][0].task_type, found[1]) == ("digest", begins_at + 1800)
    assert config_of("{}").next_announcements(0.0) is None


def test_the_scheduler_gets_its_part_of_the_settings() -> None:
    config = config_of("queue: {max_interrupt_count: 9}\nbackend: {wait_when_down_s: 1}\ngpu: {parallel: 2}\nmodels: {m: {parallel: 3}}")
    scheduler = config.scheduler_settings
    assert scheduler == SchedulerSettings.of(config.settings)
    assert (scheduler.queue.max_interrupt_count, scheduler.wait_when_down_s) == (9, 1.0)
    assert [scheduler.parallel(model) for model in ("m:latest", "other:latest")] == [3, 2]


KEYS = f"auth: {{keys: [{{name: a, sha256: '{'1' * 64}'}}, {{name: boss, sha256: '{'2' * 64}', lane: internal}}]}}\n"
LIMITED = "rate_limits: {callers: {%s: {requests_per_minute: 3}}}"


@for_each(
    ("text", "says"),
    [
        (LIMITED % "ghost", ["rate_limits.callers.ghost: no key in auth.keys has this name"]),
        (LIMITED % "local", []),
        (KEYS + LIMITED % "a", []),
        (KEYS + LIMITED % "boss", ["rate_limits.callers.boss: its key is in the internal lane, which has no limits"]),
        (KEYS + LIMITED % "local", ["rate_limits.callers.local: no key in auth.keys has this name"]),
        (KEYS.replace("lane: internal", "allow_cloud: true"), ["auth.keys[1].allow_cloud: cloud.api_key is not set"]),
        (KEYS.replace("lane: internal", "daily_usd: 1"), ["auth.keys[1].daily_usd: has no effect without allow_cloud"]),
    ],
)
def test_a_setting_that_can_have_no_effect_is_named_with_the_reason(text: str, says: list[str]) -> None:
    assert [*effectless(config_of(text).settings)] == says
