"""What `hearth doctor` finds about servers that Hearth starts itself."""

from __future__ import annotations

import json
import sys

from tests.engines.processes.house import some_ports


def test_commands_and_ports_are_checked_for_each_model(hearth, tmp_path):
    ports = some_ports(2)
    commands = {
        "good": [sys.executable, "${PORT}"],
        "lost": ["no-such-server"],
        "unset": ["x", "${env.HEARTH_TEST_UNSET}"],
    }
    models = {name: {"run": {"command": command}} for name, command in commands.items()}
    (tmp_path / "c.yaml").write_text(
        f"engines: {{own: {{kind: processes, ports: {ports[0]}-{ports[-1]}}}}}\n"
        f"models: {json.dumps(models)}\n"
    )
    said = hearth("doctor", str(tmp_path / "c.yaml")).stdout
    assert f"good: {sys.executable}" in said
    assert "lost: there is no program no-such-server in the directories of PATH" in said
    assert "correct models.lost.run.command[0]" in said
    assert "unset: the environment variable HEARTH_TEST_UNSET is not set" in said
    assert "correct models.unset.run.command[1]" in said
    assert "2 free for 3 models" in said
