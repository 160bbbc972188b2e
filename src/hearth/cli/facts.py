"""The facts below the tables of the status: who has the GPU, the model servers, commands in force,
the day, the configuration.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from hearth.cli.admin import commands_in_force
from hearth.cli.client import (
    Json,
    count,
    duration,
    flag,
    number,
    part,
    parts,
    text,
    texts,
)
from hearth.cli.mode import mode_line
from hearth.cli.tables import Phrases, moment
from hearth.config.engines import ENGINE_TITLES
from hearth.types import plural

_SHARES = 6  # so many callers, those with the most
_MIB_PER_GIB = 1024.0


def facts(answer: Json) -> Table:
    """The GPU, the backend, the owner's orders, the day and the configuration, a line each."""
    table = Table.grid(padding=(0, 2))
    for name, value in _named_facts(answer):
        words = value if isinstance(value, Text) else Text(value)
        table.add_row(name if isinstance(name, Text) else Text(name, "bold"), Phrases(words))
    return table


def _named_facts(answer: Json) -> Iterator[tuple[Text | str, Text | str]]:
    gpu = part(answer, "gpu")
    yield "GPU", _residents(gpu)
    yield "", _swaps(gpu)
    yield from _leases(part(answer, "leases"))
    if slow := ", ".join(texts(gpu, "offloaded_models")):
        yield "", Text(f"slow: {slow} does not fit and runs partly on the CPU", "yellow")
    if card := _card(gpu):
        yield "device", card
    if backend := part(answer, "backend"):
        yield from _engines(backend)
    yield "mode", text(answer, "mode") or "unknown"
    modes = part(answer, "modes")
    if texts(modes, "names"):
        yield "modes", mode_line(modes)
    yield from _aliases(part(answer, "aliases"))
    for line in _sharing(answer):
        yield "sharing", line
    for line in commands_in_force(part(answer, "orders")):
        yield "command", Text(line, "yellow")
    yield from _day(part(answer, "stats_24h"))
    for row in parts(part(answer, "latency"), "last_hour"):
        if row.get("model") is None:
            yield "last hour", _latency(row)
    yield from _failing_targets(part(answer, "alerts"))
    for warning in texts(answer, "warnings"):
        yield "warning", Text(warning, "yellow")
    yield from _configuration(part(answer, "config"))


def _configuration(config: Json) -> Iterator[tuple[Text | str, Text]]:
    """What is not in force of it, and why."""
    for problem in texts(config, "problems"):
        refused = f"refused, the old one is in force: {problem}"
        yield Text("config", "bold red"), Text(refused, "red")
    if pending := ", ".join(texts(config, "restart_pending")):
        yield "config", Text(f"waits for a restart: {pending}", "yellow")


_TONES = {"critical": "bold red", "information": "dim"}
_LESS_BAD_SHOWN = 5


def active_alerts(answer: Json) -> Iterator[Text]:
    """What goes on, a line each, the critical alerts first and all of them."""
    active = parts(part(answer, "alerts"), "active")
    critical = sum(text(each, "severity") == "critical" for each in active)
    for each in active[: critical + _LESS_BAD_SHOWN]:
        severity = text(each, "severity")
        what = f"{text(each, 'type')} {text(each, 'subject')}".rstrip()
        yield Text(f"{severity or 'alert'}: {what}", _TONES.get(severity, "yellow"))
    if (unseen := len(active) - critical - _LESS_BAD_SHOWN) > 0:
        yield Text(f"... and {unseen} more alerts", "dim")


def _failing_targets(alerts: Json) -> Iterator[tuple[Text, Text]]:
    """Where alerts do not arrive, and why."""
    for target in parts(alerts, "targets"):
        if problem := text(target, "problem"):
            what = f"to {text(target, 'name')}: {text(target, 'state')}: {problem}"
            yield Text("alerts", "bold red"), Text(what, "red")


def _day(day: Json) -> Iterator[tuple[str, Text | str]]:
    """What ended in 24 hours, and what of it went wrong, if anything did."""
    completed = (
        f"{count(day, 'internal_completed')} internal and {count(day, 'external_completed')}"
        " external completed"
    )
    yield "24 hours", f"{completed}, {count(day, 'external_interrupted')} interrupted"
    counts = {
        "internal failed": count(day, "internal_failed"),
        "external failed": count(day, "external_failed"),
        "expired": count(day, "internal_expired") + count(day, "external_expired"),
        "refused": count(day, "rejected"),
    }
    listed = ", ".join(f"{found} {words}" for words, found in counts.items() if found)
    if listed:
        yield "", Text(listed, "red")


def _leases(leases: Json) -> Iterator[tuple[str, Text]]:
    """Who else has the GPU, a line each, and what waits because of that."""
    for lease in parts(leases, "held"):
        mib = number(lease, "mib")
        what = "all memory" if mib is None else f"{mib / _MIB_PER_GIB:.1f} GiB"
        who = text(lease, "reason") or text(lease, "caller") or text(leases, "to")
        ends = "it ends" if number(lease, "until") is None else moment("until")(lease)
        state = "yielded to" if flag(lease, "granted") else "being freed for"
        since = moment("since")(lease)
        yield "yielded", Text(f"{what} {state} {who} since {since} until {ends}", "yellow")
    if models := ", ".join(texts(leases, "in_the_way")):
        yield "", Text(f"still in the way: {models}", "yellow")
    if waiting := count(leases, "waiting"):
        yield "", Text(f"{plural(waiting, 'request')} waiting for that memory", "yellow")


