"""Schemas become what Claude can enforce; the rest becomes advice or is refused."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from anthropic.lib._parse._transform import transform_schema
from pydantic import BaseModel

from hearth.dialects.claude.tools import strict_schema
from hearth.errors import Untranslatable
from tests.support.cases import for_each


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
    {"type": "string", "format": "uuid"},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2},
    {"allOf": [{"type": "string"}, {"type": "string", "format": "time"}]},
    {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "title": "T", "description": "D"},
    {"oneOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    {"enum": ["a", 1, None]},
    {"const": 5},
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {}}}},
]


@for_each("schema", VENDORS)
def test_schemas_that_the_vendors_sdk_knows_become_what_it_makes_of_them(schema):
    assert strict_schema(schema, "schema") == transform_schema(deepcopy(schema))


def test_a_default_becomes_advice_in_json_where_the_vendors_sdk_writes_python():
    strict: Any = strict_schema(Author.model_json_schema(), "schema")
    vendors: Any = transform_schema(Author.model_json_schema())
    assert vendors["properties"]["born"].pop("description") == "{default: None}"
    assert strict["properties"]["born"].pop("description") == "{default: null}"
    assert strict == vendors


def test_what_is_not_enforced_becomes_advice_in_json():
    schema: Any = {"type": "integer", "minimum": 1, "maximum": 10, "description": "A number", "default": None}
    assert strict_schema(schema, "schema") == {"type": "integer", "description": "A number\n\n{minimum: 1, maximum: 10, default: null}"}
    assert strict_schema({"type": "string", "format": "regex"}, "schema") == {"type": "string", "description": '{format: "regex"}'}


def test_a_model_of_pydantic_keeps_its_shape():
    strict = strict_schema(Book.model_json_schema(), "schema")
    assert strict["required"] == ["title", "authors"]
    assert strict["additionalProperties"] is False
    assert strict["properties"]["authors"]["items"] == {"$ref": "#/$defs/Author"}  # type: ignore[call-overload,index]


def test_definitions_may_have_their_older_name():
    schema: Any = {"$ref": "#/definitions/a", "definitions": {"a": {"type": "object", "properties": {}}}}
    strict: Any = strict_schema(schema, "schema")
    assert strict == {**schema, "definitions": {"a": {**schema["definitions"]["a"], "additionalProperties": False}}}


def test_a_list_of_types_becomes_a_choice():
    assert strict_schema({"type": ["string", "null"], "maxLength": 5, "title": "T"}, "schema") == {
        "anyOf": [{"type": "string", "description": "{maxLength: 5}"}, {"type": "null"}],
        "title": "T",
    }


@for_each(
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
