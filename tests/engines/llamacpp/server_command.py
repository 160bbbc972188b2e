"""llama.cpp's server by its own command line.

`python -m tests.engines.llamacpp.server_command ARGUMENTS` takes what `llama-server` takes,
arguments and `LLAMA_ARG_` variables: it calls llama.cpp's own parser, which is in `xllamacpp`
without a name in Python. It prints the address it listens on, and serves until it is told to end;
with `UNTIL_STDIN_ENDS` in its environment, until its standard input ends, so that it cannot outlive
the tests.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.places import ROOT

UNTIL_STDIN_ENDS = "LLAMACPP_TEST_UNTIL_STDIN_ENDS"
_PARSE = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
_SERVER = 12
"""Of llama.cpp's `enum llama_example`."""
COMMAND = (sys.executable, "-m", "tests.engines.llamacpp.server_command")


@contextmanager
def llama_server(
    *arguments: str, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address of a server with these arguments, and its process, which is killed at the end."""
    with (
        log.open("wb") as file,
        subprocess.Popen(
            [*COMMAND, "--host", "127.0.0.1", "--port", "0", "-t", "1", *arguments],
            cwd=ROOT,
            env={**os.environ, UNTIL_STDIN_ENDS: "1", **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
        ) as process,
    ):
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        assert url, f"the server did not start: {log.read_text()}"
        try:
            yield url, process
        finally:
            process.kill()


def serve(arguments: list[str]) -> None:
    """Serve as `llama-server` with these arguments does."""
    import xllamacpp  # type: ignore[import-untyped]  # noqa: PLC0415 - not for those who start it

    server = xllamacpp.Server(_parsed(xllamacpp, arguments))
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    if UNTIL_STDIN_ENDS in os.environ:
        sys.stdin.read()
    else:
        signal.pause()
    del server


def _parsed(xllamacpp: object, arguments: list[str]) -> object:
    """The parameters in which llama.cpp's parser has written them; they lie behind the head of the
    Python object.
    """
    library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)  # type: ignore[attr-defined]
    parse = library[_PARSE]
    parse.restype = ctypes.c_bool
    params = xllamacpp.CommonParams()  # type: ignore[attr-defined]
    words = [b"llama-server", *map(str.encode, arguments)]
    argv = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    where = ctypes.c_void_p(id(params) + object.__basicsize__)
    if not parse(len(words), argv, where, _SERVER, None):
        sys.exit(1)
    return params


if __name__ == "__main__":
    serve(sys.argv[1:])
