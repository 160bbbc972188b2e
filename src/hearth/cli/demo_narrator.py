"""What `hearth demo` prints: the gateway's events as they happen, and at the end the sums, beside those of plain arrival order."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hearth.cli.client import printable
from hearth.cli.views import duration
from hearth.config.settings import GatewayConfig, PolicyName
from hearth.events import (
    Event,
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
from hearth.simulation.measures import summary
from hearth.simulation.traces import workload_from_log
from hearth.types import Lane, Outcome, Way

_WORTH_SAYING_S = 0.05


class Narrator:
    """An event sink that prints one line per event that a newcomer should notice, and adds up until it has `ended`.

    Args:
        speed: how much faster than real the emulator is; measured swap times are also given at real speed.
    """

    def __init__(self, console: Console, *, speed: float) -> None:
        self._console = console
        self._speed = speed
        self._began_at: float | None = None
        self._urgent = "an internal request"
        self.tally = Tally()
        self.ended = False

    def emit(self, event: Event) -> None:
        """Print it, and count it."""
        if self.ended:
            return
        self.tally.emit(event)
        if self._began_at is None:
            self._began_at = event.at
        if isinstance(event, ItemQueued) and event.lane is Lane.INTERNAL:
            self._urgent = printable(event.caller)
        line: Text | None = None
        if isinstance(event, ItemEvent):
            words, style = self._of_item(event)
            name_style = "bold cyan" if event.lane is Lane.INTERNAL else "bold"
            line = Text.assemble((f"{printable(event.caller):<10}", name_style), (words, style)) if words else None
        elif isinstance(event, SwapStarted | SwapCompleted | SwapFailed):
            line = self._of_swap(event)
        if line is not None:
            self._console.print(Text.assemble((f"{event.at - self._began_at:6.1f} s  ", "dim"), line))

    def complain(self, text: str) -> None:
        """A caller's own words about a request that went wrong; no time, since it is no event."""
        self._console.print(Text(f"{'':10}{printable(text)}", style="red"))

    def _of_item(self, event: ItemEvent) -> tuple[str, str]:
        """Words and their style; no words for what is not worth a line."""
        words, style = "", ""
        match event:
            case ItemQueued():
                ahead = f", {event.position} ahead" if event.position else ""
                words = f"asks {printable(event.model or 'any model')}{ahead}"
            case ItemDispatched() if event.attempt > 1:
                words, style = f"runs again (try {event.attempt})", "green"
            case ItemDispatched() if event.waited_s >= _WORTH_SAYING_S:
                words = f"runs, after it waited {duration(event.waited_s)}"
            case ItemInterrupted():
                words, style = f"is interrupted after {duration(event.ran_s)}: {self._urgent} goes first", "magenta"
            case ItemResumed():
                again = "read again" if event.how is Way.CONTINUE else "repeated and compared"
                words = f"continues where it stopped: {event.again_tokens} tokens {again} in {duration(event.catch_up_s)}"
                style = "green"
            case ItemProtected():
                words, style = f"was interrupted {event.interrupt_count} times, and will not be again", "magenta"
            case ItemEnded() if event.outcome is not Outcome.COMPLETED:
                words, style = f"{event.outcome.value}: {printable(event.reason)}", "red"
            case ItemEnded():
                waited = f", of which it waited {duration(event.queue_s)}" if event.queue_s >= _WORTH_SAYING_S else ""
                words, style = f"has its answer after {duration(event.total_s)}{waited}", "green"
        return words, style

    def _of_swap(self, event: SwapStarted | SwapCompleted | SwapFailed) -> Text:
        leaving, model = ", ".join(map(printable, event.from_models)), printable(event.to_model or "")
        match event:
            case SwapStarted(why="home"):
                return Text(f"nothing waits: loading the home model {model}", style="blue")
            case SwapStarted():
                return Text(f"swap: {leaving} is replaced by {model}" if leaving else f"load: {model}", style="yellow")
            case SwapCompleted(swap_s=swap_s):
                real = f" ({duration(swap_s * self._speed)} on a real GPU)" if self._speed != 1 else ""
                return Text(f"{model} is loaded after {duration(swap_s)}{real}", style="yellow")
        what = f"{model} could not be loaded" if model else f"{leaving} could not be unloaded"
        return Text(f"{what}: {printable(event.detail)}", style="bold red")


class Tally:
    """Sums by caller. Work that is still running at the end is in no column."""

    def __init__(self) -> None:
        self.completed: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.interrupted: Counter[str] = Counter()
        self.waited_s: defaultdict[str, float] = defaultdict(float)
        self.swaps = 0
        self._swap_s = self._backend_s = 0.0
        self.items: list[dict[str, object]] = []
        self.loads: list[dict[str, object]] = []

    def emit(self, event: Event) -> None:
        """Count it."""
        match event:
            case ItemEnded():
                (self.completed if event.outcome is Outcome.COMPLETED else self.failed)[printable(event.caller)] += 1
                self.waited_s[printable(event.caller)] += event.queue_s
                self._backend_s += event.backend_s or 0.0
                self.items.append({**asdict(event), "epoch": 0, "accepted_wall_s": event.at - event.total_s})
            case ItemInterrupted():
                self.interrupted[printable(event.caller)] += 1
                self._backend_s += event.ran_s
            case SwapCompleted():
                self.swaps += 1
                self._swap_s += event.swap_s
                self.loads.append(asdict(event))

    def table(self) -> RenderableType:
        """What to print at the end: for each caller, and what the swaps took of the GPU's working time."""
        table = Table("caller", box=None, pad_edge=False)
        for name in ("requests", "failed", "mean wait", "interruptions"):
            table.add_column(name, justify="right")
        for caller in sorted({*self.waited_s, *self.interrupted}):
            ended = self.completed[caller] + self.failed[caller]
            mean_wait = duration(self.waited_s[caller] / ended if ended else None)
            table.add_row(caller, str(ended), str(self.failed[caller]), mean_wait, str(self.interrupted[caller]))
        busy_s = self._swap_s + self._backend_s
        share = 100.0 * self._swap_s / busy_s if busy_s else 0.0
        swaps = f"{self.swaps} swap{'' if self.swaps == 1 else 's'} took {duration(self._swap_s)}"
        return Group(table, Text(), Text(f"{swaps}: {share:.0f} % of the GPU's working time"))

    def in_arrival_order(self, config: GatewayConfig) -> Text:
        """What the simulator says that the same requests would have taken with the policy `fifo`, beside what they took."""
        workload, _ = workload_from_log(self.items, self.loads, config)
        if not workload.jobs:
            return Text()
        fifo = summary(simulate(workload, workload.settings(config.scheduler_settings, PolicyName.FIFO), keep_decisions=False))
        count = len(workload.jobs)
        mean_s = sum(self.waited_s.values()) / count
        cost = f"{fifo.swaps} swaps and {duration(fifo.swap_s)} of loading instead of {self.swaps} and {duration(self._swap_s)}"
        waits = f"a mean wait of {duration(fifo.mean_wait_s)} instead of {duration(mean_s)}"
        return Text(f"In order of arrival, the same {count} requests would have cost {cost}, and {waits}.", style="bold")
