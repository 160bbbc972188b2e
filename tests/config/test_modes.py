"""`modes` in the file: what they may change, what is checked, and when they begin and end."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from hearth.config.document import Document
from hearth.config.loading import parse_config
from hearth.config.mode_times import ModeTimes
from hearth.config.rendering import as_yaml, differences
from hearth.config.settings import GatewayConfig
from tests.config.reading import only_problem_of, problems_of

FILE = """
scheduling: {time_zone: UTC}
queue: {max_external_depth: 5, paused_callers: [one, two]}
rate_limits: {callers: {n8n: {requests_per_minute: 9, requests_per_hour: 90}}}
models: {"a:1b": {parallel: 2, vram_gb: 3}}
modes:
  night:
    when: "22:00-06:00"
    queue: {paused_callers: [three]}
    rate_limits: {callers: {n8n: {requests_per_minute: 1}, other: {requests_per_minute: 2}}}
    models: {"a:1b": {parallel: 4}}
    gpu: {home_model: "a:1b", yield: {watch: games}}
  plain:
"""


def config() -> GatewayConfig:
    return parse_config(FILE, source="f.yaml", environ={})


def test_a_mode_joins_mappings_replaces_lists_and_leaves_the_rest():
    settings = config().in_mode("night").settings
    limits = settings.rate_limits
    assert (settings.queue.max_external_depth, settings.queue.paused_callers) == (5, ("three",))
    assert (limits.of_caller("n8n"), limits.of_caller("other")[0]) == ((1, 90), 2)
    assert (settings.models["a:1b"].parallel, settings.models["a:1b"].vram_gb) == (4, 3)
    assert (settings.gpu.home_model, settings.gpu.yielding.watch) == ("a:1b", "games")
    assert config().in_mode("plain").settings == config().settings


def test_a_mode_is_shown_as_it_is_written_and_reads_back_as_the_same():
    settings = config().settings
    shown = as_yaml(settings)
    written = Document(shown, source="f").value
    assert isinstance(written, dict)
    assert written["modes"]["night"]["queue"] == {"paused_callers": ["three"]}
    assert written["modes"]["plain"] == {}
    assert parse_config(shown, source="f", environ={}).settings == settings
    other = parse_config(FILE.replace("[three]", "[four]"), source="f", environ={}).settings
    assert differences(settings, other) == {"modes.night.queue.paused_callers": True}


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("{queue: {max_external_depth: 0}}", "2: modes.x.queue.max_external_depth: must be at"),
        ("{queue: {max_depth: 1}}", "2: modes.x.queue.max_depth: unknown key; did you mean"),
        ("{server: {port: 1}}", "2: modes.x.server: unknown key; known here: when, scheduling"),
        ("{gpu: {nvml: false}}", "2: modes.x.gpu.nvml: needs a restart, so no mode can change it"),
        ("{gpu: {restart_command: [a]}}", "2: modes.x.gpu.restart_command: cannot be changed by"),
        ("{models: {m: {engine: e}}}", "2: modes.x.models.m.engine: needs a restart"),
        ("{cloud: {base_url: 'http://a'}}", "2: modes.x.cloud.base_url: cannot be changed by"),
        ("{jobs: {webhooks: {allowed_hosts: [a]}}}", "2: modes.x.jobs.webhooks: cannot be changed"),
        ("{alerts: {ntfy_url: 'http://a/b'}}", "2: modes.x.alerts.ntfy_url: cannot be changed by"),
        ("{when: '22-06'}", "2: modes.x.when[0]: must be hours such as"),
        ("{when: '70 * * * *'}", "2: modes.x.when[0]: is not a cron expression"),
        ("{gpu: {home_model: coder}}", "2: modes.x: in this mode, aliases.coder is a model (gpu"),
        ("{aliases: {CODER: [m]}}", "2: modes.x.aliases.CODER: is the same name as aliases.coder"),
        ("{alerts: {mute: ['https://secret']}}", "2: modes.x.alerts.mute[0]: must be "),
        ("5", "2: modes.x: must be a mapping"),
    ],
)
def test_what_is_wrong_in_a_mode_is_named_with_its_line(mode: str, problem: str):
    found = problems_of(f"modes:\n  x: {mode}\naliases: {{coder: [m]}}\n")
    assert found[0].startswith(f"f.yaml:{problem}"), found
    assert not any("secret" in each for each in found)


@pytest.mark.parametrize("name", ["OFF", "'a b'", "a/b", "'" + "x" * 65 + "'"])
def test_a_mode_has_a_name_that_a_command_can_have(name: str):
    assert "must" in only_problem_of(f"modes: {{{name}: {{}}}}") or name == "OFF"


def test_what_is_wrong_without_any_mode_is_said_once():
    text = "aliases: {a: [m]}\ngpu: {home_model: a}\nmodes: {x: {queue: {sharing: fair}}}"
    assert len(problems_of(text)) == 1


ZONE = ZoneInfo("Europe/Berlin")
MODES = """
scheduling: {time_zone: Europe/Berlin}
modes:
  night: {when: "22:00-06:00"}
  day: {when: "0 6 * * *"}
  weekend: {when: ["Sat 10:00-12:00", "0 20 * * Sun"]}
  gaming: {}
