"""`hearth demo`: a busy home in one process, so that a newcomer sees swaps, an interruption, and
what arrival order would have cost.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict

import aiohttp
import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hearth.bootstrap import running_gateway
from hearth.cli.client import plural, printable, program
from hearth.cli.emulate import until_stopped
from hearth.cli.options import PORT, POSITIVE
from hearth.cli.views import console_for, duration
from hearth.clock import SystemClock
from hearth.config.settings import (
    AuthSettings,
    CallerLimits,
    GatewayConfig,
    KeySettings,
    PolicyName,
    RateLimitSettings,
    Settings,
    Window,
)
from hearth.emulator.models import default_profiles
from hearth.emulator.server import Emulator
from hearth.events import (
    Event,
    ItemBrokenOff,
    ItemDispatched,
    ItemEnded,
    ItemEvent,
    ItemInterrupted,
    ItemProtected,
    ItemQueued,
    ItemResumed,
    SwapCompleted,
    SwapFailed,
    SwapStarted,
)
from hearth.simulation.engine import simulate
from hearth.simulation.logged import workload_from_log
from hearth.simulation.measures import summary
from hearth.types import JsonDict, JsonMapping, Lane, Outcome, Priority

HOME_MODEL = "qwen2.5:32b-instruct-q6_K"
_CODER = "qwen2.5-coder:14b"
_LLAMA = "llama3.1:8b"
VISITOR = "you"
_HOST = "127.0.0.1"
_USUAL_PORT = 8411
_USUAL_SPEED = 10.0
# of the emulated GPU, and what the home model takes of it: none of it is on the CPU
_VRAM_GIB = 32.0
_HOME_GIB = 28.0
_REQUESTS_PER_MINUTE = 120
_REQUESTS_PER_HOUR = 2000
_WORTH_SHOWING_S = 0.05
_LULL_S = 8.0
"""Quiet time after a round in which the home model comes back."""
_INTRO = """\
Dashboard: {url}/#key={key}
A home with one GPU that holds one model at a time. The models are emulated, {speed:g} times as
fast as real.
  assistant  internal: its requests go before all others
  writer, chat, editor, notes  external: their requests wait in a queue
Chat with a model yourself, or watch the queue in a terminal:
  {program} chat llama3.1:8b --url {url} --key {key}
  {program} top --url {url} --key {key}
"""
_REVIEW = "def heat(room, target):\n    return target - room.temperature\n" * 1400
"""About 25,000 tokens: at the coder's 2,000 tokens/s it keeps the GPU long enough to be
interrupted.
"""


def _generate(prompt: str, max_tokens: int) -> JsonDict:
    return {"model": HOME_MODEL, "prompt": prompt, "options": {"num_predict": max_tokens}}


def _chat(model: str, content: str) -> JsonMapping:
    return {"model": model, "messages": [{"role": "user", "content": content}]}


_COOK = ("chat", "/api/chat", _chat(_LLAMA, "What can I cook with leeks?"))
_NAME = ("editor", "/v1/chat/completions", _chat(_CODER, "Name this function."))
_NOTE = (
    "notes",
    "/api/embed",
    {"model": "nomic-embed-text", "input": "The boiler was serviced in May."},
)
_TASK = (
    "assistant",
    "/api/generate",
    _generate("Turn this into a task: call the chimney sweep on Monday.", 30) | {"stream": False},
)
ROUND: tuple[tuple[float, str, str, JsonMapping], ...] = (
    (0.5, "writer", "/api/generate", _generate("Write a story about the hearth of a house.", 200)),
    (0.4, *_COOK),
    (0.3, *_NAME),
    (0.8, *_TASK),
    *(
        (0.2, *request)
        for request in (_COOK, _NAME, _NOTE, _COOK, _NAME, _NOTE, _COOK, _NAME, _COOK, _NAME)
    ),
    (4.0, "editor", "/v1/chat/completions", _chat(_CODER, f"Review this file:\n{_REVIEW}")),
    (
        1.2,
        "assistant",
        "/api/generate",
        _generate("Which of today's tasks is urgent?", 30) | {"stream": False},
    ),
)
"""Requests on a fixed rhythm: the pause before each in seconds, its caller, its path, its body."""
CALLERS = tuple(dict.fromkeys(caller for _, caller, _, _ in ROUND))


@click.command
@click.option(
    "--seconds",
    type=POSITIVE,
    help="End after this many seconds; without it, at Ctrl-C.",
)
@click.option(
    "--speed",
    type=POSITIVE,
    default=_USUAL_SPEED,
    help="Times faster than real.",
)
@click.option(
    "--port",
    type=PORT,
    help="Port of the gateway. [default: 8411, or a free one]",
)
def demo(seconds: float | None, speed: float, port: int | None) -> None:
    """Show a busy home in a minute, without a GPU or a model server."""
    console = console_for(sys.stdout)
    asyncio.run(
        run_demo(
            console,
            speed=speed,
            port=_usual_or_free() if port is None else port,
            stopped=lambda: until_stopped(seconds),
        )
    )


def _usual_or_free() -> int:
    """The usual port, or 0 for any other where something listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, _USUAL_PORT))
        except OSError:
            return 0
    return _USUAL_PORT


