"""A file with mistakes is refused with all of them at once, each with its line, its path and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from hearth.config.fields import MAX_NAME_CHARS, MAX_TEXT_CHARS, MIN_SECRET_CHARS, Section
from hearth.config.loading import MAX_DOCUMENT_BYTES, load_gateway_config, parse_config
from hearth.config.settings import (
    Announcement,
    CallerLimits,
    GatewayConfig,
    ModelSettings,
    Settings,
    Window,
)
from hearth.errors import ConfigError
from hearth.types import Priority
from tests.config.kinds import NUMBERS, entry_of, kind_of, limits_of
from tests.config.reading import only_problem_of, problems_of, settings_of
from tests.support.cases import for_each

CRON = "scheduling: {announcements: [{task_type: a, cron: '%s'}]}"
NO_FIVE_FIELDS = ("0 6 * *", "0 0 6 * * *", "9" * 200 + " 6 * * *", "@daily")


def test_all_problems_come_at_once_in_the_order_of_the_file() -> None:
    text = """\
gpu:
  swap_timout_s: 3
  parallel: 1.5
scheduling:
  active_hours: 22:30
  announcements:
    - task_type: digest
      cron: "* * *"
queue: {max_external_depth: 0}
priority_map:
  parse_task: urgent
server:
  host: 0.0.0.0
  port: 70000
auth:
  keys:
