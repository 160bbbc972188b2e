"""A server that answers as llama.cpp's does, as far as a start needs that, and misbehaves as it is
told: `odd_server.py PORT MANNER...`, run by its path with nothing but the standard library.

Anybody makes it end, or close its socket and live on, by `GET /exit` and `GET /deaf`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

PROPS = {
    "total_slots": 2,
    "build_info": "odd",
    "model_path": "/odd.gguf",
    "default_generation_settings": {"n_ctx": 64},
}
MODELS = {"data": [{"id": "odd", "meta": {"size": 3 * 1024**2, "n_params": 10}}]}
CHUNK = {"id": "x", "object": "text_completion", "created": 1, "model": "odd"}
EVENTS = [
    {"choices": [{"index": 0, "text": "odd odd odd", "finish_reason": None}]},
    {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]},
]
COMPLETION = (
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    + "".join(f"data: {json.dumps(CHUNK | each)}\n\n" for each in EVENTS)
    + "data: [DONE]\n\n"
).encode()
"""Streamed, as it is always asked for."""
EXIT_CODE = 7


def answer(path: str, manners: list[str]) -> tuple[int, object]:
    if path == "/health":
        return (503, {}) if "unready" in manners else (200, {"status": "ok"})
    if path == "/props" and "other" not in manners:
        return 200, PROPS
    return (200, MODELS) if path == "/v1/models" else (404, {})


def received(connection: socket.socket) -> str:
    """A whole request, or what came of it."""
    asked = b""
    while part := connection.recv(65536):
        asked += part
        head, _, body = asked.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if b"\r\n\r\n" in asked and len(body) >= int(length[1] if length else 0):
            break
    return asked.decode()


def serve(port: int, manners: list[str]) -> None:
    listener = socket.create_server(("127.0.0.1", port))
    while True:
        connection, _ = listener.accept()
        with connection, suppress(ConnectionError):
            asked = received(connection)
            path = asked.split(" ")[1] if " " in asked else "/"
            if path == "/exit" or ("dies" in manners and path == "/v1/completions"):
                os._exit(EXIT_CODE)
            if path == "/deaf":
                listener.close()
                time.sleep(3600)
            if path == "/v1/completions" and '"odd"' in asked:
                connection.sendall(COMPLETION)
                continue
            status, said = answer(path, manners)
            body = json.dumps(said).encode()
            head = (
                f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            connection.sendall(head.encode() + body)


def main(port: int, manners: list[str]) -> None:
    if "ignores-term" in manners:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "has-children" in manners:  # one of which leaves its session, its parent, and SIGTERM alone
        subprocess.Popen(
            ["/bin/sh", "-c", "trap '' TERM; (setsid sleep 3600 &) ; sleep 3600 & wait"]
        )
    if "forks-away" in manners and os.fork() != 0:
        os._exit(0)
    if "logs" in manners:
        line = b"word " * 199 + b"\n"
        for _ in range(int(manners[-1])):
            sys.stdout.buffer.write(line)
        sys.stdout.write("the last line\n")
    sys.stdout.write(" ".join(["odd server", os.environ.get("ODD", ""), *manners]) + "\n")
    sys.stdout.flush()
    if "silent" in manners:
        time.sleep(3600)
    serve(port + 1 if "elsewhere" in manners else port, manners)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
