"""Every address speaks one dialect."""

from __future__ import annotations

from hearth.dialects.routes import COUNT_TOKENS_PATH, INFERENCE_ROUTES, INFO_ROUTES, MANAGEMENT_ROUTES, Endpoint, dialect_of
from hearth.types import Dialect
from tests.support.cases import for_each


def test_every_endpoint_has_one_route_under_its_own_path_and_no_address_is_in_two_tables() -> None:
    assert list(INFERENCE_ROUTES) == [route.path for route in INFERENCE_ROUTES.values()] == list(Endpoint)
    paths = [*INFERENCE_ROUTES, *INFO_ROUTES, *MANAGEMENT_ROUTES]
    assert len(paths) == len(set(paths))


@for_each(
    ("path", "dialect"),
    [
        *((path, route.dialect) for path, route in INFERENCE_ROUTES.items()),
        *((path, Dialect.OLLAMA) for path in ("/", "/api/nope", "/llm/queue/status", "/v10")),
        *((path, Dialect.OPENAI) for path in ("/v1", "/v1/models", "/v1/models/messages", "/v1/messagesx")),
        *((path, Dialect.ANTHROPIC) for path in ("/v1/messages", COUNT_TOKENS_PATH)),
    ],
)
def test_any_path_has_a_dialect_for_its_errors(path: str, dialect: Dialect) -> None:
    assert dialect_of(path) is dialect
