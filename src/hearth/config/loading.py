"""Reads and checks the owner's file: YAML, secrets from the environment, the rules between fields, and the settings made of them.

Secrets and addresses from the environment: `${NAME}` in the places that may have it, and API keys as their digests.

After this step no clear key exists any more; a problem names the variable and never its content. Takes the environment as an argument;
only `loading` calls it.

Rules that hold between fields: what may not be combined.

They look at the plain document, so that they speak up even where other values are wrong. `loading` applies them to the file;
`exposure_problem` is also for whoever lets a command line override the host. Never raises.

From the owner's file to a `GatewayConfig`, or to a `ConfigError` that names everything that is wrong with it.

    bytes -> text -> document -> environment -> pydantic edge -> settings

Never half-applies a file and never guesses. Reads the file and, where the caller gives none, the process's environment; nothing else.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pydantic

from hearth.config.document import read_document
from hearth.config.errors import KeyPath, Problem, complaints, config_error
from hearth.config.fields import MIN_SECRET_CHARS
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import Settings
from hearth.errors import ConfigError
from hearth.types import SEVERAL_CALLERS, Lane

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
_REPLACED_IN: Final = frozenset(
    {
        ("ollama", "url"),
        ("cloud", "api_key"),
        ("cloud", "base_url"),
        ("alerts", "discord_webhook_url"),
        ("alerts", "webhook_url"),
        ("alerts", "ntfy_url"),
        ("jobs", "webhooks", "secret"),
    }
)
_CLEAR_NOWHERE: Final = ("cloud", "api_key")
_MAKE_ONE: Final = "`hearth admin key new NAME` makes a key that nobody guesses"
_UNKNOWN_DIGEST: Final = "0" * 64
_WHERE = (
    "`${...}` is replaced only in auth.keys[].key, ollama.url, cloud.api_key, cloud.base_url, "
    "jobs.webhooks.secret and the URLs of alerts; write the value itself"
)


def from_environment(value: object, environ: Mapping[str, str]) -> tuple[object, tuple[Problem, ...]]:
    """The document with every reference replaced and every `key` of `auth.keys` turned into `sha256`, and what was wrong with them."""
    reader = _Replacement(environ)
    return reader.walk((), value), tuple(reader.problems)


class _Replacement:
    """One walk over one document."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.problems: list[Problem] = []

    def walk(self, path: KeyPath, value: object) -> object:
        if path[:2] == ("auth", "keys") and len(path) == 3 and isinstance(value, dict):
            value = self._hashed(path, value)
        if isinstance(value, dict):
            return {key: self.walk((*path, key), each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.walk((*path, index), each) for index, each in enumerate(value)]
        return self._text(path, value) if isinstance(value, str) else value

    def _text(self, path: KeyPath, text: str) -> str:
        if path == _CLEAR_NOWHERE and text and _REFERENCE.fullmatch(text) is None:
            self._refuse(path, "must be ${NAME}, so that no key stands in this file")
            return ""
        if "${" not in text:
            return text
        if path not in _REPLACED_IN:
            self._refuse(path, _WHERE)
            return text
        replaced = _REFERENCE.sub(lambda match: self._variable(path, match.group(1)), text)
        if "${" in _REFERENCE.sub("", text):
            self._refuse(path, "holds a `${` that names no variable; write `${NAME}`")
        return replaced

    def _variable(self, path: KeyPath, name: str) -> str:
        content = self._environ.get(name, "")
        if not content:
            self._refuse(path, f"the environment variable {name} is not set; set it, or write the value itself")
        return content

    def _hashed(self, path: KeyPath, entry: dict[str, object]) -> dict[str, object]:
        """The entry with a digest in place of a key."""
        if "key" in entry and "sha256" in entry:
            self._refuse((*path, "key"), "give either sha256 or key, not both")
        elif "key" not in entry and "sha256" not in entry:
            self._refuse((*path, "sha256"), "is missing: give sha256, or key: ${NAME} (`hearth admin key new NAME` prints one)")
        if "key" not in entry:
            return entry
        rest = {name: value for name, value in entry.items() if name != "key"}
        return {"sha256": self._digest((*path, "key"), entry["key"])} | rest

    def _digest(self, path: KeyPath, reference: object) -> str:
        match = _REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
        if match is None:
            self._refuse(path, "must be ${NAME}, so that no key stands in this file; or give its sha256 instead")
            return _UNKNOWN_DIGEST
        content = self._environ.get(match.group(1), "")
        if not content:
            self._refuse(path, f"the environment variable {match.group(1)} is not set; set it, or give sha256 instead")
        elif not (content.isascii() and content.isprintable() and " " not in content):
            self._refuse(path, f"the environment variable {match.group(1)} holds a character that no HTTP header can carry")
        elif len(content) < MIN_SECRET_CHARS:
            self._refuse(path, f"the environment variable {match.group(1)} has fewer than {MIN_SECRET_CHARS} characters; {_MAKE_ONE}")
        return hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()

    def _refuse(self, path: KeyPath, text: str) -> None:
        self.problems.append(Problem(path=path, text=text))


ANONYMOUS = "local"
"""The caller's name where there are no keys."""


_OLD_NAMES: Mapping[KeyPath, KeyPath] = MappingProxyType(
    {("scheduling", "timezone"): ("scheduling", "time_zone"), ("cloud", "daily_cloud_external_usd"): ("cloud", "daily_external_usd")}
)
_ALWAYS_ON = "ollama_health_check"


def renamed(document: object) -> tuple[object, tuple[str, ...]]:
    """The document with the names that Donna's gateway uses replaced by ours, and a note for each of them.

    An old name beside the new one stays where it is: as an unknown key it is a problem, which is better than choosing between two values.
    """
    if not isinstance(document, dict):
        return document, ()
    notes, found = [], dict(document)
    if isinstance(found.get(_ALWAYS_ON), bool):
        notes.append(f"{_ALWAYS_ON}: has no effect, Hearth always checks its model server (backend.check_interval_s); remove it")
        del found[_ALWAYS_ON]
    for (section, old), (_, new) in _OLD_NAMES.items():
        entries = found.get(section)
        if isinstance(entries, dict) and old in entries and new not in entries:
            found[section] = {new if name == old else name: value for name, value in entries.items()}
            notes.append(f"{section}.{old}: read as {section}.{new}; rename it")
    return found, tuple(notes)


def cross_problems(document: object) -> tuple[Problem, ...]:
    """Everything that is wrong between fields of a document whose keys are hashed already."""
    keys = _items(_at(document, "auth", "keys"))
    return (
        *_exposed(document, has_keys=bool(keys)),
        *_repeated(keys, "name"),
        *_repeated(keys, "sha256"),
        *_reserved(keys),
        *_unrecorded(document),
    )


def effectless(settings: Settings) -> tuple[str, ...]:
    """Settings that can have no effect, each with the reason; they are no mistakes."""
    keys = {key.name: key for key in settings.auth.keys}
    found = []
    for name in settings.rate_limits.callers:
        if name not in keys and (keys or name != ANONYMOUS):
            found.append(f"rate_limits.callers.{name}: no key in auth.keys has this name")
        elif name in keys and keys[name].lane is Lane.INTERNAL:
            found.append(f"rate_limits.callers.{name}: its key is of lane internal, which has no limits")
    for index, key in enumerate(settings.auth.keys):
        if key.allow_cloud and not settings.cloud.api_key:
            found.append(f"auth.keys[{index}].allow_cloud: there is no cloud.api_key")
        elif key.allow_cloud and key.local_only:
            found.append(f"auth.keys[{index}].allow_cloud: local_only of the same key wins")
        if key.daily_usd is not None and not key.allow_cloud:
            found.append(f"auth.keys[{index}].daily_usd: this key has no allow_cloud")
    return tuple(found)


def exposure_problem(host: str, *, has_keys: bool) -> str | None:
    """Why Hearth must not listen on `host`; None where it may.

    Without keys everybody is the same anonymous caller, so only this machine may ask.
    """
    if has_keys or is_loopback(host):
        return None
    return (
        "without auth.keys anybody who reaches this address could use the GPU and spend the budget; "
        "add a key (`hearth admin key new NAME`), or listen on 127.0.0.1"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`. Names are not resolved: of them, only `localhost` counts."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _exposed(document: object, *, has_keys: bool) -> list[Problem]:
    host = _at(document, "server", "host")
    what = exposure_problem(host, has_keys=has_keys) if isinstance(host, str) else None
    return [] if what is None else [Problem(path=("server", "host"), text=what)]


def _repeated(keys: list[object], field: str) -> list[Problem]:
    """Entries of `auth.keys` that share what must be theirs alone."""
    first: dict[str, int] = {}
    problems = []
    for index, entry in enumerate(keys):
        value = _at(entry, field)
        if not isinstance(value, str):
            continue
        earlier = first.setdefault(value.lower() if field == "sha256" else value, index)
        if earlier != index:
            path: KeyPath = ("auth", "keys", index, field)
            problems.append(Problem(path=path, text=f"is the same as auth.keys[{earlier}]; {_REMEDY[field]}"))
    return problems


_REMEDY: Mapping[str, str] = MappingProxyType(
    {"name": "every key needs a name of its own", "sha256": "every caller needs a key of its own"}
)


def _reserved(keys: list[object]) -> list[Problem]:
    """Keys whose callers would pass for the owners of what is shared."""
    text = f"must not be {SEVERAL_CALLERS}: embedding calls of different callers go by it; choose another name"
    named = [index for index, entry in enumerate(keys) if _at(entry, "name") == SEVERAL_CALLERS]
    return [Problem(path=("auth", "keys", index, "name"), text=text) for index in named]


def _unrecorded(document: object) -> list[Problem]:
    """Money is only spent where it is written down: a budget that forgets at each start is none."""
    if not _at(document, "cloud", "api_key") or _at(document, "storage", "enabled") is not False:
        return []
    return [Problem(path=("cloud", "api_key"), text="needs the store: take away `storage.enabled: false`, or take this key away")]


def _at(value: object, *path: str) -> object:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


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
