"""A configuration of llama-swap becomes one of Hearth's that is usable, and nothing of it is
dropped without a comment.

The files are written after llama-swap's documentation and what people share.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth.config.llama_swap.importing import Imported, imported
from hearth.config.llama_swap.macros import MOST_CHARS, words_of
from hearth.config.llama_swap.writing import written
from hearth.config.loading import parse_config
from hearth.config.settings import Settings
from hearth.dialects.request import is_model_name
from hearth.errors import ConfigError
from tests.support.examples import EXAMPLES

FILES = Path(__file__).parent / "llama_swap"
LLAMA = "llama-server --port ${PORT}"


def result_of(text: str) -> Imported:
    return imported(text, "swap.yaml", is_model_name)


def read_back(result: Imported) -> Settings:
    return parse_config(written(result, "swap.yaml"), source="result", environ={}).settings


def settings_of(text: str) -> Settings:
    return read_back(result_of(text))


def example(name: str) -> tuple[Settings, dict[str, str]]:
    """What is read back of an example's result, and its notes by place."""
    result = result_of((FILES / f"{name}.yaml").read_text())
    text = written(result, "swap.yaml")
    notes = {note.place: note.text for note in result.notes}
    flat = " ".join(line.strip().removeprefix("#").strip() for line in text.splitlines())
    assert [place for place, what in notes.items() if f"{place}: {what}" not in flat] == []
    return read_back(result), notes


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        result_of(text)
    return list(raised.value.problems)


def test_models_with_macros_aliases_and_selectors_are_carried_over():
    found, notes = example("agents")
    assert {
        name: row.model_dump(include={"kind", "ports"}) for name, row in found.engines.items()
    } == {"processes": {"kind": "processes", "ports": "9100-9199"}}
    coder = found.models["coder-30b"]
    assert coder.engine == "processes"
    assert coder.run is not None
    assert coder.run.command == (
        "/opt/llama.cpp/llama-server",
        *("--host", "127.0.0.1", "--port", "${PORT}"),
        *("--ctx-size", "65536", "-ngl", "99"),
        *("--model", "${env.HOME}/models/coder 30b.gguf", "--alias", "${MODEL}"),
    )
    assert dict(coder.run.env) == {"CUDA_VISIBLE_DEVICES": "0", "GGML_LOG": "a=b"}
    assert (coder.run.ready, coder.run.start_timeout_s, coder.run.stop) == ("/health", 300, ())
    chat, embedder = found.models["chat-8b"], found.models["embedder"]
    assert chat.run is not None
    assert embedder.run is not None
    assert ("32768" in chat.run.command, chat.parallel, chat.run.stop_grace_s) == (True, 2, 30)
    assert embedder.run.ready == "port"
    assert dict(found.aliases) == {
        "claude-sonnet": ("coder-30b",),
        "gpt-4o": ("coder-30b",),
        "coder-30b:thinking": ("coder-30b",),
        "any": ("coder-30b", "chat-8b"),
        "always-coder": ("coder-30b",),
    }
    assert found.keepalive.show == "thinking"
    assert "models.NAME.vram_gb" in notes["routing.router.settings.groups.forever"]
    assert set(notes) == {
        "logLevel",
        "globalTTL",
        "models.coder-30b.ttl",
        "models.coder-30b.name",
        "models.coder-30b.filters.stripParams",
        "models.coder-30b.filters.setParamsByID",
        "models.chat-8b.concurrencyLimit",
        "models.embedder.unlisted",
        "profiles.night",
        "routing.router.settings.groups.forever",
        "routing.scheduler.settings.fifo",
        "hooks.on_startup.preload",
        "hooks.on_startup.profile",
    }


def test_anchors_shells_and_fixed_ports_are_carried_over():
    found, notes = example("anchors")
    qwen, voice = found.models["qwen"], found.models["voice"]
    assert qwen.run is not None
    assert voice.run is not None
    assert qwen.run.command == (
        *("/srv/llama/llama-server", "--port", "${PORT}", "-m", "/srv/qwen.gguf"),
        *("--chat-template-kwargs", '{"enable_thinking": false}'),
    )
    assert (qwen.run.ready, dict(qwen.run.env)) == ("/health", {"CUDA_VISIBLE_DEVICES": "1"})
    assert voice.run.command == (
        *("bash", "-c"),
        'source /srv/venv/bin/activate && exec serve --port ${PORT} --name "${MODEL}"',
    )
    assert voice.run.stop == ("/srv/stop-voice", "${PORT}")
    assert voice.upstream_name == "openai/voice"
    assert notes == {"models.qwen.cmd": "the port 8999 is ${PORT} here: Hearth chooses one"}


