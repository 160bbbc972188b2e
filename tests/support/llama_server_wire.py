"""Recorded exchanges with a real llama-server (`tests/captures/llama_server`) or vLLM."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.support.fields import Fields
from tests.support.places import ROOT

FOLDER = ROOT / "tests" / "captures" / "llama_server"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One exchange."""

    path: str
    request: bytes
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def asked(self) -> Fields:
        asked: Fields = json.loads(self.request)
        return asked

    @property
    def answered(self) -> Fields:
        answered: Fields = json.loads(self.body)
        return answered


def recorded(name: str, server: str = "llama_server") -> Recorded:
    text = (FOLDER.parent / server / f"{name}.txt").read_bytes()
    request, answer = text.split(b"\n< HTTP/1.1 ", 1)
    request_head, _, request_body = request.partition(b"\n>\n")
    head, _, body = answer.partition(b"\n<\n")
    status, *lines = head.decode().splitlines()
    fields = (line.removeprefix("< ").partition(":") for line in lines)
    return Recorded(
        path=request_head.decode().split(" ")[2],
        request=request_body.strip(),
        status=int(status.split(" ")[0]),
        headers={name.lower(): value.strip() for name, _, value in fields},
        body=body.removesuffix(b"\n") if b"text/event-stream" not in head else body,
    )
