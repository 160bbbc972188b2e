"""Every address speaks one dialect."""

from __future__ import annotations

from hearth.dialects.routes import COUNT_TOKENS_PATH, INFERENCE_ROUTES, INFO_ROUTES, MANAGEMENT_ROUTES, Endpoint, dialect_of
from hearth.types import Dialect
from tests.support.cases import for_each


def test_every_endpoint_has_exactly_one_route_under_its_own_path() -> None:
    assert set(INFERENCE_ROUTES) == {endpoint.value for endpoint in Endpoint}
    assert all(route.path == path for path, route in INFERENCE_ROUTES.items())


def test_the_dialect_of_a_route_is_the_dialect_of_its_path() -> None:
    assert all(route.dialect is dialect_of(path) for path, route in INFERENCE_ROUTES.items())


@for_each(
    ("path", "dialect"),
    [
        ("/", Dialect.OLLAMA),
        ("/api/nope", Dialect.OLLAMA),
        ("/llm/queue/status", Dialect.OLLAMA),
        ("/v1", Dialect.OPENAI),
        ("/v1/models", Dialect.OPENAI),
        ("/v1/models/messages", Dialect.OPENAI),
        ("/v1/messages", Dialect.ANTHROPIC),
        (COUNT_TOKENS_PATH, Dialect.ANTHROPIC),
        ("/v1/messagesx", Dialect.OPENAI),
        ("/v10", Dialect.OLLAMA),
    ],
)
def test_any_path_has_a_dialect_for_its_errors(path: str, dialect: Dialect) -> None:
    assert dialect_of(path) is dialect


def test_no_address_is_in_two_tables() -> None:
    paths = [*INFERENCE_ROUTES, *(route.path for route in INFO_ROUTES), *(route.path for route in MANAGEMENT_ROUTES)]
    assert len(paths) == len(set(paths))
