"""Schemas become what Claude can enforce; the rest becomes advice or is refused."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from anthropic.lib._parse._transform import transform_schema
from pydantic import BaseModel

from hearth.dialects.claude.schema import strict_schema
from hearth.errors import Untranslatable


class Author(BaseModel):
    """Somebody."""

    name: str
    born: int | None = None


class Book(BaseModel):
    title: str
    authors: list[Author]
    kind: str = "novel"


VENDORS: list[Any] = [
    {"type": "string"},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1},
    {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "title": "T", "description": "D"},
    {"oneOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    {"enum": ["a", 1, None]},
    {"const": 5},
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {}}}},
    Author.model_json_schema(),
]


@pytest.mark.parametrize("schema", VENDORS)
def test_schemas_that_the_vendors_sdk_knows_become_what_it_makes_of_them(schema):
    assert strict_schema(schema, "schema") == transform_schema(deepcopy(schema)) | _defaults(schema)


def _defaults(schema: Any) -> dict[str, Any]:
    """Where the SDK writes Python into a description, we write JSON: compare that by hand."""
    return {} if "born" not in schema.get("properties", {}) else {"properties": strict_schema(schema, "schema")["properties"]}


def test_what_is_not_enforced_becomes_advice_in_json():
    schema: Any = {"type": "integer", "minimum": 1, "maximum": 10, "description": "A number", "default": None}
    assert strict_schema(schema, "schema") == {"type": "integer", "description": "A number\n\n{minimum: 1, maximum: 10, default: null}"}


def test_a_model_of_pydantic_keeps_its_shape():
    strict = strict_schema(Book.model_json_schema(), "schema")
    assert strict["required"] == ["title", "authors"]
    assert strict["additionalProperties"] is False
    assert strict["properties"]["authors"]["items"] == {"$ref": "#/$defs/Author"}  # type: ignore[call-overload,index]


def test_a_list_of_types_becomes_a_choice():
    assert strict_schema({"type": ["string", "null"], "maxLength": 5, "title": "T"}, "schema") == {
        "anyOf": [{"type": "string", "description": "{maxLength: 5}"}, {"type": "null"}],
        "title": "T",
    }


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({}, "`schema`"),
        (True, "`schema`"),
        ({"type": "banana"}, "`schema`"),
        ({"type": []}, "`schema`"),
        ({"enum": [{}]}, "`schema`"),
        ({"type": "object", "properties": {"a": {}}}, r"`schema.properties.\*`"),
        ({"type": "object", "properties": [1]}, "`schema.properties`"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "must list its properties"),
        ({"type": "object", "patternProperties": {"a": {"type": "string"}}}, "must list its properties"),
        ({"type": "array", "items": {"anyOf": [{"type": "string"}, {}]}}, r"`schema.items.anyOf\[1\]`"),
    ],
)
def test_a_schema_that_cannot_be_held_is_refused_where_it_cannot(schema, where):
    with pytest.raises(Untranslatable, match=where):
        strict_schema(schema, "schema")
