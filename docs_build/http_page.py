"""Every address of the gateway as tables: Hearth's own from its OpenAPI description, the others
from the table that routes are made of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from docs_build.markdown import code, linked, one_of, table
from hearth.api.description import MODELS_TAG
from hearth.dialects.routes import (
    COUNT_TOKENS_PATH,
    INFERENCE_ROUTES,
    INFO_ROUTES,
    MANAGEMENT_ROUTES,
    MEDIA_ROUTES,
)
from hearth.types import Dialect

_INTRO = """# Every address

Made from the running program: its route table, and the OpenAPI description that it serves at
`/openapi.json`. What is passed on, what is changed, errors, headers and limits: [The HTTP
API](../http-api.md). """
_DIALECTS: dict[Dialect, str] = {
    "ollama": "Ollama's API",
    "openai": "OpenAI's API",
    "anthropic": "Anthropic's API",
}
_UNDESCRIBED = (
    (
        "POST",
        "/v1/files",
        "Take a file for a batch, as OpenAI's API does: a form with `purpose` and `file`.",
    ),
    ("GET", "/v1/files/{file_id}/content", "The bytes of a file."),
    (
        "GET",
        "/v1/messages/batches/{batch_id}/results",
        "The results of a batch that has ended, one a line.",
    ),
    (
        "POST",
        "/llm/gpu/leases/hold",
        "A lease that lives as long as this connection, and lines of JSON that say how it is.",
    ),
    ("GET", "/dashboard", "The dashboard, as at `/`; no data."),
    ("GET", "/dashboard/{page}", "A page of the dashboard; no data."),
    ("GET", "/static/{file}", "The dashboard's own files; no data."),
    ("GET", "/openapi.json", "The OpenAPI description of Hearth's own pages."),
)
_RAISES = re.compile(r"\s*(\n\nRaises:.*|Raises [^.]*\.)$", re.DOTALL)

Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One method of one path; `inputs` are name, type, default and kind (path, query or body) of
    what it takes.
    """

    method: str
    path: str
    who: str
    text: str
    inputs: tuple[tuple[str, str, str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Addresses that stand under one heading."""

    title: str
    addresses: tuple[Address, ...]


def groups(openapi: Node) -> tuple[Group, ...]:
    """All of them; `openapi` is what the gateway serves at `/openapi.json`."""
    own = (*_undescribed(), *_described(openapi))
    speaking = (
        Group(title=f"Models: {name}", addresses=tuple(_inference(dialect)))
        for dialect, name in _DIALECTS.items()
    )
    return (
        *speaking,
        Group(
            title="Models: speech, images and ranks",
            addresses=(
                *_plain("Queued.", dict.fromkeys(MEDIA_ROUTES, ("POST",))),
                *(each for each in own if each.path.startswith("/v1/audio/")),
            ),
        ),
        Group(title="Passed through", addresses=tuple(_plain("Passed through.", INFO_ROUTES))),
        Group(
            title="Managing models",
            addresses=tuple(_plain("Passed through.", MANAGEMENT_ROUTES, "admin keys")),
        ),
        Group(
            title="Files and batches: OpenAI's API",
            addresses=tuple(each for each in own if _is_of_openai(each.path)),
        ),
        Group(
            title="Batches: Anthropic's API",
            addresses=tuple(each for each in own if each.path.startswith("/v1/messages/")),
        ),
        Group(
            title="Hearth's own",
            addresses=tuple(each for each in own if not each.path.startswith("/v1/")),
        ),
    )


def _is_of_openai(path: str) -> bool:
    return path.startswith("/v1/") and not path.startswith(("/v1/messages/", "/v1/audio/"))


def http_page(openapi: Node) -> str:
    """The page."""
    return "\n".join([_INTRO, *(_rendered(each) for each in groups(openapi))])


def _rendered(group: Group) -> str:
    rows = [
        (code(f"{each.method} {each.path}"), each.who, linked(each.text))
        for each in group.addresses
    ]
    overview = table(("address", "who", "what"), rows)
    return "\n".join(
        [
            f"## {group.title}\n\n{overview}\n",
            *(_inputs(each) for each in group.addresses if _asks(each)),
        ]
    )


def _asks(address: Address) -> bool:
    """Whether there is more to say than the path does."""
    return any(where != "path" for *_, where in address.inputs)


def _inputs(address: Address) -> str:
    rows = [(code(name), where, kind, default) for name, kind, default, where in address.inputs]
    return (
        f"### {address.method}"
        f" {address.path}\n\n{table(('name', 'in', 'takes', 'default'), rows)}\n"
    )


def _inference(dialect: Dialect) -> Iterator[Address]:
    for path, route in INFERENCE_ROUTES.items():
        if route.dialect is dialect:
            yield Address(
                method="POST", path=path, who="every caller", text="Runs a model: queued."
            )
    if dialect == "anthropic":
        yield Address(
            method="POST",
            path=COUNT_TOKENS_PATH,
            who="every caller",
            text="An estimate, made by Hearth; never queued.",
        )


def _plain(
    text: str, routes: Mapping[str, tuple[str, ...]], who: str = "every caller"
) -> Iterator[Address]:
    for path, methods in routes.items():
        for method in methods:
            yield Address(method=method, path=path.replace(":path", ""), who=who, text=text)


def _undescribed() -> Iterator[Address]:
    for method, path, text in _UNDESCRIBED:
        yield Address(method=method, path=path, who=_who(path), text=text)


def _described(openapi: Node) -> Iterator[Address]:
    named = _Schemas(openapi.get("components", {}).get("schemas", {}))
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            if MODELS_TAG in operation.get("tags", ()):
                continue
            text = _RAISES.sub("", operation.get("description", operation.get("summary", "")))
            inputs = (*named.parameters(operation), *named.body(operation))
            yield Address(
                method=method.upper(),
                path=path,
                who=_who(path, method.upper()),
                text=text,
                inputs=inputs,
            )


def _who(path: str, method: str = "GET") -> str:
    if path in ("/healthz", "/llm/gpu/status") or path.startswith(("/static/", "/dashboard")):
        return "everybody"
    if path.startswith("/llm/gpu/leases"):
        return "keys with may_lease"
    if path == "/llm/mode" and method != "GET":
        return "keys with may_set_mode"
    return "admins" if path.startswith("/llm/admin/") or path == "/openapi.json" else "every caller"


class _Schemas:
    """The bodies that the description names."""

    def __init__(self, schemas: Mapping[str, Node]) -> None:
        self._schemas = schemas

    def parameters(self, operation: Node) -> Iterator[tuple[str, str, str, str]]:
        """What stands in the path and behind the question mark."""
        for each in operation.get("parameters", ()):
            yield (
                each["name"],
                self._kind(each["schema"]),
                _default(each["schema"], required=each.get("required", False)),
                each["in"],
            )

    def body(self, operation: Node) -> Iterator[tuple[str, str, str, str]]:
        """The fields of the body, of whatever media type it is."""
        for content in operation.get("requestBody", {}).get("content", {}).values():
            schema = self._resolved(content["schema"])
            for name, each in schema.get("properties", {}).items():
                yield (
                    name,
                    self._kind(each),
                    _default(each, required=name in schema.get("required", ())),
                    "body",
                )

    def _resolved(self, node: Node) -> Node:
        return self._schemas[node["$ref"].rpartition("/")[2]] if "$ref" in node else node

    def _kind(self, node: Node) -> str:
        plain = self._resolved(node)
        choices = [
            self._kind(each) for each in plain.get("anyOf", ()) if each.get("type") != "null"
        ]
        if choices:
            return " or ".join(choices)
        if "enum" in plain or "const" in plain:
            return one_of(plain.get("enum", [plain.get("const")]))
        return f"{plain.get('format', '')} {plain.get('type', 'anything')}".strip() + _bounds(plain)


def _bounds(node: Node) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        return f", {low:g} to {high:g}"
    short, long = node.get("minLength"), node.get("maxLength")
    return "" if long is None else f", {short or 0} to {long} characters"


def _default(node: Node, *, required: bool) -> str:
    if required:
        return "required"
    return "unset" if node.get("default") is None else code(json.dumps(node["default"]))