def _aliases(aliases: Json) -> Iterator[tuple[str, str]]:
    for name in aliases:
        yield "alias", f"{name}: {', '.join(texts(part(aliases, name), 'models'))}"


def _sharing(answer: Json) -> Iterator[str]:
    """For whom a model is held, whose turn it is, and what callers get of the GPU."""
    if hold := part(answer, "hold"):
        yield (
            f"{text(hold, 'model')} is held for {text(hold, 'caller')}, for up to"
            f" {duration(number(hold, 'ends_in_s'))}"
        )
    if turn := part(answer, "turn"):
        ends_in_s = number(turn, "ends_in_s")
        ends = "once it is loaded" if ends_in_s is None else f"for up to {duration(ends_in_s)}"
        yield f"turn of external requests on {text(turn, 'model')}, {ends}"
    if shares := parts(answer, "shares")[:_SHARES]:
        yield "GPU seconds: " + ", ".join(map(_share, shares))


def _share(share: Json) -> str:
    user = text(share, "user")
    name = f"{text(share, 'caller')}/{user}" if user else text(share, "caller")
    return f"{name} {number(share, 'share_pct') or 0:.0f} %"


def loading_model(gpu: Json) -> str:
    """The model of a swap, or of a load into free memory, that is under way; empty for none."""
    loading = (
        text(one, "model") for one in parts(gpu, "residents") if one.get("phase") == "loading"
    )
    return text(part(gpu, "current_swap"), "to_model") or next(loading, "")


def _residents(gpu: Json) -> Text:
    if loading := loading_model(gpu):
        return Text(f"loading {loading}", "yellow")
    names = dict.fromkeys((text(gpu, "loaded_model"), *texts(gpu, "resident_models")))
    names.pop("", None)
    if not names:
        return Text("no model loaded", "dim")
    home = text(gpu, "home_model")
    where = " (home)" if flag(gpu, "is_home") else f"; home is {home}" if home else ""
    return Text(f"{', '.join(names)} loaded{where}")


def _swaps(gpu: Json) -> str:
    swaps = plural(count(gpu, "swaps_this_hour"), "swap")
    last_ms = number(gpu, "last_swap_ms")
    last = "" if last_ms is None else f", the last took {duration(last_ms / 1000)}"
    share = number(gpu, "swap_overhead_pct_1h") or 0.0
    return f"{swaps} this hour{last}; {share:.0f} % of the busy time spent on swaps"


def _card(gpu: Json) -> Text | None:
    """What the GPU reports of itself; None where nobody reads it: switched off, an emulator, or an
    older gateway.
    """
    readings = text(gpu, "readings")
    device = text(gpu, "device")
    if readings == "lost":
        return Text(f"{device} no longer answers", "bold red")
    if readings == "unknown":
        return Text("unknown", "dim")
    if readings != "ok":
        return None
    words = [device, _memory(gpu)]
    for name, unit in (("temperature_c", "°C"), ("power_w", "W"), ("utilisation_pct", "% busy")):
        value = number(gpu, name)
        if value is not None:
            words.append(f"{value:.0f} {unit}")
    line = Text(", ".join(words))
    if slowed := ", ".join(texts(gpu, "throttle_reasons")).replace("_", " "):
        line.append(f", throttled: {slowed}", "yellow")
    return line


def _memory(gpu: Json) -> str:
    used = number(gpu, "memory_used_mib")
    whole = number(gpu, "memory_total_mib")
    if used is None or whole is None:
        return "memory unknown"
    foreign = number(gpu, "foreign_mib")
    others = f" ({foreign / _MIB_PER_GIB:.1f} by other programs)" if foreign else ""
    kind = " of unified memory" if flag(gpu, "unified_memory") else ""
    return f"{used / _MIB_PER_GIB:.1f} of {whole / _MIB_PER_GIB:.1f} GiB{kind} used{others}"


def _engines(backend: Json) -> Iterator[tuple[str, Text]]:
    """What answers: a line for each engine."""
    engines = parts(backend, "engines")
    if len(engines) < 2:
        yield "backend", _backend({**backend, **next(iter(engines), {})})
        return
    for engine in engines:
        yield text(engine, "name"), _backend(engine)


def _backend(backend: Json) -> Text:
    kind = text(backend, "kind")
    title = "a small model on the CPU," if kind == "small_model" else ENGINE_TITLES.get(kind)
    what = "emulator" if flag(backend, "emulator") else title or "Ollama"
    url = text(backend, "url")
    said = " ".join(filter(None, (what, text(backend, "version"), url and f"at {url}")))
    line = Text(f"{said} ")
    if flag(backend, "elastic"):
        line.append("elastic ")
    if flag(backend, "up"):
        return line.append("up", "green")
    line.append("DOWN", "bold red")
    problem = text(backend, "problem")
    return line.append(f": {problem}" if problem else "")


def _latency(row: Json) -> str:
    """`external: 12 requests; waits 0.8 s (95 %: 42 s), ...`: the median, and what 95 of 100 do not
    exceed.
    """
    phases = {"waits {}": "queue_wait_s", "first byte {}": "first_byte_s", "{} in total": "total_s"}
    figures: list[str] = []
    for words, field in phases.items():
        seconds = part(row, field)
        median = number(seconds, "p50")
        if median is not None:
            most = duration(number(seconds, "p95"))
            figures.append(f"{words.format(duration(median))} (95 %: {most})")
    requests = plural(count(row, "requests"), "request")
    return f"{text(row, 'lane')}: {requests}; {', '.join(figures)}"