async def run_demo(
    console: Console, *, speed: float, port: int, stopped: Callable[[], Awaitable[None]]
) -> Narrator:
    """Run gateway and callers until `stopped` returns, then print the table and return what was
    counted. Raises AddressUnavailable.
    """
    pace = _USUAL_SPEED / speed  # slower models get more time
    narrator = Narrator(console, speed=speed)
    profiles = [
        each.model_copy(update={"vram_gib": _HOME_GIB}) if each.name == HOME_MODEL else each
        for each in default_profiles()
    ]
    emulator = Emulator(profiles, clock=SystemClock(), speed=speed, seed=1, vram_gib=_VRAM_GIB)
    server_url = await emulator.start(_HOST, 0)
    hurry = asyncio.Event()
    hurry.set()
    config = demo_config(pace)
    try:
        async with running_gateway(
            config,
            host=_HOST,
            port=port,
            backend_url=server_url,
            sinks=(narrator,),
            hurry=hurry,
        ) as (_, url):
            console.print(
                Text(_INTRO.format(speed=speed, url=url, program=program(), key=key_of(VISITOR)))
            )
            async with asyncio.TaskGroup() as lives:
                callers = lives.create_task(
                    ask_for_ever(url, pace=pace, complain=narrator.complain)
                )
                await stopped()
                narrator.ended = True  # what ends because the demo ends is no part of the show
                narrator.sum_up(config)
                callers.cancel()
    finally:
        await emulator.stop()
    return narrator


def demo_config(pace: float) -> GatewayConfig:
    """Active hours all day, and a home model that comes back soon; `pace` stretches every delay,
    and the limits with it.

    The warnings about swaps are far off: this home swaps on purpose, and ten times as often as a
    real one.
    """
    usual = Settings()
    limits = CallerLimits(
        requests_per_minute=max(_REQUESTS_PER_MINUTE, round(_REQUESTS_PER_MINUTE / pace)),
        requests_per_hour=max(_REQUESTS_PER_HOUR, round(_REQUESTS_PER_HOUR / pace)),
    )
    keys = tuple(
        KeySettings(
            name=name,
            sha256=hashlib.sha256(key_of(name).encode()).hexdigest(),
            lane=Lane.INTERNAL if name == "assistant" else Lane.EXTERNAL,
            admin=name == VISITOR,
        )
        for name in (*CALLERS, VISITOR)
    )
    settings = usual.replace(
        auth=AuthSettings(keys=keys),
        scheduling=usual.scheduling.replace(
            active_hours=(Window(start_minute=0, end_minute=0),),
            max_swap_wait_s=12.0 * pace,
            preempt_min_remaining_s=0.2 * pace,
            preempt_restart_bound_s=1.0 * pace,
        ),
        priority_map={"parse_task": Priority.CRITICAL},
        rate_limits=RateLimitSettings(default=limits),
        gpu=usual.gpu.replace(
            home_model=HOME_MODEL,
            restore_home_delay_s=3.0 * pace,
            swap_cost_prior_s=1.0 * pace,
            alerts=usual.gpu.alerts.replace(
                swaps_per_hour_warning=2000, swap_overhead_pct_warning=90.0
            ),
        ),
    )
    return GatewayConfig(settings=settings)