def test_containers_peers_and_keys_are_carried_over_or_said():
    found, notes = example("containers")
    assert list(found.models) == ["vllm-coder", "small-one", "llama-70b"]
    run = found.models["vllm-coder"].run
    assert run is not None
    assert (run.stop, run.stop_grace_s) == (("docker", "stop", "${MODEL}"), 20)
    attic = found.engines["attic"]
    assert (attic.kind, attic.url, attic.api_key) == ("openai", "http://192.168.1.8:8080", "")
    assert found.models["llama-70b"].engine == "attic"
    assert dict(found.aliases) == {"attic/llama-70b": ("llama-70b",)}
    assert [key.name for key in found.auth.keys] == ["caller-1", "caller-2"]
    assert set(notes) == {
        "apiKeys",
        "models.vllm-coder.cmd",
        'models["small one"]',
        'models["small one"].cmdStop',
        "models.elsewhere.cmd",
        "matrix",
        "peers.attic.timeouts",
        "peers.router.proxy",
    }
    assert notes["models.elsewhere.cmd"].startswith("THE MODEL IS NOT IMPORTED: its `proxy`")
    assert notes["models.vllm-coder.cmd"].startswith("runs a container")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("serve  -a\t1\n -b", ["serve", "-a", "1", "-b"]),
        ("serve \\\n  -a \\\n  -b", ["serve", "-a", "-b"]),
        ("# one\nserve\n  # two\n-a", ["serve", "-a"]),
        ("serve -a # no comment", ["serve", "-a", "#", "no", "comment"]),
        ("serve '' \"\"", ["serve", "", ""]),
        ("serve 'a b'\"c 'd'\"e", ["serve", "a bc 'd'e"]),
        (r'serve "a\"b\\c\d\$e\`f"', ["serve", 'a"b\\c\\d$e`f']),
        (r"serve 'a\b' a\ b \#", ["serve", r"a\b", "a b", "#"]),
        ("serve $HOME ~ *.gguf a&&b | c > d", ["serve", "$HOME", "~", "*.gguf", "a&&b", *"|c>d"]),
        ("serve über-größe", ["serve", "über-größe"]),
    ],
)
def test_a_command_is_split_as_a_shell_splits_words(command, words):
    assert words_of(command) == words


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "swap.yaml:1: must be a mapping"),
        ("logLevel: info", "swap.yaml:1: has no `models`"),
        ("models: {a: {}}", "swap.yaml:1: models.a.cmd: has no command"),
        ("models: {a: {cmd: '# all'}}", "models.a.cmd: has no command"),
        ("models:\n  a:\n    cmd: serve 'x", "swap.yaml:3: models.a.cmd: has a quote that is not"),
        (f"models: {{a: {{cmd: '{LLAMA} ${{x}}'}}}}", "models.a.cmd: has the unknown macro ${x}"),
        (
            f"macros: {{a: '${{b}}', b: 1}}\nmodels: {{m: {{cmd: '{LLAMA} ${{a}}'}}}}",
            "models.m.cmd: has the unknown macro ${b}: it must stand before",
        ),
        (f"macros: {{PORT: 1}}\nmodels: {{a: {{cmd: '{LLAMA}'}}}}", "macros: 'PORT' is reserved"),
        (
            f"macros: {{'a b': 1}}\nmodels: {{a: {{cmd: '{LLAMA}'}}}}",
            "macros: 'a b' is reserved or",
        ),
        (f"models: {{a: {{cmd: '{LLAMA}', env: [A]}}}}", "models.a.env[0]: must be NAME=VALUE"),
        (f"models: {{a: {{cmd: '{LLAMA}', env: {{A: b}}}}}}", "models.a.env: must be a list"),
        ("models: {a: {cmd: [serve]}}", "models.a.cmd: must be text"),
        (
            f"models: {{a: {{cmd: '{LLAMA}'}}}}\nstartPort: x",
            "swap.yaml:2: startPort: must be a num",
        ),
        ("models: {a: 1, a: 2}", "models.a: is already given in line 1"),
        ("models: *x", "swap.yaml:1: models: *x is no anchor above this line"),
        ("models: {a: !include b}", "models.a: tags (!) are not supported"),
        ("models: {a: {<<: 1}}", "models.a: `<<` must be a mapping"),
        ("models: {? [a] : b}", "models: has a list, mapping or alias as a key"),
        ("models: {", "is not YAML: "),
        ("", "is empty"),
    ],
)
def test_what_llama_swap_could_not_use_is_refused_with_its_line(text, says):
    assert any(says in problem for problem in problems_of(text)), problems_of(text)


