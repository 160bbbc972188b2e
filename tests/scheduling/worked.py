"""Worked examples of the scheduler's rules as text: what happens, and what is decided upon it.

    an item that has waited too long expires at its instant [policy=fifo | a]
      ext a -> start 1 on a; ext a max_wait_s=7; at 6.9; at 7 -> fail 2 expired

In brackets stand settings that differ from those of a small gateway (`house_settings`), then what is in memory; a table may begin with
brackets that hold for all its examples, to which theirs are added. `a:10*2` is a model of 10 GiB with two slots, `letter=2.5` the budget of
a task, every other `name=value` a setting by the last part of its name. A step is what happens, and after the arrow everything that is
decided, in order, with the instant where that is not the step's own (`10: unload a`). No arrow: nothing is. `DecisionChecker` judges, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pydantic

from hearth.config.settings import ModelSettings, SchedulerSettings
from hearth.scheduling import inputs
from hearth.scheduling.inputs import Input
from hearth.types import Lane, Priority, Sequence, Usage, WorkKind
from tests.support.shell import Shell, house_settings


@dataclass(frozen=True, slots=True)
class Example:
    name: str
    settings: str
    resident: tuple[str, ...]
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return self.name.replace(" ", "_")


def examples(text: str) -> Iterator[Example]:
    """Those of a table; a line that begins with `#` is a remark."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    defaults, common = _brackets(lines.pop(0)) if lines[0].startswith("[") else ("", "")
    for block in re.split(r"\n(?=\S)", "\n".join(lines)):
        match = re.fullmatch(r"([^\[\n]+?)\s*(\[[^\]]*\])?\n(.*)", block, flags=re.DOTALL)
        assert match is not None, block
        name, brackets, told = match.groups(default="")
        settings, resident = _brackets(brackets)
        steps = (" ".join(step.split()) for step in told.split(";"))
        in_memory = resident if "|" in brackets else common
        yield Example(name, f"{defaults} {settings}", tuple(in_memory.split()), tuple(step for step in steps if step))


def _brackets(text: str) -> tuple[str, str]:
    settings, _, resident = text.strip("[]").partition("|")
    return settings.strip(), resident.strip()


def _value(text: str) -> object:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return {"none": None}.get(text, text)


def settings_of(text: str) -> SchedulerSettings:
    """The settings of a small gateway with these changes."""
    settings = house_settings()
    sections: dict[str, dict[str, object]] = {"scheduling": {}, "queue": {}, "gpu": {}}
    models, budgets, nested = dict[str, ModelSettings](), dict[str, float](), dict[str, dict[str, object]]()
    for token in text.split():
        if ":" in token:
            name, size, slots = re.split("[:*]", f"{token}*")[:3]
            models[name] = ModelSettings(vram_gb=float(size), parallel=int(slots) if slots else None)
            continue
        name, _, value = token.partition("=")
        outer, _, inner = name.rpartition(".")
        section = next((each for each in sections if hasattr(getattr(settings, each), outer or name)), None)
        if name == "wait_when_down_s":
            settings = house_settings(wait_when_down_s=float(value))
        elif section is None:
            budgets[name] = float(value)
        elif outer:
            nested.setdefault(outer, {})[inner] = _value(value)
        else:
            sections[section][name] = _value(value)
    for outer, changes in nested.items():
        sections["scheduling"][outer] = type(getattr(settings.scheduling, outer)).model_validate(changes)
    if budgets:
        sections["gpu"]["task_vram_gb"] = budgets
    parts: dict[str, pydantic.BaseModel] = {"scheduling": settings.scheduling, "queue": settings.queue, "gpu": settings.gpu}
    made: dict[str, Any] = {name: type(part).model_validate({**dict(part), **sections[name]}) for name, part in parts.items()}
    return SchedulerSettings(models=models, wait_when_down_s=settings.wait_when_down_s, **made)


def play(example: Example) -> None:
    """Let it happen. Raises AssertionError at the first step that is answered otherwise."""
    shell = Shell(settings_of(example.settings), resident=example.resident)
    for number, step in enumerate(example.steps, start=1):
        what, _, expected = step.partition("->")
        before = len(shell.log)
        _happen(shell, *what.split())
        told = [said if at == shell.now else f"{at:g}: {said}" for at, said in shell.log[before:]]
        assert ", ".join(told) == expected.strip(), f"step {number}: {step}"


def _happen(shell: Shell, what: str, *words: str) -> None:
    options = dict(word.split("=") for word in words if "=" in word)
    rest = [word for word in words if "=" not in word]
    if what in {"ext", "int"}:
        _arrive(shell, Lane.INTERNAL if what == "int" else Lane.EXTERNAL, rest[0], rest[1:], options)
    elif what == "settings":
        shell.tell(inputs.PolicyChanged(settings=settings_of(" ".join(words))))
    elif what in _STEPS:
        _STEPS[what](shell, *rest)
    elif what == "end":
        shell.finish(int(rest[0]), Usage(output_tokens=int(options["output"])) if options else None)
    else:
        shell.tell(_FACTS[what](*rest))


def _arrive(shell: Shell, lane: Lane, model: str, flags: list[str], options: dict[str, str]) -> None:
    priority = next((each for each in Priority if each.name.lower() in flags), Priority.NORMAL)
    shell.arrive(
        None if model == "any" else model,
        lane=lane,
        priority=priority,
        max_wait_s=float(options["max_wait_s"]) if "max_wait_s" in options else None,
        prompt_tokens=int(options.get("prompt_tokens", 0)),
        max_tokens=int(options["max_tokens"]) if "max_tokens" in options else None,
        resumable="resumable" in flags,
        kind=WorkKind(options.get("kind", "generate")),
        task_type=options.get("task_type"),
        caller=options.get("caller", "test"),
    )


_STEPS: dict[str, Callable[..., object]] = {
    "at": lambda shell, instant: shell.at(float(instant)),
    "now": lambda shell, instant: setattr(shell, "now", float(instant)),
    "fire": lambda shell, early="": shell.fire(early_s=1e-9 if early else 0.0),
    "lose_timer": lambda shell: shell.lose_timer(),
    "started": lambda shell, number: shell.started(int(number)),
    "first_byte": lambda shell, number, forwarded="": shell.first_byte(int(number), forwarded=bool(forwarded)),
    "fail": lambda shell, number, fault: shell.fail(int(number), fault),
    "stopped": lambda shell, number: shell.stop(int(number)),
    "cancel": lambda shell, *numbers: shell.cancel(*map(int, numbers)),
    "loaded": lambda shell, mib="": shell.loaded(vram_mib=float(mib) if mib else None),
    "load_failed": lambda shell, permanent="": shell.load_failed(permanent=bool(permanent)),
    "unloaded": lambda shell: shell.unloaded(),
    "unload_failed": lambda shell: shell.unload_failed(),
    "drain": lambda shell: shell.drain(),
    "learn": lambda shell, origin, target, seconds: shell.state.estimates.learn_swap(origin.strip("-"), target, float(seconds)),
    "runs": lambda shell, model, seconds: shell.state.estimates.restore({"format": 1, "run_s": {model: float(seconds)}}),
}
_FACTS: dict[str, Callable[..., Input]] = {
    "down": lambda: inputs.BackendState(up=False),
    "up": lambda: inputs.BackendState(up=True),
    "active": lambda: inputs.ModeChanged(active=True),
    "quiet": lambda: inputs.ModeChanged(active=False),
    "pause": lambda: inputs.ExternalPaused(paused=True),
    "resume": lambda: inputs.ExternalPaused(paused=False),
    "pin": lambda model: inputs.ModelPinned(model=model),
    "unpin": lambda: inputs.ModelPinned(model=None),
    "want": lambda model: inputs.ModelOrdered(model=model, comes=True),
    "unwant": lambda model: inputs.ModelOrdered(model=model, comes=False),
    "yield": inputs.PreemptRequested,
    "tick": inputs.TimerFired,
    "task": lambda task, due_at: inputs.Scheduled(task_type=task, due_at=float(due_at)),
    "sample": lambda mib, foreign="0": inputs.GpuSampled(capacity_mib=None if mib == "-" else float(mib), foreign_mib=float(foreign)),
    "listed": lambda *names: inputs.ModelsListed(names=frozenset(names)),
    "appears": lambda model, mib="": inputs.Loaded(model=model, vram_mib=float(mib) if mib else None),
    "vanishes": lambda model: inputs.Unloaded(model=model),
    "replaced": lambda gone, come: inputs.Drifted(appeared=(inputs.Loaded(model=come),), vanished=(inputs.Unloaded(model=gone),)),
    "unresumable": lambda number: inputs.Unresumable(sequence=Sequence(int(number)), attempt=1),
    "late_end": lambda number: inputs.Finished(sequence=Sequence(int(number)), attempt=1, usage=Usage()),
    "late_stop": lambda number: inputs.Stopped(sequence=Sequence(int(number)), attempt=1),
}
