"""A llama.cpp server with one model in a process of its own.

`python -m tests.engines.llamacpp.serving MODEL_FILE MODEL_NAME` prints the address it listens on,
then serves until its standard input ends, so it can never outlive the tests that started it. The
number of slots (1) and the MiB of the host's prompt cache may follow.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.engines.llamacpp.gguf import CONTEXT_TOKENS
from tests.support.places import ROOT

PORT = "LLAMACPP_TEST_PORT"


@contextmanager
def serving(model: Path, name: str, port: int = 0) -> Iterator[str]:
    """The address of a server in a process of its own, which is killed at the end of the block; its
    log is beside the model.

    Args:
        port: 0 for any free one.
    """
    log_path = model.with_suffix(".log")
    command = [sys.executable, "-m", "tests.engines.llamacpp.serving", str(model), name]
    with (
        log_path.open("wb") as log,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, PORT: str(port)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        assert url, f"the engine did not start: {log_path.read_text()}"
        try:
            yield url
        finally:
            process.kill()


def serve(path: str, name: str, slots: int = 1, cache_mib: int | None = None) -> None:
    """Serve the model at `path` under `name`: one thread, any free port of loopback. `cache_mib`:
    of the host's memory, for prompts; None is the server's own choice.
    """
    import xllamacpp  # type: ignore[import-untyped]  # noqa: PLC0415 - not for those who start it

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.model_alias = {name}
    params.hostnames = ["127.0.0.1"]
    params.port = int(os.environ.get(PORT, "0"))
    params.n_ctx = CONTEXT_TOKENS
    params.n_parallel = slots
    params.cpuparams.n_threads = 1
    params.endpoint_slots = True
    if cache_mib is not None:
        params.cache_ram_mib = cache_mib
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    del server


if __name__ == "__main__":
    file, called, *numbers = sys.argv[1:]
    serve(file, called, *map(int, numbers))