"""
    assert problems_of(text) == (
        "f.yaml:2: gpu.swap_timout_s: unknown key; did you mean swap_timeout_s?",
        "f.yaml:3: gpu.parallel: must be a whole number, not 1.5",
        'f.yaml:5: scheduling.active_hours: YAML reads "22:30" as a number of minutes or seconds; put quotes around it',
        "f.yaml:8: scheduling.announcements[0].cron: must have five fields: minute, hour, day of month, month, day of week",
        "f.yaml:9: queue.max_external_depth: must be at least 1, not 0",
        "f.yaml:11: priority_map.parse_task: must be critical, normal or background",
        (
            "f.yaml:13: server.host: without auth.keys, anyone who can reach this address could use the GPU and spend the budget; "
            "add a key (`hearth admin key new NAME`), or listen on 127.0.0.1"
        ),
        "f.yaml:14: server.port: must be at most 65535, not 70000",
    )


def test_beyond_a_hundred_problems_only_their_number_is_told() -> None:
    problems = problems_of("\n".join(f"key_{number}: 1" for number in range(250)))
    assert len(problems) == 101
    assert problems[-1] == "f.yaml: and 150 more problems"


@for_each(
    ("text", "says"),
    [
        ("gpu: 5", "gpu: must be a mapping, not 5"),
        ("gpu: [1]", "gpu: must be a mapping, not a list"),
        ("auth: {keys: {a: b}}", "auth.keys: must be a list, not a mapping"),
        ("queue: {max_wait_s: '5'}", 'queue.max_wait_s: must be a number, not "5"'),
        ("queue: {max_wait_s: 1e3}", 'queue.max_wait_s: must be a number, not "1e3"'),
        ("queue: {max_wait_s: true}", "queue.max_wait_s: must be a number, not true"),
        ("queue: {max_external_depth: yes}", "queue.max_external_depth: must be a whole number, not true"),
        ("queue: {max_external_depth: }", "queue.max_external_depth: has no value; give one, or remove the line for the default"),
        ("gpu: {home_model: 7}", "gpu.home_model: must be text in quotes, not 7"),
        ("gpu: {home_model: 'a b'}", "gpu.home_model: is not a model name: it must not contain spaces"),
        ("gpu: {home_model: ' a'}", "gpu.home_model: must not begin or end with a space"),
        ('gpu: {home_model: "a\\u0007"}', "gpu.home_model: must not contain line breaks or control characters"),
        ("models: {'': {}}", 'models[""]: must not be empty'),
        ("models: {'a b': {}}", 'models["a b"]: is not a model name: it must not contain spaces'),
        ("models: {'llama3.1:8b': {num_ctx: 0}}", 'models["llama3.1:8b"].num_ctx: must be at least 1, not 0'),
        (
            "scheduling: {policy: clever}",
            "scheduling.policy: must be 'fifo', 'affinity', 'cost_aware', 'time_slice' or 'adaptive', not \"clever\"",
        ),
        ("scheduling: {active_hours: [1]}", 'scheduling.active_hours: must be a window such as "06:00-22:00", in quotes'),
        ("scheduling: {active_hours: '6-22'}", 'scheduling.active_hours: must be a window such as "06:00-22:00", in quotes'),
        ("backend: somewhere", "backend.mode: must be 'auto', 'ollama' or 'emulator', not \"somewhere\""),
        ("priority_map: {a: 0}", "priority_map.a: must be critical, normal or background"),
        ("server: {host: ''}", "server.host: must be a host name or an IP address, without port"),
        ("server: {host: 'localhost:80'}", "server.host: must be a host name or an IP address, without port"),
        ("server: {allowed_hosts: ['http://a']}", "server.allowed_hosts[0]: must be a host name or an IP address, without port"),
        ("server: {log_format: xml}", "server.log_format: must be 'auto', 'text' or 'json', not \"xml\""),
        ("gpu: {device: 'GPU 0'}", "gpu.device: must be the number of a GPU in quotes"),
        ("storage: {path: hearth.db}", "storage.path: must be an absolute path, or begin with ~/"),
        ("storage: {path: ~other/hearth.db}", "storage.path: must be an absolute path, or begin with ~/"),
        ("alerts: {webhook_url: 'https://host/#x'}", "alerts.webhook_url: must be a URL without fragment"),
        ("ollama: {url: 'gpu:11434'}", "ollama.url: must be a URL that begins with http:// or https:// and names a host"),
        ("ollama: {url: 'http://[::1'}", "ollama.url: must be a URL that begins with http:// or https:// and names a host"),
        ("ollama: {url: 'http://a:99999'}", "ollama.url: must be a URL that begins with http:// or https:// and names a host"),
        ("ollama: {url: 'http://me:pw@a'}", "ollama.url: must be a URL without user, password, query or fragment"),
        ("{'': 1}", '[""]: unknown key'),
        ("budget: {colour: red}", "budget.colour: unknown key; known here: daily_external_usd, alert_pct"),
        ("scheduling: {time_zone: Mars/Olympus}", "scheduling.time_zone: unknown time zone: check the spelling"),
        *((text, "is empty; write `{}` to use all defaults") for text in ("", "\n\n", "# only\n", "\ufeff")),
        *((CRON % cron, "scheduling.announcements[0].cron: must have five fields") for cron in NO_FIVE_FIELDS),
        (CRON % "60 6 * * *", "scheduling.announcements[0].cron: is not a cron expression: bad minute"),
        (CRON % "0 0 30 2 *", "scheduling.announcements[0].cron: is not a cron expression: bad day-of-month"),
        (CRON % "0 0 */31 * 1#3", "scheduling.announcements[0].cron: never matches a date"),
    ],
)
def test_a_wrong_value_is_answered_with_what_would_be_right(text: str, says: str) -> None:
    assert only_problem_of(text).startswith(f"f.yaml:1: {says}")


def place(cls: type[Section], name: str) -> str:
    """A document that gives `%s` to one numeric field."""
    sections = {kind_of(Settings, each): each for each in Settings.model_fields}
    both = ("input_usd", "output_usd")
    around = {
        "CallerLimits": "rate_limits: {callers: {a: {%s}}}",
        "GpuAlertSettings": "gpu: {alerts: {%s}}",
        "ModelSettings": "models: {a: {%s}}",
        "AgingSettings": "scheduling: {aging: {%s}}",
        "CostAwareSettings": "scheduling: {cost_aware: {%s}}",
        "TimeSliceSettings": "scheduling: {time_slice: {%s}}",
        "PackingSettings": "scheduling: {packing: {%s}}",
        "WebhookSettings": "jobs: {webhooks: {%s}}",
        "KeySettings": f"auth: {{keys: [{{name: a, sha256: '{'ab' * 32}', %s}}]}}",
        "CloudPriceSettings": "cloud: {prices: {a: {" + "".join(f"{each}: 1, " for each in both if each != name) + "%s}}}",
    }
    value = "{a: %s}" if entry_of(cls, name) is float else "%s"
    return around.get(cls.__name__, f"{sections.get(cls)}: {{%s}}") % f"{name}: {value}"


@for_each(("cls", "name"), NUMBERS)
def test_every_number_has_a_range_that_holds_at_both_ends(cls: type[Section], name: str) -> None:
    limits, text = limits_of(cls, name), place(cls, name)
    whole = kind_of(cls, name) is int
    below, beyond = limits.low - (not limits.above), limits.high + 1
    for inside in (0.001 if limits.above else limits.low, limits.high):
        settings_of(text % (int(inside) if whole else inside))
    for outside in (below, beyond):
        assert name in only_problem_of(text % (int(outside) if whole else outside))


@for_each(
    ("text", "longest"),
    [("gpu: {home_model: %s}", MAX_NAME_CHARS), ("storage: {path: /%s}", MAX_TEXT_CHARS - 1)],
)
def test_the_longest_text_is_taken_and_one_character_more_is_not(text: str, longest: int) -> None:
    settings_of(text % ("a" * longest))
    assert "must not be longer than" in only_problem_of(text % ("a" * (longest + 1)))


def test_a_secret_is_long_enough_or_refused() -> None:
    text = "jobs: {webhooks: {secret: '%s'}}"
    assert settings_of(text % ("s" * MIN_SECRET_CHARS)).jobs.webhooks.secret == "s" * MIN_SECRET_CHARS
    assert "jobs.webhooks.secret: must have at least 16 characters" in only_problem_of(text % ("s" * (MIN_SECRET_CHARS - 1)))


def test_values_arrive_as_settings() -> None:
    settings = settings_of("""