def key_of(caller: str) -> str:
    """Not secret: the demo's gateway listens on this machine only, and its answers are made up."""
    return f"hearth-demo-{caller}"


async def ask_for_ever(
    url: str, *, pace: float, complain: Callable[[str], None], rounds: int | None = None
) -> None:
    """Ask the gateway at `url` over HTTP, round after round; a round ends when all its answers are
    there.

    Args:
        pace: multiplies every pause; 1 suits an emulator that is ten times faster than real.
        complain: called in plain words when a request did not get its answer.
    """
    async with aiohttp.ClientSession(
        url, trust_env=False, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        for _ in itertools.count() if rounds is None else range(rounds):
            async with asyncio.TaskGroup() as asking:
                for pause_s, caller, path, body in ROUND:
                    await asyncio.sleep(pause_s * pace)
                    asking.create_task(_ask(session, caller, path, body, complain))
            await asyncio.sleep(_LULL_S * pace)


async def _ask(
    session: aiohttp.ClientSession,
    caller: str,
    path: str,
    body: JsonMapping,
    complain: Callable[[str], None],
) -> None:
    headers = {"Authorization": f"Bearer {key_of(caller)}"} | (
        {"X-Task-Type": "parse_task"} if caller == "assistant" else {}
    )
    try:
        async with session.post(path, json=body, headers=headers) as response:
            answer = await response.read()
    except aiohttp.ClientError as error:
        complain(f"{caller} lost its connection: {error}")
        return
    if response.status >= 400:
        complain(
            f"{caller} was answered {response.status}: {answer[:200].decode(errors='replace')}"
        )


class Narrator:
    """An event sink that prints a line for each event that a newcomer should notice, and keeps what
    it sums up until it has `ended`.

    Args:
        speed: how much faster than real the emulator is; measured swap times are also given at real
        speed.
    """

    def __init__(self, console: Console, *, speed: float) -> None:
        self._console = console
        self._speed = speed
        self._began_at: float | None = None
        self._urgent = "an internal request"
        self.requests: list[ItemEnded] = []
        self.interruptions: list[ItemInterrupted] = []
        self.swaps: list[SwapCompleted] = []
        self.ended = False

    def emit(self, event: Event) -> None:
        """Print it, and keep what the sums are made of."""
        if self.ended:
            return
        if self._began_at is None:
            self._began_at = event.at
        match event:
            case ItemEnded():
                self.requests.append(event)
            case ItemInterrupted():
                self.interruptions.append(event)
            case SwapCompleted():
                self.swaps.append(event)
            case ItemQueued(lane=Lane.INTERNAL):
                self._urgent = printable(event.caller)
        name = ""
        name_style = "bold"
        if isinstance(event, ItemEvent):
            name = f"{printable(event.caller):<10}"
            name_style = "bold cyan" if event.lane is Lane.INTERNAL else "bold"
            words, style = self._of_item(event)
        else:
            words, style = self._of_swap(event)
        if words:
            since = (f"{event.at - self._began_at:6.1f} s  ", "dim")
            self._console.print(Text.assemble(since, (name, name_style), (words, style)))

    def complain(self, text: str) -> None:
        """A caller's own words about a request that went wrong; no time, since it is no event."""
        self._console.print(Text(f"{'':10}{printable(text)}", style="red"))

    def _of_item(self, event: ItemEvent) -> tuple[str, str]:
        """Words and their style; no words for what is not worth a line."""
        words = ""
        style = ""
        match event:
            case ItemQueued():
                ahead = f", {event.position} ahead" if event.position else ""
                words = f"asks {printable(event.model or 'any model')}{ahead}"
                style = ""
            case ItemDispatched() if event.attempt > 1:
                words = f"runs again (try {event.attempt})"
                style = "green"
            case ItemDispatched() if event.waited_s >= _WORTH_SHOWING_S:
                words = f"runs, after it waited {duration(event.waited_s)}"
                style = ""
            case ItemInterrupted():
                words = f"is interrupted after {duration(event.ran_s)}: {self._urgent} goes first"
                style = "magenta"
            case ItemBrokenOff():
                words = f"broke off after {duration(event.ran_s)}, and will go on"
                style = "magenta"
            case ItemResumed():
                again = "read again" if event.how == "continued" else "repeated and compared"
                tokens = f"{event.again_tokens} tokens {again} in {duration(event.catch_up_s)}"
                words = f"continues where it stopped: {tokens}"
                style = "green"
            case ItemProtected():
                words = f"was interrupted {event.interrupt_count} times, and will not be again"
                style = "magenta"
            case ItemEnded() if event.outcome is not Outcome.COMPLETED:
                words = f"{event.outcome.value}: {printable(event.reason)}"
                style = "red"
            case ItemEnded():
                waited = f", of which it waited {duration(event.queue_s)}"
                waited = waited if event.queue_s >= _WORTH_SHOWING_S else ""
                words = f"has its answer after {duration(event.total_s)}{waited}"
                style = "green"
        return words, style

    def _of_swap(self, event: Event) -> tuple[str, str]:
        if not isinstance(event, SwapStarted | SwapCompleted | SwapFailed):
            return "", ""
        leaving = ", ".join(map(printable, event.from_models))
        model = printable(event.to_model or "")
        match event:
            case SwapStarted(why="home"):
                return f"nothing waits: loading the home model {model}", "blue"
            case SwapStarted() if leaving:
                return f"swap: {leaving} is replaced by {model}", "yellow"
            case SwapStarted():
                return f"load: {model}", "yellow"
            case SwapCompleted(swap_s=swap_s):
                real = ""
                if self._speed != 1:
                    real = f" ({duration(swap_s * self._speed)} on a real GPU)"
                return f"{model} is loaded after {duration(swap_s)}{real}", "yellow"
        what = f"{model} could not be loaded" if model else f"{leaving} could not be unloaded"
        return f"{what}: {printable(event.detail)}", "bold red"

    def sum_up(self, config: GatewayConfig) -> None:
        """Print a row for each caller, what the swaps took of the GPU's working time, and what
        arrival order would have cost.

        Work that is still running is in no column.
        """
        table = Table("caller", box=None, pad_edge=False)
        for name in ("requests", "failed", "mean wait", "interruptions"):
            table.add_column(name, justify="right")
        for caller in sorted({each.caller for each in (*self.requests, *self.interruptions)}):
            ended = [each for each in self.requests if each.caller == caller]
            failed = sum(each.outcome is not Outcome.COMPLETED for each in ended)
            mean_wait = duration(
                sum(each.queue_s for each in ended) / len(ended) if ended else None
            )
            interrupted = sum(each.caller == caller for each in self.interruptions)
            table.add_row(
                printable(caller), str(len(ended)), str(failed), mean_wait, str(interrupted)
            )
        swap_s = sum(each.swap_s for each in self.swaps)
        busy_s = (
            swap_s
            + sum(each.backend_s or 0.0 for each in self.requests)
            + sum(each.ran_s for each in self.interruptions)
        )
        share = 100.0 * swap_s / busy_s if busy_s else 0.0
        swaps = f"{plural(len(self.swaps), 'swap')} took {duration(swap_s)}"
        self._console.print(
            Text(),
            table,
            Text(),
            Text(f"{swaps}: {share:.0f} % of the GPU's working time"),
            sep="\n",
        )
        self._console.print(self._in_arrival_order(config, swap_s))

    def _in_arrival_order(self, config: GatewayConfig, swap_s: float) -> Text:
        """What the same requests would have taken in the simulator with the policy `fifo`,
        beside what they took.
        """
        items = [
            {**asdict(each), "epoch": 0, "accepted_wall_s": each.at - each.total_s}
            for each in self.requests
        ]
        workload, _ = workload_from_log(items, map(asdict, self.swaps), config)
        if not workload.jobs:
            return Text()
        fifo = summary(
            simulate(
                workload,
                workload.settings(config.scheduler_settings, PolicyName.FIFO),
                keep_decisions=False,
            )
        )
        count = len(workload.jobs)
        mean_s = sum(each.queue_s for each in self.requests) / len(self.requests)
        cost = (
            f"{fifo.swaps} swaps and {duration(fifo.swap_s)} of loading instead of"
            f" {len(self.swaps)} and {duration(swap_s)}"
        )
        waits = f"a mean wait of {duration(fifo.mean_wait_s)} instead of {duration(mean_s)}"
        return Text(
            f"In order of arrival, the same {count} requests would have cost {cost}, and {waits}.",
            style="bold",
        )
