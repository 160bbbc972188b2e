"""A llama.cpp server with one model in a process of its own.

`python -m tests.engines.llamacpp.serving MODEL_FILE MODEL_NAME` prints the address it listens on,
then serves until its standard input ends, so it can never outlive the tests that started it. The
number of slots (1) and the MiB of the host's prompt cache may follow.
"""

from __future__ import annotations

import sys

import xllamacpp  # type: ignore[import-untyped]

from tests.engines.llamacpp.gguf import CONTEXT_TOKENS


def serve(path: str, name: str, slots: int = 1, cache_mib: int | None = None) -> None:
    """Serve the model at `path` under `name`: one thread, any free port of loopback. `cache_mib`:
    of the host's memory, for prompts; None is the server's own choice.
    """
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.model_alias = {name}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
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
