"""The effective configuration as text, and what changed."""

from __future__ import annotations

import json
from collections.abc import Callable

from hearth.config.rendering import as_yaml, differences
from tests.config.reading import Node, settings_of, values
from tests.support.cases import for_each

DIGEST = "0123456789abcdef" * 4
MISREAD = (
    *(
        "on",
        "22:30",
        "0644",
        "~",
        "*",
        "a: b",
        "1e3",
        "#x",
        "- a",
        "null",
        "2026-01-02",
        "&a",
        "!t",
        "%x",
        "@x",
    ),
    *("a\u00fc\u3042", "{", "'"),
)


@for_each(("node", "document_with"), values())
def test_settings_written_as_yaml_read_back_as_the_same_settings(
    node: Node, document_with: Callable[[object], object]
):
    found = [
        *node.get("enum", ()),
        *([True, False] if node["type"] == "boolean" else []),
        *([node["maximum"]] if "maximum" in node else []),
    ]
    for value in found:
        text = json.dumps(document_with(int(value) if node["type"] == "integer" else value))
        if not text.startswith('{"auth"'):  # what is shown of a digest cannot be read back
            assert settings_of(as_yaml(settings_of(text))) == settings_of(text)


def test_text_that_yaml_would_misread_survives_being_written():
    names = [each for each in MISREAD if " " not in each]
    text = json.dumps(
        {
            "priority_map": dict.fromkeys(MISREAD, "normal"),
            "models": {each: {"vram_gb": 0.1} for each in names},
        }
    )
    assert settings_of(as_yaml(settings_of(text))) == settings_of(text)


def test_a_change_is_named_with_whether_a_reload_applies_it():
    old = settings_of("models: {m: {num_ctx: 1}, gone: {parallel: 2}}\npriority_map: {a: normal}")
    new = settings_of("""
models: {m: {num_ctx: 2}, "new:8b": {}}
priority_map: {a: critical}
scheduling: {active_hours: "07:00-22:00"}
server: {port: 9000}
rate_limits: {default: {requests_per_hour: 5}}
""")
    assert list(differences(old, new).items()) == [
        ("scheduling.active_hours", True),
        ("priority_map.a", True),
        ("rate_limits.default.requests_per_hour", True),
        ("models.m.num_ctx", True),
        ("models.gone", True),
        ('models["new:8b"]', True),
        ("server.port", False),
    ]
    assert differences(new, new.replace(server=new.server.replace())) == {}


def test_only_the_beginning_of_a_secret_is_shown_and_a_change_always_counts():
    webhook = (
        "alerts: {discord_webhook_url: 'https://discord.com/api/webhooks/1/canary?thread_id=2'}"
    )
    old, new = (
        settings_of(f"auth: {{keys: [{{name: a, sha256: '{it}'}}]}}\n{webhook}")
        for it in (DIGEST, DIGEST[:8] + "0" * 56)
    )
    assert as_yaml(old) == as_yaml(new)
    assert "sha256: 01234567…" in as_yaml(old)
    assert "discord_webhook_url: https://discord.com/…\n" in as_yaml(old)
    assert not any(secret in as_yaml(old) for secret in (DIGEST[:9], "canary"))
    assert differences(old, new) == {"auth.keys": True}
