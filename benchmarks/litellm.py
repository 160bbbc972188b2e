"""LiteLLM's proxy as it is installed from the package index, in a virtual environment of its own
that `make clean` removes.

It is asked in OpenAI's API, and asks the stub in that API, which is its shortest way: no
translation, one worker, a key, no database. It is no part of what Hearth is developed with, and is
installed only when `make bench ARGS="litellm"` asks for it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.keys import EXTERNAL
from benchmarks.process import Child, free_port
from benchmarks.stub import MODEL

VERSION = "1.106.2"
FOLDER = Path(__file__).parents[1] / "build" / "litellm"
INSTALL_TIMEOUT_S = 1200.0
START_TIMEOUT_S = 120.0
CONFIG = """\
model_list:
  - model_name: "{model}"
    litellm_params: {{model: "openai/{model}", api_base: "{upstream}/v1", api_key: none}}
general_settings: {{master_key: "{key}"}}
litellm_settings: {{telemetry: false, num_retries: 0}}
"""
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}


class NotInstalledError(Exception):
    """LiteLLM could not be installed; the text says why."""


def installed() -> Path:
    """Its command, after installing it where it is missing, which takes minutes and 750 MB.

    Raises NotInstalledError.
    """
    program = FOLDER / "bin" / "litellm"
    done = FOLDER / f"installed-{VERSION}"
    if not done.exists():
        call(sys.executable, "-m", "venv", "--clear", str(FOLDER))
        call(
            str(FOLDER / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            f"litellm[proxy]=={VERSION}",
        )
        done.touch()
    return program


def call(*command: str) -> None:
    """Run it to its end. Raises NotInstalledError with the last line that it wrote."""
    try:
        subprocess.run(  # noqa: S603 - a command of our own
            command, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S
        )
    except subprocess.CalledProcessError as error:
        last = (error.stderr or error.stdout or "").strip().splitlines()[-1:]
        raise NotInstalledError(" ".join(last) or str(error)) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalledError(str(error)) from error


def proxy(program: Path, upstream: Child, place: Path) -> Child:
    """The proxy in front of the stub."""
    port = free_port()
    file = place / "litellm.yaml"
    file.write_text(CONFIG.format(model=MODEL, upstream=upstream.url, key=EXTERNAL))
    command = [str(program), "--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
    return Child(
        command,
        port,
        log=place / "litellm.log",
        environment=OFFLINE,
        start_timeout_s=START_TIMEOUT_S,
    )
