"""A reload reaches everything: after it, nothing in the gateway remembers what the keys said before.

Every key that is hot gets a value that occurs nowhere else, is changed by a reload, and is then looked for in whatever can be reached
from the gateway and its HTTP side: a part that copied a setting when it was built would still hold the old value. That a setting is
read at all is tested in `test_traps.py`.
"""

from __future__ import annotations

import enum
import gc
import types
from collections.abc import Iterator, Mapping
from typing import Any, get_origin

from hearth.api.app import HearthApp
from hearth.api.server import HearthServer
from hearth.bootstrap import build_gateway
from hearth.config.fields import Reload, Section
from hearth.config.reload import ConfigInForce
from hearth.config.settings import (
    Announcement,
    BackendMode,
    GatewayConfig,
    KeySettings,
    ModelSettings,
    Settings,
)
from tests.config.kinds import entry_of, kind_of, section_in
from tests.support.cases import for_each

Path = tuple[str, ...]
UNTOUCHED = (types.ModuleType, types.BuiltinFunctionType, types.CodeType, type, enum.Enum)
"""What is reached but belongs to no gateway."""


def hot(cls: type[Section] = Settings, path: Path = ()) -> Iterator[tuple[Path, tuple[Any, Any]]]:
    """The places of all hot settings outside lists and mappings, with what they hold, and what the entries of that are."""
    for name in cls.model_fields:
        kind = kind_of(cls, name)
        inner = section_in(kind)
        if inner is not None:
            yield from hot(inner, (*path, name))
        elif cls.reload_of(name) is not Reload.RESTART:
            yield (*path, name), (kind, entry_of(cls, name))


HOT = dict(hot())
VALUES = [path for path, (kind, _) in HOT.items() if kind in {int, float, str} and path[-1] != "time_zone"]
"""All numbers and free texts; a time zone has to be one that exists."""
CONTAINERS = [path for path, (_, entry) in HOT.items() if entry is not None]


def changed(tree: Any, path: Path, value: object) -> Any:
    """The tree with another value at a place."""
    inner = value if len(path) == 1 else changed(getattr(tree, path[0]), path[1:], value)
    return tree.model_copy(update={path[0]: inner})  # markers are in no range


def at(tree: Any, path: Path) -> Any:
    for name in path:
        tree = getattr(tree, name)
    return tree


def marker(index: int, kind: type, *, late: bool) -> int | float | str:
    """A value that nothing else has by chance."""
    number = 730_001 + 2 * index + late
    return f"marker-{number}:1b" if kind is str else number if kind is int else number + 0.127


def marked(*, late: bool) -> Settings:
    """Settings with a marker at every place."""
    tree = Settings()
    for index, path in enumerate(VALUES):
        tree = changed(tree, path, marker(index, HOT[path][0], late=late))
    settled: Settings = changed(changed(tree, ("backend", "mode"), BackendMode.OLLAMA), ("storage", "enabled"), False)
    return settled


def reachable(*roots: object) -> Iterator[object]:
    """Everything that the roots hold, directly or through others; not the frames of this test, nor what is the interpreter's."""
    seen: set[int] = set()
    waiting: list[object] = list(roots)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, (*UNTOUCHED, types.FrameType)):
            continue
        seen.add(id(thing))
        if isinstance(thing, ConfigInForce):
            seen.add(id(thing._started_with))  # new settings are compared with it
        yield thing
        if isinstance(thing, types.FunctionType):
            waiting.extend(thing.__closure__ or ())
            waiting.extend(thing.__defaults__ or ())
        elif not isinstance(thing, str | bytes | int | float):
            waiting.extend(gc.get_referents(thing))


async def held_after_a_reload(before: Settings, after: Settings) -> list[object]:
    """Everything that a gateway which began with `before` holds once `after` is in force."""
    gateway = await build_gateway(GatewayConfig(settings=before), ollama_url="http://127.0.0.1:9")
    app = HearthApp(gateway)
    server = HearthServer(app, lambda: gateway.config.settings.server)
    try:
        assert gateway.reload(GatewayConfig(settings=after))
        await gateway.worker.process_one()
        app._use(gateway.config)
        return list(reachable(gateway, app, server))
    finally:
        await gateway.stop(0.0)


async def test_no_part_of_the_house_keeps_what_a_hot_key_said_before():
    before, after = marked(late=False), marked(late=True)
    held = {value for value in await held_after_a_reload(before, after) if isinstance(value, str | int | float)}
    names = {".".join(path): (at(before, path), at(after, path)) for path in VALUES}
    assert {name for name, (old, _) in names.items() if old in held or f"{old}:latest" in held} == set()
    assert {name for name, (_, new) in names.items() if new not in held} == set()


def filled(kind: Any, item: Any, name: str) -> object:
    """A list or mapping with one entry that is called `name`."""
    if item is Announcement:
        return (Announcement(task_type=name, cron="0 4 * * *"),)
    if item is KeySettings:
        return (KeySettings(name=name, sha256="0" * 64),)
    is_mapping = get_origin(kind) is Mapping
    if item is str:
        return {name: "other"} if is_mapping else (name,)
    entry = some(item)
    return {name: entry} if is_mapping else (entry,)


def some(item: Any) -> object:
    """Some value of a type."""
    inner = section_in(item)
    if inner is not None:
        needed = {name: 3.0 for name, field in inner.model_fields.items() if field.is_required()}
        return inner(**needed)
    return next(iter(item)) if isinstance(item, enum.EnumMeta) else item(3)


@for_each("path", CONTAINERS)
async def test_no_part_of_the_house_keeps_an_entry_that_is_gone(path: Path):
    base = marked(late=False)
    before = changed(base, path, filled(*HOT[path], "marker-of-before:1b"))
    held = await held_after_a_reload(before, base)
    old = at(before, path)
    assert not any(value == "marker-of-before:1b" for value in held if isinstance(value, str))
    assert not any(value is old for value in held)


async def test_the_search_finds_what_is_kept():
    """The tests above can fail: a copied setting is found wherever it is."""

    class Part:
        def __init__(self, settings: Settings) -> None:
            self._limit = settings.queue.max_external_depth
            self._later = lambda: settings.gpu

    part = Part(changed(marked(late=False), ("models",), {"m": ModelSettings(num_ctx=4242)}))
    held = list(reachable(part))
    for path in (("queue", "max_external_depth"), ("gpu", "restore_home_delay_s")):
        assert at(marked(late=False), path) in [value for value in held if isinstance(value, int | float)]
    assert 4242 in held


def test_every_section_is_covered_that_has_a_hot_key_which_can_be_marked():
    """`clients` has choices only; the others need a restart."""
    covered = {path[0] for path in (*VALUES, *CONTAINERS)}
    assert set(Settings.model_fields) - covered == {"clients", "storage", "telemetry"}
