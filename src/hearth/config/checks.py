"""Rules that hold between fields: what may not be combined.

They look at the plain document, so that they speak up even where other values are wrong. `loading` applies them to the file;
`exposure_problem` is also for whoever lets a command line override the host. Never raises.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from types import MappingProxyType

from hearth.config.errors import KeyPath, Problem
from hearth.config.settings import Settings
from hearth.types import SEVERAL_CALLERS, Lane

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