def test_all_problems_are_listed_at_once():
    assert len(problems_of("models:\n  a: {}\n  b: {cmd: 'x ${y}'}\n  c: {cmd: 'q '' \"'}\n")) == 3


def test_files_that_grow_are_refused_before_they_do():
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
    )
    assert "the file has more than 20000 values" in problems_of(laughs + "models: {}")[0]
    macros = "macros:\n  m0: 'x '\n" + "".join(
        f"  m{n}: '{f'${{m{n - 1}}}' * 10}'\n" for n in range(1, 30)
    )
    grown = problems_of(f"{macros}models: {{a: {{cmd: '{LLAMA} ${{m29}}'}}}}")
    assert f"swap.yaml:32: models.a.cmd: is longer than {MOST_CHARS // 1024} KiB" in grown[0]
    empty = macros.replace("'x '", "''")
    assert list(settings_of(f"{empty}models: {{a: {{cmd: '{LLAMA} ${{m29}}'}}}}").models) == ["a"]
    chain = "macros:\n  m0: x\n" + "".join(f"  m{n}: '${{m{n - 1}}}'\n" for n in range(1, 200))
    assert "nested deeper than" in problems_of(f"{chain}models: {{a: {{cmd: '${{m199}}'}}}}")[0]


def test_a_macro_of_a_model_goes_before_that_of_the_file():
    text = (
        "macros: {a: 1, b: 'x${a}'}\n"
        f"models: {{m: {{cmd: '{LLAMA} ${{b}} ${{a}}', macros: {{a: true}}}}}}"
    )
    run = settings_of(text).models["m"].run
    assert run is not None
    assert run.command[-2:] == ("xtrue", "true")


def test_macros_are_replaced_in_every_value():
    text = f"""\
macros: {{par: 4, wait: 20, host: 192.168.1.8, key: '${{env.K}}', name: other}}
healthCheckTimeout: ${{wait}}
startPort: ${{par}}100
apiKeys: ["${{key}}"]
models:
  m:
    macros: {{wait: 40}}
    cmd: {LLAMA}
    concurrencyLimit: ${{par}}
    unloadTimeout: "${{wait}}"
    aliases: ["${{MODEL_ID}}-a", "${{name}}"]
    filters: {{setParamsByID: {{"${{MODEL_ID}}-${{par}}": {{}}}}}}
peers: {{p: {{proxy: "http://${{host}}:1", apiKey: "${{key}}", models: ["${{name}}-far"]}}}}
selectors: {{s: {{strategy: warm, targets: ["${{name}}", "p/${{name}}-far"]}}}}
"""
    result = result_of(text)
    found = read_back(result)
    run = found.models["m"].run
    assert run is not None
    assert (run.start_timeout_s, run.stop_grace_s, found.models["m"].parallel) == (20, 40, 4)
    assert dict(found.aliases) == {
        "m-a": ("m",),
        "other": ("m",),
        "m-4": ("m",),
        "p/other-far": ("other-far",),
        "s": ("m", "other-far"),
    }
    assert (found.engines["p"].url, found.engines["processes"].ports) == (
        "http://192.168.1.8:1",
        "4100-4199",
    )
    assert result.settings["auth"] == {"keys": [{"name": "caller-1", "key": "${K:-}"}]}
    assert {note.place for note in result.notes} == {
        "models.m.concurrencyLimit",
        "models.m.filters.setParamsByID",
        "apiKeys",
    }


