"""`hearth submit`, with the line that it shows while it waits.

One line on a terminal that says how far a request's wait has come: its place, the estimate, the model that loads.

Asks the gateway every second in a thread of its own, so that whoever waits for the answer is not held up.

`hearth submit`: a prompt from a file or stdin goes through the queue like any other caller's, and the answer comes out as it is made.

The text goes to stdout, everything else to stderr. Leaving (Ctrl-C) hangs up, which cancels the request.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from urllib.parse import SplitResult

import click
from rich.console import Console

from hearth.cli.gateway_client import Answer, GatewayClient, gateway_options, number, part, parts, printable, text, without_controls
from hearth.cli.lazy import CommandFailed
from hearth.cli.looking import loading_model
from hearth.cli.views import duration
from hearth.clock import new_id
from hearth.types import Priority

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


_GENERATE = "/api/generate"
_FILE = click.Path(path_type=Path, dir_okay=False, allow_dash=True)
_NUMBERS = {"prompt_tokens": "prompt_eval_count", "output_tokens": "eval_count"}
_WAITS = {"queue_position": "x-queue-position", "estimated_wait_s": "x-estimated-wait-seconds"}
_SERVED_BY = "x-hearth-served-by"


@click.command
@gateway_options
@click.argument("prompt_file", type=_FILE, default="-", metavar="[FILE]")
@click.option("--model", "-m", help="Default: the model that is loaded, else the home model.")
@click.option("--system", "-s", help="A system prompt.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="The longest answer.")
@click.option("--json-mode", is_flag=True, help="Have the model answer in JSON.")
@click.option("--task-type", help="What it is for; an internal key's band follows from it.")
@click.option("--priority", type=click.Choice([each.name.lower() for each in Priority]), help="Lowers the band of an internal key.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end: the text and what it took.")
def submit(
    address: SplitResult,
    key: str | None,
    prompt_file: Path,
    model: str | None,
    system: str | None,
    max_tokens: int | None,
    task_type: str | None,
    priority: str | None,
    *,
    json_mode: bool,
    as_json: bool,
) -> None:
    """Send a prompt through the queue and print the answer.

    FILE is read from stdin where none is given, or -.
    """
    prompt = _prompt(prompt_file)
    client = GatewayClient(address=address, key=key)
    body: dict[str, object] = {"model": model or _model_at_hand(client), "prompt": prompt, "stream": True}
    body |= {"system": system} if system is not None else {}
    body |= {"options": {"num_predict": max_tokens}} if max_tokens is not None else {}
    body |= {"format": "json"} if json_mode else {}
    request_id = new_id("req_")
    named = {"X-Request-Id": request_id, "X-Task-Type": task_type, "X-Priority": priority}
    headers = {name: value for name, value in named.items() if value is not None}
    received = Received(show=None if as_json else _writer())
    with waiting_line(client, request_id) as begun, client.send(_GENERATE, body, headers) as answer:
        received.read(answer, begun)
    if as_json:
        click.echo(json.dumps({"request_id": request_id, "model": body["model"], **received.summary()}))
    elif not received.text.endswith("\n"):
        click.echo()


def _prompt(path: Path) -> str:
    if str(path) == "-" and sys.stdin.isatty():
        click.echo("Type the prompt; Ctrl-D ends it.", err=True)
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise click.UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{path}: is not text in UTF-8") from error
    if not text.strip():
        raise click.UsageError("the prompt is empty: name a file, or pipe the text in")
    return text


def _model_at_hand(client: GatewayClient) -> str:
    gpu = part(client.status(), "gpu")
    if model := text(gpu, "loaded_model") or text(gpu, "home_model"):
        return model
    raise click.UsageError("no model is loaded and there is no home model: name one with --model (`hearth models` lists them)")


def _writer() -> Callable[[str], None]:
    """Writes pieces of the answer as they come; on a terminal without what would move its cursor."""
    on_terminal = sys.stdout.isatty()

    def write(piece: str) -> None:
        click.echo(without_controls(piece) if on_terminal else piece, nl=False)

    return write


@dataclass(slots=True, kw_only=True)
class Received:
    """The answer so far; `show` gets each piece of text as it comes."""

    show: Callable[[str], None] | None
    pieces: list[str] = field(default_factory=list)
    last: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def read(self, answer: Answer, begun: Callable[[], None]) -> None:
        """Take the whole answer; `begun` is called before its first text. Raises CommandFailed where it ends in an error, or too early."""
        self.headers = answer.headers
        for piece in self._pieces(answer):
            begun()
            self.pieces.append(piece)
            if self.show is not None:
                self.show(piece)
        begun()
        if self.last.get("done") is not True:
            raise CommandFailed("the answer broke off before its end")

    def _pieces(self, answer: Answer) -> Iterator[str]:
        for line in answer.lines:
            if "error" in line:
                raise CommandFailed(f"the answer ended with an error: {without_controls(str(line['error']))}")
            self.last = line
            piece = line.get("response")
            if isinstance(piece, str) and piece:
                yield piece

    @property
    def text(self) -> str:
        """What has come."""
        return "".join(self.pieces)

    def summary(self) -> dict[str, object]:
        """The text, tokens, and what the gateway said of the wait."""
        numbers = {name: self.last.get(source) for name, source in _NUMBERS.items()}
        waits = {name: _number(self.headers.get(header)) for name, header in _WAITS.items()}
        return {"output": self.text, **numbers, **waits, "served_by": self.headers.get(_SERVED_BY)}


def _number(header: str | None) -> float | None:
    """As the gateway wrote it, whole or not; None where it is no number."""
    try:
        found = json.loads(header or "null")
    except ValueError:
        return None
    return found if type(found) in {int, float} and math.isfinite(found) else None


def waiting_line(client: GatewayClient, request_id: str) -> AbstractContextManager[Callable[[], None]]:
    """On a terminal, a line on stderr that says how the wait goes, until what it gives is called; nothing elsewhere, or with NO_COLOR."""
    if not sys.stderr.isatty() or os.environ.get("NO_COLOR"):
        return nullcontext(lambda: None)
    from hearth.cli.views import console_for  # noqa: PLC0415 (rich is not paid for in a pipe)

    return WaitingLine(client, request_id, console_for(sys.stderr, environ=os.environ))
