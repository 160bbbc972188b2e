"""Every operation of the gateway's own description, with values that fit it and values that do not:
nothing is answered with a 5xx, and no defect is reported. `HEARTH_EXAMPLES=20` tries four hundred
of each (`make reliability`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.events import InternalFault
from tests.api.house import ADMIN_KEY
from tests.api.test_app import STREAMS
from tests.security.house import (
    Seen,
    described_routes,
    fort_settings,
    is_of_the_registry,
    open_fort,
    request,
    tell,
)
from tests.support.examples import EXAMPLES
from tests.support.fields import Fields
from tests.support.home import EMBEDDER, LLAMA

PER_KIND = 10 if EXAMPLES == 1 else min(20 * EXAMPLES, 500)
"""Examples that fit, and as many that do not."""
INSTALLED = {"anyOf": [{"type": "string", "enum": [LLAMA, EMBEDDER]}, {"type": "string"}]}


def tempting() -> Fields:
    """The description, in which models that are installed are likely names; or hardly anything
    would reach the queue.
    """
    described = described_routes()
    for path in INFERENCE_ROUTES:
        schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"][
            "schema"
        ]
        schema["properties"] = {**schema["properties"], "model": INSTALLED}
    for name in ("CompletionBody", "ModelBody"):
        described["components"]["schemas"][name]["properties"]["model"] = INSTALLED
    return described


@pytest.fixture(scope="module")
def operations() -> list[Any]:
    # only the one process that runs this module waits for it
    from schemathesis import openapi  # noqa: PLC0415

    found: list[Any] = list(openapi.from_dict(tempting()).get_all_operations())
    return [each.ok() for each in found]


@pytest.fixture(scope="module")
def answer_to(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Seen]]:
    """What bytes are answered with by a gateway that lives as long as the module; the orders that
    they may have given are taken back.
    """
    with asyncio.Runner() as runner:
        opened = open_fort(fort_settings(tmp_path_factory.mktemp("fort")))
        fort = runner.run(opened.__aenter__())

        def answer_to(raw: bytes, *, head_only: bool) -> Seen:
            seen = runner.run(tell(fort.url, raw, head_only=head_only))
            fort.gateway.orders.resume()
            fort.gateway.orders.unpin()
            faults = fort.events.of(InternalFault)
            fort.events.all.clear()
            assert faults == []
            return seen

        yield answer_to
        runner.run(opened.__aexit__(None, None, None))


def bytes_of(case: Any) -> bytes:
    """The request that a case stands for, with the owner's key."""
    given_ = case.as_transport_kwargs(base_url="http://localhost")
    kept = ("method", "url", "headers", "data", "json", "params", "files")
    prepared = requests.Request(**{name: given_[name] for name in kept if name in given_}).prepare()
    raw: Any = prepared.body or b""
    body = raw.encode() if isinstance(raw, str) else bytes(raw)
    sent = {
        name.lower(): str(value)
        for name, value in prepared.headers.items()
        if name.lower() == "content-type"
    }
    return request(
        prepared.method or "", prepared.path_url, body, key=ADMIN_KEY, host="localhost", **sent
    )


def test_every_address_that_the_program_has_is_described():
    app = described_routes()["paths"]
    assert set(INFERENCE_ROUTES) <= set(app)
    assert {
        "/api/tags",
        "/api/pull",
        "/api/blobs/{digest}",
        "/v1/models/{model}",
        "/v1/files/{file_id}/content",
        "/llm/jobs",
    } <= set(app)
    for path, methods in app.items():
        named = {part.partition("}")[0] for part in path.split("{")[1:]}
        for operation in methods.values():
            assert named <= {each["name"] for each in operation.get("parameters", ())}, path
            assert "422" not in operation["responses"] or path == "/llm/admin/reload"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_nothing_that_is_sent_to_an_operation_is_answered_with_a_5xx(mode, operations, answer_to):
    from schemathesis import GenerationMode  # noqa: PLC0415

    tried = [each for each in operations if mode == "positive" or can_be_wrong(each)]
    assert len(tried) >= 40
    for operation in tried:
        fuzzed(operation, operation.as_strategy(generation_mode=GenerationMode(mode)), answer_to)()


def can_be_wrong(operation: Any) -> bool:
    """A text in a path and a body of bytes always fit: hypothesis would look for others five
    hundred times.
    """
    typed = [
        each for each in operation.path_parameters if each.definition["schema"]["type"] != "string"
    ]
    described = [body for body in operation.body if body.media_type != "application/octet-stream"]
    return bool([*typed, *operation.query, *operation.headers, *operation.cookies, *described])


def fuzzed(operation: Any, cases: SearchStrategy[Any], answer_to: Callable[..., Seen]) -> Any:
    head_only = operation.path in STREAMS

    @given(cases)
    @settings(
        max_examples=PER_KIND, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    def fuzz(case: Any) -> None:
        raw = bytes_of(case)
        seen = answer_to(raw, head_only=head_only)
        assert 100 <= seen.status < 500 or is_of_the_registry(operation.path, seen), (
            seen.status,
            raw,
        )

    return fuzz
