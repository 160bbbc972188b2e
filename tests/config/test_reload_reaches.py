"""A reload reaches everything: after it, nothing in the gateway remembers what the keys said
before.

Every key that is hot gets a value that occurs nowhere else, is changed by a reload, and is then
looked for in whatever can be reached from the gateway and its HTTP side: a part that copied a
setting when it was built would still hold the old value. That a setting is read at all is tested in
`test_traps.py`.
"""

from __future__ import annotations

import asyncio
import enum
import gc
import types
from collections.abc import Iterator, Mapping
from typing import Any, get_origin

from hearth.api.app import HearthApp
from hearth.api.server import HearthServer
from hearth.bootstrap import build_gateway
from hearth.config.choices import Window
from hearth.config.fields import Reload, Section
from hearth.config.reload import ConfigInForce
from hearth.config.settings import BackendMode, GatewayConfig, Settings
from tests.config.reading import NEEDED, entry_of, kind_of, section_in

Path = tuple[str, ...]
UNTOUCHED = (
    types.ModuleType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.FrameType,
    type,
    enum.Enum,
)
"""What is reached but belongs to no gateway."""


def hot(cls: type[Section] = Settings, path: Path = ()) -> Iterator[tuple[Path, tuple[Any, Any]]]:
    """The places of all hot settings outside lists and mappings, with what they hold, and what the
    entries of that are.
    """
    for name in cls.model_fields:
        kind = kind_of(cls, name)
        inner = section_in(kind)
        if inner is not None:
            yield from hot(inner, (*path, name))
        elif cls.reload_of(name) is not Reload.RESTART:
            yield (*path, name), (kind, entry_of(cls, name))


HOT = dict(hot())
VALUES = [
    path for path, (kind, _) in HOT.items() if kind in {int, float, str} and path[-1] != "time_zone"
]
"""All numbers and free texts; a time zone has to be one that exists."""
CONTAINERS = {
    path: f"marker-{number}:1b"
    for number, path in enumerate(path for path, (_, entry) in HOT.items() if entry is not None)
}
"""All lists and mappings, with the name of what is put into each."""


def changed(tree: Any, path: Path, value: object) -> Any:
    """The tree with another value at a place."""
    inner = value if len(path) == 1 else changed(getattr(tree, path[0]), path[1:], value)
    return tree.model_copy(update={path[0]: inner})  # markers are in no range


def at(tree: Any, path: Path) -> Any:
    for name in path:
        tree = getattr(tree, name)
    return tree


def marked(*, late: bool) -> Settings:
    """Settings with a value at every place that nothing else has by chance."""
    tree: Any = changed(
        changed(Settings(), ("backend", "mode"), BackendMode.OLLAMA), ("storage", "enabled"), False
    )
    for index, path in enumerate(VALUES):
        number = 730_001 + 2 * index + late
        kind = HOT[path][0]
        tree = changed(
            tree,
            path,
            f"marker-{number}:1b" if kind is str else number if kind is int else number + 0.127,
        )
    settled: Settings = tree
    return settled


def filled(kind: Any, item: Any, name: str) -> object:
    """A list or mapping with one entry that is called `name`."""
    is_mapping = get_origin(kind) is Mapping
    if section := section_in(item):
        given = NEEDED | {"name": name, "task_type": name}
        entry: object = section(
            **{key: value for key, value in given.items() if key in section.model_fields}
        )
    elif item is str:
        entry = "other" if is_mapping else name
    elif get_origin(item) is tuple:
        entry = (name,)
    elif item is Window:
        entry = Window(start_minute=0, end_minute=1)
    else:
        entry = next(iter(item)) if isinstance(item, enum.EnumMeta) else item(3)
    return {name: entry} if is_mapping else (entry,)


def reachable(*roots: object) -> Iterator[object]:
    """Everything that the roots hold, directly or through others; not the frames of this test, nor
    what is the interpreter's.
    """
    seen: set[int] = set()
    waiting: list[object] = list(roots)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, UNTOUCHED):
            continue
        seen.add(id(thing))
        if isinstance(thing, ConfigInForce):
            seen.add(id(thing._started_with))  # new settings are compared with it
        yield thing
        if isinstance(thing, types.FunctionType):
            waiting.extend((*(thing.__closure__ or ()), *(thing.__defaults__ or ())))
        elif not isinstance(thing, str | bytes | int | float):
            waiting.extend(gc.get_referents(thing))


async def held_after_a_reload(before: Settings, after: Settings) -> list[object]:
    """Everything that a gateway which began with `before` holds once `after` is in force."""
    gateway = await build_gateway(GatewayConfig(settings=before), backend_url="http://127.0.0.1:9")
    app = HearthApp(gateway)
    server = HearthServer(app, lambda: gateway.config.settings.server)
    try:
        assert gateway.reload(GatewayConfig(settings=after))
        running = asyncio.ensure_future(gateway.worker.run())
        await asyncio.sleep(0)  # it decides upon the reload
        running.cancel()
        app._use(gateway.config)
        return list(reachable(gateway, app, server))
    finally:
        await gateway.stop(0.0)


async def test_no_part_of_the_house_keeps_what_a_hot_key_said_before():
    before = marked(late=False)
    after = marked(late=True)
    held = {
        value
        for value in await held_after_a_reload(before, after)
        if isinstance(value, str | int | float)
    }
    names = {".".join(path): (at(before, path), at(after, path)) for path in VALUES}
    assert {
        name for name, (old, _) in names.items() if old in held or f"{old}:latest" in held
    } == set()
    assert {name for name, (_, new) in names.items() if new not in held} == set()


async def test_no_part_of_the_house_keeps_an_entry_that_is_gone():
    base = before = marked(late=False)
    for path, name in CONTAINERS.items():
        before = changed(before, path, filled(*HOT[path], name))
    held = await held_after_a_reload(before, base)
    kept = {value for value in held if isinstance(value, str)} | {id(value) for value in held}

    def traces(path: Path) -> set[object]:
        container = at(before, path)
        (entry,) = container.values() if isinstance(container, Mapping) else container
        return {
            id(container),
            CONTAINERS[path],
            *([id(entry)] if isinstance(entry, Section) else []),
        }

    assert [path for path in CONTAINERS if traces(path) & kept] == []


async def test_the_search_finds_what_is_kept_and_covers_every_section():
    class Part:
        def __init__(self, settings: Settings) -> None:
            self._limit = settings.queue.max_external_depth
            self._later = lambda: settings.gpu

    settings = changed(marked(late=False), ("models",), filled(*HOT["models",], "m"))
    held = [id(value) for value in reachable(Part(settings))]
    assert {
        id(settings.queue.max_external_depth),
        id(settings.gpu.restore_home_delay_s),
        id(settings.models["m"]),
    } <= set(held)
    # these need a restart
    assert set(Settings.model_fields) - {path[0] for path in (*VALUES, *CONTAINERS)} == {
        "conversations",
        "engines",
        "storage",
        "telemetry",
    }
