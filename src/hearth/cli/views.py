"""What is drawn in a terminal: the status, the models, the log, the screen of `hearth top`.

The one part that needs rich. Never raises.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hearth.cli.client import (
    Json,
    ViewName,
    count,
    duration,
    flag,
    number,
    part,
    parts,
    printable,
    text,
    texts,
)
from hearth.cli.facts import active_alerts, facts
from hearth.cli.tables import (
    FOLDED,
    NUMBER,
    WORDS,
    Fitting,
    Phrases,
    TableColumn,
    moment,
    table_of,
)
from hearth.cli.waits import waited_for, waits_for
from hearth.types import plural

_PIPE_WIDTH = 120
_MIB_PER_GIB = 1024.0
_LANES = ("internal", "external")


def console_for(stream: TextIO, *, environ: Mapping[str, str] = os.environ) -> Console:
    """A console that writes plain text where `stream` is no terminal or `NO_COLOR` is set and not
    empty (no-color.org).

    Without a terminal, lines are up to 120 columns wide, or `COLUMNS`.
    """
    columns = environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) > 0 else _PIPE_WIDTH
    return Console(
        file=stream,
        width=None if stream.isatty() else width,
        color_system=None if environ.get("NO_COLOR") else "auto",
        markup=False,
        emoji=False,
        highlight=False,
    )


def emulator_box(reason: str) -> RenderableType:
    """The loud box that nobody overlooks: answers are not a model's."""
    text = Text("ANSWERS ARE MADE UP: the emulator is used instead of Ollama.", "bold")
    return Panel(
        text.append(f"\n{printable(reason)}", "not bold"),
        border_style="bold yellow",
        expand=False,
    )


def small_model_box(model: str, reason: str) -> RenderableType:
    """What a newcomer is told first: whose answers these are."""
    text = Text(f"A SMALL MODEL ANSWERS: {printable(model)}, on the CPU.", "bold")
    hint = "Its answers are real, and often wrong. Start Ollama, and its models are here, too."
    return Panel(
        text.append(f"\n{printable(reason)}\n{hint}", "not bold"),
        border_style="bold cyan",
        expand=False,
    )


def _waited_or_ran(item: Json) -> str:
    ran_s = number(item, "running_s")
    return duration(number(item, "waited_s") if ran_s is None else ran_s)


def _runs_or_waits(item: Json) -> Text:
    lane = text(item, "waits_in")
    if not lane:
        return Text("runs", "green")
    return Text(f"waits ({lane})", "cyan" if lane == "internal" else "yellow")


def _task(item: Json) -> str:
    return text(item, "task_type") or text(item, "priority")


def _model(empty: str) -> Callable[[Json], str]:
    """The model, and the alias by which it was asked for."""

    def cell(row: Json) -> str:
        alias = text(row, "alias")
        model = text(row, "model") or empty
        return f"{model} ({alias})" if alias else model

    return cell


def _starts(item: Json) -> str:
    """When it is expected to start; empty of one that runs."""
    if number(item, "running_s") is not None:
        return ""
    about = "~" if flag(item, "estimate_is_rough") else ""
    bound_s = number(item, "start_bound_s")
    bound = f" ({duration(bound_s)})" if bound_s else ""
    return about + duration(number(item, "estimated_start_s")) + bound


_RUNNING = (
    TableColumn("", _runs_or_waits, WORDS),
    TableColumn("#", "sequence", NUMBER),
    TableColumn("caller", "caller", WORDS, ""),
    TableColumn("model", _model("any"), WORDS),
    TableColumn("task", _task, WORDS),
    TableColumn("for", _waited_or_ran, NUMBER),
)
_WAITING = (
    TableColumn("place", "position", NUMBER, ""),
    TableColumn("starts in", _starts, NUMBER),
    TableColumn("waits for", waits_for, FOLDED),
)


def _status_view(answer: Json) -> RenderableType:
    idle = Text("idle", "dim")
    rows: list[Json] = [*parts(answer, "running")] or [{"note": idle}]
    for lane in _LANES:
        queue = part(answer, f"{lane}_queue")
        items = parts(queue, "next_items")
        rows += [{**item, "waits_in": lane} for item in items]
        if (unseen := count(queue, "pending") - len(items)) > 0:
            rows.append({"note": Text(f"... and {unseen} more {lane}", "dim")})
    fields = (*_RUNNING, *_WAITING) if any("waits_in" in row for row in rows) else _RUNNING
    table = Fitting(table_of(fields, rows), expendable=("task",), in_lines=True)
    return Group(
        *_emulator_notice(answer),
        *active_alerts(answer),
        idle if rows == [{"note": idle}] else table,
        Text(),
        facts(answer),
    )


