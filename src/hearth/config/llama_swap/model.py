"""One entry of llama-swap's `models` as an entry of Hearth's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from types import MappingProxyType

from pydantic import TypeAdapter, ValidationError

from hearth.config import fields
from hearth.config.document import KeyPath, shown
from hearth.config.engines import RunSettings, argument
from hearth.config.llama_swap.macros import Macros, without_comments, words_of
from hearth.config.llama_swap.source import NOT_REPLACED, Replacing, Source
from hearth.types import JsonDict, frozen

PORT = "${PORT}"
NOT_IMPORTED = "THE MODEL IS NOT IMPORTED"
UNKNOWN_KEY = "is unknown to this import"
TTL = "has no counterpart: Hearth keeps a model loaded until another one needs the room"
_IN_LIST = "has no counterpart: llama-swap shows it in its list of models"
_FILTERS = (
    "has no counterpart: Hearth passes requests on as they are; set it in the command of the"
    " server, or in the client"
)
NOT_CARRIED: Mapping[str, str] = MappingProxyType(
    {
        "ttl": TTL,
        "name": _IN_LIST,
        "description": _IN_LIST,
        "metadata": _IN_LIST,
        "capabilities": _IN_LIST,
        "unlisted": "has no counterpart: Hearth lists every model; auth.keys[].models says who may"
        " use it",
        "compat": "has no counterpart: Hearth has no websockets",
        "timeouts": "has no counterpart: the limits of `ollama` (first_byte_timeout_s,"
        " idle_timeout_s) hold for every engine",
        "sendLoadingState": "is set for the whole gateway (keepalive.show) or for a key"
        " (auth.keys[].keepalive_show)",
    }
)
_READ = {
    "cmd",
    "cmdStop",
    "proxy",
    "aliases",
    "env",
    "checkEndpoint",
    "unloadTimeout",
    "useModelName",
    "filters",
    "concurrencyLimit",
    "macros",
    "healthCheckTimeout",
}
_PROXY = re.compile(
    r"http://(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\]):(\$\{PORT\}|[0-9]{1,5})/?", re.ASCII
)
_ENV_REFERENCE = re.compile(r"\$\{env\.[A-Za-z_][A-Za-z0-9_]*\}", re.ASCII)
_WINDOWS = re.compile(r"""(?:^|[\s"'=])(?:[A-Za-z]:|\.\.?)\\|\.exe\b""", re.ASCII)
_CONTAINERS = {"docker", "podman", "nerdctl"}
_MOST_PARALLEL = 1024
_PLAIN_TEXT: TypeAdapter[str] = TypeAdapter(fields.PlainText)
_NAME: TypeAdapter[str] = TypeAdapter(fields.Name)


@frozen
class Shared:
    """What the file says for all models."""

    macros: Mapping[str, str]
    start_timeout_s: float
    stop_grace_s: float


class ModelImport:
    """One model.

    Args:
        name: what it is called in Hearth. engine: the row of `engines` that runs it.
    """

    def __init__(
        self,
        source: Source,
        original: str,
        entry: object,
        *,
        name: str,
        engine: str,
        shared: Shared,
    ) -> None:
        self._source = source
        self._path: KeyPath = ("models", original)
        self._entry = source.mapping(self._path, entry)
        self._engine = engine
        self._shared = shared
        self._old_port = ""
        """That the command had, and Hearth chooses now."""
        own = texts_of(source, (*self._path, "macros"), self._entry.get("macros"))
        spelled = "${MODEL}" if name == original else original
        try:
            self._macros = Macros(shared.macros, own, spelled)
        except ValueError as error:
            source.problem((*self._path, "macros"), str(error))
            self._macros = Macros({}, {}, spelled)
        self._values = Replacing(source, self._macros)

    def settings(self) -> JsonDict | None:
        """Its entry in Hearth's `models`; None where its server cannot be run, or a problem was
        found.
        """
        self._note_the_rest()
        command = self._command()
        if command is None:
            return None
        about: JsonDict = {"engine": self._engine}
        upstream_name = self._plain("useModelName")
        if upstream_name:
            about["upstream_name"] = upstream_name
        limit = int(self._number("concurrencyLimit", 0))
        if limit:
            about["parallel"] = min(limit, _MOST_PARALLEL)
            self._note(("concurrencyLimit",), "is `parallel` here: further requests wait, no 429")
        return about | {"run": {"command": command, **self._readiness(), **self._stopping()}}

    def aliases(self) -> list[tuple[KeyPath, str]]:
        """Its other names, each with its place in the file."""
        path = (*self._path, "aliases")
        found: list[tuple[KeyPath, str]] = []
        for index, each in enumerate(self._source.items(path, self._entry.get("aliases"))):
            name = each.get("id") if isinstance(each, dict) else each
            place = (*path, index)
            found.append((place, self._named(self._values.text(place, name))))
        filters = self._source.mapping((*self._path, "filters"), self._entry.get("filters"))
        by_name = (*self._path, "filters", "setParamsByID")
        for name in self._source.mapping(by_name, filters.get("setParamsByID")):
            spelled = self._named(self._values.text((*by_name, name), name))
            if spelled != self._path[1]:
                found.append(((*by_name, name), spelled))
        return found

    def _note_the_rest(self) -> None:
        for key, value in self._entry.items():
            if key in NOT_CARRIED:
                if value and value != -1:  # -1: llama-swap's default of `ttl`
                    self._note((key,), NOT_CARRIED[key])
            elif key not in _READ:
                self._note((key,), UNKNOWN_KEY)
        filters = self._entry.get("filters")
        for key, value in filters.items() if isinstance(filters, dict) else ():
            if value:
                names = ", but its names are aliases here" if key == "setParamsByID" else ""
                self._note(("filters", key), _FILTERS + names)

    def _command(self) -> list[str] | None:
        """The words of the command, listening on `${PORT}`."""
        words = self._words("cmd")
        if words is None:
            return None
        refusal = refused_argument(words)
        if not refusal:
            words, refusal = self._on_port(words)
        if refusal:
            self._note(("cmd",), f"{NOT_IMPORTED}: {refusal}")
            return None
        if _CONTAINERS & {PurePath(word).name for word in words}:
            self._note(
                ("cmd",),
                "runs a container. Hearth takes a server for ready once the process that it"
                " started, or a child of it, listens on the port; a container's does not. Start the"
                " server without one, or keep it in llama-swap, which can be a row of engines",
            )
        for word in words[1:]:
            if _ENV_REFERENCE.fullmatch(word):
                self._note(("cmd",), f"{word} is one argument here, also if its value has spaces")
        return words

    def _on_port(self, words: list[str]) -> tuple[list[str], str]:
        """The command with `${PORT}` where it has the port; or why Hearth cannot choose one."""
        proxy = self._text("proxy") or f"http://localhost:{PORT}"
        address = _PROXY.fullmatch(proxy)
        if address is None:
            return words, (
                "its `proxy` is no port of this machine without a path; if the server runs by"
                " itself, make it a row of `engines` (docs/engines.md)"
            )
        if any(PORT in word for word in words):
            return words, "" if address[1] == PORT else "its `proxy` has another port than ${PORT}"
        if address[1] == PORT:
            return words, "the command has no ${PORT}, so Hearth cannot say where to listen"
        number = _number_in(address[1])
        with_it = [place for place, word in enumerate(words) if number.search(word)]
        if len(with_it) != 1:
            return words, (
                f"the port {address[1]} of its `proxy` is not in exactly one argument of the"
                " command; write ${PORT} there"
            )
        self._note(("cmd",), f"the port {address[1]} is ${{PORT}} here: Hearth chooses one")
        self._old_port = address[1]
        place = with_it[0]
        replaced = number.sub(lambda _: PORT, words[place], count=1)
        return [*words[:place], replaced, *words[place + 1 :]], ""

    def _readiness(self) -> JsonDict:
        found: JsonDict = {}
        endpoint = self._plain("checkEndpoint")
        if endpoint == "none":
            found["ready"] = "port"
        elif endpoint:
            found["ready"] = endpoint if endpoint.startswith("/") else f"/{endpoint}"
        timeout_s = self._number("healthCheckTimeout", 0) or self._shared.start_timeout_s
        return found | {"start_timeout_s": min(timeout_s, fields.YEAR_S)}

    def _stopping(self) -> JsonDict:
        found: JsonDict = {}
        if environment := self._environment():
            found["env"] = environment
        stop = self._words("cmdStop") if self._entry.get("cmdStop") else None
        refusal = refused_argument(stop or ())
        if stop and refusal:
            self._note(("cmdStop",), f"is left out, so the server gets SIGTERM: {refusal}")
        elif stop:
            found["stop"] = stop
            self._note_old_port(("cmdStop",), " ".join(stop))
        grace_s = self._number("unloadTimeout", 0) or self._shared.stop_grace_s
        if grace_s != RunSettings.model_fields["stop_grace_s"].default:
            found["stop_grace_s"] = min(grace_s, fields.YEAR_S)
        return found

    def _environment(self) -> dict[str, str]:
        path = (*self._path, "env")
        found: dict[str, str] = {}
        for index, text in enumerate(self._values.texts(path, self._entry.get("env"))):
            place = (*path, index)
            name, equals, value = text.partition("=")
            if not equals or not fits(_NAME, name):
                self._source.problem(place, "must be NAME=VALUE")
            elif refusal := refused_argument((value,)):
                self._source.note(place, f"{shown(name)} is left out: it {refusal}")
            else:
                found[name] = value
                self._note_old_port(("env", index), value)
        return found

    def _note_old_port(self, under: KeyPath, text: str) -> None:
        if self._old_port and _number_in(self._old_port).search(text):
            what = "write ${PORT} there if it is the port of the server"
            self._note(under, f"has the number {self._old_port} still: {what}")

    def _words(self, key: str) -> list[str] | None:
        """Of a command; None where a problem was found."""
        path = (*self._path, key)
        text = self._source.text(path, self._entry.get(key))
        try:
            command = self._macros.replaced(without_comments(text))
            words = words_of(command)
        except ValueError as error:
            self._source.problem(path, str(error))
            return None
        if _WINDOWS.search(command):
            what = (
                "is of Windows, and Hearth runs on Linux: backslashes are read as in a POSIX shell"
            )
            self._note((key,), what)
        return words

    def _text(self, key: str) -> str:
        return self._values.text((*self._path, key), self._entry.get(key))

    def _named(self, text: str) -> str:
        """A text that is no command, with the name of the model as it is in the file."""
        return text.replace("${MODEL}", str(self._path[1]))

    def _plain(self, key: str) -> str:
        """A text in which Hearth replaces nothing; empty where it cannot be used."""
        text = self._text(key)
        if "${" in text.replace("${MODEL}", ""):
            self._note((key,), NOT_REPLACED)
            return ""
        text = self._named(text)
        if not fits(_PLAIN_TEXT, text):
            self._note((key,), "is left out: it has control characters or is too long")
            return ""
        return text

    def _number(self, key: str, default: float) -> float:
        return self._values.number((*self._path, key), self._entry.get(key), default)

    def _note(self, under: KeyPath, text: str) -> None:
        self._source.note((*self._path, *under), text)


def _number_in(digits: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![0-9.]){digits}(?![0-9.])")


def refused_argument(words: list[str] | tuple[str, ...]) -> str:
    """Why Hearth cannot run a command with these words; empty where it can."""
    for word in words:
        try:
            argument(word)
        except ValueError as error:
            return str(error)
    return ""


def fits(kind: TypeAdapter[str], text: str) -> bool:
    """Whether a setting of that kind may be this text."""
    try:
        kind.validate_python(text)
    except ValidationError:
        return False
    return True


def texts_of(source: Source, path: KeyPath, value: object) -> dict[str, str]:
    """A mapping of texts; entries of another kind, which llama-swap allows, are left out."""
    return {
        name: source.text((*path, name), each)
        for name, each in source.mapping(path, value).items()
        if not isinstance(each, dict)
    }
