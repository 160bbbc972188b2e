"""Renders with stable-diffusion-webui-forge (or A1111) while Hearth keeps the GPU's memory free for
it:

    python forge.py "a lighthouse at night" --count 4

Both run with their APIs: Forge with `--api`, Hearth as it is. HEARTH_KEY is a key with `may_lease`,
where Hearth has keys. Python 3.9 or newer, nothing to install.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEARTH = os.environ.get("HEARTH_URL", "http://127.0.0.1:8411")
FORGE = os.environ.get("FORGE_URL", "http://127.0.0.1:7860")
Json = dict[str, Any]
WAIT_S = 60
"""For the memory to be free: what runs there may go on for `gpu.yield.grace_s`."""
FOR_S = 600
"""The lease ends so long after the last renewal, should this program be killed: more than one image
takes."""


def ask(
    method: str, url: str, body: Json | None = None, *, timeout_s: float = 30, key: str = ""
) -> Json:
    """The answer to a request with a JSON body. Raises OSError."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
        found: Json = json.loads(answer.read() or "{}")
    return found


def ask_hearth(method: str, path: str, body: Json | None = None) -> Json:
    key = os.environ.get("HEARTH_KEY", "")
    return ask(method, HEARTH + path, body, timeout_s=WAIT_S + 30, key=key)


@contextlib.contextmanager
def leased(gb: float | None, reason: str) -> Iterator[str]:
    """The path of a lease that lasts as long as the block; None for `gb` is all memory."""
    wanted: Json = {"for_s": FOR_S, "wait_s": WAIT_S, "reason": reason}
    if gb is not None:
        wanted["gb"] = gb
    lease = ask_hearth("POST", "/llm/gpu/leases", wanted)
    path = f"/llm/gpu/leases/{lease['id']}"
    try:
        if not lease["granted"]:
            raise TimeoutError(f"the memory is not free after {WAIT_S} s")
        yield path
    finally:
        ask_hearth("DELETE", path)


def render(prompt: str, steps: int) -> bytes:
    """An image as the bytes of a PNG."""
    asked = {"prompt": prompt, "steps": steps, "width": 1024, "height": 1024}
    answer = ask("POST", f"{FORGE}/sdapi/v1/txt2img", asked, timeout_s=FOR_S)
    return base64.b64decode(answer["images"][0])


def render_all(options: argparse.Namespace) -> None:
    with leased(options.gb, f"Forge: {options.count} images") as lease:
        try:
            for number in range(options.count):
                ask_hearth("PUT", lease, {"for_s": FOR_S})
                path = Path(f"{options.name}-{number + 1}.png")
                path.write_bytes(render(options.prompt, options.steps))
                print(path)  # noqa: T201
        finally:
            # before the lease ends: Hearth loads models into that memory
            ask("POST", f"{FORGE}/sdapi/v1/unload-checkpoint", {})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--gb", type=float, help="memory that Forge needs; default: all")
    parser.add_argument("--name", default="image", help="what the files are called")
    try:
        render_all(parser.parse_args())
    except urllib.error.HTTPError as error:
        sys.exit(f"{error.url}: {error.code} {error.read(2000).decode(errors='replace')}")
    except OSError as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
