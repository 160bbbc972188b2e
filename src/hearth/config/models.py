"""The edge where the file's plain values become settings: pydantic models, built from the settings classes and from `rules`.

Nothing is declared twice: types, defaults and descriptions come from `settings`, limits from `rules`. Only the keys that the file gives are
handed on, so that `settings` stays the one place of the defaults. Never lets pydantic's own error text out, which may quote a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from functools import partial
from types import GenericAlias, MappingProxyType
from typing import Annotated, Any, Final, Literal, get_origin

import pydantic
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Strict, TypeAdapter

from hearth.config import rules
from hearth.config.active_hours import parse_window
from hearth.config.plain import plain
from hearth.config.settings import KeySettings, Settings, Window
from hearth.config.shapes import Annotation, field_docs, field_types, item_type, takes_bare_text, without_none
from hearth.types import Priority

_WINDOW_TEXT = Annotated[str, pydantic.Field(pattern="^([01][0-9]|2[0-3]):[0-5][0-9]-(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$")]
_PRIORITY_NAME = Literal["critical", "normal", "background"]
_CLEAR_KEY = {
    "key": {
        "type": "string",
        "pattern": r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$",
        "description": "In place of `sha256`: `${NAME}` takes the key from the environment. hot",
    }
}


def _model_of(cls: type) -> type[BaseModel]:
    """A pydantic model with the fields of a settings class; unknown keys are errors."""
    docs, annotations = field_docs(cls), field_types(cls)
    definitions: dict[str, Any] = {each.name: _definition(cls, each, annotations[each.name], docs.get(each.name)) for each in _fields(cls)}
    config = ConfigDict(
        extra="forbid", hide_input_in_errors=True, json_schema_extra=_allow_key if cls is KeySettings else None, defer_build=True
    )
    return pydantic.create_model(cls.__name__, __config__=config, __doc__=cls.__doc__, **definitions)


def _fields(cls: type) -> tuple[Field[Any], ...]:
    return fields(cls) if is_dataclass(cls) else ()


def _allow_key(schema: dict[str, Any]) -> None:
    schema["properties"] |= _CLEAR_KEY
    schema["required"] = ["name"]
    schema["oneOf"] = [{"required": ["sha256"]}, {"required": ["key"]}]


def _definition(cls: type, each: Field[Any], annotation: Annotation, doc: str | None) -> tuple[Annotation, Any]:
    default = each.default_factory() if each.default_factory is not MISSING else each.default
    kept = default if is_dataclass(default) and not isinstance(default, Window) else None
    checked = _edge(cls, each.name, annotation, kept)
    if default is MISSING:
        return checked, pydantic.Field(description=doc)
    return checked, pydantic.Field(default=plain(default), description=doc)


def _edge(cls: type, name: str, annotation: Annotation, kept: object) -> Annotation:
    """What pydantic checks for a field; what it yields is already the settings value."""
    inner = without_none(annotation)
    if inner is not annotation:
        return _edge(cls, name, inner, kept) | None
    rule = rules.TEXT_RULES.get((cls, name))
    origin: Annotation = get_origin(annotation)
    if origin is tuple:
        return _several(GenericAlias(tuple, (_item(item_type(annotation), rule), ...)), [], tuple)
    if origin is Mapping:
        items = item_type(annotation)
        value = _number(items, rules.RANGES.get((cls, name))) if items in {int, float} else _item(items, None)
        return _several(GenericAlias(dict, (_text(rule), value)), {}, MappingProxyType)
    if is_dataclass(annotation) and annotation is not Window:
        return _section(annotation, kept)
    return _number(annotation, rules.RANGES.get((cls, name))) if annotation in {int, float} else _item(annotation, rule)


def _several(container: Annotation, nothing: object, settled: Callable[[Any], object]) -> Annotation:
    """A list or a mapping; `nothing` is what a heading without lines under it means."""
    given = BeforeValidator(partial(_nothing_for_none, nothing), json_schema_input_type=container | None)
    return _annotated(container, given, AfterValidator(settled))


def _item(annotation: Annotation, rule: Callable[[str], str] | None) -> Annotation:
    if annotation is Window:
        return _annotated(Window, BeforeValidator(_window, json_schema_input_type=_WINDOW_TEXT))
    if annotation is Priority:
        return _annotated(Priority, BeforeValidator(_priority, json_schema_input_type=_PRIORITY_NAME))
    if is_dataclass(annotation):
        return _section(annotation, None)
    if annotation is str:
        return _text(rule)
    return _annotated(annotation, Strict()) if annotation is bool else annotation


def _number(annotation: Annotation, limits: rules.Range | None) -> Annotation:
    bounds = rules.Range() if limits is None else limits
    return _annotated(annotation, Strict(), pydantic.Field(ge=bounds.at_least, gt=bounds.above, le=bounds.at_most))


def _text(rule: Callable[[str], str] | None) -> Annotation:
    checks = [rules.plain_text] if rule is None else [rules.plain_text, rule]
    return _annotated(str, Strict(), *map(AfterValidator, checks))


def _section(cls: Annotation, kept: object) -> Annotation:
    """A settings class as its model; `kept` gives the values of the fields that the file does not give."""
    model: Annotation = _model_of(cls)
    shorthand = takes_bare_text(cls)
    accepted = model | None if shorthand is None else model | field_types(cls)[shorthand] | None
    given = BeforeValidator(partial(_spelled_out, shorthand), json_schema_input_type=accepted)
    return _annotated(model, given, AfterValidator(partial(_settle, cls, kept)))


def _annotated(annotation: Annotation, *metadata: object) -> Annotation:
    form: Annotation = Annotated
    return form[(annotation, *metadata)]


def _settle(cls: Callable[..., object], kept: Annotation, model: BaseModel) -> object:
    given = {name: getattr(model, name) for name in model.model_fields_set}
    return cls(**given) if kept is None else replace(kept, **given)


def _spelled_out(shorthand: str | None, value: object) -> object:
    return {shorthand: value} if shorthand is not None and isinstance(value, str) else _nothing_for_none({}, value)


def _nothing_for_none(nothing: object, value: object) -> object:
    """A heading with nothing under it is a section without keys: every line below it may be commented out."""
    return nothing if value is None else value


def _window(value: object) -> Window:
    return parse_window(value if isinstance(value, str) else "")


def _priority(value: object) -> Priority:
    for each in Priority:
        if value == each.name.lower():
            return each
    raise ValueError("must be critical, normal or background")


SETTINGS_EDGE: Final[TypeAdapter[Settings]] = TypeAdapter(_section(Settings, None))
