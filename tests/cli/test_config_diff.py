"""`hearth config diff`: what a file would change, against a running gateway or another file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth.clock import SystemClock
from hearth.config.loading import load_gateway_config
from hearth.config.reload import ConfigInForce
from hearth.errors import ConfigError
from hearth.observability.sinks import EventFanout
from tests.cli.stub_gateway import StubGateway

DIGEST, OTHER_DIGEST = "ab" * 32, "cd" * 32
HOOK = "https://discord.example/api/webhooks/1/"


class Running:
    """A gateway that shows what it has in force, as the real page does."""

    def __init__(self, stub: StubGateway, file: Path) -> None:
        self._stub = stub
        self._file = file
        self._in_force = ConfigInForce(load_gateway_config(file, {}), clock=SystemClock(), events=EventFanout(()))
        self._show()

    @property
    def url(self) -> str:
        return self._stub.url

    def reload(self) -> None:
        self._in_force.take(load_gateway_config(self._file, {}))
        self._show()

    def _show(self) -> None:
        self._stub.put("/llm/admin/config", json.loads(json.dumps(self._in_force.shown())))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text("queue: {max_external_depth: 7}\n")
    return path


@pytest.fixture
def running(file: Path) -> Iterator[Running]:
    with StubGateway().listening() as stub:
        yield Running(stub, file)


def test_a_file_that_is_in_force_makes_no_difference(hearth, file, running):
    result = hearth("config", "diff", str(file), "--url", running.url)
    assert (result.exit_code, result.stdout) == (0, f"no difference between the gateway at {running.url} and {file}\n")


def test_every_difference_says_what_was_what_comes_and_when(hearth, file, running):
    file.write_text("queue: {max_external_depth: 9}\nserver: {port: 9000}\npriority_map: {digest: background}\n")
    result = hearth("config", "diff", str(file), "--url", running.url)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "queue.max_external_depth: 7 -> 9  [hot]",
        'priority_map.digest: (unset) -> "background"  [hot]',
        "server.port: 8411 -> 9000  [needs a restart]",
        f"3 would change from the gateway at {running.url} to {file}: 2 at once, 1 with a restart",
    ]


def test_what_a_reload_has_left_for_a_restart_is_named(hearth, file, running):
    file.write_text("queue: {max_external_depth: 7}\nserver: {port: 9000}\n")
    running.reload()
    result = hearth("config", "diff", str(file), "--url", running.url)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "already waiting for a restart: server.port")


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        (
            f"auth: {{keys: [{{name: a, sha256: '{DIGEST}'}}]}}",
            f"auth: {{keys: [{{name: a, sha256: '{OTHER_DIGEST}'}}]}}",
            "auth.keys.a.sha256",
        ),
        (f"alerts: {{discord_webhook_url: '{HOOK}one'}}", f"alerts: {{discord_webhook_url: '{HOOK}two'}}", "alerts.discord_webhook_url"),
    ],
)
def test_a_changed_secret_is_a_difference_and_shown_nowhere(hearth, file, old, new, path):
    file.write_text(old)
    with StubGateway().listening() as stub:
        Running(stub, file)
        page = stub.answers["/llm/admin/config"][2].decode()
        same = hearth("config", "diff", str(file), "--url", stub.url)
        file.write_text(new)
        changed = hearth("config", "diff", str(file), "--url", stub.url)
    assert (same.exit_code, changed.exit_code) == (0, 1)
    assert changed.stdout.startswith(f"{path}: ")
    assert "[hot]" in changed.stdout
    for secret in (DIGEST, OTHER_DIGEST, "webhooks/1"):
        assert secret not in page + same.output + changed.output


def test_keys_are_compared_by_their_names_in_any_order(hearth, file, tmp_path):
    a, b, c = (f"{{name: {name}, sha256: '{name * 64}'}}" for name in "abc")
    file.write_text(f"auth: {{keys: [{a}, {b}]}}")
    other = tmp_path / "other.yaml"
    other.write_text(f"auth: {{keys: [{b}, {a}]}}")
    assert hearth("config", "diff", str(other), "--against", str(file)).exit_code == 0
    other.write_text(f"auth: {{keys: [{b}, {c}]}}")
    lines = hearth("config", "diff", str(other), "--against", str(file)).stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == ["auth.keys.a", "auth.keys.c"]
    assert "a" * 9 not in "".join(lines)


def test_the_file_that_serve_would_use_is_another_side(hearth, file, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text("queue: {max_external_depth: 8}\n")
    result = hearth("config", "diff", str(other), "--against", "file", HEARTH_CONFIG=str(file))
    assert (result.exit_code, result.stdout.splitlines()[0]) == (1, "queue.max_external_depth: 7 -> 8  [hot]")


def test_json_has_the_same_for_scripts(hearth, file, running):
    file.write_text("queue: {max_external_depth: 9}\n")
    result = hearth("config", "diff", str(file), "--url", running.url, "--json")
    assert json.loads(result.stdout) == {
        "changes": [{"path": "queue.max_external_depth", "old": 7, "new": 9, "hot": True}],
        "restart_pending": [],
    }


def test_a_file_with_mistakes_is_told_as_check_tells_it(hearth, file, running):
    file.write_text("queue: {max_external_depth: many}\ngpu: {swap_timout_s: 5}\n")
    said = hearth("config", "diff", str(file), "--url", running.url)
    checked = hearth("config", "check", str(file))
    assert (said.exit_code, said.stderr) == (checked.exit_code, checked.stderr) == (2, said.stderr)
    assert "mine.yaml:2: gpu.swap_timout_s" in said.stderr


def test_trouble_with_the_gateway_is_not_mistaken_for_a_difference(hearth, file, running):
    running._stub.put("/llm/admin/config", {"error": "this needs an admin key"}, status=403)
    assert hearth("config", "diff", str(file), "--url", running.url).exit_code == 2
    assert hearth("config", "diff", str(file), "--url", "http://127.0.0.1:9").exit_code == 3


def test_a_gateway_of_another_version_is_compared_where_both_know_a_key(hearth, file, running):
    page = json.loads(running._stub.answers["/llm/admin/config"][2])
    page["settings"]["queue"]["of_tomorrow\x07"] = "x\x07"
    page["restart_pending"] = ["y\x07"]
    del page["settings"]["queue"]["max_wait_s"], page["secrets"]
    running._stub.put("/llm/admin/config", page)
    result = hearth("config", "diff", str(file), "--url", running.url)
    assert result.exit_code == 1
    assert result.output.replace("\n", "").isprintable()
    assert "already waiting for a restart: y\ufffd" in result.stdout
    assert "queue.max_wait_s: (unset) -> 0.0" in result.stdout


def test_a_refused_file_leaves_what_is_shown_as_it_was(file, running):
    before = running._stub.answers["/llm/admin/config"]
    running._in_force.take(ConfigError(["bad"]))
    running._show()
    assert json.loads(running._stub.answers["/llm/admin/config"][2])["settings"] == json.loads(before[2])["settings"]
