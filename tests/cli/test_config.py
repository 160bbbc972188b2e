"""`hearth config`, `backup` and `restore`: which file counts, what it would change, and copies of
the store beside a gateway that runs.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from hearth.cli.config import find_config
from hearth.clock import SystemClock
from hearth.config.loading import load_gateway_config
from hearth.config.reload import ConfigInForce
from hearth.observability.fanout import EventFanout
from tests.cli.conftest import serving
from tests.cli.stub_gateway import StubGateway

DIGEST = "ab" * 32
OTHER_DIGEST = "cd" * 32
HOOK = "https://discord.example/api/webhooks/1/"
GOOD = """\
queue: {max_external_depth: 7}
priority_map: {parse_task: critical, generate_nudge: background}
models: {"llama3.1:8b": {parallel: 2}}
"""
PAGE = "/llm/admin/config"
REQUEST = json.dumps(
    {"request": {"model": "llama3.1:8b", "prompt": "why?"}, "not_before": "2100-01-01T00:00:00Z"}
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def stub() -> Iterator[StubGateway]:
    with StubGateway().listening() as listening:
        yield listening


def in_force(file: Path, stub: StubGateway) -> ConfigInForce:
    """What a gateway has in force that was started with the file; the stub shows it."""
    running = ConfigInForce(
        load_gateway_config(file, {}), clock=SystemClock(), events=EventFanout(())
    )
    stub.put(PAGE, running.shown())
    return running


def test_the_named_file_beats_the_variable_beats_the_project_beats_the_users(tmp_path):
    places = [
        tmp_path / name
        for name in (
            "mine.yaml",
            "named.yaml",
            "here/config/llm_gateway.yaml",
            "xdg/hearth/llm_gateway.yaml",
        )
    ]
    explicit, named, project, user = places
    under_home = tmp_path / ".config" / "hearth" / "llm_gateway.yaml"
    for path in (*places, under_home):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    (tmp_path / "dir" / "config" / "llm_gateway.yaml").mkdir(parents=True)
    environ = {
        "HEARTH_CONFIG": str(named),
        "XDG_CONFIG_HOME": str(tmp_path / "xdg"),
        "HOME": str(tmp_path),
    }
    here = tmp_path / "here"
    elsewhere = tmp_path / "dir"
    missing = tmp_path / "missing.yaml"
    for chosen, changed, directory, expected in (
        (missing, {}, here, missing),
        (explicit, {}, here, explicit),
        (None, {}, here, named),
        (None, {"HEARTH_CONFIG": str(missing)}, here, missing),
        (None, {"HEARTH_CONFIG": ""}, here, project),
        (None, {"HEARTH_CONFIG": ""}, elsewhere, user),
        (None, {"HEARTH_CONFIG": "", "XDG_CONFIG_HOME": ""}, elsewhere, under_home),
        (None, {"HEARTH_CONFIG": "", "XDG_CONFIG_HOME": "relative/path"}, elsewhere, under_home),
        (
            None,
            {"HEARTH_CONFIG": "", "XDG_CONFIG_HOME": "/nowhere", "HOME": "/nowhere"},
            elsewhere,
            None,
        ),
    ):
        assert find_config(chosen, environ=environ | changed, directory=directory)[0] == expected


def test_a_usable_file_is_ok_with_counts(hearth, file, tmp_path):
    good = hearth("config", "check", HEARTH_CONFIG=str(file))
    assert (good.exit_code, good.stdout[:61]) == (
        0,
        f"{file} (from HEARTH_CONFIG): ok (keys: 0, models: 1, task types: 2, "[:61],
    )
    assert "built-in defaults (no configuration file found): ok" in hearth("config", "check").stdout
    assert (
        "missing.yaml: cannot be read"
        in hearth("config", "check", str(tmp_path / "missing.yaml")).stderr
    )


@pytest.mark.parametrize("command", ["check", "show", "diff --url {url}"])
def test_every_problem_of_a_file_has_its_line(hearth, file, stub, command):
    file.write_text("queue: {max_external_depth: many}\ngpu: {swap_timout_s: 5}\n")
    result = hearth("config", *command.format(url=stub.url).split(), str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "mine.yaml:1: queue.max_external_depth" in result.stderr
    assert "mine.yaml:2: gpu.swap_timout_s" in result.stderr


HERE = [{"name": "here:1b", "model": "here:1b"}]
NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("name", "url", "models", "says"),
    [
        ("HERE:1b", "", HERE, ""),
        ("a:1b", "", HERE, "home model a:1b is not installed: ollama pull a:1b\n"),
        (
            "a:1b",
            "",
            "none",
            "{url}: GET /api/tags answered 200 with an object without the list `models`; 200",
        ),
        (
            "a:1b",
            NOWHERE,
            HERE,
            "Ollama does not answer at {url}, so it is unknown whether a:1b is",
        ),
    ],
)
def test_a_home_model_unknown_to_ollama_is_a_warning(hearth, file, stub, name, url, models, says):
    url = url or stub.url
    stub.put("/api/version", {"version": "0.33.0"})
    stub.put("/api/ps", {"models": []})
    stub.put("/api/tags", {"models": models})
    file.write_text(
        f"gpu: {{home_model: '{name}'}}\nollama: {{url: '{url}'}}\nstorage: {{enabled: false}}\n"
    )
    result = hearth("config", "check", str(file))
    warning = says and "warning: gpu.home_model: " + says.format(url=url)
    assert (result.exit_code, result.stderr[: len(warning) or None]) == (0, warning)


def test_a_home_model_of_a_mode_that_is_not_installed_is_a_warning(hearth, file, stub):
    stub.put("/api/version", {"version": "0.33.0"})
    stub.put("/api/ps", {"models": []})
    stub.put("/api/tags", {"models": HERE})
    file.write_text(
        f"gpu: {{home_model: 'here:1b'}}\nollama: {{url: '{stub.url}'}}\n"
        "storage: {enabled: false}\n"
        "modes: {night: {gpu: {home_model: 'a:1b'}}, day: {gpu: {home_model: ''}}}\n"
    )
    result = hearth("config", "check", str(file))
    missing = "modes.night.gpu.home_model: home model a:1b is not installed: ollama pull a:1b"
    assert (result.exit_code, result.stderr) == (0, f"warning: {missing}\n")


def test_models_of_aliases_unknown_to_ollama_are_warnings_and_shadows_are_errors(
    hearth, file, stub
):
    stub.put("/api/version", {"version": "0.33.0"})
    stub.put("/api/ps", {"models": []})
    stub.put("/api/tags", {"models": [{"name": "here:1b", "model": "here:1b"}]})
    rest = f"ollama: {{url: '{stub.url}'}}\nstorage: {{enabled: false}}\n"
    file.write_text(f"aliases: {{coder: ['a:1b', 'HERE:1b']}}\n{rest}")
    result = hearth("config", "check", str(file))
    missing = "aliases.coder: a:1b is not installed, so it is passed over: ollama pull a:1b"
    assert (result.exit_code, result.stderr) == (0, f"warning: {missing}\n")
    assert "aliases: 1" in result.stdout
    file.write_text(f"aliases:\n  Here:1b: ['a:1b']\n{rest}")
    result = hearth("config", "check", str(file))
    shadows = "is an installed model as well, which nobody can ask for; choose another name"
    assert (result.exit_code, result.stdout) == (2, "")
    assert f'mine.yaml:2: aliases["Here:1b"]: {shadows}' in result.stderr
    file.write_text("aliases: {coder: ['a:1b']}\nollama: {url: 'http://127.0.0.1:9'}\n")
    result = hearth("config", "check", str(file))
    assert "so it is unknown whether their models are installed" in result.stderr


def test_show_prints_effective_settings_without_a_key_or_whole_digest(hearth, file):
    file.write_text(
        f'{GOOD}auth: {{keys: [{{name: a, sha256: "{DIGEST}"}}, {{name: b, key: '
        f'"${{SECRET}}"}}]}}\n'
    )
    result = hearth("config", "show", str(file), SECRET="hearth_clear_as_day")
    shown = yaml.safe_load(result.stdout)
    assert (shown["queue"]["max_external_depth"], shown["queue"]["max_interrupt_count"]) == (7, 3)
    assert (DIGEST in result.output, "hearth_clear" in result.output) == (False, False)
    assert "$defs" in json.loads(hearth("config", "schema").stdout)
    file.write_text(hearth("config", "example", "--service").stdout)
    assert load_gateway_config(file, {}).settings.backend.mode == "ollama"


def test_every_difference_says_what_was_what_comes_and_when(hearth, file, stub):
    running = in_force(file, stub)
    asked = ("config", "diff", str(file), "--url", stub.url)
    same = hearth(*asked)
    assert (same.exit_code, same.stdout) == (
        0,
        f"no difference between the gateway at {stub.url} and {file}\n",
    )
    file.write_text(GOOD.replace("7", "9") + "server: {port: 9000}\n")
    result = hearth(*asked)
    assert (result.exit_code, result.stdout.splitlines()) == (
        1,
        [
            "queue.max_external_depth: 7 -> 9  [hot]",
            "server.port: 8411 -> 9000  [needs a restart]",
            f"2 would change from the gateway at {stub.url} to {file}: 1 at once, 1 with a restart",
        ],
    )
    assert json.loads(hearth(*asked, "--json").stdout) == {
        "changes": [
            {"path": "queue.max_external_depth", "old": 7, "new": 9, "hot": True},
            {"path": "server.port", "old": 8411, "new": 9000, "hot": False},
        ],
        "restart_pending": [],
    }
    running.take(load_gateway_config(file, {}))
    stub.put(PAGE, running.shown())
    result = hearth(*asked)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (
        0,
        "already waiting for a restart: server.port",
    )


@pytest.mark.parametrize(
    ("setting", "path"),
    [
        ("auth: {keys: [{name: a, sha256: '%s'}]}", "auth.keys.a.sha256"),
        (f"alerts: {{ntfy_url: '{HOOK}%s'}}", "alerts.ntfy_url"),
    ],
)
def test_a_changed_secret_is_a_difference_and_shown_nowhere(hearth, file, stub, setting, path):
    file.write_text(setting % DIGEST)
    in_force(file, stub)
    same = hearth("config", "diff", str(file), "--url", stub.url)
    file.write_text(setting % OTHER_DIGEST)
    changed = hearth("config", "diff", str(file), "--url", stub.url)
    assert (same.exit_code, changed.exit_code) == (0, 1)
    assert changed.stdout.startswith(f"{path}: ")
    assert "[hot]" in changed.stdout
    for secret in (DIGEST, OTHER_DIGEST, "webhooks/1"):
        assert secret not in stub.answers[PAGE][2].decode() + same.output + changed.output


def test_another_file_can_be_compared_and_keys_are_compared_by_name(hearth, file, tmp_path):
    a, b, c = (f"{{name: {name}, sha256: '{name * 64}'}}" for name in "abc")
    file.write_text(f"auth: {{keys: [{a}, {b}]}}")
    other = tmp_path / "other.yaml"
    other.write_text(f"auth: {{keys: [{b}, {a}]}}")
    assert hearth("config", "diff", str(other), "--against", str(file)).exit_code == 0
    other.write_text(f"auth: {{keys: [{b}, {c}]}}")
    lines = hearth(
        "config", "diff", str(other), "--against", "file", HEARTH_CONFIG=str(file)
    ).stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == ["auth.keys.a", "auth.keys.c"]
    assert "a" * 9 not in "".join(lines)


def test_trouble_with_the_gateway_is_no_difference(hearth, file, stub):
    page: Any = in_force(file, stub).shown()
    page["settings"]["queue"]["of_tomorrow\x07"] = "x\x07"
    page["restart_pending"] = ["y\x07"]
    del page["settings"]["queue"]["max_wait_s"], page["secrets"]
    stub.put(PAGE, page)
    result = hearth("config", "diff", str(file), "--url", stub.url)
    assert (result.exit_code, result.output.replace("\n", "").isprintable()) == (1, True)
    assert "already waiting for a restart: y\ufffd" in result.stdout
    assert "queue.max_wait_s: (unset) -> 0.0" in result.stdout
    stub.put(PAGE, {"error": "this requires an admin key"}, status=403)
    assert hearth("config", "diff", str(file), "--url", stub.url).exit_code == 2
    assert hearth("config", "diff", str(file), "--url", "http://127.0.0.1:9").exit_code == 3


def test_a_copy_made_while_the_gateway_runs_brings_its_jobs_back(hearth, tmp_path):
    store = tmp_path / "state" / "hearth.db"
    config = tmp_path / "config" / "llm_gateway.yaml"
    config.parent.mkdir()
    config.write_text(f"storage: {{path: {store}}}\nbackend: {{mode: ollama}}\n")
    with serving(config) as (url, _):
        kept = hearth("jobs", "submit", "--url", url, input=REQUEST).stdout
        saved = hearth("backup", "copy.db")
        assert (saved.exit_code, (tmp_path / "copy.db").stat().st_mode & 0o777) == (0, 0o600), (
            saved.output
        )
        hearth("jobs", "submit", "--url", url, input=REQUEST)
        busy = hearth("restore", "copy.db")
        assert (busy.exit_code, "in use by process" in busy.stderr) == (1, True)
    assert hearth("backup", "copy.db").exit_code == 2
    restored = hearth("restore", "copy.db")
    assert (
        restored.exit_code,
        f"the former store is {store}.before-restore." in restored.stdout,
    ) == (0, True)
    assert not store.with_name("hearth.db-wal").exists()
    with serving(config) as (url, _):
        listed = json.loads(hearth("jobs", "list", "--json", "--url", url).stdout)["jobs"]
    assert [each["id"] for each in listed] == [kept.partition(":")[0]]
    # it belongs to the store that is moved away
    store.with_name("hearth.db-wal").write_bytes(b"left by a crash")
    assert hearth("restore", "copy.db").exit_code == 0
    assert store.with_name("hearth.db.before-restore.1-wal").read_bytes() == b"left by a crash"
    with closing(sqlite3.connect(f"{store}.before-restore")) as former:
        assert former.execute("SELECT count(*) FROM jobs").fetchone() == (2,)
    assert (tmp_path / "state" / "hearth.db.before-restore.1").exists()
    assert hearth("backup", "copy.db", "--force").exit_code == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "there is no file"),
        (
            b"not a database, but as long as the header of one would be" * 9,
            "is not a valid SQLite database",
        ),
        (b"", "another program"),
    ],
)
def test_what_is_no_copy_of_ours_is_refused_and_the_store_stays(hearth, tmp_path, content, says):
    store = tmp_path / ".local" / "state" / "hearth" / "hearth.db"
    copy = tmp_path / "copy.db"
    store.parent.mkdir(parents=True, exist_ok=True)
    store.write_bytes(b"mine")
    if content is not None:
        copy.write_bytes(content)
    result = hearth("restore", "copy.db")
    assert (result.exit_code, store.read_bytes(), says in result.stderr) == (2, b"mine", True)
    assert not store.with_name("hearth.db.new").exists()
    (tmp_path / "off.yaml").write_text("storage: {enabled: false}\n")
    for command in ("backup", "restore"):
        off = hearth(command, "new.db", "--config", "off.yaml")
        assert (off.exit_code, "storage.enabled is off" in off.stderr) == (1, True)
    store.unlink()
    assert (hearth("backup", "new.db").exit_code, (tmp_path / "new.db").exists()) == (2, False)


MODES = GOOD + "modes: {night: {queue: {max_external_depth: 9}}}\n"


def test_a_mode_in_force_is_no_difference(hearth, file, stub):
    file.write_text(MODES)
    running = in_force(file, stub)
    running.switch("night")
    stub.put(PAGE, running.shown())
    same = hearth("config", "diff", "--url", stub.url, str(file))
    assert (same.exit_code, "no difference" in same.stdout) == (0, True)
    file.write_text(MODES.replace("9", "8"))
    changed = hearth("config", "diff", "--url", stub.url, str(file))
    assert "queue.max_external_depth: 9 -> 8  [hot]" in changed.stdout


def test_what_has_no_effect_in_a_mode_is_said_once(hearth, file):
    limits = "rate_limits: {callers: {ghost: {requests_per_minute: 1}}}"
    file.write_text(f"{limits}\nmodes: {{night: {{gpu: {{yield: {{comfyui_gb: 3}}}}}}}}\n")
    said = hearth("config", "check", str(file))
    assert "modes: 1" in said.stdout
    assert said.stderr.count("no key in auth.keys has this name") == 1
    assert "warning: modes.night: gpu.yield.comfyui_gb: has no effect" in said.stderr
