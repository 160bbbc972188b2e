"""llama.cpp's server out of the package `xllamacpp`, as a program of its own.

`python -m hearth.engines.small_model.serving -m FILE --alias NAME --port PORT`, with the arguments
of llama-server that are known here, and its variables for saving slots. It computes on the CPU.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

# as llama-server itself reads them
SAVE_PATH = "LLAMA_ARG_SLOT_SAVE_PATH"
CACHE_IDLE_SLOTS = "LLAMA_ARG_CACHE_IDLE_SLOTS"
MODULE = "hearth.engines.small_model.serving"
HOST_CACHE_MIB = 128
"""Memory of the host for prompts that have left a slot; llama-server's own limit is 8 GiB."""


def main(words: Sequence[str]) -> None:
    """Serve until a signal ends it."""
    given = _arguments(words)
    # not for those who only ask for the name of this module
    import xllamacpp  # type: ignore[import-untyped]  # noqa: PLC0415

    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.model_alias = {given.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = given.port
    params.n_ctx = given.ctx_size
    params.n_parallel = given.parallel
    params.kv_unified = False
    # its threads wait for each other actively, so that one that has no core delays all
    threads = max(1, (os.cpu_count() or 1) // 2)
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.cache_ram_mib = HOST_CACHE_MIB
    params.endpoint_slots = True
    if given.slot_save_path:
        params.slot_save_path = f"{given.slot_save_path.rstrip('/')}/"  # file names are put behind
    params.cache_idle_slots = os.environ.get(CACHE_IDLE_SLOTS) != "0"
    server = xllamacpp.Server(params)
    try:
        signal.pause()
    finally:
        del server


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", allow_abbrev=False)
    parser.add_argument("-m", "--model", required=True, help="file of the weights")
    parser.add_argument("-a", "--alias", required=True, help="name of the model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("-c", "--ctx-size", type=int, default=4096, help="tokens of all slots")
    parser.add_argument("-np", "--parallel", type=int, default=1, help="slots")
    parser.add_argument(
        "--slot-save-path", default=os.environ.get(SAVE_PATH, ""), help="directory of saved slots"
    )
    return parser.parse_args(words)


if __name__ == "__main__":
    main(sys.argv[1:])
