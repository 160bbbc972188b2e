"""`hearth doctor` and `config check` before servers of several models: llama.cpp's router, by its
recordings, and llama-swap.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support.fields import Fields
from tests.support.llama_server_wire import recorded


def written(folder: Path, kind: str, url: str, home: str) -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = folder / "mine.yaml"
    path.write_text(
        f"engines: {{main: {{kind: {kind}, url: {url!r}}}}}\n"
        f"storage: {{path: {folder}/state/hearth.db}}\nserver: {{port: {port}}}\n"
        f"gpu: {{nvml: false, home_model: {home}}}\n"
    )
    return str(path)


def test_a_router_is_examined_with_its_models_and_their_slots(hearth, tmp_path, busy):
    busy.put("/props", recorded("router_props").answered)
    busy.put("/models", recorded("router_models_unloaded").answered)
    said = hearth("doctor", written(tmp_path, "llama_router", busy.url, "alpha")).stdout
    for words in (
        f"ok   llama-server (router) b0-unknown at {busy.url}",
        "ok   slots           b: 1 at the same time",
        "ok   models          7 installed; home model alpha",
    ):
        assert words in said
    missing = hearth("config", "check", written(tmp_path, "llama_router", busy.url, "other"))
    assert "add it to the router's file of models (--models-preset) as [other]" in missing.stderr


@pytest.mark.parametrize(
    "changes",
    [{"models_autoload": True}, {"max_instances": 4}],
    ids=["loads by itself", "has a limit"],
)
def test_a_router_that_decides_by_itself_is_a_failure_with_its_remedy(
    hearth, tmp_path, busy, changes: Fields
):
    busy.put("/props", recorded("router_props").answered | changes)
    busy.put("/models", recorded("router_models_unloaded").answered)
    said = hearth("doctor", written(tmp_path, "llama_router", busy.url, "a"))
    assert said.exit_code == 1
    assert "FAIL llama-server (router)" in said.stdout
    assert "restart it with --no-models-autoload --models-max 0" in said.stdout


def test_a_llama_swap_is_examined_with_what_it_does_by_itself(hearth, tmp_path, busy):
    busy.put("/api/version", {"version": "251"})
    busy.put("/v1/models", {"object": "list", "data": [{"id": "a"}, {"id": "b"}]})
    running = {"model": "a", "state": "ready", "cmd": "llama-server -np 2", "ttl": 300}
    busy.put("/running", {"running": [running]})
    said = hearth("doctor", written(tmp_path, "llama_swap", busy.url, "a")).stdout
    for words in (
        f"ok   llama-swap      251 at {busy.url}",
        "warn ttl             llama-swap stops a by itself after 300 s without a request (ttl)",
        "set `ttl: 0` for it",
        "ok   models          2 installed; home model a",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("kind", "start"),
    [
        ("llama_router", "start it (`llama-server --models-preset FILE --no-models-autoload"),
        ("llama_swap", "start it (`llama-swap --config FILE`)"),
    ],
)
def test_one_that_is_not_there_is_to_be_started(hearth, tmp_path, kind: str, start: str):
    said = hearth("doctor", written(tmp_path, kind, "http://127.0.0.1:1", "a")).stdout
    assert start in said
