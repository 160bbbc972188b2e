"""One line on a terminal that says how far a request's wait has come: its place, the estimate, the model that loads.

Asks the gateway every second in a thread of its own, so that whoever waits for the answer is not held up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import TracebackType

import click
from rich.console import Console

from hearth.cli.gateway_client import GatewayClient, number, part, parts, printable
from hearth.cli.status_page import loading_model
from hearth.cli.views import duration

EVERY_S = 1.0


def waiting_words(answer: Mapping[str, object], request_id: str) -> str:
    """What a status says of one request that has no answer yet. Never raises."""
    if any(item.get("request_id") == request_id for item in parts(answer, "running")):
        return "the model reads the prompt"
    ahead = 0
    for lane in ("internal_queue", "external_queue"):
        queue = part(answer, lane)
        for index, item in enumerate(parts(queue, "next_items")):
            if item.get("request_id") == request_id:
                start_s, rough = number(item, "estimated_start_s"), item.get("estimate_is_rough") is True
                return _place(ahead + index, start_s, rough=rough) + _loading(answer)
        ahead += int(number(queue, "pending") or 0)
    return "waiting" + (f", {ahead} in the queue" if ahead else "") + _loading(answer)


def _place(ahead: int, start_s: float | None, *, rough: bool) -> str:
    place = "next in line" if not ahead else f"{ahead} ahead"
    return place if start_s is None else f"{place}, starts in {'very roughly' if rough else 'about'} {duration(start_s)}"


def _loading(answer: Mapping[str, object]) -> str:
    model = loading_model(part(answer, "gpu"))
    return f"; {printable(model)} is loading" if model else ""


class WaitingLine:
    """A context manager that gives what ends the line; leaving ends it too.

    Args:
        pause: waits so many seconds, or until the event is set.
    """

    def __init__(
        self,
        client: GatewayClient,
        request_id: str,
        console: Console,
        *,
        pause: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._client = client
        self._request_id = request_id
        self._pause = pause
        self._over = threading.Event()
        self._line = console.status("waiting")
        self._asking = threading.Thread(target=self._ask, name="hearth-waiting", daemon=True)

    def __enter__(self) -> Callable[[], None]:
        self._line.start()
        self._asking.start()
        return self._end

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self._over.is_set():
            self._over.set()
            self._line.stop()

    def _ask(self) -> None:
        while not self._pause(self._over, EVERY_S):
            try:
                words = waiting_words(self._client.status(), self._request_id)
            except click.ClickException:  # the answer is what counts; its own connection says what is wrong
                continue
            if not self._over.is_set():
                self._line.update(words)
