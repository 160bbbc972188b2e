"""Keys and addresses from the environment: digests inside, no clear key anywhere, and no open door
without keys.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from hearth.config.loading import parse_config
from hearth.config.rendering import as_yaml, differences
from hearth.config.settings import KeySettings, Settings
from hearth.errors import ConfigError
from hearth.types import Lane, Priority
from tests.config.reading import only_problem_of, problems_of, settings_of
from tests.support.cases import for_each
from tests.support.fields import Fields

SECRET = "hk_correct-horse-battery-staple"
DIGITS = "01234567"
DIGEST = "ab" * 32
SHORT = "15_characters_x"
ENVIRON = {
    "K": SECRET,
    "EMPTY": "",
    "BROKEN": "two\nlines",
    "SPACED": f"{SECRET} x",
    "SHORT": SHORT,
    "ENOUGH": f"{SHORT}!",
    "BOX": "gpu",
}
BEYOND = ("0.0.0.0", "::", "192.168.1.5", "gpu-box.lan", "127.0.0.1.example.org")
BAD_URLS = (
    "ftp://host/x",
    "host/x",
    "https:///x",
    "https://host/ x",
    "https://ho\u017ft/x",
    "https://host:0/",
    "//host",
)
PLACES = (
    "auth.keys[].key, ollama.url, url and api_key of engines, cloud.api_key, cloud.base_url, "
    "jobs.webhooks.secret, server.allowed_hosts and the URLs of alerts"
)


def test_a_key_from_the_environment_is_a_digest_and_an_address_is_joined():
    text = (
        "auth: {keys: [{name: house, key: '${ENOUGH}', lane: internal, max_priority: "
        "normal, models: ['llama*'], admin: true}]}"
    )
    settings = settings_of(text + "\nollama: {url: 'http://${BOX}:1${ONE}'}", ONE="1", **ENVIRON)
    digest = hashlib.sha256(ENVIRON["ENOUGH"].encode()).hexdigest()
    rights: Fields = {
        "lane": Lane.INTERNAL,
        "max_priority": Priority.NORMAL,
        "models": ("llama*",),
        "admin": True,
    }
    assert settings.auth.keys == (KeySettings(name="house", sha256=digest, **rights),)
    assert settings.ollama.url == "http://gpu:11"


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("ollama: {url: 'http://${HOST:-gpu}:${PORT:-11434}'}", "ollama.url", "http://gpu:11434"),
        ("ollama: {url: 'http://${BOX:-other}:1'}", "ollama.url", "http://gpu:1"),
        ("ollama: {url: 'http://${EMPTY:-other}:1'}", "ollama.url", "http://other:1"),
        ("alerts: {webhook_url: '${HOOK:-}'}", "alerts.webhook_url", ""),
        ("cloud: {api_key: '${LOST:-}'}", "cloud.api_key", ""),
        (
            "server: {allowed_hosts: ['${BOX}', '${HOST:-}', '*.${ZONE:-lan}', b]}",
            "server.allowed_hosts",
            ("gpu", "", "*.lan", "b"),
        ),
    ],
)
def test_a_variable_may_have_a_default_also_an_empty_one(text: str, path: str, value: object):
    held: Any = settings_of(text, **ENVIRON)
    for step in path.split("."):
        held = getattr(held, step)
    assert held == value


@pytest.mark.parametrize(
    "text",
    [
        "ollama: {url: '${NOPE:-}'}",
        "ollama: {url: '${EMPTY:-}${NOPE:-}'}",
        "cloud: {base_url: '${NOPE:-}', api_key: '${NOPE:-}'}",
        (
            "alerts: {discord_webhook_url: '${NOPE:-}', webhook_url: '${NOPE:-}', "
            "ntfy_url: '${NOPE:-}'}"
        ),
        "jobs: {webhooks: {secret: '${NOPE:-}'}}",
    ],
)
def test_a_setting_left_empty_by_optional_variables_is_as_if_not_written(text: str):
    section = text.partition(":")[0]
    settings = settings_of(text, **ENVIRON)
    assert settings == Settings()
    held = getattr(settings, section)
    assert held.model_fields_set <= {"webhooks"}
    assert settings_of("ollama: {url: 'http://${BOX:-}'}", **ENVIRON).ollama.url == "http://gpu"


def test_an_empty_text_that_names_no_variable_is_still_a_mistake():
    assert only_problem_of("ollama: {url: ''}").startswith("f.yaml:1: ollama.url: ")


def test_a_key_whose_optional_variable_is_not_set_opens_nothing():
    entries = (
        "[{name: a, key: '${LOST:-}'}, {name: b, key: '${GONE:-}', admin: true}, "
        "{name: c, key: '${K:-}'}]"
    )
    config = parse_config(
        f"auth: {{keys: {entries}}}\nserver: {{host: '0.0.0.0'}}", source="f.yaml", environ=ENVIRON
    )
    keys = config.settings.auth.keys
    assert [key.name for key in keys] == ["a", "b", "c"]
    assert keys[2].sha256 == hashlib.sha256(SECRET.encode()).hexdigest()
    assert len({key.sha256 for key in keys}) == 3
    assert [note.partition(":")[0] for note in config.notes] == [
        "auth.keys[0].key",
        "auth.keys[1].key",
    ]
    assert "LOST" in config.notes[0]


UNUSABLE_KEYS = [
    ("{name: a}", "sha256: is missing: give sha256, or key: ${NAME}"),
    (f"{{name: a, sha256: '{DIGEST}', key: '${{K}}'}}", "key: give either sha256 or key, not both"),
    ("{name: a, sha256: abc}", "sha256: must be 64 hex digits"),
    ("{name: a, key: '${MISSING}'}", "key: the environment variable MISSING is not set"),
    ("{name: a, key: '${EMPTY}'}", "key: the environment variable EMPTY is not set"),
    ("{name: a, key: '${BROKEN}'}", "key: the environment variable BROKEN contains a character"),
    (
        "{name: a, key: '${SHORT}'}",
        "key: the environment variable SHORT has fewer than 16 characters",
    ),
    ("{name: a, key: 5}", "key: must be ${NAME}"),
    ("{name: a, key: '${LOST:-0123456789abcdef}'}", "key: must be ${NAME}"),
    (f"{{sha256: '{DIGEST}'}}", "name: is missing"),
    (f"{{name: several, sha256: '{DIGEST}'}}", "name: must not be several"),
    (f"{{name: a, sha256: '{DIGEST}', lane: vip}}", "lane: must be 'internal' or 'external'"),
    (f"{{name: a, sha256: '{DIGEST}', adnim: true}}", "adnim: unknown key; did you mean admin?"),
]


@for_each(
    ("text", "says"),
    [
        *((f"auth: {{keys: [{entry}]}}", f"auth.keys[0].{says}") for entry, says in UNUSABLE_KEYS),
        (
            "ollama: {url: 'http://${LOST}'}",
            (
                "ollama.url: the environment variable LOST is not set; set it, or write the "
                "value itself"
            ),
        ),
        ("gpu: {home_model: '${BOX}'}", f"gpu.home_model: `${{...}}` is replaced only in {PLACES}"),
        ("ollama: {url: 'http://a/${b'}", "ollama.url: contains `${` without"),
        ("ollama: {url: 'http://${A:-${BOX}}'}", "ollama.url: contains `${` without"),
        (
            "cloud: {api_key: '${LOST:-sk-ant-clear}'}",
            "cloud.api_key: must be ${NAME}, to keep the key out of this file",
        ),
        ("server: {allowed_hosts: ['*']}", "server.allowed_hosts: `*` needs auth.keys"),
        (
            "cloud: {api_key: sk-ant-clear}",
            "cloud.api_key: must be ${NAME}, to keep the key out of this file",
        ),
        (
            "cloud: {api_key: '${MISSING}'}",
            "cloud.api_key: the environment variable MISSING is not set",
        ),
        (
            "cloud: {api_key: '${SPACED}'}",
            "cloud.api_key: contains a character that HTTP headers do not allow",
        ),
        ("cloud: {api_key: '${K}'}\nstorage: {enabled: false}", "cloud.api_key: needs the store"),
        ("cloud: {models: {a: 5}}", "cloud.models.a: must be text"),
        ("cloud: {prices: {a: {input_usd: 1}}}", "cloud.prices.a.output_usd: is missing"),
        *((f"server: {{host: '{host}'}}", "server.host: without auth.keys") for host in BEYOND),
        *(
            (
                f"alerts: {{webhook_url: '{url}'}}",
                "alerts.webhook_url: must be the whole URL that messages are posted to",
            )
            for url in BAD_URLS
        ),
    ],
)
def test_a_mistake_is_named_and_no_secret_quoted(text: str, says: str):
    problem = only_problem_of(text, **ENVIRON)
    assert problem.startswith(f"f.yaml:1: {says}")
    assert not any(secret in problem for secret in (SECRET, "sk-ant-clear", DIGEST, *BAD_URLS))


def test_two_keys_may_share_neither_name_nor_secret():
    entries = (
        f"- {{name: a, sha256: '{DIGEST}'}}\n  - {{name: a, key: '${{K}}'}}\n  - "
        f"{{name: c, sha256: '{DIGEST.upper()}'}}\n"
    )
    assert problems_of(f"auth:\n  keys:\n  {entries}", K=SECRET) == (
        (
            "f.yaml:4: auth.keys[1].name: is the same as auth.keys[0]; every key needs a "
            "name of its own"
        ),
        (
            "f.yaml:5: auth.keys[2].sha256: is the same as auth.keys[0]; every caller "
            "needs a key of its own"
        ),
    )


@pytest.mark.parametrize(
    "text",
    [
        f"auth: {{keys: [{{name: a, key: {SECRET}}}]}}",
        (
            f"auth: {{keys: [{{name: a, key: '${{K}}', lane: {SECRET}, max_priority: "
            f"{SECRET}}}], x: 1}}"
        ),
        *(f"auth: {value}" for value in (f"{{keys: [{SECRET}]}}", f"{{keys: {SECRET}}}", SECRET)),
        *(f"auth: {{keys: [{{name: a, key: {digits}}}]}}" for digits in (DIGITS, f"1{DIGITS}")),
        f"cloud: {{api_key: {DIGITS}}}",
        *(f"jobs: {{webhooks: {{secret: {digits}}}}}" for digits in (DIGITS, f"1{DIGITS}")),
        "auth: {keys: [{name: a, key: 'prefix ${K}'}]}",
        *(f"ollama: {{url: '{url}'}}" for url in ("http://user:${K}@gpu", "${K}")),
        "alerts: {discord_webhook_url: '${K}'}",
        "alerts: {webhook_url: 'https://host/${K}#x'}",
        "alerts: {ntfy_url: ['${K}']}",
        "gpu: {home_model: '${K}'}",
    ],
)
def test_no_problem_and_no_exception_chain_shows_a_key(text: str):
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="f.yaml", environ={"K": SECRET})
    error: BaseException | None = caught.value
    while error is not None:
        assert not any(secret in f"{error!r} {error}" for secret in (SECRET, DIGITS))
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("auth: {keys: [{name: a, key: '${K}'}]}", "auth.keys"),
        ("cloud: {api_key: '${K}'}", "cloud.api_key"),
        ("jobs: {webhooks: {secret: '${K}'}}", "jobs.webhooks.secret"),
        *(
            (f"alerts: {{{name}: 'https://host/${{K}}'}}", f"alerts.{name}")
            for name in ("discord_webhook_url", "webhook_url", "ntfy_url")
        ),
    ],
)
def test_a_secret_comes_from_the_environment_and_is_shown_nowhere(text: str, path: str):
    settings = settings_of(text, K=SECRET)
    held: Any = settings
    for step in path.split("."):
        held = getattr(held, step)
    assert path == "auth.keys" or held.removeprefix("https://host/") == SECRET
    assert SECRET not in f"{settings!r} {as_yaml(settings)}"
    assert differences(Settings(), settings) == {path: True}


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST", *BEYOND]
)
def test_listening_on_this_machine_needs_no_key_and_elsewhere_one(host: str):
    key = f"auth: {{keys: [{{name: a, sha256: '{DIGEST.upper()}'}}]}}" if host in BEYOND else ""
    settings = settings_of(f"server: {{host: '{host}'}}\n{key}")
    assert (settings.server.host, [each.sha256 for each in settings.auth.keys]) == (
        host,
        [DIGEST] if key else [],
    )
