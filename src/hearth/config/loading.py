"""From the owner's file to a `GatewayConfig`, or to a `ConfigError` that names everything that is wrong with it.

    bytes -> text -> document -> environment -> pydantic edge -> settings

Never half-applies a file and never guesses. Reads the file and, where the caller gives none, the process's environment; nothing else.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pydantic

from hearth.config.checks import cross_problems, renamed
from hearth.config.document import read_document
from hearth.config.environment import from_environment
from hearth.config.errors import Problem, complaints, config_error
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import Settings
from hearth.errors import ConfigError

DEFAULT_PATH = Path("config/llm_gateway.yaml")
MAX_DOCUMENT_BYTES = 256 * 1024
_BYTE_ORDER_MARK = "\ufeff"


def load_gateway_config(path: Path | str | None = None, environ: Mapping[str, str] | None = None) -> GatewayConfig:
    """The configuration in a file.

    Args:
        path: the file; None takes `config/llm_gateway.yaml` where that exists and the built-in defaults where it does not.
        environ: what `${NAME}` refers to; None is the environment of this process.

    Raises:
        ConfigError: the file cannot be read, or something in it is wrong; carries every problem.
    """
    if path is None and not DEFAULT_PATH.exists():
        return GatewayConfig()
    chosen = DEFAULT_PATH if path is None else Path(path)
    return parse_bytes(read_bytes(chosen), chosen, environ)


def parse_bytes(content: bytes, path: Path, environ: Mapping[str, str] | None = None) -> GatewayConfig:
    """The configuration in the content of the file at `path`, as `read_bytes` gives it.

    Raises:
        ConfigError: something in it is wrong; carries every problem.
    """
    config = parse_config(_text_of(content, path), source=str(path), environ=environ)
    return replace(config, source=path, digest=digest_of(content))


def digest_of(content: bytes) -> str:
    """What a file's content is known by: `GatewayConfig.digest`."""
    return hashlib.sha256(content).hexdigest()


def read_bytes(path: Path) -> bytes:
    """What is in a file; of one that is too large, one byte more than it may have.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        if not path.is_file() and path.exists():
            raise ConfigError([f"{path}: is not a regular file"])
        with path.open("rb") as stream:
            return stream.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror or error}"]) from error


def parse_config(text: str, *, source: str, environ: Mapping[str, str] | None = None) -> GatewayConfig:
    """The configuration in a text; `source` is what the problems call it.

    Raises:
        ConfigError: something in it is wrong; carries every problem as `source:line: path: what, and what to do`.
    """
    document = read_document(text.removeprefix(_BYTE_ORDER_MARK), source=source)
    value, environment_problems = from_environment(document.value, os.environ if environ is None else environ)
    problems = [*document.problems, *environment_problems]
    value, notes = renamed(value)
    settings = _settings(value, problems)
    problems += _elsewhere(cross_problems(value), problems)
    if settings is None or problems:
        raise config_error(source, problems, document.lines)
    return GatewayConfig(settings=settings, notes=notes)


def _settings(value: object, problems: list[Problem]) -> Settings | None:
    """The settings, or None with what is wrong added to `problems`."""
    if not isinstance(value, dict):
        problems.append(Problem(path=(), text="must be a mapping of sections such as `queue:`; write `{}` if all defaults are meant"))
        return None
    try:
        return Settings.model_validate(value)
    except pydantic.ValidationError as error:
        found = complaints(error.errors(include_url=False))
    problems += _elsewhere(found, problems)
    return None


def _elsewhere(found: list[Problem] | tuple[Problem, ...], known: list[Problem]) -> list[Problem]:
    """Those that are not about a value of which something worse is known already."""
    places = {each.path for each in known}
    return [each for each in found if each.path not in places]


def _text_of(raw: bytes, path: Path) -> str:
    if len(raw) > MAX_DOCUMENT_BYTES:
        raise ConfigError([f"{path}: is larger than {MAX_DOCUMENT_BYTES // 1024} KiB; is this the right file?"])
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{path}:{line}: is not UTF-8 text; save it as UTF-8"]) from error