@pytest.mark.parametrize(
    ("entry", "place", "says"),
    [
        ("cmd: sd --listen-port 9999", "models.m.cmd", "the command has no ${PORT}"),
        ("cmd: 'sh -c \"serve --port ${PORT} ${HOME:-/}\"'", "models.m.cmd", "the unknown macro"),
        (f"cmd: '{LLAMA}', proxy: 'http://localhost:9000'", "models.m.cmd", "another port than"),
        (f"cmd: '{LLAMA}', proxy: 'http://localhost:${{PORT}}/a'", "models.m.cmd", "is no port of"),
        ("cmd: 'a 90 90', proxy: 'http://localhost:90'", "models.m.cmd", "not in exactly one arg"),
    ],
)
def test_a_model_that_hearth_cannot_run_is_left_out_and_said(entry, place, says):
    text = f"models: {{m: {{{entry}, aliases: [a]}}, n: {{cmd: '{LLAMA}'}}}}\n"
    result = result_of(text + "selectors: {s: {strategy: warm, targets: [m, n]}}")
    found = read_back(result)
    assert (list(found.models), dict(found.aliases)) == (["n"], {"s": ("n",)})
    notes = {note.place: note.text for note in result.notes}
    assert notes[place].startswith("THE MODEL IS NOT IMPORTED: ")
    assert says in notes[place]
    assert notes["selectors.s.targets[0]"] == '"m" is left out: it is not imported'


@pytest.mark.parametrize(
    ("entry", "place", "says"),
    [
        ("useModelName: '${env.X}'", "useModelName", "is left out: ${...} is replaced only in"),
        ("checkEndpoint: '${env.X}'", "checkEndpoint", "is left out: ${...} is replaced only in"),
        ("env: ['A=${HOME:-x}']", "env[0]", '"A" is left out: it has the unknown macro'),
        ("ttl: 60", "ttl", "has no counterpart"),
        (
            "concurrencyLimit: '${env.X}'",
            "concurrencyLimit",
            "is left out: ${...} is replaced only in",
        ),
        ("whatever: 1", "whatever", "is unknown to this import"),
        ("aliases: ['a b']", "aliases[0]", '"a b" is left out: no request can have this name'),
        ("aliases: [N]", "aliases[0]", '"N" is left out: it is the name of a model as well'),
        ("aliases: [b, B]", "aliases[1]", '"B" is left out: it is another alias as well'),
    ],
)
def test_what_hearth_has_not_is_said_where_it_stands(entry, place, says):
    result = result_of(f"models: {{m: {{cmd: '{LLAMA}', {entry}}}, n: {{cmd: '{LLAMA}'}}}}")
    assert [note.place for note in result.notes] == [f"models.m.{place}"]
    assert says in result.notes[0].text
    assert list(read_back(result).models) == ["m", "n"]


def test_a_selector_reaches_a_model_by_a_name_that_no_request_can_have():
    found = settings_of(
        f"models: {{'m:8b': {{cmd: '{LLAMA}', aliases: ['m:8b:fast']}}}}\n"
        "selectors: {s: {strategy: warm, targets: ['m:8b:fast']}}"
    )
    assert dict(found.aliases) == {"s": ("m:8b",)}


def test_where_else_a_port_is_that_hearth_chooses_now_is_said():
    text = """\
models:
  m:
    proxy: http://127.0.0.1:8999
    cmd: serve --port 8999
    cmdStop: curl http://127.0.0.1:8999/stop
    env: ["PORT=8999", "SEED=18999"]
"""
    result = result_of(text)
    run = read_back(result).models["m"].run
    assert run is not None
    assert run.stop == ("curl", "http://127.0.0.1:8999/stop")
    says = "has the number 8999 still: write ${PORT} there if it is the port of the server"
    assert [(note.place, note.text) for note in result.notes][1:] == [
        ("models.m.cmdStop", says),
        ("models.m.env[0]", says),
    ]


@pytest.mark.parametrize(
    "command",
    [
        r"C:\llama\llama-server.exe --port ${PORT} -m m.gguf",
        r'"C:\Program Files\llama\llama-server" --port ${PORT}',
        r".\bin\llama-server --port ${PORT} -m m.gguf",
        r"llama-server --port ${PORT} -m D:\m.gguf",
        r"llama-server --port ${PORT} --model=D:\m.gguf",
        "llama-server.exe --port ${PORT}",
    ],
)
def test_a_command_of_windows_is_said(command):
    (note,) = result_of(yaml.safe_dump({"models": {"m": {"cmd": command}}})).notes
    assert (note.place, note.text[:14]) == ("models.m.cmd", "is of Windows,")
    assert "POSIX" in note.text