def _emulator_notice(answer: Json) -> list[RenderableType]:
    backend = part(answer, "backend")
    if not flag(backend, "emulator"):
        return []
    missing = text(backend, "instead_of")
    if not missing:
        return [emulator_box("the emulator was asked for")]
    return [emulator_box(f"start Ollama at {missing}: Hearth then uses it")]


def _phase_of_model(model: Json) -> str:
    if flag(model, "resident"):
        phase = text(model, "phase") or "ready"
        if flag(model, "remote"):
            return "on other machines"
        known = "in memory" if phase == "ready" else phase
        return f"{known}, partly on the CPU" if flag(model, "offloaded") else known
    if flag(model, "away"):
        return "away, its engine is down"
    if level := text(model, "asleep"):
        return f"asleep ({level})"
    return "on the disk" if flag(model, "installed") else "not installed"


def _state_of_model(model: Json) -> Text:
    state = _phase_of_model(model)
    styles = {"in memory": "green", "on other machines": "green"}
    styles |= {"loading": "yellow", "unloading": "yellow"}
    return Text(state, styles.get(state, "dim"))


def _slots_of_model(model: Json) -> str:
    if not flag(model, "resident"):
        return "-"
    return f"{count(model, 'running')} of {count(model, 'parallel')}"


def _gib(model: Json, field: str) -> str:
    mib = None if flag(model, "remote") else number(model, field)
    return "-" if mib is None else f"{mib / _MIB_PER_GIB:.1f} GiB"


_MODELS = (
    TableColumn("model", "name"),
    TableColumn("", lambda model: Text("home" if flag(model, "home") else "", "cyan")),
    TableColumn("state", _state_of_model, FOLDED | {"min_width": 14}),
    TableColumn("running", _slots_of_model, NUMBER),
    TableColumn("waiting", lambda model: str(count(model, "waiting") or "-"), NUMBER),
    TableColumn("on the GPU", lambda model: _gib(model, "vram_mib"), NUMBER),
    TableColumn("size", lambda model: _gib(model, "size_mib"), NUMBER),
)


def _outcome(row: Json) -> Text:
    outcome = text(row, "outcome") or "-"
    reason = text(row, "reason")
    shown = Text(outcome, {"completed": "green", "cancelled": "dim"}.get(outcome, "red"))
    if reason and reason != outcome:
        shown.append(f" ({reason})")
    if interruptions := count(row, "interrupt_count"):
        shown.append(f" +{interruptions} interrupted", "yellow")
    return shown


def _phase(field: str) -> Callable[[Json], str]:
    """As `duration` writes it; hundredths below a second, where most first bytes are."""

    def cell(row: Json) -> str:
        seconds = number(row, field)
        return f"{seconds:.2f} s" if seconds is not None and 0 <= seconds < 1 else duration(seconds)

    return cell


def _whole(row: Json, field: str, unknown: str) -> str:
    found = number(row, field)
    return unknown if found is None else f"{found:.0f}"


def _tokens(row: Json) -> str:
    return f"{_whole(row, 'prompt_tokens', '?')}+{_whole(row, 'output_tokens', '?')}"


_UNBROKEN = FOLDED | {"no_wrap": True}
_LOG = (
    TableColumn("ended", moment("ended_wall_s"), _UNBROKEN),
    TableColumn("caller", "caller"),
    TableColumn("model", _model("-")),
    TableColumn("task", "task_type"),
    TableColumn("outcome", _outcome),
    TableColumn("queue", _phase("queue_s"), NUMBER),
    TableColumn("swap", _phase("swap_s"), NUMBER),
    TableColumn("waited for", waited_for, FOLDED),
    TableColumn("first byte", _phase("first_byte_s"), NUMBER),
    TableColumn("backend", _phase("backend_s"), NUMBER),
    TableColumn("total", _phase("total_s"), NUMBER),
    TableColumn("tokens", _tokens, NUMBER),
)


def _state_of_job(job: Json) -> Text:
    state = text(job, "state") or "-"
    reason = text(job, "reason")
    style = {"completed": "green", "running": "yellow", "failed": "red"}.get(state, "")
    return Text(state, style).append(f" ({reason})" if reason else "", "default")


