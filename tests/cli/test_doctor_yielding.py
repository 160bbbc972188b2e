"""What `hearth doctor` says of a ComfyUI whose queue is followed, and of logind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hearth.backends.logind import ADDRESS_VARIABLE
from hearth.cli.doctor import check_status
from hearth.cli.doctor_yielding import (
    check_comfyui,
    check_programs,
    check_restart_command,
    check_suspend,
    found_launchers,
)
from hearth.config.loading import parse_config
from hearth.config.settings import Settings
from tests.cli.test_doctor import free_port
from tests.support.fake_comfyui import FakeComfyUi, serving
from tests.support.fake_logind import FakeLogind, needs_bus, private_bus
from tests.support.fake_webhooks import Reply


def following(url: str) -> Settings:
    return parse_config(f'gpu: {{yield: {{comfyui: "{url}"}}}}', source="f").settings


@contextmanager
def running(reply: Reply | None) -> Iterator[str]:
    """One in a thread of its own, since the command has a loop of its own; gives its URL."""
    urls: list[str] = []
    is_up = threading.Event()
    loop = asyncio.new_event_loop()
    end = asyncio.Event()

    async def serve() -> None:
        async with FakeComfyUi() as comfyui, serving(comfyui) as url:
            comfyui.reply = reply
            comfyui.post(seconds=3600.0)
            urls.append(url)
            is_up.set()
            await end.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert is_up.wait(60)
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


@pytest.mark.parametrize(
    ("reply", "level", "says", "advice"),
    [
        (None, "ok", "answers at URL, 1 job", ""),
        (
            Reply(404),
            "FAIL",
            "what answers at URL is no ComfyUI (http_404)",
            "correct gpu.yield.comfyui, such as http://127.0.0.1:8188",
        ),
        (
            Reply(200, {}, b"<html>"),
            "FAIL",
            "what answers at URL is no ComfyUI (other_server)",
            "correct gpu.yield.comfyui, such as http://127.0.0.1:8188",
        ),
        (
            Reply(401),
            "FAIL",
            "URL refuses (http_401): Hearth cannot sign in there",
            "set gpu.yield.comfyui to ComfyUI's own address",
        ),
    ],
)
def test_a_comfyui_is_examined_at_its_address(reply, level, says, advice):
    with running(reply) as url:
        (found,) = check_comfyui(following(url))
    assert found == (level, "ComfyUI", says.replace("URL", url), advice)


def test_one_that_is_not_running_is_no_failure():
    url = f"http://127.0.0.1:{free_port()}"
    (found,) = check_comfyui(following(url))
    advice = "start it, or correct gpu.yield.comfyui"
    assert found == ("warn", "ComfyUI", f"nothing answers at {url}", advice)


def test_nothing_is_said_without_one():
    assert list(check_comfyui(following(""))) == []


@contextmanager
def bus_with_logind(folder: Path, *, delay_s: float, refusal: str) -> Iterator[str]:
    """A system bus with a logind on it, in a thread of its own; gives its address."""
    loop = asyncio.new_event_loop()
    end = asyncio.Event()
    addresses: list[str] = []
    is_up = threading.Event()

    async def serve() -> None:
        async with private_bus(folder) as address:
            logind = FakeLogind(address, delay_s)
            logind.manager.refusal = refusal
            await logind.start()
            addresses.append(address)
            is_up.set()
            await end.wait()
            await logind.stop()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert is_up.wait(60)
        yield addresses[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


ENOUGH = "logind lets Hearth unload models before this machine sleeps, for 10 s"
SHORT = (
    "logind lets Hearth unload models before this machine sleeps, for 5 s; answers are interrupted"
)


@needs_bus
@pytest.mark.parametrize(
    ("delay_s", "refusal", "level", "says"),
    [
        (10.0, "", "ok", ENOUGH),
        (5.0, "", "ok", f"{SHORT} 5 s earlier than gpu.yield.grace_s says"),
        (5.0, "x.AccessDenied", "warn", "when this machine sleeps (x.AccessDenied)"),
    ],
)
def test_the_doctor_says_whether_there_is_time_before_a_sleep(
    tmp_path, monkeypatch, delay_s: float, refusal: str, level: str, says: str
):
    with bus_with_logind(tmp_path, delay_s=delay_s, refusal=refusal) as address:
        monkeypatch.setenv(ADDRESS_VARIABLE, address)
        (finding,) = check_suspend(Settings())
    assert finding.level == level
    assert says in finding.says


def test_the_doctor_says_where_nobody_knows_of_a_sleep_and_nothing_where_it_is_off(monkeypatch):
    monkeypatch.setenv(ADDRESS_VARIABLE, "unix:path=/nonexistent/bus")
    (finding,) = check_suspend(Settings())
    assert finding.level == "ok"
    assert "no system bus" in finding.says
    off = parse_config("gpu: {yield: {suspend: false}}", source="f").settings
    assert [*check_suspend(off)] == []


PROGRAMS = {
    "nothing to offer": ("off", [], "", []),
    "games are offered": (
        "off",
        ["Steam", "Lutris"],
        "",
        [("ok", "Steam and Lutris found", "gpu.yield.watch: games")],
    ),
    "what is off needs to see nothing": ("off", [], "container", []),
    "on": ("games", ["Steam"], "", [("ok", "gpu.yield.watch is games", "")]),
    "not Linux": ("named", [], "no_proc", [("warn", "this is not Linux", "hearth yield")]),
    "in a container": ("games", [], "container", [("warn", "in a container", "--pid=host")]),
    "hidden": ("pressure", [], "hidden", [("warn", "are hidden", "ProtectProc=default")]),
}


@pytest.mark.parametrize(("watch", "launchers", "hidden", "said"), PROGRAMS.values(), ids=PROGRAMS)
def test_games_are_offered_and_hidden_programs_are_told(watch, launchers, hidden, said):
    settings = parse_config(f'gpu: {{yield: {{watch: "{watch}"}}}}', source="f").settings
    found = list(check_programs(settings, launchers, hidden))
    assert len(found) == len(said)
    for finding, (level, says, advice) in zip(found, said, strict=True):
        assert (finding.level, finding.subject) == (level, "yield")
        assert says in finding.says
        assert advice in finding.advice


def test_launchers_are_found_as_commands_and_as_flatpaks(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "steam"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    (tmp_path / "app" / "com.heroicgameslauncher.hgl").mkdir(parents=True)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert found_launchers((tmp_path / "app", tmp_path / "none")) == ["Steam", "Heroic"]


@pytest.mark.parametrize("hidden", ["", "hidden"])
def test_what_the_gateways_unit_hides_is_told(hidden):
    status = {"yield_watch": {"watch": "games", "hidden": hidden}}
    subjects = [each.subject for each in check_status(status)]
    assert subjects == (["gateway"] if hidden else [])


@pytest.mark.parametrize(
    ("command", "levels"),
    [("[]", []), ("[sh, -c, exit]", []), ("[/nonexistent/restart, ollama]", ["FAIL"])],
)
def test_the_doctor_says_where_the_restart_command_is_no_program(command: str, levels: list[str]):
    settings = parse_config(f"gpu: {{restart_command: {command}}}", source="f").settings
    assert [finding.level for finding in check_restart_command(settings)] == levels