def test_what_is_unknown_is_said_wherever_it_stands():
    text = f"""\
models: {{m: {{cmd: '{LLAMA}', filters: {{newFilter: 1}}}}}}
selectors: {{s: {{strategy: warm, targets: [m], name: 'S', weight: 3}}}}
routing:
  router: {{use: group, plan: x, settings: {{pools: {{}}}}}}
  scheduler: {{settings: {{fair: 1}}}}
hooks: {{on_exit: {{}}, on_startup: {{run: x}}}}
pools: [a]
other: false
"""
    assert [note.place for note in result_of(text).notes] == [
        "models.m.filters.newFilter",
        "selectors.s.name",
        "selectors.s.weight",
        "routing.router.plan",
        "routing.router.settings.pools",
        "routing.scheduler.settings.fair",
        "hooks.on_exit",
        "hooks.on_startup.run",
        "pools",
        "other",
    ]


def test_values_that_mean_nothing_to_llama_swap_either_are_not_worth_a_word():
    entry = (
        "ttl: 0, name: '', unlisted: false, metadata: {}, concurrencyLimit: 0, env: [],"
        " filters: null, cmdStop: '', aliases: []"
    )
    assert result_of(f"models: {{m: {{cmd: '{LLAMA}', {entry}}}}}").notes == ()


def test_two_names_that_are_one_to_hearth_are_said():
    result = result_of(f"models: {{m: {{cmd: '{LLAMA}'}}, 'M:latest': {{cmd: '{LLAMA}'}}}}")
    assert list(read_back(result).models) == ["m"]
    assert result.notes[0].text.endswith('to Hearth its name is that of "m"')


def test_ports_stay_within_what_there_is():
    for first, ports in ((65_530, "65530-65535"), (80, "5800-5899"), (70_000, "5800-5899")):
        text = f"startPort: {first}\nmodels: {{m: {{cmd: '{LLAMA}'}}}}"
        assert settings_of(text).engines["processes"].ports == ports


TEXT = st.text(max_size=12) | st.sampled_from([LLAMA, "${PORT}", "${env.A}", "a", "m", "x: &x"])
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 70_000) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
COMMAND = st.builds("{} {}".format, st.just(LLAMA), TEXT)
MODEL = st.fixed_dictionaries(
    {"cmd": COMMAND},
    optional={
        "cmdStop": TEXT,
        "proxy": TEXT,
        "env": st.lists(st.builds("{}={}".format, TEXT, TEXT), max_size=2),
        "aliases": st.lists(TEXT, max_size=3),
        "useModelName": TEXT,
        "checkEndpoint": TEXT,
        "concurrencyLimit": st.integers(0, 5000),
        "unloadTimeout": st.integers(0, 10**9),
        "filters": VALUE,
        "name": VALUE,
    },
)
WHOLE = st.fixed_dictionaries(
    {"models": st.dictionaries(TEXT, MODEL, min_size=1, max_size=3)},
    optional={
        "startPort": st.integers(0, 70_000),
        "healthCheckTimeout": st.integers(0, 10**9),
        "macros": st.dictionaries(st.sampled_from("abc"), TEXT),
        "apiKeys": st.lists(TEXT, max_size=3),
        "selectors": st.dictionaries(
            TEXT, st.fixed_dictionaries({"strategy": TEXT, "targets": st.lists(TEXT, max_size=3)})
        ),
        "peers": st.dictionaries(
            TEXT,
            st.fixed_dictionaries(
                {"proxy": st.just("http://a:1") | TEXT, "models": st.lists(TEXT)}
            ),
            max_size=2,
        ),
        "groups": VALUE,
        "hooks": VALUE,
        "routing": VALUE,
    },
)


@settings(max_examples=200 * EXAMPLES)
@given(whole=WHOLE)
def test_whatever_is_imported_is_a_usable_configuration(whole):
    text = yaml.safe_dump(whole, allow_unicode=True)
    try:
        result = result_of(text)
    except ConfigError:
        return
    read_back(result)


@settings(max_examples=200 * EXAMPLES)
@given(text=st.text(max_size=200) | VALUE.map(yaml.safe_dump))
def test_nothing_hostile_gets_further_than_a_config_error(text):
    try:
        result = result_of(text)
    except ConfigError:
        return
    read_back(result)
