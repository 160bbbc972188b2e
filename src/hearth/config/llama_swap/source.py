"""The file of llama-swap as plain values, with what is wrong with it and what is not carried
over.
"""

from __future__ import annotations

from typing import NamedTuple

from hearth.config.document import KeyPath, Problem, config_error, dotted, line_of, plain_number
from hearth.config.llama_swap.foreign import ForeignDocument
from hearth.config.llama_swap.macros import Macros
from hearth.errors import ConfigError
from hearth.types import JsonDict

NOT_REPLACED = "is left out: ${...} is replaced only in commands and `env`"


class Note(NamedTuple):
    """What the file says and the result does not, or not in the same way."""

    path: KeyPath
    line: int
    text: str

    @property
    def place(self) -> str:
        return dotted(self.path)


class Source:
    """The file. A value of another kind than is wanted is a problem, and read as if absent."""

    def __init__(self, text: str, name: str) -> None:
        document = ForeignDocument(text.removeprefix("\ufeff"), source=name)
        self.problems = document.problems
        self.notes: list[Note] = []
        self._name = name
        self._lines = document.lines
        self.root = self.mapping((), document.value)

    def note(self, path: KeyPath, text: str) -> None:
        self.notes.append(Note(path, line_of(path, self._lines), text))

    def problem(self, path: KeyPath, text: str) -> None:
        self.problems.append(Problem(path, text))

    def error(self) -> ConfigError:
        """All problems."""
        return config_error(self._name, self.problems, self._lines)

    def mapping(self, path: KeyPath, value: object) -> JsonDict:
        if isinstance(value, dict):
            return value
        if value is not None:
            self.problem(path, "must be a mapping")
        return {}

    def items(self, path: KeyPath, value: object) -> list[object]:
        if isinstance(value, list):
            return value
        if value is not None:
            self.problem(path, "must be a list")
        return []

    def texts(self, path: KeyPath, value: object) -> list[str]:
        found = self.items(path, value)
        return [self.text((*path, index), each) for index, each in enumerate(found)]

    def text(self, path: KeyPath, value: object) -> str:
        """Empty where it is absent; a number or a flag as llama-swap writes it into text."""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, dict | list):
            self.problem(path, "must be text")
        return "" if value is None or isinstance(value, dict | list) else str(value)

    def number(self, path: KeyPath, value: object, default: float) -> float:
        """At least 0; `default` where it is absent."""
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            self.problem(path, "must be a number that is not negative")
            return default
        return value


class Replacing:
    """Values of the file with their macros replaced. What they cannot mean is a problem of it."""

    def __init__(self, source: Source, macros: Macros) -> None:
        self._source = source
        self._macros = macros

    def text(self, path: KeyPath, value: object) -> str:
        text = self._source.text(path, value)
        try:
            return self._macros.replaced(text)
        except ValueError as error:
            self._source.problem(path, str(error))
            return ""

    def texts(self, path: KeyPath, value: object) -> list[str]:
        found = self._source.items(path, value)
        return [self.text((*path, index), each) for index, each in enumerate(found)]

    def number(self, path: KeyPath, value: object, default: float) -> float:
        """As of `Source`; what is a macro is the number that this stands for."""
        if not isinstance(value, str) or "${" not in value:
            return self._source.number(path, value, default)
        text = self.text(path, value)
        if "${" in text:
            self._source.note(path, NOT_REPLACED)
            return default
        number = plain_number(text)
        return self._source.number(path, text if number is None else number, default)
