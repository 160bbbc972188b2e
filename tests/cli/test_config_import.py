"""`hearth config import`: what it prints, writes, and refuses."""

from __future__ import annotations

import asyncio
import stat
import sys

import aiohttp
import pytest

from hearth.bootstrap import running_gateway
from hearth.config.loading import load_gateway_config
from tests.engines.small_model.installing import install_weights

SWAP = """\
models:
  qwen:
    cmd: llama-server --port ${PORT} -m /models/qwen.gguf
    ttl: 60
    aliases: [coder]
"""
SAYS = "swap.yaml:4: models.qwen.ttl: has no counterpart"


@pytest.fixture
def swap(tmp_path):
    path = tmp_path / "swap.yaml"
    path.write_text(SWAP)
    return path


def test_what_is_printed_is_a_usable_configuration(hearth, swap, tmp_path):
    printed = hearth("config", "import", str(swap))
    assert printed.exit_code == 0
    assert "# line 4: models.qwen.ttl: has no counterpart" in printed.stdout
    assert printed.stderr.splitlines()[0].startswith(f"{tmp_path}/{SAYS}")
    assert printed.stderr.splitlines()[-1] == (
        "models: 1, aliases: 1, not carried over as it was: 1"
    )
    (tmp_path / "mine.yaml").write_text(printed.stdout)
    checked = hearth("config", "check", str(tmp_path / "mine.yaml"))
    assert (checked.exit_code, checked.stderr) == (0, "")
    assert "models: 1, aliases: 1" in checked.stdout


def test_a_file_is_written_once(hearth, swap, tmp_path):
    mine = tmp_path / "mine.yaml"
    written = hearth("config", "import", str(swap), "--output", str(mine))
    assert (written.exit_code, written.stdout, SAYS in written.stderr) == (0, "", True)
    content = mine.read_text()
    assert content == hearth("config", "import", str(swap)).stdout
    again = hearth("config", "import", str(swap), "--output", str(mine))
    assert (again.exit_code, "exists: name another file" in again.stderr) == (2, True)
    assert mine.read_text() == content
    assert stat.S_ISREG(mine.stat().st_mode)


def test_a_file_that_cannot_be_used_writes_nothing(hearth, swap, tmp_path):
    swap.write_text("models:\n  a:\n    cmd: serve ${x}\n")
    mine = tmp_path / "mine.yaml"
    refused = hearth("config", "import", str(swap), "--output", str(mine))
    assert (refused.exit_code, refused.stdout, mine.exists()) == (2, "", False)
    assert "swap.yaml:3: models.a.cmd: has the unknown macro ${x}" in refused.stderr


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff\xfe", "swap.yaml:1: is not UTF-8 text"),
        (b"#" * 300_000, "swap.yaml: is larger than 256 KiB"),
        (b"models: {a: {cmd: 'x ${PORT}\x07'}}", "control character U+0007"),
        (b"models:\n" + b"".join(b"  m%d: {<<: *e}\n" % n for n in range(3)), "*e is no anchor"),
    ],
)
def test_a_file_that_is_something_else_is_refused(hearth, swap, content, says):
    swap.write_bytes(content)
    refused = hearth("config", "import", str(swap))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert says in refused.stderr


def test_a_result_that_no_configuration_may_be_as_large_as_is_refused(hearth, swap):
    entries = "".join(f"  m{n}: {{cmd: '${{long}} ${{PORT}}'}}\n" for n in range(20))
    swap.write_text(f"macros: {{long: {'x' * 20_000}}}\nmodels:\n{entries}")
    refused = hearth("config", "import", str(swap))
    assert (refused.exit_code, "would be larger than 256 KiB" in refused.stderr) == (2, True)


def test_a_result_that_this_environment_makes_unusable_says_why(hearth, swap):
    swap.write_text(SWAP + "apiKeys: ['${env.SWAP_KEY}']\n")
    assert hearth("config", "import", str(swap)).exit_code == 0
    short = hearth("config", "import", str(swap), SWAP_KEY="short")
    assert (short.exit_code, "auth:" in short.stdout) == (2, True)
    assert "the environment variable SWAP_KEY has fewer than 16 characters" in short.stderr


def test_a_file_that_is_not_there_or_cannot_be_written_is_said(hearth, swap, tmp_path):
    missing = hearth("config", "import", str(tmp_path / "none.yaml"))
    assert (missing.exit_code, "none.yaml: cannot be read" in missing.stderr) == (2, True)
    nowhere = hearth("config", "import", str(swap), "--output", str(tmp_path / "no" / "x.yaml"))
    assert (nowhere.exit_code, "cannot be written" in nowhere.stderr) == (2, True)


async def test_an_imported_configuration_serves_its_models_by_all_their_names(
    hearth, tmp_path, monkeypatch
):
    weights = install_weights(tmp_path)
    (tmp_path / "swap.yaml").write_text(
        f"""\
startPort: 15900
macros:
  server: >
    '{sys.executable}' -m hearth.engines.small_model.serving --port ${{PORT}} -c 512
  weights: "${{env.WEIGHTS}}"
models:
  small:
    cmd: |
      # after llama-swap's guide
      ${{server}} \\
      -m ${{weights}} --alias ${{MODEL_ID}}
    aliases: [gpt-4o]
    env: ["GREETING=hello there"]
selectors:
  any: {{strategy: warm, targets: [gpt-4o]}}
"""
    )
    mine = tmp_path / "mine.yaml"
    assert hearth("config", "import", "swap.yaml", "--output", str(mine)).exit_code == 0
    checked = await asyncio.to_thread(hearth, "config", "check", str(mine))
    assert (checked.exit_code, checked.stderr) == (0, "")
    monkeypatch.setenv("WEIGHTS", str(weights))
    async with (
        running_gateway(load_gateway_config(mine), port=0) as (_, url),
        aiohttp.ClientSession(url, trust_env=False) as session,
    ):
        for name in ("small", "gpt-4o", "any"):
            body = {"model": name, "prompt": "hi", "stream": False, "options": {"num_predict": 2}}
            async with session.post("/api/generate", json=body) as response:
                answer = await response.json()
            assert (response.status, answer["eval_count"]) == (200, 2), answer
