"""`hearth serve` and its file in one real life: saved, spoilt, mended, SIGHUP."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.patience import WITHIN_S


def events(gateway: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert gateway.stdout is not None
    for line in gateway.stdout:
        yield json.loads(line)


def test_a_saved_file_a_bad_one_and_a_signal_are_each_one_line_in_the_log(tmp_path: Path):
    file = tmp_path / "hearth.yaml"
    file.write_text("queue: {max_external_depth: 5}\n")
    command = [sys.executable, "-c", "from hearth.cli import main; main()"]
    command += ["serve", "--emulator", "--port", "0", "--config", str(file)]
    environ = {"HOME": str(tmp_path), "PATH": ""}
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as gateway:
        said = (each for each in events(gateway) if each["event"] in {"gateway_started", "config_reloaded", "config_rejected"})
        assert next(said)["event"] == "gateway_started"

        file.write_text("queue: {max_external_depth: 6}\nserver: {port: 9000}\n")
        reloaded = next(said)
        assert (reloaded["event"], reloaded["generation"], reloaded["needs_restart"]) == ("config_reloaded", 2, ["server.port"])

        file.write_text("queue: {max_external_depth: six}\n")
        rejected = next(said)
        assert (rejected["event"], rejected["level"]) == ("config_rejected", "warning")
        assert rejected["problems"][0].startswith(f"{file}:1: queue.max_external_depth")

        gateway.send_signal(signal.SIGHUP)
        assert next(said)["event"] == "config_rejected"

        file.write_text("queue: {max_external_depth: 6}\n")
        mended = next(said)
        assert (mended["generation"], mended["changed"], mended["needs_restart"]) == (3, ["server.port"], [])

        gateway.send_signal(signal.SIGTERM)
        for _ in events(gateway):
            pass
        assert gateway.wait(timeout=WITHIN_S) == 0
