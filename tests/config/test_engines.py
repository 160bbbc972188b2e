"""The table of engines: one row, in place of `ollama.url`."""

from __future__ import annotations

import pytest

from hearth.config.loading import effectless
from hearth.config.rendering import as_yaml, differences
from hearth.config.settings import EngineSettings
from tests.config.reading import only_problem_of, settings_of

URL = "http://127.0.0.1:8080"
ROW = f"kind: llama_server, url: '{URL}'"


def test_without_a_table_the_engine_is_the_ollama_of_its_url():
    for text in ("{}", "engines: {}", "engines:"):
        settings = settings_of(f"{text}\n" if text != "{}" else text)
        assert settings.engine_row == EngineSettings(kind="ollama", url=settings.ollama.url)
        assert settings.engine_url_setting == "ollama.url"


def test_the_one_row_is_the_engine():
    settings = settings_of(f"engines: {{box: {{{ROW}, api_key: '${{KEY}}'}}}}", KEY="secret-key")
    row = settings.engine_row
    assert (row.kind, row.url, row.api_key) == ("llama_server", URL, "secret-key")
    assert settings.engine_url_setting == "engines.box.url"
    assert settings_of(f"engines: {{a: {{{ROW.replace(URL, '${BOX}')}}}}}", BOX=URL) == settings_of(
        f"engines: {{a: {{{ROW}}}}}"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            f"engines: {{a: {{{ROW}}}, b: {{{ROW}}}}}",
            "engines: several engines are not served yet; keep one of them",
        ),
        ("engines: {a: {kind: vllm, url: 'http://a'}}", "engines.a.kind: must be"),
        ("engines: {a: {kind: ollama}}", "engines.a.url: is missing"),
        ("engines: {a: {kind: ollama, url: 'http://a/v1'}}", "engines.a.url: must be the address"),
        (
            f"engines: {{a: {{{ROW}, api_key: in-the-clear}}}}",
            "engines.a.api_key: must be ${NAME}, to keep the key out of this file",
        ),
        (
            f"engines: {{a: {{{ROW}, api_key: '${{LOST}}'}}}}",
            "engines.a.api_key: the environment variable LOST is not set",
        ),
        (f"engines: {{a: {{{ROW}, model: x}}}}", "engines.a.model: unknown key"),
    ],
)
def test_a_mistake_in_the_table_is_named(text: str, problem: str):
    assert problem in only_problem_of(text)


def test_a_key_of_an_engine_is_not_shown_and_a_change_waits_for_a_restart():
    old, new = (
        settings_of(f"engines: {{a: {{{ROW}, api_key: '${{KEY}}'}}}}", KEY=key)
        for key in ("canary-of-old", "canary-of-new")
    )
    assert "canary" not in as_yaml(old)
    assert "canary" not in repr(old)
    assert list(differences(old, new).values()) == [False]


def test_settings_without_effect_beside_a_table_are_named():
    text = f"""
engines: {{a: {{{ROW}}}}}
ollama: {{url: 'http://b'}}
gpu: {{parallel: 2}}
models: {{m: {{num_ctx: 8}}}}
"""
    assert [note.partition(":")[0] for note in effectless(settings_of(text))] == [
        "ollama.url",
        "gpu.parallel",
        "models.m.num_ctx",
    ]
