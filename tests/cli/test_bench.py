"""`hearth bench`, with an emulated Ollama."""

from __future__ import annotations

import re

import pytest

from hearth.config.loading import parse_config
from tests.cli.conftest import emulated


def test_every_installed_model_is_measured_and_the_output_is_a_configuration(hearth, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "server: {port: 1}\nmodels: {'llama3.1:8b': {num_ctx: 8192}}\n"
    )
    with emulated(speed=20.0) as url:
        warm, result = (
            hearth("bench", *models, "--config", "mine.yaml", "--ollama-url", url)
            for models in (["llama3.1:8b"], [])
        )
    assert [each.exit_code for each in (warm, result)] == [0, 0], result.output
    settings = parse_config(result.stdout, source="f", environ={}).settings
    assert set(settings.models) == {
        "llama3.1:8b",
        "nomic-embed-text:latest",
        "qwen2.5-coder:14b",
        "qwen2.5:32b-instruct-q6_K",
    }
    assert settings.models["llama3.1:8b"].num_ctx == 8192
    assert all(each.vram_gb for each in settings.models.values())
    speeds = re.findall(
        r"# loads in [\d.]+ s(, reads \d+ tokens/s, writes \d+ tokens/s)?(, partly on the CPU)?\n",
        result.stdout,
    )
    assert sorted((bool(speed), bool(partly)) for speed, partly in speeds) == [
        (False, False),
        (True, False),
        (True, False),
        (True, True),
    ]
    assert settings.models["qwen2.5:32b-instruct-q6_K"].vram_gb == 22.5
    loads_s = re.findall(r"loads in (.*?) s.*\n  \"llama", warm.stdout + result.stdout)
    # it was loaded for it also where it was in memory
    assert (len(loads_s), "0.0" in loads_s) == (2, False)


def test_of_several_engines_the_ollama_is_measured(hearth, tmp_path):
    with emulated(speed=20.0) as url:
        (tmp_path / "mine.yaml").write_text(
            "server: {port: 1}\nengines:\n"
            "  first: {kind: llama_server, url: 'http://127.0.0.1:1'}\n"
            f"  second: {{kind: ollama, url: {url!r}}}\n"
        )
        result = hearth("bench", "nomic-embed-text", "--config", "mine.yaml")
    assert result.exit_code == 0, result.output
    assert "nomic-embed-text" in result.stdout


def test_a_model_that_cannot_be_measured_is_a_comment_and_ends_with_1(hearth, tmp_path):
    (tmp_path / "mine.yaml").write_text("server: {port: 1}\n")
    with emulated() as url:
        result = hearth(
            "bench", "none:1b", "llama3.1:8b", "--config", "mine.yaml", "--ollama-url", url
        )
    assert (
        result.exit_code,
        set(parse_config(result.stdout, source="f", environ={}).settings.models),
    ) == (1, {"llama3.1:8b"})
    assert "# none:1b could not be measured: model 'none:1b' not found" in result.stdout


@pytest.mark.parametrize(
    ("answers", "says"),
    [({"service": "hearth"}, "stop it first"), ({}, "no Ollama at http://127.0.0.1:1")],
)
def test_without_an_ollama_or_beside_a_gateway_nothing_is_measured(
    hearth, tmp_path, busy, answers, says
):
    (tmp_path / "mine.yaml").write_text(f"server: {{port: {busy.url.rpartition(':')[2]}}}\n")
    busy.put("/healthz", answers)
    result = hearth("bench", "--config", "mine.yaml", "--ollama-url", "http://127.0.0.1:1")
    assert (result.exit_code, result.stdout, says in result.stderr) == (1, "", True)
