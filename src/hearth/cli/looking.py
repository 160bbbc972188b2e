"""Commands that look: `hearth status`, `models`, `log` and `top`."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlencode

import click

from hearth.cli.gateway_client import GatewayClient, gateway_options, number, part, parts, text, texts
from hearth.cli.lazy import CommandFailed, GatewayUnreachable
from hearth.types import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRow:
    """One request; `seconds` it has waited or run, None where the gateway does not say."""

    sequence: int | None
    caller: str
    model: str
    task: str
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One queue: how many wait, the first of them, and how many were completed in 24 hours."""

    name: str
    pending: int
    items: tuple[ItemRow, ...]
    completed_24h: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardState:
    """What the card says of itself; None where it does not. `readings`: ok, lost or unknown."""

    readings: str
    device: str
    used_mib: float | None
    total_mib: float | None
    foreign_mib: float | None
    busy_pct: float | None
    temperature_c: float | None
    power_w: float | None
    held_down_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """Residency and swapping; `resident` has the loaded model first, `offloaded` those that run on the CPU in part or in whole."""

    resident: tuple[str, ...]
    home_model: str
    is_home: bool
    swaps_this_hour: int
    last_swap_s: float | None
    overhead_pct: float
    swapping_to: str | None
    offloaded: tuple[str, ...]
    card: CardState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendState:
    """The model server behind the gateway."""

    url: str
    version: str
    up: bool
    emulator: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLatency:
    """What the requests of a lane took in the last hour: median and 95th percentile in seconds, None where nothing was measured."""

    lane: str
    requests: int
    wait_s: tuple[float | None, float | None]
    first_byte_s: tuple[float | None, float | None]
    total_s: tuple[float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusPage:
    """The whole answer; `config_problems` are those of an edit that was refused, so that the configuration before it is in force.

    `orders`: the owner's that are in force, a sentence each.
    """

    mode: str
    orders: tuple[str, ...]
    running: tuple[ItemRow, ...]
    lanes: tuple[Lane, Lane]
    interrupted_24h: int
    gpu: GpuState
    backend: BackendState | None
    config_problems: tuple[str, ...]
    restart_pending: tuple[str, ...]
    latency: tuple[LaneLatency, ...]


def read_status(answer: Mapping[str, object]) -> StatusPage:
    """The page in an answer of `/llm/queue/status`. Never raises."""
    stats = part(answer, "stats_24h")
    return StatusPage(
        mode=text(answer, "mode"),
        orders=orders_in_words(part(answer, "orders")),
        running=_items(answer, "running"),
        lanes=(_lane("internal", answer, stats), _lane("external", answer, stats)),
        interrupted_24h=int(number(stats, "external_interrupted") or 0),
        gpu=_gpu(part(answer, "gpu")),
        backend=_backend(part(answer, "backend")),
        config_problems=texts(part(answer, "config"), "problems"),
        restart_pending=texts(part(answer, "config"), "restart_pending"),
        latency=_latency(part(answer, "latency")),
    )


def orders_in_words(orders: Mapping[str, object]) -> tuple[str, ...]:
    """The orders in force, a sentence each; not yet fit to print."""
    pinned = text(orders, "pinned")
    said = [
        "draining: new requests are refused" if orders.get("draining") is True else "",
        "paused: requests of other programs wait" if orders.get("paused") else "",
        f"pinned: {pinned}" if pinned else "",
        *(f"to load: {model}" for model in texts(orders, "loads")),
        *(f"to unload: {model}" for model in texts(orders, "unloads")),
    ]
    return tuple(line for line in said if line)


def _lane(name: str, answer: Mapping[str, object], stats: Mapping[str, object]) -> Lane:
    queue = part(answer, f"{name}_queue")
    return Lane(
        name=name,
        pending=int(number(queue, "pending") or 0),
        items=_items(queue, "next_items"),
        completed_24h=int(number(stats, f"{name}_completed") or 0),
    )


def _row(item: Mapping[str, object]) -> ItemRow:
    sequence, running_s = number(item, "sequence"), number(item, "running_s")
    return ItemRow(
        sequence=None if sequence is None else int(sequence),
        caller=text(item, "caller"),
        model=text(item, "model"),
        task=text(item, "task_type") or text(item, "priority"),
        seconds=number(item, "waited_s") if running_s is None else running_s,
    )


def _gpu(gpu: Mapping[str, object]) -> GpuState:
    last_ms = number(gpu, "last_swap_ms")
    loaded = text(gpu, "loaded_model")
    return GpuState(
        resident=tuple(dict.fromkeys((*([loaded] if loaded else []), *texts(gpu, "resident_models")))),
        home_model=text(gpu, "home_model"),
        is_home=gpu.get("is_home") is True,
        swaps_this_hour=int(number(gpu, "swaps_this_hour") or 0),
        last_swap_s=None if last_ms is None else last_ms / 1000.0,
        overhead_pct=number(gpu, "swap_overhead_pct_1h") or 0.0,
        swapping_to=loading_model(gpu),
        offloaded=texts(gpu, "offloaded_models"),
        card=_card(gpu),
    )


def _card(gpu: Mapping[str, object]) -> CardState | None:
    """None where nobody reads it: switched off, an emulator, or an older gateway."""
    readings = text(gpu, "readings")
    if readings not in {"ok", "lost", "unknown"}:
        return None
    return CardState(
        readings=readings,
        device=text(gpu, "device"),
        used_mib=number(gpu, "memory_used_mib"),
        total_mib=number(gpu, "memory_total_mib"),
        foreign_mib=number(gpu, "foreign_mib"),
        busy_pct=number(gpu, "utilisation_pct"),
        temperature_c=number(gpu, "temperature_c"),
        power_w=number(gpu, "power_w"),
        held_down_by=texts(gpu, "throttle_reasons"),
    )


def loading_model(gpu: Mapping[str, object]) -> str | None:
    """The model of a swap, or of a load into free memory, that is under way."""
    loading = (text(one, "model") for one in parts(gpu, "residents") if one.get("phase") == "loading")
    return text(part(gpu, "current_swap"), "to_model") or next(loading, None)


def _backend(backend: Mapping[str, object]) -> BackendState | None:
    if not backend:
        return None
    return BackendState(
        url=text(backend, "url"),
        version=text(backend, "version"),
        up=backend.get("up") is True,
        emulator=backend.get("emulator") is True,
    )


def _latency(latency: Mapping[str, object]) -> tuple[LaneLatency, ...]:
    """The lanes as a whole; an older gateway says nothing of them."""
    return tuple(
        LaneLatency(
            lane=text(row, "lane"),
            requests=int(number(row, "requests") or 0),
            wait_s=_typical(row, "queue_wait_s"),
            first_byte_s=_typical(row, "first_byte_s"),
            total_s=_typical(row, "total_s"),
        )
        for row in parts(latency, "last_hour")
        if row.get("model") is None
    )


def _typical(row: Mapping[str, object], phase: str) -> tuple[float | None, float | None]:
    figures = part(row, phase)
    return number(figures, "p50"), number(figures, "p95")


def _items(of: Mapping[str, object], name: str) -> tuple[ItemRow, ...]:
    return tuple(_row(item) for item in parts(of, name))


_STREAM = "/llm/queue/stream"
_SILENCE_S = 45.0
"""Three missed heartbeats of `/llm/queue/stream`."""


@click.command
@gateway_options
@click.option("--json", "as_json", is_flag=True, help="Print what the gateway answers.")
@click.option("--watch", is_flag=True, help="Redraw on every change until Ctrl-C.")
def status(address: SplitResult, key: str | None, *, as_json: bool, watch: bool) -> None:
    """Show what runs, who waits, and the GPU."""
    client = GatewayClient(address=address, key=key)
    show = _print_json if as_json else _draw
    with suppress(KeyboardInterrupt) if watch else nullcontext():
        show(client, watch=watch)


def _print_json(client: GatewayClient, *, watch: bool) -> None:
    if not watch:
        click.echo(json.dumps(client.status(), indent=2))
        return
    for answer in client.stream(_STREAM, silence_s=_SILENCE_S):
        click.echo(json.dumps(answer))


def _draw(client: GatewayClient, *, watch: bool) -> None:
    from hearth.cli.views import console_for, status_view  # noqa: PLC0415 (rich is not paid for by --json)

    console = console_for(sys.stdout, environ=os.environ)
    if not watch:
        console.print(status_view(client.status()))
        return
    if not console.is_terminal:
        raise CommandFailed("--watch draws on a terminal; use --json --watch for one line per change")
    for answer in client.stream(_STREAM, silence_s=_SILENCE_S):
        console.clear()
        console.print(status_view(answer))


_PAGE = "/llm/models"


@click.command
@gateway_options
@click.option("--json", "as_json", is_flag=True, help="Print what the gateway answers.")
def models(address: SplitResult, key: str | None, *, as_json: bool) -> None:
    """List the models: in memory, waited for, on the disk."""
    answer = GatewayClient(address=address, key=key).fetch(_PAGE)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    from hearth.cli.views import console_for, models_view  # noqa: PLC0415 (rich is not paid for by --json)

    console_for(sys.stdout, environ=os.environ).print(models_view(answer))


_PAGE_OF_LOG = "/llm/log"


@click.command
@gateway_options
@click.option("--caller", help="Only requests of this caller.")
@click.option("--model", help="Only requests that asked for this model.")
@click.option("--outcome", type=click.Choice([outcome.value for outcome in Outcome]), help="Only requests that ended so.")
@click.option("--since", metavar="WHEN", help="Only what ended since then: 90s, 15m, 1h or 2d ago, or ISO 8601 with an offset.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many, the latest.")
@click.option("--json", "as_json", is_flag=True, help="Print what the gateway answers.")
def log(address: SplitResult, key: str | None, *, as_json: bool, **wanted: str | int | None) -> None:
    """List finished requests, the latest first."""
    asked = urlencode({name: value for name, value in wanted.items() if value is not None})
    answer = GatewayClient(address=address, key=key).fetch(f"{_PAGE_OF_LOG}?{asked}")
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    from hearth.cli.views import console_for, log_view  # noqa: PLC0415 (rich is not paid for by --json)

    console_for(sys.stdout, environ=os.environ).print(log_view(answer))


@click.command
@gateway_options
@click.option("--every", "every_s", type=click.FloatRange(min=0.2), default=1.0, show_default=True, help="Seconds between two looks.")
def top(address: SplitResult, key: str | None, every_s: float) -> None:
    """Watch the queue, the GPU and the callers, live.

    Ctrl-C ends it.
    """
    if not sys.stdout.isatty():
        raise CommandFailed("top draws on a terminal; use `hearth status`, or `hearth status --json --watch` for one line per change")
    from hearth.cli.views import console_for, watch  # noqa: PLC0415 (rich is not paid for by --json)

    console = console_for(sys.stdout, environ=os.environ)
    with suppress(KeyboardInterrupt):
        watch(looking(GatewayClient(address=address, key=key)), console, go_on=lambda: not threading.Event().wait(every_s))


def looking(client: GatewayClient) -> Callable[[], dict[str, object] | str]:
    """What looks once: the status, or why there is none. The first look raises instead, as every command does."""
    seen = False

    def look() -> dict[str, object] | str:
        nonlocal seen
        try:
            answer = client.status()
        except GatewayUnreachable as error:
            if not seen:
                raise
            return error.message.splitlines()[0]
        seen = True
        return answer

    return look
