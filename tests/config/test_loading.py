"""A file with mistakes is refused with all of them at once, each with its line, its path and what
to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from hearth.config.fields import MAX_NAME_CHARS, MAX_TEXT_CHARS, MIN_SECRET_CHARS
from hearth.config.loading import (
    MAX_DOCUMENT_BYTES,
    changed_meanings,
    effectless,
    load_gateway_config,
    parse_config,
)
from hearth.config.rendering import as_yaml
from hearth.config.settings import (
    Announcement,
    CallerLimits,
    GatewayConfig,
    ModelSettings,
    SchedulerSettings,
    Settings,
    Window,
)
from hearth.dialects.request import is_model_name
from hearth.errors import ConfigError
from hearth.types import Priority
from tests.config.reading import Node, only_problem_of, problems_of, settings_of, values
from tests.support.cases import for_each

BAD_PATHS = (
    "hearth",
    "//hearth",
    "/a//b",
    "/a b",
    "/../a",
    "/.a",
    "/a/..",
    "/%61",
    "http://a/b",
    "/a?b",
    "/ä",
)
CRON = "scheduling: {announcements: [{task_type: a, cron: '%s'}]}"
NO_FIVE_FIELDS = ("0 6 * *", "0 0 6 * * *", "9" * 200 + " 6 * * *", "@daily")


def test_all_problems_come_at_once_in_the_order_of_the_file():
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
        (
            'f.yaml:5: scheduling.active_hours: YAML reads "22:30" as a number of minutes '
            "or seconds; put quotes around it"
        ),
        (
            "f.yaml:8: scheduling.announcements[0].cron: must have five fields: minute, "
            "hour, day of month, month, day of week"
        ),
        "f.yaml:9: queue.max_external_depth: must be at least 1, not 0",
        "f.yaml:11: priority_map.parse_task: must be critical, normal or background",
        (
            "f.yaml:13: server.host: without auth.keys, anyone who can reach this address "
            "could use the GPU and spend the budget; "
            "add a key (`hearth key new NAME`), or listen on 127.0.0.1"
        ),
        "f.yaml:14: server.port: must be at most 65535, not 70000",
    )


def test_beyond_a_hundred_problems_only_their_number_is_told():
    problems = problems_of("\n".join(f"key_{number}: 1" for number in range(250)))
    assert len(problems) == 101
    assert problems[-1] == "f.yaml: and 150 more problems"


@for_each(
    ("text", "says"),
    [
        ("gpu: 5", "gpu: must be a mapping, not 5"),
        ("gpu: [1]", "gpu: must be a mapping, not a list"),
        ("queue: {max_wait_s: '5'}", 'queue.max_wait_s: must be a number, not "5"'),
        ("queue: {max_wait_s: true}", "queue.max_wait_s: must be a number, not true"),
        (
            "queue: {max_external_depth: }",
            "queue.max_external_depth: has no value; give one, or remove the line for the default",
        ),
        ("gpu: {home_model: 7}", "gpu.home_model: must be text in quotes, not 7"),
        (
            "gpu: {home_model: 'a b'}",
            "gpu.home_model: is not a model name: it must not contain spaces",
        ),
        ("gpu: {home_model: ' a'}", "gpu.home_model: must not begin or end with a space"),
        (
            'gpu: {home_model: "a\\u0007"}',
            "gpu.home_model: must not contain line breaks or control characters",
        ),
        *(
            (f"clients: {{background: [{{name: a, {entry}}}]}}", f"clients.background[0].{refusal}")
            for entry, refusal in (
                ("place: system", "starts_with: is missing"),
                ("starts_with: Title", "starts_with: must have at least 8 characters: less would"),
                ("starts_with: ' Write a title'", "starts_with: must not begin with white space"),
                (f"starts_with: {'x' * 1001}", "starts_with: must not be longer than 1000"),
                ("starts_with: Write a title, then: [' ']", "then[0]: must not be empty"),
                ("starts_with: Write a title, place: user", "place: must be 'system', 'only' or"),
            )
        ),
        ("models: {'': {}}", 'models[""]: must not be empty'),
        ("models: {'a b': {}}", 'models["a b"]: is not a model name: it must not contain spaces'),
        (
            "scheduling: {policy: clever}",
            (
                "scheduling.policy: must be 'fifo', 'affinity', 'cost_aware', 'time_slice' or "
                "'adaptive', not \"clever\""
            ),
        ),
        (
            "scheduling: {active_hours: '6-22'}",
            'scheduling.active_hours: must be a window such as "06:00-22:00" or "Mon-Fri',
        ),
        (
            "scheduling: {active_hours: ['06:00-22:00', '6-22']}",
            "scheduling.active_hours[1]: must be a window such as",
        ),
        (
            "scheduling: {active_hours: ['Mon-Fri 25:00-26:00']}",
            "scheduling.active_hours[0]: is not a time of day",
        ),
        (
            "scheduling: {active_hours: {mon: '06:00-22:00'}}",
            "scheduling.active_hours: must be a window such as",
        ),
        (
            "backend: somewhere",
            "backend.mode: must be 'auto', 'ollama' or 'emulator', not \"somewhere\"",
        ),
        ("priority_map: {a: 0}", "priority_map.a: must be critical, normal or background"),
        (
            "server: {host: 'localhost:80'}",
            "server.host: must be a host name or an IP address, without port",
        ),
        (
            "server: {allowed_hosts: ['http://a']}",
            "server.allowed_hosts[0]: must be a host name or an IP address, without port",
        ),
        *(
            (
                f"server: {{allowed_hosts: ['{name}']}}",
                "server.allowed_hosts[0]: must be a host name or an IP address, without port",
            )
            for name in ("gpu*", "*.a.*", "a.*", "*.", "**", "*.lan:80")
        ),
        *(
            (f"server: {{base_path: '{path}'}}", "server.base_path: must be a path such as /hearth")
            for path in BAD_PATHS
        ),
        *(
            (f"server: {{base_path: '{path}'}}", "server.base_path: begins as an address")
            for path in ("/api", "/v1/x", "/llm/", "/static")
        ),
        ("gpu: {device: 'GPU 0'}", "gpu.device: must be the number of a GPU in quotes"),
        ("storage: {path: hearth.db}", "storage.path: must be an absolute path, or begin with ~/"),
        (
            "storage: {path: ~other/hearth.db}",
            "storage.path: must be an absolute path, or begin with ~/",
        ),
        (
            "alerts: {webhook_url: 'https://host/#x'}",
            "alerts.webhook_url: must be a URL without fragment",
        ),
        (
            "ollama: {url: 'gpu:11434'}",
            "ollama.url: must be a URL that begins with http:// or https:// and names a host",
        ),
        (
            "ollama: {url: 'http://a:99999'}",
            "ollama.url: must be a URL that begins with http:// or https:// and names a host",
        ),
        (
            "ollama: {url: 'http://gpu:11434/v1'}",
            "ollama.url: must be the address without /v1: http://gpu:11434",
        ),
        (
            "ollama: {url: 'https://gpu/box/api/'}",
            "ollama.url: must be the address without /api: https://gpu/box",
        ),
        (
            "ollama: {url: 'http://gpu/v1/chat/completions'}",
            "ollama.url: must be the address without /v1/chat/completions: http://gpu",
        ),
        (
            "ollama: {url: 'http://me:pw@a'}",
            "ollama.url: must be a URL without user, password, query or fragment",
        ),
        (
            "telemetry: {otlp_endpoint: 'http://me:pw@c:4318'}",
            "telemetry.otlp_endpoint: must be a URL without user, password",
        ),
        ("telemetry: {service_name: ''}", "telemetry.service_name: must not be empty"),
        ("{'': 1}", '[""]: unknown key'),
        (
            "budget: {colour: red}",
            "budget.colour: unknown key; known here: daily_external_usd, alert_pct",
        ),
        (
            "scheduling: {time_zone: Mars/Olympus}",
            "scheduling.time_zone: unknown time zone: check the spelling",
        ),
        *(
            (text, "is empty; write `{}` to use all defaults")
            for text in ("", "\n\n", "# only\n", "\ufeff")
        ),
        *(
            (CRON % cron, "scheduling.announcements[0].cron: must have five fields")
            for cron in NO_FIVE_FIELDS
        ),
        (
            CRON % "60 6 * * *",
            "scheduling.announcements[0].cron: is not a cron expression: bad minute",
        ),
        (
            CRON % "0 0 30 2 *",
            "scheduling.announcements[0].cron: is not a cron expression: bad day-of-month",
        ),
        (CRON % "0 0 */31 * 1#3", "scheduling.announcements[0].cron: never matches a date"),
    ],
)
def test_a_wrong_value_is_answered_with_what_would_be_right(text: str, says: str):
    assert only_problem_of(text).startswith(f"f.yaml:1: {says}")


@for_each(("node", "document_with"), [each for each in values() if "maximum" in each[0]])
def test_every_number_has_a_range_that_holds_at_both_ends(
    node: Node, document_with: Callable[[float], object]
):
    def text(value: float) -> str:
        return json.dumps(document_with(int(value) if node["type"] == "integer" else value))

    above = "exclusiveMinimum" in node
    low = node["exclusiveMinimum" if above else "minimum"]
    high = node["maximum"]
    for inside in (0.001 if above else low, high):
        settings_of(text(inside))
    for outside in (low - (not above), high + 1):
        assert "must be " in only_problem_of(text(outside))


@pytest.mark.parametrize(
    ("text", "inside", "outside", "says"),
    [
        ("gpu: {home_model: %s}", MAX_NAME_CHARS, MAX_NAME_CHARS + 1, "must not be longer than"),
        ("storage: {path: /%s}", MAX_TEXT_CHARS - 1, MAX_TEXT_CHARS, "must not be longer than"),
        (
            "jobs: {webhooks: {secret: '%s'}}",
            MIN_SECRET_CHARS,
            MIN_SECRET_CHARS - 1,
            "must have at least 16 characters",
        ),
    ],
)
def test_a_text_has_a_length_and_one_character_beyond_it_is_refused(
    text: str, inside: int, outside: int, says: str
):
    settings_of(text % ("a" * inside))
    assert says in only_problem_of(text % ("a" * outside))


def test_values_arrive_as_settings_that_cannot_be_changed():
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
    assert settings.scheduling.active_hours == (
        Window(start_minute=22 * 60 + 15, end_minute=6 * 60 + 45),
    )
    assert settings.scheduling.announcements == (
        Announcement(task_type="digest", cron="30 6 * * *"),
    )
    assert settings.priority_map == {"parse_task": Priority.CRITICAL, "nudge": Priority.BACKGROUND}
    assert settings.rate_limits.callers == {"notebook": CallerLimits(requests_per_minute=30)}
    assert settings.models == {"llama3.1:8b": ModelSettings(vram_gb=6.0, num_ctx=8192)}
    assert settings.ollama.url == "http://gpu.lan:11434"
    assert type(settings.queue.max_wait_s) is float
    with pytest.raises(TypeError):
        settings.priority_map["b"] = Priority.CRITICAL  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("gpu:\nqueue:\nmodels:\nauth:\n  keys:\nrate_limits:\n  default:\nbackend:\n", "{}"),
        ("backend: emulator", "backend: {mode: emulator}"),
    ],
)
def test_what_is_left_out_has_its_default(text: str, same: str):
    assert settings_of("{}") == Settings()
    assert settings_of(text) == settings_of(same)


def test_the_named_file_is_read_else_the_one_in_the_usual_place_else_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOUSE_GPU_BOX", "gpu")
    assert load_gateway_config() == GatewayConfig()
    usual = Path("config/llm_gateway.yaml")
    named = tmp_path / "house.yaml"
    usual.parent.mkdir()
    usual.write_text("ollama: {url: 'http://${HOUSE_GPU_BOX}'}")
    named.write_bytes(
        b"\xef\xbb\xbfqueue:\r\n  max_external_depth: 7\r\n"
        + b" #".ljust(MAX_DOCUMENT_BYTES - 36, b"x")
    )
    config = load_gateway_config(named, {})
    assert (config.source, config.settings.queue.max_external_depth, named.stat().st_size) == (
        named,
        7,
        MAX_DOCUMENT_BYTES,
    )
    config = load_gateway_config()
    assert (config.source, config.settings.ollama.url) == (usual, "http://gpu")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, ": cannot be read: No such file or directory"),
        (Path.mkdir, ": is not a regular file"),
        (
            b"queue:\n  max_external_depth: -7\n",
            ":2: queue.max_external_depth: must be at least 1, not -7",
        ),
        (b"a: \xff\n", ":1: is not UTF-8 text; save it as UTF-8"),
        ("queue: {}".encode("utf-16"), ":1: is not UTF-8 text; save it as UTF-8"),
        (b"queue: {} #".ljust(MAX_DOCUMENT_BYTES + 1, b"x"), ": is larger than 256 KiB"),
        (b"\x7fELF\x00\x00", ":1: control character U+007F"),
    ],
)
def test_a_file_that_is_none_or_wrong_is_named_in_its_problem(
    tmp_path: Path, content: bytes | Callable[[Path], None] | None, says: str
):
    path = tmp_path / says.partition(":")[2].replace("/", "")
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        content(path)
    with pytest.raises(ConfigError) as caught:
        load_gateway_config(str(path), {})
    (problem,) = caught.value.problems
    assert problem.startswith(f"{path}{says}")


# What the rest of Hearth asks of a configuration.


def parsed(text: str) -> GatewayConfig:
    return parse_config(text, source="f.yaml", environ={})


def instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_task_type_has_the_priority_that_the_map_gives_it_else_normal():
    config = parsed("priority_map: {parse_task: critical, nudge: background}")
    found = [
        config.priority_for_task_type(each) for each in ("parse_task", "nudge", "PARSE_TASK", None)
    ]
    assert found == [Priority.CRITICAL, Priority.BACKGROUND, Priority.NORMAL, Priority.NORMAL]


@pytest.mark.parametrize(
    ("limits", "per_minute", "per_hour"),
    [
        ("{}", 120, 2000),
        ("{callers: {a: {requests_per_hour: 0}}}", 120, 0),
        (
            (
                "{default: {requests_per_hour: 9}, callers: {a: {requests_per_minute: 7}, b: "
                "{requests_per_hour: 3}}}"
            ),
            7,
            9,
        ),
    ],
)
def test_a_caller_has_its_own_limits_else_the_owners_else_ours(
    limits: str, per_minute: int, per_hour: int
):
    config = parsed(f"rate_limits: {limits}")
    assert (config.rpm_for_caller("a"), config.rph_for_caller("a")) == (per_minute, per_hour)


@pytest.mark.parametrize(
    "text",
    [
        "scheduling: {active_hours: ['Mon-Fri 06:00-09:00', 'Sat,Sun 10:00-23:00']}",
        'scheduling:\n  active_hours:\n    - "Mon-Fri 06:00-09:00"\n    - "Sat,Sun 10:00-23:00"\n',
    ],
)
def test_several_windows_are_a_list(text: str):
    read = parsed(text)
    week, end = read.settings.scheduling.active_hours
    assert (week.days, end.days) == ((0, 1, 2, 3, 4), (5, 6))
    assert parsed(as_yaml(read.settings)) == read


def test_active_hours_and_announcements_are_read_in_the_configured_zone():
    announced = "announcements: [{task_type: digest, cron: '30 6 * * *'}]"
    config = parsed(
        f"scheduling: {{active_hours: '06:00-22:00', time_zone: Asia/Kolkata, {announced}}}"
    )
    begins_at = instant("2026-01-10T06:00:00+05:30")
    ends_at = instant("2026-01-10T22:00:00+05:30")
    assert [config.is_active_hours(at) for at in (begins_at - 1, begins_at)] == [False, True]
    assert config.next_mode_change(begins_at) == ends_at
    found = config.next_announcements(begins_at)
    assert found is not None
    assert (found[0][0].task_type, found[1]) == ("digest", begins_at + 1800)
    assert parsed("{}").next_announcements(0.0) is None


def test_the_scheduler_gets_its_part_of_the_settings():
    config = parsed(
        "queue: {max_interrupt_count: 9}\nbackend: {wait_when_down_s: 1}\ngpu: "
        "{parallel: 2}\nmodels: {m: {parallel: 3}}"
    )
    named = config.with_names(lambda name: f"{name}:latest")
    scheduler = named.scheduler_settings
    assert scheduler == SchedulerSettings.of(named.settings)
    assert (scheduler.queue.max_interrupt_count, scheduler.wait_when_down_s) == (9, 1.0)
    assert [scheduler.parallel(model) for model in ("m:latest", "other:latest")] == [3, 2]


KEYS = (
    f"auth: {{keys: [{{name: a, sha256: '{'1' * 64}'}}, {{name: boss, sha256: "
    f"'{'2' * 64}', lane: internal}}]}}\n"
)
LIMITED = "rate_limits: {callers: {%s: {requests_per_minute: 3}}}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            KEYS + "queue: {paused_callers: [ghost, a, internal]}",
            ["queue.paused_callers[0]: no key in auth.keys has the name ghost"],
        ),
        (LIMITED % "ghost", ["rate_limits.callers.ghost: no key in auth.keys has this name"]),
        (LIMITED % "local", []),
        (KEYS + LIMITED % "a", []),
        (
            KEYS + LIMITED % "boss",
            ["rate_limits.callers.boss: its key is in the internal lane, which has no limits"],
        ),
        (
            KEYS + LIMITED % "local",
            ["rate_limits.callers.local: no key in auth.keys has this name"],
        ),
        (
            KEYS.replace("lane: internal", "allow_cloud: true"),
            ["auth.keys[1].allow_cloud: cloud.api_key is not set"],
        ),
        (
            KEYS.replace("lane: internal", "daily_usd: 1"),
            ["auth.keys[1].daily_usd: has no effect without allow_cloud"],
        ),
        ("gpu: {yield: {comfyui: 'http://127.0.0.1:8188', comfyui_gb: 12}}", []),
        (
            "gpu: {yield: {comfyui_gb: 12}}",
            ["gpu.yield.comfyui_gb: has no effect without gpu.yield.comfyui"],
        ),
        ("gpu: {nvml: false, yield: {watch: games, game_gb: 8}}", []),
        ("keepalive: {whole_answers: off}", []),
        ("gpu: {yield: {watch: named, programs: [blender]}}", []),
        (
            "gpu: {yield: {game_gb: 8}}",
            ["gpu.yield.game_gb: has no effect with gpu.yield.watch: off"],
        ),
        (
            "gpu: {yield: {watch: games, programs: [blender]}}",
            ["gpu.yield.programs: has no effect with gpu.yield.watch: games"],
        ),
        (
            "gpu: {sleep: {host_ram_gb: 24, policy: ages}}",
            ["gpu.sleep.host_ram_gb: has no effect: no engine and no model has a way to sleep"],
        ),
        (
            "gpu: {sleep: {policy: ages}}",
            ["gpu.sleep.policy: has no effect without gpu.sleep.host_ram_gb"],
        ),
        ("gpu: {sleep: {host_ram_gb: 0}}", []),
        ("engines: {big: {kind: vllm, url: 'http://b', sleep: [discard]}}", []),
        (
            "engines: {big: {kind: vllm, url: 'http://b', sleep: [discard, offload]}}",
            [
                (
                    "engines.big.sleep: `offload` has no effect without gpu.sleep.host_ram_gb;"
                    " what has to be stopped sleeps at `discard`"
                )
            ],
        ),
        (
            "gpu: {nvml: false, device: all}",
            ["gpu.device: has no effect, because gpu.nvml is false"],
        ),
        ("gpu: {nvml: false}", []),
        ("gpu: {device: all}", []),
        (
            "gpu: {nvml: false, yield: {watch: pressure}}",
            ["gpu.yield.watch: pressure does no more than named, because gpu.nvml is false"],
        ),
        (
            "gpu: {yield: {watch: pressure, headroom_gb: 0}}",
            ["gpu.yield.watch: pressure does no more than named, because headroom_gb is 0"],
        ),
        (
            "gpu: {yield: {watch: games, game_gb: 0}}",
            ["gpu.yield.game_gb: 0 frees nothing; without it, all memory is freed"],
        ),
        (
            "gpu: {yield: {comfyui: 'http://127.0.0.1:8188', comfyui_gb: 0}}",
            ["gpu.yield.comfyui_gb: 0 frees nothing; without it, all memory is freed"],
        ),
    ],
)
def test_a_setting_that_can_have_no_effect_is_named_with_the_reason(text: str, says: list[str]):
    assert [*effectless(parsed(text).settings)] == says


def test_a_drain_that_holds_back_more_than_before_is_named():
    text = "scheduling: {schedule_drain_minutes: 2, announcements: %s}"
    task = "[{cron: '0 7 * * *', task_type: digest}]"
    said = [*changed_meanings(parsed(text % task).settings)]
    assert len(said) == 1
    assert said[0].startswith("scheduling.schedule_drain_minutes: holds back what could still run")
    assert [*changed_meanings(parsed(text % "[]").settings)] == []


def test_an_own_swap_timeout_is_named_since_it_bounds_less_than_before():
    [said] = changed_meanings(parsed("gpu: {swap_timeout_s: 300}").settings)
    assert said.startswith("gpu.swap_timeout_s: bounds how long a load shows no progress")
    assert [*changed_meanings(parsed("gpu: {swap_timeout_s: 120}").settings)] == []


def test_a_number_of_swaps_that_no_longer_alerts_is_named_where_there_are_alerts():
    text = "alerts: {ntfy_url: 'https://ntfy.sh/x'}\ngpu: {alerts: {%s}}"
    [said] = changed_meanings(parsed(text % "temperature_c: 80").settings)
    assert said.startswith("gpu.alerts.swaps_per_hour_warning: is off unless it is set")
    for value in ("4", "0", "null"):
        settings = parsed(text % f"swaps_per_hour_warning: {value}").settings
        assert [*changed_meanings(settings)] == []


def test_a_request_limit_without_embeddings_is_named_until_those_have_one():
    text = (
        "rate_limits: {default: {requests_per_hour: 5, embeddings_per_minute: 7}, "
        "callers: {local: {requests_per_minute: 3%s}}}"
    )
    said = [*changed_meanings(parsed(text % "").settings)]
    assert said == [
        (
            "rate_limits.default.requests_per_hour: no longer counts embeddings; they have "
            "embeddings_per_hour, which is 20000 unless you set it"
        ),
        (
            "rate_limits.callers.local.requests_per_minute: no longer counts embeddings; they have "
            "embeddings_per_minute, which is 7 unless you set it"
        ),
    ]
    assert len([*changed_meanings(parsed(text % ", embeddings_per_minute: 0").settings)]) == 1
    assert [*changed_meanings(parsed("{}").settings)] == []


@pytest.mark.parametrize(
    ("aliases", "line", "problem"),
    [
        ("coder: []", 2, "aliases.coder: must have at least one entry"),
        ("coder: qwen3", 2, "aliases.coder: must be a list"),
        ("Chat: [other]", 2, "aliases.Chat: is a model (gpu.home_model); give the alias a name"),
        ("big:latest: [other]", 2, "is a model (models.big); give the alias a name of its own"),
        ("a: [x]\n  A:latest: [y]", 3, "is the same name as aliases.a; remove one"),
        ("a: [x]\n  b: [A]", 3, "aliases.b[0]: is an alias itself; name the models"),
        ("a: [a]", 2, "aliases.a[0]: is an alias itself; name the models"),
        ("a:\n  - x:7b\n  - X:7b", 4, "aliases.a[1]: is the same as entry 1; remove one"),
        ("a: [x, 'x:latest']", 2, "aliases.a[1]: is the same as entry 1; remove one"),
        ("'a*': [x]", 2, "must not contain `*`, which stands for any name in auth.keys"),
        ("a: ['x*']", 2, "aliases.a[0]: must be one model: `*` is not replaced here"),
        ("köder: [x]", 2, "is no name that a request could have: at most 80 letters (a to z)"),
        (f"{'a' * 81}: [x]", 2, "is no name that a request could have"),
        ("a!: [x]", 2, "is no name that a request could have"),
        ("'a:b:c': [x]", 2, "is no name that a request could have"),
        ("a: ['x y']", 2, "aliases.a[0]: is not a model name: it must not contain spaces"),
    ],
)
def test_an_alias_that_means_nothing_or_two_things_is_refused(aliases, line, problem):
    known = "gpu: {home_model: chat}\nmodels: {big: {vram_gb: 20}}"
    with pytest.raises(ConfigError) as refused:
        parse_config(f"aliases:\n  {aliases}\n{known}\n", source="f")
    (found,) = refused.value.problems
    assert found.startswith(f"f:{line}: ")
    assert problem in found


@pytest.mark.parametrize("name", ["gpt-4o", "openai/gpt-4o", "_x.Y:1.5-a", "a" * 80])
def test_an_alias_may_have_any_name_that_a_request_can_have(name):
    config = parse_config(f"aliases: {{'{name}': [x]}}", source="f")
    assert (list(config.settings.aliases), is_model_name(name)) == ([name], True)


def test_an_alias_keeps_its_name_and_the_order_of_its_models():
    config = parse_config("aliases: {coder: [big, 'small:7b']}", source="f")
    named = config.with_names(lambda name: name if ":" in name else f"{name}:latest")
    assert dict(config.settings.aliases) == {"coder": ("big", "small:7b")}
    assert dict(named.settings.aliases) == {"coder": ("big:latest", "small:7b")}
