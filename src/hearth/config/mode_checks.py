"""What is wrong with `modes`, in a document whose keys are hashed already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from hearth.config.document import KeyPath, Problem, dotted
from hearth.config.fields import Reload, Section, within
from hearth.config.settings import MODE_SECTIONS, Settings

Rules = Callable[[object], Iterable[Problem]]
"""What is wrong between the fields of a document."""
_FIXED: tuple[KeyPath, ...] = (
    ("alerts", "discord_webhook_url"),
    ("alerts", "webhook_url"),
    ("alerts", "ntfy_url"),
    ("cloud", "api_key"),
    ("cloud", "base_url"),
    ("gpu", "restart_command"),
    ("jobs", "webhooks"),
)
"""Keys, the addresses that get them, and commands: a mode is switched by others than the owner."""


def mode_problems(document: object, rules: Rules) -> Iterator[Problem]:
    """What no mode may change, and what would be wrong with the settings in one of them that is
    not wrong without it.
    """
    modes = document.get("modes") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(modes, dict):
        return
    known = set(rules(document))
    for name, mode in modes.items():
        if not isinstance(mode, dict):
            continue
        stated = {section: mode[section] for section in MODE_SECTIONS if section in mode}
        here = ("modes", name)
        for path in _fixed_in(stated, Settings, ()):
            yield Problem((*here, *path), _why_fixed(path))
        for problem in rules(_laid_over(document, stated)):
            if problem not in known:
                yield _in_mode(here, stated, problem)


def _why_fixed(path: KeyPath) -> str:
    if any(path[: len(place)] == place for place in _FIXED):
        return f"cannot be changed by a mode; set it as {dotted(path)} for all of them"
    return f"needs a restart, so no mode can change it; set it as {dotted(path)} for all of them"


def _in_mode(here: KeyPath, stated: dict[str, object], problem: Problem) -> Problem:
    """Where the mode states the setting, its line is that of the problem."""
    found: object = stated
    for step in problem.path:
        found = found.get(step) if isinstance(found, dict) else None
    if found is not None:
        return Problem((*here, *problem.path), problem.text)
    return Problem(here, f"in this mode, {dotted(problem.path)} {problem.text}")


def _fixed_in(value: object, annotation: object, path: KeyPath) -> Iterator[KeyPath]:
    """What a mode may not change of what it states."""
    if any(path[: len(place)] == place for place in _FIXED) or path[2:3] == ("run",):
        yield path
    elif isinstance(value, dict):
        for key, each in value.items():
            if _needs_restart(annotation, key):
                yield (*path, key)
            else:
                yield from _fixed_in(each, within(annotation, key), (*path, key))


def _needs_restart(annotation: object, key: str) -> bool:
    if not isinstance(annotation, type) or not issubclass(annotation, Section):
        return False
    return key in annotation.model_fields and annotation.reload_of(key) is Reload.RESTART


def _laid_over(below: object, above: object) -> object:
    """One document over another, as `overlay` has it of settings."""
    if above is None and isinstance(below, dict):
        return below  # a heading with nothing under it
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    joined = {key: _laid_over(below.get(key), each) for key, each in above.items()}
    return {**below, **joined}
