"""Keys and addresses from the environment: digests inside, no clear key anywhere, and no open door without keys."""

from __future__ import annotations

import hashlib

import pytest

from hearth.config.loading import parse_config
from hearth.config.rendering import as_yaml, differences
from hearth.config.settings import KeySettings, Settings
from hearth.errors import ConfigError
from hearth.types import Lane, Priority
from tests.config.reading import only_problem_of, problems_of, settings_of
from tests.support.cases import for_each

SECRET = "hk_correct-horse-battery-staple"
DIGITS = "01234567"
DIGEST = "ab" * 32
SHORT = "15_characters_x"


def test_a_key_from_the_environment_becomes_its_digest() -> None:
    text = "auth: {keys: [{name: house, key: '${HOUSE_KEY}', lane: internal, max_priority: normal, models: ['llama*'], admin: true}]}"
    (key,) = settings_of(text, HOUSE_KEY=SECRET).auth.keys
    assert key == KeySettings(
        name="house",
        sha256=hashlib.sha256(SECRET.encode()).hexdigest(),
        lane=Lane.INTERNAL,
        max_priority=Priority.NORMAL,
        models=("llama*",),
        admin=True,
    )


def test_a_digest_is_compared_in_lower_case() -> None:
    assert settings_of(f"auth: {{keys: [{{name: a, sha256: '{DIGEST.upper()}'}}]}}").auth.keys[0].sha256 == DIGEST


@for_each(
    ("entry", "says"),
    [
        ("{name: a}", "auth.keys[0].sha256: is missing: give sha256, or key: ${NAME}"),
        (f"{{name: a, sha256: '{DIGEST}', key: '${{K}}'}}", "auth.keys[0].key: give either sha256 or key, not both"),
        ("{name: a, sha256: abc}", "auth.keys[0].sha256: must be 64 hex digits"),
        ("{name: a, key: '${MISSING}'}", "auth.keys[0].key: the environment variable MISSING is not set"),
        ("{name: a, key: '${EMPTY}'}", "auth.keys[0].key: the environment variable EMPTY is not set"),
        ("{name: a, key: '${BROKEN}'}", "auth.keys[0].key: the environment variable BROKEN holds a character that no HTTP header"),
        ("{name: a, key: '${SHORT}'}", "auth.keys[0].key: the environment variable SHORT has fewer than 16 characters; `hearth admin"),
        ("{name: a, key: 5}", "auth.keys[0].key: must be ${NAME}"),
        (f"{{sha256: '{DIGEST}'}}", "auth.keys[0].name: is missing"),
        (f"{{name: several, sha256: '{DIGEST}'}}", "auth.keys[0].name: must not be several: embedding calls of different callers go by it"),
        (f"{{name: a, sha256: '{DIGEST}', lane: vip}}", "auth.keys[0].lane: must be 'internal' or 'external'"),
        (f"{{name: a, sha256: '{DIGEST}', adnim: true}}", "auth.keys[0].adnim: unknown key; did you mean admin?"),
    ],
)
def test_an_unusable_key_is_refused(entry: str, says: str) -> None:
    assert only_problem_of(f"auth: {{keys: [{entry}]}}", K=SECRET, EMPTY="", BROKEN="two\nlines", SHORT=SHORT).startswith(
        f"f.yaml:1: {says}"
    )


def test_a_key_from_the_environment_has_sixteen_characters() -> None:
    enough = f"{SHORT}!"
    (key,) = settings_of("auth: {keys: [{name: a, key: '${ENOUGH}'}]}", ENOUGH=enough).auth.keys
    assert key.sha256 == hashlib.sha256(enough.encode()).hexdigest()


def test_two_keys_may_share_neither_name_nor_secret() -> None:
    entries = f"- {{name: a, sha256: '{DIGEST}'}}\n  - {{name: a, key: '${{K}}'}}\n  - {{name: c, sha256: '{DIGEST.upper()}'}}\n"
    text = f"auth:\n  keys:\n  {entries}"
    assert problems_of(text, K=SECRET) == (
        "f.yaml:4: auth.keys[1].name: is the same as auth.keys[0]; every key needs a name of its own",
        "f.yaml:5: auth.keys[2].sha256: is the same as auth.keys[0]; every caller needs a key of its own",
    )


@for_each(
    "text",
    [
        f"auth: {{keys: [{{name: a, key: {SECRET}}}]}}",
        f"auth: {{keys: [{{name: a, key: '${{K}}', lane: {SECRET}, max_priority: {SECRET}}}], x: 1}}",
        f"auth: {{keys: [{SECRET}]}}",
        f"auth: {{keys: {SECRET}}}",
        f"auth: {SECRET}",
        f"auth: {{keys: [{{name: a, key: {DIGITS}}}]}}",
        f"auth: {{keys: [{{name: a, key: 1{DIGITS}}}]}}",
        f"cloud: {{api_key: {DIGITS}}}",
        f"jobs: {{webhooks: {{secret: {DIGITS}}}}}",
        f"jobs: {{webhooks: {{secret: 1{DIGITS}}}}}",
        "auth: {keys: [{name: a, key: 'prefix ${K}'}]}",
        "ollama: {url: 'http://user:${K}@gpu'}",
        "ollama: {url: '${K}'}",
        "alerts: {discord_webhook_url: '${K}'}",
        "alerts: {webhook_url: 'https://host/${K}#x'}",
        "alerts: {ntfy_url: ['${K}']}",
        "gpu: {home_model: '${K}'}",
    ],
)
def test_no_problem_and_no_exception_chain_shows_a_key(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="f.yaml", environ={"K": SECRET})
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error!r} {error}"
        assert DIGITS not in f"{error!r} {error}"
        error = error.__cause__ or error.__context__