_JOBS = (
    TableColumn("job", "id", _UNBROKEN),
    TableColumn("state", _state_of_job),
    TableColumn("caller", "caller", empty=""),
    TableColumn("model", "model"),
    TableColumn("task", "task_type"),
    TableColumn("accepted", moment("accepted_wall_s"), _UNBROKEN),
    TableColumn("position", "position", NUMBER),
    TableColumn("starts in", lambda job: duration(number(job, "estimated_start_s")), NUMBER),
)
_JOB = (
    *_JOBS,
    TableColumn("ended", moment("ended_wall_s")),
    TableColumn("not before", moment("not_before_wall_s")),
    TableColumn("attempts", "attempts"),
    TableColumn(
        "server",
        lambda job: "the emulator: the answer is made up" if flag(job, "emulator") else "",
    ),
    TableColumn("priority", lambda job: f"{text(job, 'priority')}, lane {text(job, 'lane')}"),
    TableColumn("webhook", "webhook"),
    TableColumn("error", "error"),
)


def _job_view(job: Json) -> RenderableType:
    """One job, a line for each of its fields that has a value."""
    table = Table("", "", show_header=False)
    for each in _JOB:
        value = each.of(job)
        if str(value) not in ("", "-", "none"):
            table.add_row(Text(each.heading, "bold"), value)
    return Fitting(table, expendable=(), in_lines=True)


_RIGHTS = {
    "admin": "admin",
    "may_lease": "GPU leases",
    "may_set_mode": "modes",
    "allow_cloud": "Claude",
    "local_only": "local only",
}


def _rights(key: Json) -> str:
    return ", ".join(word for right, word in _RIGHTS.items() if key.get(right) is True) or "-"


_KEYS = (
    TableColumn("key of", "name"),
    TableColumn("lane", "lane"),
    TableColumn("rights", _rights),
    TableColumn("models", lambda key: ", ".join(texts(key, "models")) or "all"),
    TableColumn("sha256", lambda key: f"{text(key, 'sha256')[:8]}..."),
)


_LISTS = {
    "models": (
        _MODELS,
        ("size", "waiting", "on the GPU"),
        Text(
            "no models are known: none is installed, or the model server is down (see hearth"
            " status)",
            "dim",
        ),
    ),
    "items": (
        _LOG,
        ("first byte", "backend", "waited for", "swap", "task", "tokens", "queue"),
        Text("no finished request matches", "dim"),
    ),
    "jobs": (
        _JOBS,
        ("starts in", "position", "task", "accepted", "caller"),
        Text("no jobs match", "dim"),
    ),
    "keys": (_KEYS, (), Text("no keys: callers on this machine only")),
}
"""Of the list under that name: its columns, those that a narrow terminal can do without, and what
is shown where it is empty.
"""


def view(kind: ViewName, answer: Json) -> RenderableType:
    """What a terminal shows of an answer: rows in the order of the answer, of models those in
    memory first.
    """
    if kind == "status":
        return _status_view(answer)
    if kind == "job":
        return _job_view(answer)
    name = "items" if kind == "log" else kind
    fields, expendable, nothing = _LISTS[name]
    rows = parts(answer, name)
    if kind == "models":
        rows.sort(key=lambda model: (not flag(model, "resident"), str(model.get("name"))))
    if len({engine for row in rows if (engine := text(row, "engine"))}) > 1:
        place = 1 + [column.heading for column in fields].index("model")
        fields = (*fields[:place], TableColumn("engine", "engine"), *fields[place:])
    if not rows:
        return nothing
    return Fitting(table_of(fields, rows), expendable=expendable, in_lines=True)


_CALLERS_SHOWN = 8
_OTHER_LINES = 20
"""What stands on the screen besides requests, generously counted."""
_FEWEST_ROWS = 3


def _work(item: Json) -> str:
    """What is done for one that runs; of an answer that comes as a whole, nothing is known before
    its end.
    """
    if text(item, "kind") == "embed":
        return "embeds"
    if flag(item, "first_byte"):
        return "answers"
    return "works" if item.get("streaming") is False else "reads"


def _state_of_item(item: Json) -> Text:
    if number(item, "running_s") is not None:
        return Text(_work(item), "green")
    if interrupted := count(item, "interrupt_count"):
        return Text(f"interrupted x{interrupted}", "yellow")
    band = text(item, "band") or text(item, "type") or "waits"
    return Text(band.replace("_", " "), "cyan" if item.get("type") == "internal" else "")


def _runs_or_starts(item: Json) -> str:
    running_s = number(item, "running_s")
    if running_s is not None:
        return duration(running_s)
    return _starts(item)


