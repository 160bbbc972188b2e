"""What the settings classes say of themselves: the type of each field and the docstring under it, with its `hot` or `restart`.

The single source from which the file's checks, the JSON Schema and the comparison of two configurations are built, so that a new field
in `settings` needs no second entry anywhere but in `rules`. Reads source text, never the owner's file. For modules of `config` only.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from hearth.config.problems import KeyPath
from hearth.config.settings import BackendSettings, KeySettings, Settings

Annotation = Any
"""A type as it is held at run time."""

_MODE_WORD = re.compile(r"\b(hot|restart)(, [^.]*)?$")
_EXTRA_KEYS: Mapping[type, tuple[str, ...]] = types.MappingProxyType({KeySettings: ("key",)})


def field_types(cls: type) -> dict[str, Annotation]:
    """The resolved annotation of every field of a settings class, in the order in which they are written."""
    return get_type_hints(cls, localns={"Mapping": Mapping})


def field_docs(cls: type) -> dict[str, str]:
    """The docstring under every field that has one."""
    docs: dict[str, str] = {}
    for above, below in itertools.pairwise(_classes_of(cls.__module__)[cls.__name__].body):
        if isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name) and (text := _literal_text(below)) is not None:
            docs[above.target.id] = inspect.cleandoc(text)
    return docs


@cache
def _classes_of(module: str) -> dict[str, ast.ClassDef]:
    """The classes of a module as they are written; parsed once, since a start asks for every one of them."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {statement.name: statement for statement in tree.body if isinstance(statement, ast.ClassDef)}


def mode_of(doc: str) -> str | None:
    """`hot` or `restart`, as the end of a field's docstring says; None where it says neither."""
    match = _MODE_WORD.search(doc)
    return None if match is None else match.group(1)


def without_none(annotation: Annotation) -> Annotation:
    """`X` of `X | None`; any other annotation as it is."""
    if get_origin(annotation) not in {types.UnionType, Union}:
        return annotation
    return next(each for each in get_args(annotation) if each is not type(None))


def item_type(annotation: Annotation) -> Annotation:
    """The type of the values of a mapping or of the items of a tuple; None for anything else."""
    origin: Annotation = get_origin(annotation)
    args = get_args(annotation)
    if origin is tuple:
        return args[0]
    return args[1] if origin is Mapping else None


def known_keys(path: KeyPath) -> tuple[str, ...]:
    """The keys that a mapping at `path` may have; empty where any key may stand, and where nothing is known."""
    annotation: Annotation = Settings
    for step in path:
        if is_dataclass(annotation) and isinstance(annotation, type):
            annotation = without_none(field_types(annotation).get(str(step)))
        else:
            annotation = without_none(item_type(annotation))
    if isinstance(annotation, type) and is_dataclass(annotation):
        return (*field_types(annotation), *_EXTRA_KEYS.get(annotation, ()))
    return ()


def takes_bare_text(cls: type) -> str | None:
    """The field that is meant where a plain string stands in place of the section: `backend: auto`."""
    return "mode" if cls is BackendSettings else None


def _literal_text(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str):
        return statement.value.value
    return None