"""


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZONE).timestamp()


def times() -> ModeTimes:
    return parse_config(MODES, source="f", environ={}).mode_times


@pytest.mark.parametrize(
    ("now", "due"),
    [
        ("2026-11-26T21:59:59", "day"),
        ("2026-11-26T22:00:00", "night"),
        ("2026-11-27T05:59:59", "night"),
        ("2026-11-27T06:00:00", "day"),
        ("2026-11-28T10:00:00", "weekend"),
        ("2026-11-28T12:00:00", "day"),
        ("2026-11-29T20:00:00", "weekend"),
        ("2026-11-29T22:00:00", "night"),
        ("2026-10-25T02:30:00", "night"),  # the hour that comes twice
        ("2026-03-29T06:00:00", "day"),  # after the hour that is left out
    ],
)
def test_the_mode_that_began_last_is_due(now: str, due: str):
    assert times().due(at(now)) == due


@pytest.mark.parametrize(
    ("now", "mode", "changes"),
    [
        ("2026-11-27T12:00:00", "day", "2026-11-27T22:00:00"),
        ("2026-11-27T22:00:00", "night", "2026-11-28T06:00:00"),
        ("2026-11-27T12:00:00", "gaming", "2026-11-27T22:00:00"),
        ("2026-11-28T09:00:00", "day", "2026-11-28T10:00:00"),
        ("2026-11-28T10:00:00", "weekend", "2026-11-28T12:00:00"),
        ("2026-11-28T10:00:00", "gaming", "2026-11-28T22:00:00"),
        ("2026-11-29T19:00:00", None, "2026-11-29T20:00:00"),
    ],
)
def test_the_next_change_is_that_of_the_first_mode_to_begin_or_the_own_end(
    now: str, mode: str | None, changes: str
):
    assert times().next_change(at(now), mode) == at(changes)


@pytest.mark.parametrize(
    ("when", "due", "changes"), [("'00:00-24:00'", "x", None), ("[]", None, None)]
)
def test_hours_that_never_change_are_always_or_never(when: str, due: str | None, changes: None):
    found = parse_config(f"modes: {{x: {{when: {when}}}}}", source="f", environ={}).mode_times
    assert (found.due(at("2026-11-27T12:00:00")), found.next_change(0.0, due)) == (due, changes)


def test_of_modes_that_begin_together_the_first_is_due():
    text = "modes: {a: {when: '0 6 * * *'}, b: {when: '0 6 * * *'}}"
    found = parse_config(text, source="f", environ={}).mode_times
    assert found.due(at("2026-11-27T12:00:00")) == "a"


@pytest.mark.parametrize("clock", ["02:00", "02:29", "02:30", "02:59"])
@pytest.mark.parametrize("cron", ["30 2 * * *", "30 2 25 10 *", "*/30 2 * * *"])
def test_what_began_in_the_first_pass_of_a_repeated_hour_lasts_through_the_second(clock, cron):
    text = f"""
scheduling: {{time_zone: Europe/Berlin}}
modes:
  day: {{when: "0 12 * * *"}}
  late: {{when: "{cron}"}}
"""
    here = ZoneInfo("Europe/Berlin")
    again = datetime.fromisoformat(f"2026-10-25T{clock}").replace(tzinfo=here, fold=1)
    assert parse_config(text, source="f").mode_times.due(again.timestamp()) == "late"