_TOP = (
    TableColumn("", _state_of_item, WORDS),
    *_RUNNING[1:5],
    TableColumn("prompt", lambda item: _whole(item, "prompt_tokens", "-"), NUMBER),
    TableColumn("waited", lambda item: duration(number(item, "waited_s")), NUMBER),
    TableColumn("runs / starts in", _runs_or_starts, NUMBER),
)


def watch(looks: Iterable[Json | str], console: Console) -> None:
    """Draw each status that comes; where a reason comes instead of one, the last screen stays, with
    the reason above it.
    """
    answer: Json = {}
    with Live(console=console, screen=True, auto_refresh=False, transient=True) as live:
        for found in looks:
            problem = found if isinstance(found, str) else ""
            answer = answer if isinstance(found, str) else found
            rows = max(_FEWEST_ROWS, console.height - _OTHER_LINES)
            live.update(top_view(answer, rows=rows, problem=problem), refresh=True)


def top_view(answer: Json, *, rows: int, problem: str = "") -> RenderableType:
    """The screen for an answer of `/llm/queue/status`, with at most `rows` requests."""
    screen: list[RenderableType] = []
    if problem:
        screen.append(Text(f"{printable(problem)}; trying again", "bold red"))
    screen += [*_emulator_notice(answer), *active_alerts(answer)]
    table = facts(answer)
    screen += [_counts(answer), Text(), _requests(answer, rows), Text(), table]
    below = {
        "slots": _slots(answer),
        "callers": _callers(answer),
        "Claude": _money(answer),
    }
    for name, words in below.items():
        if words:
            table.add_row(Text(name, "bold"), Phrases(Text(words)))
    return Group(*screen)


def _counts(answer: Json) -> RenderableType:
    day = part(answer, "stats_24h")
    internal, external = (count(part(answer, f"{lane}_queue"), "pending") for lane in _LANES)
    failed = sum(count(day, f"{lane}_{how}") for lane in _LANES for how in ("failed", "expired"))
    words = (
        f"{len(parts(answer, 'running'))} running   {internal} internal and {external} external"
        " waiting"
    )
    line = Text(f"{words}   24 h: {failed} failed, {count(day, 'rejected')} refused", "bold")
    draining = flag(answer, "draining") or flag(part(answer, "orders"), "draining")
    return Phrases(line.append("   DRAINING", "bold yellow") if draining else line)


def _requests(answer: Json, rows: int) -> RenderableType:
    running = parts(answer, "running")
    waiting = [
        item for lane in _LANES for item in parts(part(answer, f"{lane}_queue"), "next_items")
    ]
    if not running and not waiting:
        return Text("nothing runs or waits", "dim")
    shown: list[Json] = [*running, *waiting][:rows]
    unseen = (
        len(running)
        + sum(count(part(answer, f"{lane}_queue"), "pending") for lane in _LANES)
        - len(shown)
    )
    if unseen > 0:
        shown.append({"note": Text(f"... and {unseen} more", "dim")})
    return Fitting(table_of(_TOP, shown), expendable=("prompt", "task"), in_lines=True)


def _slots(answer: Json) -> str:
    return "; ".join(map(_slots_of_resident, parts(part(answer, "gpu"), "residents")))


def _slots_of_resident(resident: Json) -> str:
    """What it does, and what is in its prompt cache."""
    busy = f"{count(resident, 'running')} of {count(resident, 'parallel')} busy"
    said = f"{text(resident, 'model')} {busy}, {count(resident, 'waiting')} wait"
    warm = count(resident, "warm_conversations")
    tokens = count(resident, "warm_tokens")
    return f"{said}, {plural(warm, 'warm conversation')} of {tokens:,} tokens" if warm else said


def _callers(answer: Json) -> str:
    limits = part(answer, "rate_limits").items()
    shown = [
        f"{printable(name)} {text(used, 'minute')} a minute, {text(used, 'hour')} an hour"
        for name, used in limits
        if isinstance(used, dict)
    ]
    return "; ".join(shown[:_CALLERS_SHOWN])


def _money(answer: Json) -> str:
    cloud = part(answer, "cloud")
    spent = number(cloud, "spent_today_usd") or 0.0
    limit = number(cloud, "limit_today_usd") or 0.0
    if not cloud or (cloud.get("state") == "off" and not spent):
        return ""
    return (
        f"{text(cloud, 'state')}, {len(parts(cloud, 'running'))} running, {spent:.2f} of"
        f" {limit:.2f} USD today"
    )
