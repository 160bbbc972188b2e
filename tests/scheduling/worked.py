"""Worked examples of the scheduler's rules as text: what happens, and what is decided upon it.

    an item that has waited too long expires at its instant [policy=fifo | a]
      ext a -> start 1 on a; ext a max_wait_s=7; at 6.9; at 7 -> fail 2 expired

In brackets stand settings that differ from those of a small gateway, then what is in memory; a
table may begin with brackets that hold for all its examples, to which theirs are added. `a:10*2` is
a model of 10 GiB with two slots, `letter=2.5` the budget of a task, every other `name=value` a
setting by the last part of its name. A step is what happens, `3*ext a` three times, and after the
arrow everything that is decided, in order, with the instant where that is not the step's own (`10:
unload a`). No arrow: nothing is. `ext a/b` asks for either model. `at +2` is two seconds later.
What comes of `turns`, `idle`, `serve` and `swap` is not looked at. Where steps begin with `- `,
each such line is an example. `DecisionChecker` judges, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import pydantic
import yaml

from hearth.config.settings import (
    GpuSettings,
    ModelSettings,
    QueueSettings,
    SchedulerSettings,
    SchedulingSettings,
)
from hearth.scheduling import inputs
from hearth.scheduling.inputs import Input
from hearth.types import Lane, Priority, Sequence, SleepLevel, Usage, WorkKind
from tests.scheduling.shell import Shell
from tests.support.fields import Fields

SECTIONS: dict[str, type[pydantic.BaseModel]] = {
    "scheduling": SchedulingSettings,
    "queue": QueueSettings,
    "gpu": GpuSettings,
}


class Example(NamedTuple):
    name: str
    settings: str
    resident: tuple[str, ...]
    steps: tuple[str, ...]


def examples(text: str) -> Iterator[Example]:
    """Those of a table; a line that begins with `#` is a remark."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    defaults, common = _brackets(lines.pop(0)) if lines[0].startswith("[") else ("", "")
    for block in re.split(r"\n(?=\S)", "\n".join(lines)):
        match = re.fullmatch(r"([^\[\n]+?)\s*(\[[^\]]*\])?\n(.*)", block, flags=re.DOTALL)
        assert match is not None, block
        name, brackets, told = match.groups(default="")
        settings, resident = _brackets(brackets)
        in_memory = resident if "|" in brackets else common
        for one in re.split(r"(?m)^  - ", told):
            if steps := tuple(" ".join(step.split()) for step in one.split(";") if step.strip()):
                yield Example(name, f"{defaults} {settings}", tuple(in_memory.split()), steps)


def _brackets(text: str) -> tuple[str, str]:
    settings, _, resident = text.strip("[]").partition("|")
    return settings.strip(), resident.strip()


def settings_of(text: str) -> SchedulerSettings:
    """The settings of a small gateway (`affinity`, one slot, no home model) with these changes."""
    found: dict[str, Fields] = {
        "scheduling": {"policy": "affinity"},
        "queue": {},
        "gpu": {"restore_home_delay_s": 30.0},
    }
    models = dict[str, ModelSettings]()
    wait_when_down_s = 10.0
    for token in text.split():
        if ":" in token:
            name, size, slots = re.split("[:*]", f"{token}*")[:3]
            models[name] = ModelSettings(
                vram_gb=float(size), parallel=int(slots) if slots else None
            )
            continue
        name, _, value = token.partition("=")
        outer, _, inner = name.rpartition(".")
        section = next(
            (each for each, kind in SECTIONS.items() if (outer or inner) in kind.model_fields), None
        )
        if name == "wait_when_down_s":
            wait_when_down_s = float(value)
        elif section is None:
            found["gpu"].setdefault("task_vram_gb", {})[name] = float(value)
        else:
            place = found[section].setdefault(outer, {}) if outer else found[section]
            place[inner] = yaml.safe_load(value)
    made: Fields = {name: kind(**found[name]) for name, kind in SECTIONS.items()}
    return SchedulerSettings(models=models, wait_when_down_s=wait_when_down_s, **made)


def play(example: Example) -> None:
    """Let it happen. Raises AssertionError at the first step that is answered otherwise."""
    shell = Shell(settings_of(example.settings), resident=example.resident)
    for number, step in enumerate(example.steps, start=1):
        what, _, expected = step.partition("->")
        before = len(shell.log)
        happen(shell, what)
        said = ", ".join(
            text if at == shell.now else f"{at:g}: {text}" for at, text in shell.log[before:]
        )
        assert said == expected.strip(), (
            f"step {number} of {example.name!r} was to be {step!r}, not {said!r}"
        )


def happen(shell: Shell, story: str) -> None:
    """These steps, whatever is decided upon them."""
    for step in story.split(";") if story else ():
        match = re.fullmatch(r"\s*(?:(\d+)\*)?(.*)", step)
        assert match is not None
        for _ in range(int(match[1] or 1)):
            _happen(shell, *match[2].split())


def _happen(shell: Shell, what: str, *words: str) -> None:
    options = dict(word.split("=") for word in words if "=" in word)
    rest = [word for word in words if "=" not in word]
    if what in {"ext", "int"}:
        _arrive(
            shell, Lane.INTERNAL if what == "int" else Lane.EXTERNAL, rest[0], rest[1:], options
        )
    elif what == "settings":
        shell.tell(inputs.PolicyChanged(settings=settings_of(" ".join(words))))
    elif what in _STEPS:
        _STEPS[what](shell, *rest)
    elif what == "end":
        shell.finish(int(rest[0]), Usage(output_tokens=int(options["output"])) if options else None)
    elif what in _FACTS:
        shell.tell(_FACTS[what](*rest))
    else:  # a method of the shell, with numbers and flags
        getattr(shell, what)(
            *[int(word) for word in rest if word.isdigit()],
            **{word: True for word in rest if not word.isdigit()},
        )


def _arrive(
    shell: Shell, lane: Lane, model: str, flags: list[str], options: dict[str, str]
) -> None:
    shell.arrive(
        None if model == "any" else model,
        lane=lane,
        priority=next((each for each in Priority if each.name.lower() in flags), Priority.NORMAL),
        max_wait_s=float(options["max_wait_s"]) if "max_wait_s" in options else None,
        prompt_tokens=int(options.get("prompt_tokens", 0)),
        max_tokens=int(options["max_tokens"]) if "max_tokens" in options else None,
        resumable="resumable" in flags,
        kind=cast("WorkKind", options.get("kind", "generate")),
        task_type=options.get("task_type"),
        caller=options.get("caller", "test"),
        background="title" if "title" in flags else "",
        conversation=options.get("conversation", ""),
        user=options.get("user", ""),
    )


def _turns(shell: Shell, count: str, gap_s: str, models: str = "a") -> None:
    """An agent takes turns of 1 s with these models, `gap_s` apart, whatever swaps (of 2 s) and
    holds that takes; none follows the last.
    """
    for turn in range(int(count)):
        until = shell.now + (float(gap_s) if turn else 0.0)
        while shell.now < until:
            shell.at(min(until, shell.timer or until))
            _swapped(shell)
        sequence = shell.arrive(models[turn % len(models)], caller="agent")
        while sequence not in shell.running:
            _swapped(shell) if shell.unloading or shell.loading else shell.fire()
        shell.at(shell.now + 1.0).finish(sequence)
    shell.log.clear()


def _asks(shell: Shell, count: str, gap_s: str, model: str = "a") -> None:
    """The assistant asks for a model so often, each time so long after its last answer, which takes
    1 s.
    """
    for number in range(int(count)):
        shell.at(shell.now + (float(gap_s) if number else 0.0))
        sequence = shell.arrive(
            None if model == "any" else model,
            lane=Lane.INTERNAL,
            priority=Priority.CRITICAL,
            caller="assistant",
        )
        shell.at(shell.now + 1.0).finish(sequence)
    shell.log.clear()


def _idle(shell: Shell, gap_s: str, model: str, priority: str = "") -> None:
    """Nothing runs for so long; then somebody asks for a model, internally with a priority, and for
    c. A load takes 10 s.
    """
    shell.at(shell.now + float(gap_s))
    for wanted in dict.fromkeys((model, "c")):
        _swapped(shell, 10.0)
        sequence = (
            shell.internal(wanted, Priority[priority])
            if priority and wanted == model
            else shell.arrive(wanted)
        )
        _swapped(shell, 10.0)
        shell.finish(sequence)
    shell.log.clear()


def _swapped(shell: Shell, load_s: float = 2.0) -> None:
    """The swap under way ends, and the one that may begin with that."""
    for _ in range(2):
        while shell.unloading:
            shell.unloaded()
        if shell.loading:
            shell.at(shell.now + load_s).loaded()
    shell.log.clear()


def _serve(shell: Shell, count: str, run_s: str) -> None:
    """So many items run, one after another."""
    for _ in range(int(count)):
        shell.at(shell.now + float(run_s)).finish(min(shell.running))
    shell.log.clear()


_STEPS: dict[str, Callable[..., object]] = {
    "turns": _turns,
    "asks": _asks,
    "keeps_failing": lambda shell, pause_s: shell.load_failed(
        permanent=True, left_alone_s=float(pause_s)
    ),
    "slept": lambda shell, residual_gb="0.5", host_gb="0", level=None: shell.slept(
        float(residual_gb), float(host_gb), level
    ),
    "wake_failed": lambda shell, level: shell.wake_failed(level),
    "short": lambda shell: shell.load_failed(short=True),
    "cut_failed": lambda shell: shell.load_cut(clean=False),
    "idle": _idle,
    "serve": _serve,
    "swap": lambda shell, load_s: _swapped(shell, float(load_s)),
    "at": lambda shell, instant: shell.at(
        float(instant) + (shell.now if instant[0] == "+" else 0.0)
    ),
    "fire": lambda shell, early="": shell.fire(early_s=1e-9 if early else 0.0),
    "fail": lambda shell, number, fault, kept="": shell.fail(
        int(number), fault, int(kept) if kept else None
    ),
    "refuse": lambda shell, number, pause_s="": shell.refuse(
        int(number), float(pause_s) if pause_s else None
    ),
    "stopped": lambda shell, number: shell.stop(int(number)),
    "learn": lambda shell, origin, target, seconds: shell.device.estimates.learn_swap(
        origin.strip("-"), target, float(seconds)
    ),
    "runs": lambda shell, model, seconds: shell.device.estimates.restore(
        {"format": 1, "run_s": {model: float(seconds)}}
    ),
}
_FACTS: dict[str, Callable[..., Input]] = {
    "down": lambda: inputs.BackendState(up=False),
    "up": lambda: inputs.BackendState(up=True),
    "quiet": lambda: inputs.Switched(what="active", on=False),
    "pause": lambda: inputs.Switched(what="paused", on=True),
    "resume": lambda: inputs.Switched(what="paused", on=False),
    "pin": lambda model: inputs.ModelPinned(model=model),
    "unpin": lambda: inputs.ModelPinned(model=None),
    "want": lambda model: inputs.ModelOrdered(model=model, comes=True),
    "unwant": lambda model: inputs.ModelOrdered(model=model, comes=False),
    "lease": lambda lease_id, gb="all", until="": inputs.LeaseTaken(
        id=lease_id,
        mib=None if gb == "all" else float(gb) * 1024.0,
        grace_s=5.0,
        until=float(until) if until else None,
    ),
    "lease_ends": lambda lease_id: inputs.LeaseEnded(id=lease_id),
    "yield": inputs.PreemptRequested,
    "tick": inputs.TimerFired,
    "task": lambda task, due_at: inputs.Scheduled(task_type=task, due_at=float(due_at)),
    "sample": lambda mib, foreign="0": inputs.GpuSampled(
        capacity_mib=None if mib == "-" else float(mib), foreign_mib=float(foreign)
    ),
    "unified": lambda gib, foreign="0": inputs.GpuSampled(
        capacity_mib=float(gib) * 1024.0, foreign_mib=float(foreign) * 1024.0, unified=True
    ),
    "files": lambda *sized: inputs.ModelsListed(
        names=frozenset(one.partition(":")[0] for one in sized),
        file_mib={one.partition(":")[0]: float(one.partition(":")[2]) * 1024.0 for one in sized},
    ),
    "sleeps": lambda *models: inputs.ModelsListed(
        names=frozenset(one.partition(":")[0] for one in models),
        sleeps={
            name: cast("tuple[SleepLevel, ...]", tuple(levels.split("+")))
            for name, _, levels in (one.partition(":") for one in models)
            if levels
        },
    ),
    "host": lambda gib: inputs.GpuSampled(capacity_mib=None, host_free_mib=float(gib) * 1024.0),
    "asleep": lambda model, level, residual_gb, host_gb: inputs.Unloaded(
        model=model,
        level=level,
        residual_mib=float(residual_gb) * 1024.0,
        host_mib=float(host_gb) * 1024.0,
    ),
    "found": lambda model, level: inputs.Drifted(
        appeared=(), vanished=(), asleep=((model, level),)
    ),
    "listed": lambda *names: inputs.ModelsListed(names=frozenset(names)),
    "elastic": lambda model, spill_s, *others: inputs.ModelsListed(
        names=frozenset((model, *others)),
        staying=frozenset({model}),
        off_card=frozenset({model}),
        spills={model: float(spill_s)},
    ),
    "appears": lambda model, mib="": inputs.Loaded(
        model=model, vram_mib=float(mib) if mib else None
    ),
    "vanishes": lambda model: inputs.Unloaded(model=model),
    "replaced": lambda gone, come: inputs.Drifted(
        appeared=(inputs.Loaded(model=come),), vanished=(inputs.Unloaded(model=gone),)
    ),
    "unresumable": lambda number: inputs.Unresumable(sequence=Sequence(int(number)), attempt=1),
    "late_end": lambda number: inputs.Finished(
        sequence=Sequence(int(number)), attempt=1, usage=Usage()
    ),
    "late_stop": lambda number: inputs.Stopped(sequence=Sequence(int(number)), attempt=1),
}
