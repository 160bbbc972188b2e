"""A whole configuration of llama-swap as one of Hearth."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from pydantic import TypeAdapter

from hearth.config import fields
from hearth.config.document import KeyPath, shown
from hearth.config.engines import MOST_PORT
from hearth.config.llama_swap.macros import Macros
from hearth.config.llama_swap.model import (
    NOT_CARRIED,
    NOT_IMPORTED,
    TTL,
    UNKNOWN_KEY,
    ModelImport,
    Shared,
    fits,
    texts_of,
)
from hearth.config.llama_swap.source import Note, Replacing, Source
from hearth.types import JsonDict, frozen

_OWN = "is about llama-swap itself; Hearth has settings of its own (`hearth config example`)"
_RESERVATIONS = (
    "is replaced by reservations: models stay loaded beside one another as far as they fit. Set"
    " models.NAME.vram_gb, the GPU memory in GiB, for each model"
)
_BY_CALLER = "has no counterpart: Hearth orders requests by caller (auth.keys[].lane and .priority)"
_PROFILES = (
    "has no counterpart: what names stand for is not switched by hand. Give callers an alias"
    " (docs/aliases.md)"
)
_HOOKS: Mapping[str, str] = MappingProxyType(
    {
        "preload": "has no counterpart: gpu.home_model names the one model that is loaded while"
        " nobody asks for another",
        "profile": _PROFILES,
    }
)
_OF_FILE: Mapping[str, str] = MappingProxyType(
    {
        "globalTTL": TTL,
        "groups": _RESERVATIONS,
        "matrix": _RESERVATIONS,
        "profiles": _PROFILES,
        "upstream": "has no counterpart: Hearth does not pass other paths to the servers",
        "tailcat": "has no counterpart",
    }
    | dict.fromkeys(
        (
            "logLevel",
            "logTimeFormat",
            "logToStdout",
            "logRequests",
            "metricsMaxInMemory",
            "captureBuffer",
            "store",
            "ui",
            "performance",
        ),
        _OWN,
    )
)
_READ = {
    "models",
    "macros",
    "startPort",
    "healthCheckTimeout",
    "unloadTimeout",
    "sendLoadingState",
    "includeAliasesInList",
    "apiKeys",
    "peers",
    "selectors",
    "routing",
    "hooks",
}
_OF_SELECTORS = {"strategy", "targets", "settings", "balance"}
_ROUTING: Mapping[KeyPath, set[str]] = MappingProxyType(
    {
        ("routing",): {"router", "scheduler"},
        ("routing", "router"): {"use", "settings"},
        ("routing", "router", "settings"): {"groups", "matrix"},
        ("routing", "scheduler"): {"use", "settings"},
        ("hooks",): {"on_startup"},
    }
)
"""What is read, or would not be missed, by its place."""
_FIRST_PORT = 5800
_PORTS = 100
_LEAST_START_S = 15
_START_S = 120
_GRACE_S = 10
_ROW = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}", re.ASCII)
_ENV_REFERENCE = re.compile(r"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
_ALIAS: TypeAdapter[str] = TypeAdapter(fields.AliasName)
_MODEL: TypeAdapter[str] = TypeAdapter(fields.ModelName)
_URL: TypeAdapter[str] = TypeAdapter(fields.ServerUrl)
_ROW_OF_PROCESSES = "processes"


@frozen
class Imported:
    """A configuration of Hearth, and what it does not have of the file.

    `names`: what the models of the file are called in it.
    """

    settings: JsonDict
    notes: tuple[Note, ...]
    names: Mapping[str, str]


def imported(text: str, source: str, is_requestable: Callable[[str], bool]) -> Imported:
    """Hearth's form of a llama-swap configuration. Raises ConfigError with every problem of a file
    that llama-swap could not use either.

    Args:
        source: what problems call the text. is_requestable: whether a request can have this model.
    """
    return _Import(Source(text, source), is_requestable).result()


class _Import:
    def __init__(self, source: Source, is_requestable: Callable[[str], bool]) -> None:
        self._source = source
        self._root = source.root
        self._macros = texts_of(source, ("macros",), self._root.get("macros"))
        self._values = Replacing(source, self._usable_macros())
        self._is_requestable = is_requestable
        self._engines: JsonDict = {}
        self._models: JsonDict = {}
        self._aliases: dict[str, list[str]] = {}
        self._names: dict[str, str] = {}
        self._stands_for: dict[str, list[str]] = {}
        """What each name of the file reaches, in Hearth's names."""

    def result(self) -> Imported:
        if not (self._root.get("models") or self._root.get("peers")):
            self._source.problem((), "has no `models`; is it a configuration of llama-swap?")
        peers = self._source.mapping(("peers",), self._root.get("peers"))
        self._import_models(_ROW_OF_PROCESSES + ("_" if _ROW_OF_PROCESSES in peers else ""))
        for peer, entry in peers.items():
            self._import_peer(peer, entry)
        self._import_selectors()
        settings: JsonDict = {
            "engines": self._engines,
            "models": self._models,
            "aliases": self._aliases,
        }
        if self._root.get("sendLoadingState") is True:
            settings["keepalive"] = {"show": "thinking"}
        if keys := self._keys():
            settings["auth"] = {"keys": keys}
        self._note_the_rest()
        if self._source.problems:
            raise self._source.error()
        filled = {name: value for name, value in settings.items() if value}
        notes = sorted(self._source.notes, key=lambda note: note.line)
        return Imported(settings=filled, notes=tuple(notes), names=self._names)

    def _import_models(self, engine: str) -> None:
        entries = self._source.mapping(("models",), self._root.get("models"))
        shared = Shared(
            macros=self._macros,
            start_timeout_s=max(self._number("healthCheckTimeout", _START_S), _LEAST_START_S),
            stop_grace_s=self._number("unloadTimeout", 0) or _GRACE_S,
        )
        self._engines[engine] = {"kind": "processes", "ports": self._ports()}
        names = self._named(entries)
        also_called: list[tuple[KeyPath, str, str]] = []
        for original, name in names.items():
            model = ModelImport(
                self._source, original, entries[original], name=name, engine=engine, shared=shared
            )
            about = model.settings()
            if about is None:
                continue
            self._models[name] = about
            self._names[original] = name
            self._stands_for[original] = [name]
            also_called += ((path, alias, name) for path, alias in model.aliases())
        for path, alias, name in also_called:
            self._add_alias(path, alias, [name])

    def _named(self, entries: JsonDict) -> dict[str, str]:
        """What each model is called in Hearth: as in the file, where a request can have that."""
        found: dict[str, str] = {}
        taken: dict[str, str] = {}
        for number, original in enumerate(entries, start=1):
            path = ("models", original)
            usable = fits(_MODEL, original) and self._is_requestable(original)
            name = original if usable else _spelled(original, number)
            if _folded(name) in taken:
                first = taken[_folded(name)]
                self._source.note(path, f"{NOT_IMPORTED}: to Hearth its name is that of {first}")
                continue
            if not usable:
                self._source.note(
                    path, f"is called {name} here: no request can have the other name"
                )
            taken[_folded(name)] = shown(original)
            found[original] = name
        return found

    def _ports(self) -> str:
        first = int(self._number("startPort", _FIRST_PORT))
        if not 1024 <= first <= MOST_PORT:
            self._source.note(
                ("startPort",), f"is {_FIRST_PORT} here: it must be 1024 to {MOST_PORT}"
            )
            first = _FIRST_PORT
        return f"{first}-{min(first + _PORTS - 1, MOST_PORT)}"

    def _add_alias(self, path: KeyPath, alias: str, models: list[str]) -> None:
        refusal = ""
        if not fits(_ALIAS, alias) or "*" in alias:
            refusal = "no request can have this name"
            self._stands_for.setdefault(alias, models)
        elif _folded(alias) in map(_folded, self._models):
            refusal = "it is the name of a model as well"
        elif _folded(alias) in map(_folded, self._aliases):
            refusal = "" if self._stands_for.get(alias) == models else "it is another alias as well"
        else:
            self._aliases[alias] = models
            self._stands_for[alias] = models
        if refusal:
            self._source.note(path, f"{shown(alias)} is left out: {refusal}")

    def _import_selectors(self) -> None:
        entries = self._source.mapping(("selectors",), self._root.get("selectors"))
        for name, value in entries.items():
            path: KeyPath = ("selectors", name)
            entry = self._source.mapping(path, value)
            targets = self._targets((*path, "targets"), entry.get("targets"))
            strategy = self._source.text((*path, "strategy"), entry.get("strategy"))
            if strategy == "pin" and targets:
                targets = targets[:1]
            elif strategy in {"balance", "spillover"}:
                what = (
                    "has no counterpart: Hearth takes a model with a free slot, else the cheapest"
                )
                self._source.note((*path, "strategy"), what)
            for key in sorted(entry.keys() - _OF_SELECTORS):
                self._source.note((*path, key), NOT_CARRIED.get(key, UNKNOWN_KEY))
            if targets:
                self._add_alias(path, name, targets)
            else:
                self._source.note(path, "is left out: none of its targets is imported")

    def _targets(self, path: KeyPath, value: object) -> list[str]:
        found: dict[str, None] = {}
        for index, target in enumerate(self._values.texts(path, value)):
            if target not in self._stands_for:
                self._source.note(
                    (*path, index), f"{shown(target)} is left out: it is not imported"
                )
            found |= dict.fromkeys(self._stands_for.get(target, ()))
        return list(found)

    def _import_peer(self, peer: str, value: object) -> None:
        """A server elsewhere, as an engine of the kind `openai`."""
        path: KeyPath = ("peers", peer)
        entry = self._source.mapping(path, value)
        url = self._values.text((*path, "proxy"), entry.get("proxy")).rstrip("/")
        known = {row.get("url") for row in self._engines.values() if isinstance(row, dict)}
        if not _ROW.fullmatch(peer) or not fits(_URL, url) or url in known:
            what = (
                "is not imported: a row of engines needs the URL of a server, without /v1 or /api"
                " at its end, that no other row has, and a name of letters, digits, '-', '_', '.'"
            )
            self._source.note((*path, "proxy"), what)
            return
        row: JsonDict = {"kind": "openai", "url": url}
        if entry.get("apiKey"):
            row["api_key"] = self._key_of_peer(path, peer, entry["apiKey"])
        self._engines[peer] = row
        for key in sorted(entry.keys() - {"proxy", "apiKey", "models"}):
            self._source.note((*path, key), "has no counterpart for an engine")
        for index, model in enumerate(self._values.texts((*path, "models"), entry.get("models"))):
            self._add_model_of_peer((*path, "models", index), peer, model)

    def _key_of_peer(self, path: KeyPath, peer: str, value: object) -> str:
        """As Hearth has it: the file may only name a variable."""
        text = self._values.text((*path, "apiKey"), value)
        reference = _ENV_REFERENCE.fullmatch(text)
        if reference is not None:
            return f"${{{reference[1]}:-}}"
        variable = re.sub(r"[^A-Z0-9]", "_", f"{peer}_api_key".upper()).lstrip("0123456789")
        self._source.note((*path, "apiKey"), f"is read from the variable {variable} here: set it")
        return f"${{{variable}:-}}"

    def _add_model_of_peer(self, path: KeyPath, peer: str, model: str) -> None:
        taken = map(_folded, (*self._models, *self._aliases))
        if not fits(_MODEL, model) or not self._is_requestable(model) or _folded(model) in taken:
            self._source.note(
                path, f"{shown(model)} is left out: its name is taken or no request's"
            )
            return
        self._models[model] = {"engine": peer}
        self._stands_for[model] = [model]
        self._add_alias(path, f"{peer}/{model}", [model])
        self._stands_for[f"{peer}/{model}"] = [model]

    def _keys(self) -> list[JsonDict]:
        """Those of callers: by digest, or from the environment as in the file."""
        found: dict[str, JsonDict] = {}
        for index, text in enumerate(self._values.texts(("apiKeys",), self._root.get("apiKeys"))):
            name = f"caller-{len(found) + 1}"
            reference = _ENV_REFERENCE.fullmatch(text)
            if reference is not None:
                found.setdefault(text, {"name": name, "key": f"${{{reference[1]}:-}}"})
            elif not text or "${" in text:
                what = "is left out: only a whole key is replaced, by ${env.NAME}"
                self._source.note(("apiKeys", index), what)
            else:
                digest = hashlib.sha256(text.encode()).hexdigest()
                found.setdefault(digest, {"name": name, "sha256": digest})
        if found:
            what = (
                "are keys of external callers here; `admin: true` lets one load and unload models"
            )
            self._source.note(("apiKeys",), what)
        return list(found.values())

    def _note_the_rest(self) -> None:
        for key, value in self._root.items():
            if key in {"groups", "profiles"}:
                for name in self._source.mapping((key,), value):
                    self._source.note((key, name), _OF_FILE[key])
            elif key in _OF_FILE:
                if value:
                    self._source.note((key,), _OF_FILE[key])
            elif key not in _READ and not key.startswith("x-"):  # for anchors alone
                self._source.note((key,), UNKNOWN_KEY)
        self._note_routing()
        started = self._within(("hooks", "on_startup"))
        for key in started:
            what = _HOOKS.get(key, UNKNOWN_KEY)
            self._source.note(("hooks", "on_startup", key), what)

    def _note_routing(self) -> None:
        router: KeyPath = ("routing", "router", "settings")
        for name in self._within((*router, "groups")):
            self._source.note((*router, "groups", name), _RESERVATIONS)
        if self._within((*router, "matrix")):
            self._source.note((*router, "matrix"), _RESERVATIONS)
        scheduler: KeyPath = ("routing", "scheduler")
        for name, about in self._within((*scheduler, "settings")).items():
            if about:
                self._source.note((*scheduler, "settings", name), _BY_CALLER)
        for path, known in _ROUTING.items():
            for name in sorted(self._within(path).keys() - known):
                self._source.note((*path, name), UNKNOWN_KEY)

    def _within(self, path: KeyPath) -> JsonDict:
        """The mapping at a path of the file, empty where there is none."""
        found = self._root
        for length, step in enumerate(path, start=1):
            found = self._source.mapping(path[:length], found.get(str(step)))
        return found

    def _number(self, key: str, default: float) -> float:
        return self._values.number((key,), self._root.get(key), default)

    def _usable_macros(self) -> Macros:
        """Those of the file; none where llama-swap refuses one, which each model reports."""
        try:
            return Macros(self._macros, {}, "${MODEL_ID}")
        except ValueError:
            return Macros({}, {}, "${MODEL_ID}")


def _folded(name: str) -> str:
    """As Hearth compares names."""
    return name.lower().removesuffix(":latest")


def _spelled(original: str, number: int) -> str:
    """A name like this one that a request can have."""
    letters = re.sub(r"[^A-Za-z0-9_.-]+", "-", original).strip("-.")[:80]
    return letters or f"model-{number}"
