"""The effective configuration as text, and what changed."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from hearth.config.rendering import as_yaml, differences
from hearth.config.settings import Settings
from tests.config.reading import settings_of
from tests.config.strategies import settings_trees

DIGEST = "0123456789abcdef" * 4


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(settings_trees())
def test_settings_written_as_yaml_read_back_as_the_same_settings(tree: Settings) -> None:
    assert settings_of(as_yaml(tree)) == tree


def test_text_that_yaml_would_misread_survives_being_written() -> None:
    text = "priority_map: {'on': normal, '22:30': critical, '0644': normal, '~': normal, '*': normal, 'a: b': normal, '1e3': background}"
    assert settings_of(as_yaml(settings_of(text))) == settings_of(text)


def test_a_key_is_shown_by_the_beginning_of_its_digest_only() -> None:
    text = as_yaml(settings_of(f"auth: {{keys: [{{name: a, sha256: '{DIGEST}'}}]}}"))
    assert "sha256: 01234567…" in text
    assert DIGEST[:9] not in text


def test_a_webhook_is_shown_by_its_host_only() -> None:
    settings = settings_of("alerts: {discord_webhook_url: 'https://discord.com/api/webhooks/1/canary?thread_id=2'}")
    assert "discord_webhook_url: https://discord.com/…\n" in as_yaml(settings)
    assert "canary" not in f"{settings!r} {as_yaml(settings)}"


def test_equal_settings_do_not_differ() -> None:
    assert differences(settings_of("models: {a: {}}"), settings_of("models: {a: {}}")) == {}


def test_a_change_is_named_with_whether_a_reload_applies_it() -> None:
    old = "models: {m: {num_ctx: 1}}\n"
    new = "scheduling: {active_hours: '07:00-22:00'}\nserver: {port: 9000}\nrate_limits: {default: {requests_per_hour: 5}}\n"
    assert list(differences(settings_of(old), settings_of(new + old.replace("1", "2"))).items()) == [
        ("scheduling.active_hours", True),
        ("rate_limits.default.requests_per_hour", True),
        ("models.m.num_ctx", True),
        ("server.port", False),
    ]


def test_an_entry_that_came_went_or_changed_is_named_by_itself() -> None:
    old = settings_of("models: {gone: {parallel: 2}, kept: {parallel: 2}}\npriority_map: {a: normal}")
    new = settings_of("models: {'new:8b': {}, kept: {parallel: 3}}\npriority_map: {a: critical}")
    assert list(differences(old, new)) == ["priority_map.a", "models.gone", "models.kept.parallel", 'models["new:8b"]']


def test_a_changed_key_is_a_change_even_where_what_is_shown_of_it_is_equal() -> None:
    old = settings_of(f"auth: {{keys: [{{name: a, sha256: '{DIGEST}'}}]}}")
    (key,) = old.auth.keys
    new = old.replace(auth=old.auth.replace(keys=(key.replace(sha256=DIGEST[:8] + "0" * 56),)))
    assert as_yaml(old) == as_yaml(new)
    assert differences(old, new) == {"auth.keys": True}
