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
        assert settings.url_setting("main") == "ollama.url"


def test_the_one_row_is_the_engine():
    settings = settings_of(f"engines: {{box: {{{ROW}, api_key: '${{KEY}}'}}}}", KEY="secret-key")
    row = settings.engine_row
    assert (row.kind, row.url, row.api_key) == ("llama_server", URL, "secret-key")
    assert settings.url_setting("box") == "engines.box.url"
    assert dict(settings.engine_rows) == {"box": row}
    assert settings_of(f"engines: {{a: {{{ROW.replace(URL, '${BOX}')}}}}}", BOX=URL) == settings_of(
        f"engines: {{a: {{{ROW}}}}}"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            f"engines: {{a: {{{ROW}}}, b: {{{ROW}}}}}",
            "engines.b.url: is the URL of engines.a, too",
        ),
        (
            f"engines: {{a: {{{ROW}}}, A: {{kind: processes}}}}",
            "engines.A: is the same name as engines.a",
        ),
        ("engines: {a: {kind: tabby, url: 'http://a'}}", "engines.a.kind: must be"),
        (
            "engines: {a: {kind: processes, ports: '80-90'}}",
            "engines.a.ports: must be two ports from 1024 on, as in 15800-15899",
        ),
        ("models: {m: {engine: b}}", "models.m.engine: is no row of engines (none)"),
        (
            "engines: {a: {kind: processes}}\nmodels: {m: {engine: a}}",
            "models.m.run: is missing: how its server is started",
        ),
        (
            "models: {m: {run: {command: ['serve', '${PROT}']}}}",
            "models.m.run.command[1]: has the unknown macro ${PROT}; known are ${PORT}",
        ),
        (
            (
                "engines: {a: {kind: processes}}\nmodels: {m: {upstream_name: x, run:"
                " {command: [a]}}, n: {upstream_name: X, run: {command: [b]}}}"
            ),
            "models.n.upstream_name: is that of models.m, too",
        ),
        ("models: {m: {run: {command: []}}}", "models.m.run.command: "),
        ("models: {m: {run: {command: serve}}}", "models.m.run.command: "),
        ("models: {m: {run: {command: [a], ready: health}}}", "models.m.run.ready: must be a path"),
        ("engines: {a: {kind: ollama}}", "engines.a.url: is missing"),
        (
            "models: {m: {run: {command: [a], sleep_command: [b]}}}",
            "models.m.run.wake_command: is missing: a model is put to sleep only where",
        ),
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


def test_what_a_process_is_given_is_not_shown():
    settings = settings_of(
        "engines: {p: {kind: processes}}\n"
        "models: {m: {engine: p, run: {command: [serve, '${PORT}'], env: {TOKEN: canary}}}}"
    )
    run = settings.models["m"].run
    assert run is not None
    assert (run.command, dict(run.env)) == (("serve", "${PORT}"), {"TOKEN": "canary"})
    assert "canary" not in as_yaml(settings)
    assert "canary" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("engines: {p: {kind: processes, url: 'http://a'}}", ["engines.p.url"]),
        ("engines: {a: {kind: ollama, url: 'http://a', elastic: true}}", ["engines.a.elastic"]),
        (
            "engines: {a: {kind: openai, url: 'http://a', spill_when_wait_over_s: 1}}",
            ["engines.a.spill_when_wait_over_s"],
        ),
        (
            "engines: {a: {kind: vllm, url: 'http://a', elastic: true, spill_when_wait_over_s: 1}}",
            [],
        ),
        ("models: {m: {run: {command: [serve]}}}", ["models.m.run"]),
        (
            """
engines: {r: {kind: llama_router, url: 'http://a'}, o: {kind: ollama, url: 'http://b'}}
models: {m: {engine: r, num_ctx: 8}, n: {engine: o, num_ctx: 8}, l: {num_ctx: 8}}
""",
            ["models.m.num_ctx"],
        ),
        (
            "engines: {s: {kind: llama_swap, url: 'http://a'}}\nmodels: {m: {num_ctx: 8}}",
            ["models.m.num_ctx"],
        ),
        ("engines: {p: {kind: processes}}\nmodels: {m: {run: {command: [serve]}}}", []),
        (
            """
engines: {s: {kind: llama_server, url: 'http://a'}, o: {kind: ollama, url: 'http://b'}}
gpu: {parallel: 2}
models:
  m: {engine: o, upstream_name: x}
  n: {engine: o, upstream_name: X}
  l: {engine: s, upstream_name: x}
""",
            ["models.n.upstream_name"],
        ),
        (
            """
engines:
  v: {kind: vllm, url: 'http://a', sleep: [offload]}
  e: {kind: vllm, url: 'http://b', sleep: [offload], elastic: true}
  s: {kind: sglang, url: 'http://c', sleep: [offload, discard]}
  p: {kind: processes, sleep: [discard]}
models: {m: {engine: p, run: {command: [a], sleep_command: [b], wake_command: [c]}}}
""",
            ["engines.e.sleep", "engines.s.sleep", "engines.p.sleep", "models.m.run.sleep_command"],
        ),
    ],
)
def test_settings_of_engines_without_effect_are_named(text: str, places: list[str]):
    assert [note.partition(":")[0] for note in effectless(settings_of(text))] == places


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("models: {}", "models: {m: {run: {command: [x]}}}"),
        ("models: {m: {num_ctx: 1}}", "models: {m: {num_ctx: 1, run: {command: [x]}}}"),
        ("models: {m: {run: {command: [x]}}}", "models: {}"),
        ("models: {}", "models: {m: {run: {command: [x]}, engine: a}}"),
    ],
)
def test_a_model_that_comes_or_goes_with_its_server_waits_for_a_restart(before: str, after: str):
    rows = "engines: {a: {kind: processes}}\n"
    old, new = (settings_of(rows + text) for text in (before, after))
    assert list(differences(old, new).values()) == [False]