def test_a_loaded_key_shows_nowhere_in_the_configuration() -> None:
    config = parse_config("auth: {keys: [{name: a, key: '${K}'}]}", source="f.yaml", environ={"K": SECRET})
    assert SECRET not in repr(config)


def test_the_address_of_the_model_server_may_come_from_the_environment() -> None:
    assert settings_of("ollama: {url: 'http://${BOX}:${PORT}'}", BOX="gpu", PORT="11434").ollama.url == "http://gpu:11434"


@for_each("name", ["discord_webhook_url", "webhook_url", "ntfy_url"])
def test_the_address_of_a_webhook_may_come_from_the_environment_and_shows_nowhere(name: str) -> None:
    config = parse_config(f"alerts: {{{name}: '${{HOOK}}'}}", source="f.yaml", environ={"HOOK": f"https://host/{SECRET}"})
    assert getattr(config.settings.alerts, name) == f"https://host/{SECRET}"
    assert SECRET not in repr(config)
    assert SECRET not in as_yaml(config.settings)


@for_each("url", ["ftp://host/x", "host/x", "https:///x", "https://host/ x", "https://ho\u017ft/x", "https://host:0/", "//host"])
def test_a_webhook_that_could_not_be_posted_to_is_refused_without_quoting_it(url: str) -> None:
    (problem,) = problems_of(f"alerts: {{webhook_url: '{url}'}}")
    assert problem.startswith("f.yaml:1: alerts.webhook_url: must be the whole URL that messages are posted to")
    assert url not in problem


def test_a_missing_variable_of_a_url_is_named() -> None:
    problems = problems_of("ollama: {url: 'http://${BOX}'}")
    assert problems == ("f.yaml:1: ollama.url: the environment variable BOX is not set; set it, or write the value itself",)


def test_a_reference_elsewhere_is_refused_rather_than_taken_literally() -> None:
    says = "is replaced only in auth.keys[].key, ollama.url, cloud.api_key, cloud.base_url, jobs.webhooks.secret and the URLs of alerts"
    assert says in only_problem_of("gpu: {home_model: '${MODEL}'}", MODEL="a")


def test_a_reference_without_a_name_is_refused() -> None:
    assert "names no variable" in only_problem_of("ollama: {url: 'http://a/${b'}")


@for_each("host", ["0.0.0.0", "::", "192.168.1.5", "gpu-box.lan", "127.0.0.1.example.org"])
def test_listening_beyond_this_machine_needs_keys(host: str) -> None:
    assert only_problem_of(f"server: {{host: '{host}'}}").startswith("f.yaml:1: server.host: without auth.keys")
    key = f"auth: {{keys: [{{name: a, sha256: '{DIGEST}'}}]}}"
    assert settings_of(f"server: {{host: '{host}'}}\n{key}").server.host == host


@for_each("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST"])
def test_listening_on_this_machine_needs_none(host: str) -> None:
    assert settings_of(f"server: {{host: '{host}'}}").server.host == host


@pytest.mark.parametrize(
    ("text", "path"), [("cloud: {api_key: '${KEY}'}", "cloud.api_key"), ("jobs: {webhooks: {secret: '${KEY}'}}", "jobs.webhooks.secret")]
)
def test_what_calls_and_messages_are_signed_with_comes_from_the_environment_and_is_shown_nowhere(text: str, path: str) -> None:
    settings = settings_of(text, KEY=SECRET)
    assert SECRET in (settings.cloud.api_key, settings.jobs.webhooks.secret)
    assert SECRET not in repr(settings)
    assert SECRET not in as_yaml(settings)
    assert differences(Settings(), settings) == {path: True}


@for_each(
    ("text", "says"),
    [
        ("cloud: {api_key: sk-ant-clear}", "cloud.api_key: must be ${NAME}, so that no key stands in this file"),
        ("cloud: {api_key: '${MISSING}'}", "cloud.api_key: the environment variable MISSING is not set"),
        ("cloud: {api_key: '${BROKEN}'}", "cloud.api_key: holds a character that no HTTP header can carry"),
        ("cloud: {api_key: '${K}'}\nstorage: {enabled: false}", "cloud.api_key: needs the store"),
        ("cloud: {models: {a: 5}}", "cloud.models.a: must be text"),
        ("cloud: {prices: {a: {input_usd: 1}}}", "cloud.prices.a.output_usd: is missing"),
    ],
)
def test_mistakes_about_the_cloud_are_named(text: str, says: str) -> None:
    problem = only_problem_of(text, K=SECRET, BROKEN=f"{SECRET} x")
    assert says in problem
    assert "sk-ant-clear" not in problem
    assert SECRET not in problem
