"""The file and the schema that are shipped say what the settings classes say."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from click.testing import CliRunner

from hearth.cli import main
from hearth.config.document import Document, KeyPath
from hearth.config.fields import Section
from hearth.config.loading import load_gateway_config, parse_config
from hearth.config.rendering import schema, schema_text
from hearth.config.scheduler_settings import GpuAlertSettings
from hearth.config.settings import ModeSettings, Settings
from hearth.errors import ConfigError
from hearth.types import Priority
from tests.config.reading import entry_of, kind_of, section_in, settings_classes
from tests.support.cases import for_each
from tests.support.places import ROOT

FOLDER = ROOT / "config"
SHIPPED = (FOLDER / "llm_gateway.yaml").read_text("utf-8")
COMPLETE = re.sub(r"^( *)#(?=[^ #\n])", r"\1", SHIPPED, flags=re.MULTILINE)
WHOLE = Document(COMPLETE, source="f")


Field = tuple[type[Section], str, KeyPath]


def documented(cls: type[Section] = Settings, path: KeyPath = ()) -> Iterator[Field]:
    """Every field of every class, with its place in the complete file: under the first entry where
    that has several.
    """
    complete: Any = WHOLE.value
    for step in path:
        complete = complete[step]
    # the sections in a mode are those of the file once more
    for name in ("when",) if cls is ModeSettings else cls.model_fields:
        yield cls, name, (*path, name)
        inner = section_in(kind_of(cls, name))
        entry = section_in(entry_of(cls, name))
        if inner is not None:
            yield from documented(inner, (*path, name))
        elif entry is not None and complete[name]:
            first = 0 if isinstance(complete[name], list) else next(iter(complete[name]))
            yield from documented(entry, (*path, name, first))


FIELDS = [*documented()]


def comment_above(path: KeyPath) -> str:
    """The lines of comment right above a key."""
    comment: list[str] = []
    for line in reversed(COMPLETE.splitlines()[: WHOLE.lines[path] - 1]):
        if not (match := re.fullmatch(r" *# (.*)", line)):
            break
        comment.insert(0, match.group(1))
    return " ".join(comment)


def test_the_shipped_file_loads_and_differs_only_in_task_types():
    settings = load_gateway_config(FOLDER / "llm_gateway.yaml", {}).settings
    assert settings == Settings(priority_map=settings.priority_map)
    tasks = {
        "parse_task": 0,
        "challenge_task": 0,
        "generate_digest": 1,
        "generate_nudge": 2,
        "generate_reminder": 2,
    }
    assert settings.priority_map == {name: Priority(number) for name, number in tasks.items()}
    given: Any = Document(SHIPPED, source="f").value
    assert {
        f"{section}.{key}"
        for section, keys in given.items()
        for key in keys
        if section != "priority_map"
    } == {
        *(f"scheduling.{name}" for name in ("active_hours", "schedule_drain_minutes")),
        *(
            "queue.max_external_depth",
            "rate_limits.callers",
            "budget.daily_external_usd",
            "budget.alert_pct",
        ),
        *(f"gpu.{name}" for name in ("swap_timeout_s", "restore_home_delay_s", "alerts")),
    }


def test_the_shipped_file_is_checked_without_a_warning():
    checked = CliRunner().invoke(main, ["config", "check", str(FOLDER / "llm_gateway.yaml")])
    assert (checked.exit_code, checked.stderr) == (0, "")


def test_donnas_own_configuration_loads_and_keeps_its_limits_and_its_home_model():
    config = load_gateway_config(FOLDER.parent / "examples" / "donna.yaml", {})
    assert (config.rpm_for_caller("anyone"), config.rph_for_caller("anyone")) == (10, 100)
    assert config.settings.gpu.home_model == "qwen2.5:32b-instruct-q6_K"
    assert config.settings.gpu.alerts == GpuAlertSettings(
        swaps_per_hour_warning=4, swap_wait_ms_warning=60_000, swap_overhead_pct_warning=25
    )


def test_the_file_that_donna_ships_loads_under_its_old_names_with_notes():
    text = (FOLDER.parent / "examples" / "donna.yaml").read_text()
    text = text.replace(
        "  schedule_drain_minutes: 2\n", "  schedule_drain_minutes: 2\n  timezone: Europe/Berlin\n"
    )
    text += (
        "cloud:\n  max_per_request_usd: 0.50\n  daily_cloud_external_usd: 2.00\n"
        "ollama_health_check: true\n"
    )
    text += (
        "alerts:\n  queue_depth_warning: 10\n  rate_limit_alert_threshold: 3\n  "
        "debounce_minutes: 10\n"
    )
    config = parse_config(text, source="f", environ={})
    assert config.settings.scheduling.time_zone == "Europe/Berlin"
    assert config.settings.cloud.daily_external_usd == 2.0
    assert [note.partition(":")[0] for note in config.notes] == [
        "ollama_health_check",
        "scheduling.timezone",
        "cloud.daily_cloud_external_usd",
    ]
    with pytest.raises(ConfigError, match="timezone: unknown key"):
        parse_config(
            "scheduling: {timezone: Europe/Berlin, time_zone: Europe/Paris}", source="f", environ={}
        )


def test_every_line_that_is_commented_out_can_be_taken_in():
    assert COMPLETE != SHIPPED
    parse_config(COMPLETE, source="f", environ={})
    assert {cls for cls, _, _ in FIELDS} == set(settings_classes())


@for_each(("cls", "name", "path"), FIELDS)
def test_a_settings_comment_is_its_docstring_default_and_effect(
    cls: type[Section], name: str, path: KeyPath
):
    field = cls.model_fields[name]
    section = section_in(kind_of(cls, name))
    comment = comment_above(path)
    if cls.__name__ == "CallerLimits" and path[1] == "callers":
        return
    if field.description is None:
        assert section is not None
        assert comment == " ".join((section.__doc__ or "").split())
        return
    text = " ".join(field.description.split()).removesuffix(cls.reload_of(name))
    default = re.fullmatch(rf"{re.escape(text)}(?:Default (.+)\. )?{cls.reload_of(name)}", comment)
    assert default is not None, f"{text}... is not {comment}"
    if default.group(1) is not None:
        assert (
            Document(default.group(1), source="f").value
            == cls.model_construct().model_dump(mode="json")[name]
        )
    else:
        assert (
            field.is_required()
            or section is not None
            or (field.default is None and "Unset: " in text)
        )


def test_the_schema_is_the_generated_one_and_editors_are_led_to_it():
    assert SHIPPED.splitlines()[0] == "# yaml-language-server: $schema=llm_gateway.schema.json"
    assert (FOLDER / "llm_gateway.schema.json").read_text("utf-8") == schema_text()
    assert schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert '"title"' not in json.dumps(
        {key: value for key, value in schema().items() if key != "title"}
    )


TAKEN = [
    SHIPPED,
    COMPLETE,
    "{}",
    "gpu:\nauth:\n  keys:\n",
    "backend: auto",
    "auth: {keys: [{name: a, key: '${K}'}]}",
    "modes: {night: {when: ['0 22 * * *', 'Sat 10:00-12:00'], queue: {sharing: fair}}, plain: }",
]
REFUSED = [
    *(
        "colour: red",
        "gpu: {swap_timout_s: 1}",
        "gpu: {swap_timeout_s: 0}",
        "server: {port: 70000}",
        "queue: {max_external_depth: 1.5}",
    ),
    *(
        "scheduling: {active_hours: '6-22'}",
        "backend: nowhere",
        "priority_map: {a: 2}",
        "auth: {keys: [{name: a}]}",
    ),
    "auth: {keys: [{sha256: a}]}",
    "modes: {night: {server: {port: 1}}}",
    "modes: {night: {queue: {max_external_depth: 0}}}",
]


@pytest.mark.parametrize(
    ("text", "taken"), [*((text, True) for text in TAKEN), *((text, False) for text in REFUSED)]
)
def test_the_schema_and_the_loader_agree(text: str, taken: bool):
    assert jsonschema_rs.validator_for(schema()).is_valid(Document(text, source="f").value) is taken
    with contextlib.nullcontext() if taken else pytest.raises(ConfigError):
        parse_config(text, source="f", environ={"K": "hearth_key_of_the_tests"})
