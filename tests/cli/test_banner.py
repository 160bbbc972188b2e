"""What `hearth serve` says when it listens."""

from __future__ import annotations

import io

from hearth.cli.serve import StartBanner
from hearth.cli.views import console_for
from hearth.config.settings import Settings
from hearth.events import EmulatorStarted, Event, GatewayStarted, ModeChanged


def shown(*events: Event) -> str:
    out = io.StringIO()
    banner = StartBanner(console_for(out, environ={}), settings=Settings(), config_source="config/llm_gateway.yaml")
    for event in events:
        banner.emit(event)
    return out.getvalue()


def started(*, authentication: bool = False) -> GatewayStarted:
    return GatewayStarted(at=0.0, url="http://127.0.0.1:8411", version="0.1.0", backend="Ollama 0.33.0", authentication=authentication)


def test_it_names_address_backend_policy_home_and_where_clients_point():
    text = shown(started())
    for words in (
        "dashboard: http://127.0.0.1:8411/",
        "Ollama 0.33.0",
        "adaptive; home model none",
        "config/llm_gateway.yaml",
        "OLLAMA_HOST=http://127.0.0.1:8411",
        "OPENAI_BASE_URL=http://127.0.0.1:8411/v1",
        "ANTHROPIC_BASE_URL=http://127.0.0.1:8411",
    ):
        assert words in text


def test_it_says_whether_keys_are_wanted():
    assert "callers on this machine only" in shown(started())
    assert "wanted from every caller" in shown(started(authentication=True))


def test_the_emulator_is_boxed_with_its_reason():
    text = shown(EmulatorStarted(at=0.0, url="http://127.0.0.1:1", reason="nothing answers at http://127.0.0.1:11434"), started())
    assert "ANSWERS ARE MADE UP" in text
    assert "nothing answers at http://127.0.0.1:11434" in text


def test_other_events_are_the_logs_business():
    assert shown(ModeChanged(at=0.0, active=True)) == ""
