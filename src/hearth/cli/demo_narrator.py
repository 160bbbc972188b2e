"""What `hearth demo` says of the requests and swaps that it sees, and of all of them at the end."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hearth.cli.client import duration, printable
from hearth.config.settings import GatewayConfig, PolicyName
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
from hearth.types import Lane, Outcome, plural

_WORTH_SHOWING_S = 0.05


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
