"""llama.cpp's server as a command, as an owner starts it:
`python -m tests.engines.llamacpp.command PORT FILE NAME SLOTS CONTEXT_TOKENS`, on one thread, until
a signal ends it.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from hearth.config.engines import RunSettings
from tests.support.places import ROOT


def run_settings(file: Path, *, slots: int = 1, context_tokens: int = 2048) -> RunSettings:
    """How a model is started; the context is that of all slots together."""
    module = ["-m", "tests.engines.llamacpp.command"]
    numbers = [str(slots), str(context_tokens)]
    return RunSettings.model_validate(
        {
            "command": [sys.executable, *module, "${PORT}", str(file), "${MODEL}", *numbers],
            "env": {"PYTHONPATH": f"{ROOT}/src:{ROOT}"},
        }
    )


def serve(port: int, file: str, name: str, slots: int, context_tokens: int) -> None:
    """Never returns."""
    import xllamacpp  # type: ignore[import-untyped]  # noqa: PLC0415 - not for those who start it

    params = xllamacpp.CommonParams()
    params.model.path = file
    params.model_alias = {name}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = context_tokens
    params.n_parallel = slots
    params.cpuparams.n_threads = 1
    params.endpoint_slots = True
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    while True:
        signal.pause()


if __name__ == "__main__":
    number, path, called, *numbers = sys.argv[1:]
    serve(int(number), path, called, *map(int, numbers))
