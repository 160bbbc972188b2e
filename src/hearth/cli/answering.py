"""An answer as it streams in, and on a terminal a line that shows the wait. Leaving early disconnects, which cancels the request."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from email.message import Message

import click
from rich.console import Console

from hearth.cli import CommandFailed
from hearth.cli.client import GatewayClient, Json, count, number, part, parts, without_controls
from hearth.cli.views import console_for, duration, loading_model

_EVERY_S = 1.0


@contextmanager
def streamed(
    client: GatewayClient, path: str, body: Json, request_id: str, headers: Mapping[str, str] | None = None
) -> Iterator[tuple[Message, Iterator[dict[str, object]]]]:
    """POST to a streaming route of Ollama's API; gives the headers and the objects of the answer.

    Raises:
        CommandFailed: the gateway refuses, or the answer ends in an error or too early. GatewayUnreachable.
    """
    shows_progress = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    console = console_for(sys.stderr)
    progress = waiting_line(client, request_id, console) if shows_progress else nullcontext(lambda: None)
    with progress as end_progress, client.send(path, body, {"X-Request-Id": request_id, **(headers or {})}) as (answered, lines):
        yield answered, _checked(lines, end_progress)


def _checked(lines: Iterator[dict[str, object]], began: Callable[[], None]) -> Iterator[dict[str, object]]:
    """The lines of the answer; `began` is called at the first with text."""
    done = False
    for line in lines:
        if "error" in line:
            raise CommandFailed(f"the answer ended with an error: {without_controls(str(line['error']))}")
        if any(piece_of(each, name) for each in (line, part(line, "message")) for name in ("response", "content", "thinking")):
            began()
        done = line.get("done") is True
        yield line
    if not done:
        raise CommandFailed("the answer ended early")


def piece_of(line: Json, name: str) -> str:
    """The text under a name as the model wrote it; empty where there is none."""
    piece = line.get(name)
    return piece if isinstance(piece, str) else ""


def echo_piece(piece: str, *, dim: bool = False) -> None:
    """Print a piece of an answer; a terminal gets no control characters."""
    shown = without_controls(piece) if sys.stdout.isatty() else piece
    click.echo(click.style(shown, dim=True) if shown and dim and not os.environ.get("NO_COLOR") else shown, nl=False)


@contextmanager
def waiting_line(
    client: GatewayClient,
    request_id: str,
    console: Console,
    *,
    pause: Callable[[threading.Event, float], bool] = threading.Event.wait,
) -> Iterator[Callable[[], None]]:
    """A line that says how a request's wait goes, until what it gives is called, or the block is left.

    Asks the gateway in a thread of its own, so that whoever waits for the answer is not held up.

    Args:
        pause: waits so many seconds, or until the event is set.
    """
    over, line = threading.Event(), console.status("waiting")

    def end() -> None:
        if not over.is_set():
            over.set()
            line.stop()

    def ask() -> None:
        while not pause(over, _EVERY_S):
            try:
                words = waiting_words(client.status(), request_id)
            except click.ClickException:  # the answer is what counts; its own connection says what is wrong
                continue
            if not over.is_set():
                line.update(words)

    line.start()
    threading.Thread(target=ask, name="hearth-waiting", daemon=True).start()
    try:
        yield end
    finally:
        end()


def waiting_words(answer: Json, request_id: str) -> str:
    """What a status says of one request that has no answer yet. Never raises."""
    if any(item.get("request_id") == request_id for item in parts(answer, "running")):
        return "the model reads the prompt"
    model = loading_model(part(answer, "gpu"))
    loading = f"; {model} is loading" if model else ""
    ahead = 0
    for lane in ("internal_queue", "external_queue"):
        queue = part(answer, lane)
        for index, item in enumerate(parts(queue, "next_items"), start=ahead):
            if item.get("request_id") == request_id:
                place = f"{index} ahead" if index else "next in line"
                start_s = number(item, "estimated_start_s")
                about = "very roughly" if item.get("estimate_is_rough") is True else "about"
                return place + (f", starts in {about} {duration(start_s)}" if start_s is not None else "") + loading
        ahead += count(queue, "pending")
    return "waiting" + (f", {ahead} in the queue" if ahead else "") + loading