scheduling:
  active_hours: "22:15-06:45"
  announcements: [{task_type: digest, cron: "30 6 * * *"}]
priority_map: {parse_task: critical, nudge: background}
rate_limits: {callers: {notebook: {requests_per_minute: 30}}}
models: {"llama3.1:8b": {vram_gb: 6, num_ctx: 8192}}
queue: {max_wait_s: 5}
ollama: {url: "http://gpu.lan:11434/"}
""")
    assert settings.scheduling.active_hours == Window(start_minute=22 * 60 + 15, end_minute=6 * 60 + 45)
    assert settings.scheduling.announcements == (Announcement(task_type="digest", cron="30 6 * * *"),)
    assert settings.priority_map == {"parse_task": Priority.CRITICAL, "nudge": Priority.BACKGROUND}
    assert settings.rate_limits.callers == {"notebook": CallerLimits(requests_per_minute=30)}
    assert settings.models == {"llama3.1:8b": ModelSettings(vram_gb=6.0, num_ctx=8192)}
    assert settings.ollama.url == "http://gpu.lan:11434"
    assert type(settings.queue.max_wait_s) is float


def test_the_settings_cannot_be_changed_through_their_mappings() -> None:
    with pytest.raises(TypeError):
        settings_of("priority_map: {a: normal}").priority_map["b"] = Priority.CRITICAL  # type: ignore[index]


@for_each(
    ("text", "same"),
    [
        ("{}", ""),
        ("gpu:\nqueue:\nmodels:\nauth:\n  keys:\nrate_limits:\n  default:\n", ""),
        ("backend: emulator", "backend: {mode: emulator}"),
        ("backend:\n", ""),
    ],
)
def test_what_is_left_out_has_its_default(text: str, same: str) -> None:
    assert settings_of(text) == (settings_of(same) if same else Settings())


def test_the_source_of_a_loaded_file_is_kept_and_named_in_its_problems(tmp_path: Path) -> None:
    path = tmp_path / "house.yaml"
    path.write_bytes(b"\xef\xbb\xbfqueue:\r\n  max_external_depth: 7\r\n")
    config = load_gateway_config(path, {})
    assert (config.source, config.settings.queue.max_external_depth) == (path, 7)
    path.write_text("queue:\n  max_external_depth: -7\n")
    with pytest.raises(ConfigError) as caught:
        load_gateway_config(str(path), {})
    assert caught.value.problems == (f"{path}:2: queue.max_external_depth: must be at least 1, not -7",)


def test_without_a_path_the_usual_place_is_read_where_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_gateway_config(environ={}) == GatewayConfig()
    (tmp_path / "config").mkdir()
    (tmp_path / "config/llm_gateway.yaml").write_text("queue: {max_external_depth: 7}")
    config = load_gateway_config(environ={})
    assert (config.source, config.settings.queue.max_external_depth) == (Path("config/llm_gateway.yaml"), 7)


def test_without_an_environment_the_process_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOUSE_GPU_BOX", "gpu")
    assert parse_config("ollama: {url: 'http://${HOUSE_GPU_BOX}'}", source="f.yaml").settings.ollama.url == "http://gpu"


@for_each(
    ("content", "says"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"a: \xff\n", ":1: is not UTF-8 text; save it as UTF-8"),
        ("queue: {}".encode("utf-16"), ":1: is not UTF-8 text; save it as UTF-8"),
        ("é".encode() * 200_000, "is larger than 256 KiB"),
        (b"queue: {} #".ljust(MAX_DOCUMENT_BYTES + 1, b"x"), "is larger than 256 KiB"),
        (b"\x7fELF\x00\x00", "control character U+007F"),
        (b"queue: {}\nb: \x00", ":2: control character U+0000"),
    ],
)
def test_a_file_that_is_no_text_file_is_refused(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / ("missing" if content is None else "f.yaml")
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_gateway_config(path, {})
    (problem,) = caught.value.problems
    assert problem.startswith(str(path))
    assert says in problem


def test_the_largest_file_is_read_and_a_directory_is_none(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"queue: {} #".ljust(MAX_DOCUMENT_BYTES, b"x"))
    assert load_gateway_config(path, {}).source == path
    with pytest.raises(ConfigError, match="is not a regular file"):
        load_gateway_config(tmp_path, {})
