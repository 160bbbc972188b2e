"""`hearth submit`: a prompt from a file or stdin goes through the queue like any other caller's, and the answer comes out as it is made.

The text goes to stdout, everything else to stderr. Leaving (Ctrl-C) hangs up, which cancels the request.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from email.message import Message
from pathlib import Path

import click
from rich.console import Console

from hearth.cli.client import GatewayClient, Json, count, gateway_options, json_option, number, part, parts, text, without_controls
from hearth.cli.errors import CommandFailed
from hearth.cli.views import console_for, duration, loading_model
from hearth.clock import new_id
from hearth.types import Priority

_EVERY_S = 1.0
_FILE = click.Path(path_type=Path, dir_okay=False, allow_dash=True)


@click.command
@gateway_options
@click.argument("prompt_file", type=_FILE, default="-", metavar="[FILE]")
@click.option("--model", "-m", help="Default: the model that is loaded, else the home model.")
@click.option("--system", "-s", help="A system prompt.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="The longest answer.")
@click.option("--json-mode", is_flag=True, help="Have the model answer in JSON.")
@click.option("--task-type", help="What it is for; an internal key's band follows from it.")
@click.option("--priority", type=click.Choice([each.name.lower() for each in Priority]), help="Lowers the band of an internal key.")
@json_option("Print one JSON object at the end: the text and what it took.")
def submit(
    client: GatewayClient,
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
    body: dict[str, object] = {"model": model or _model_at_hand(client), "prompt": prompt, "stream": True}
    body |= {"system": system} if system is not None else {}
    body |= {"options": {"num_predict": max_tokens}} if max_tokens is not None else {}
    body |= {"format": "json"} if json_mode else {}
    request_id = new_id("req_")
    named = {"X-Request-Id": request_id, "X-Task-Type": task_type, "X-Priority": priority}
    headers = {name: value for name, value in named.items() if value is not None}
    pieces, last = [], {}
    on_terminal = sys.stdout.isatty()
    shows_progress = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    console = console_for(sys.stderr, environ=os.environ)
    progress = waiting_line(client, request_id, console) if shows_progress else nullcontext(lambda: None)
    with progress as end_progress, client.send("/api/generate", body, headers) as (answered, lines):
        for last in _checked(lines):
            piece = last.get("response")
            if isinstance(piece, str) and piece:
                end_progress()
                pieces.append(piece)
                if not as_json:
                    click.echo(without_controls(piece) if on_terminal else piece, nl=False)
    output = "".join(pieces)
    if as_json:
        click.echo(json.dumps({"request_id": request_id, "model": body["model"], "output": output, **_measures(last, answered)}))
    elif not output.endswith("\n"):
        click.echo()


def _prompt(path: Path) -> str:
    if str(path) == "-" and sys.stdin.isatty():
        click.echo("Type the prompt; Ctrl-D ends it.", err=True)
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        prompt = raw.decode("utf-8-sig")
    except OSError as error:
        raise click.UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{path}: is not text in UTF-8") from error
    if not prompt.strip():
        raise click.UsageError("the prompt is empty: name a file, or pipe the text in")
    return prompt


def _model_at_hand(client: GatewayClient) -> str:
    gpu = part(client.status(), "gpu")
    if model := text(gpu, "loaded_model") or text(gpu, "home_model"):
        return model
    raise click.UsageError("no model is loaded and there is no home model: name one with --model (`hearth models` lists them)")


def _checked(lines: Iterator[dict[str, object]]) -> Iterator[dict[str, object]]:
    """The lines of the answer. Raises CommandFailed where it ends in an error, or too early."""
    done = False
    for line in lines:
        if "error" in line:
            raise CommandFailed(f"the answer ended with an error: {without_controls(str(line['error']))}")
        done = line.get("done") is True
        yield line
    if not done:
        raise CommandFailed("the answer broke off before its end")


def _measures(last: Json, headers: Message) -> dict[str, object]:
    """Tokens, and what the gateway said of the wait."""
    return {
        "prompt_tokens": last.get("prompt_eval_count"),
        "output_tokens": last.get("eval_count"),
        "queue_position": _number(headers.get("x-queue-position")),
        "estimated_wait_s": _number(headers.get("x-estimated-wait-seconds")),
        "served_by": headers.get("x-hearth-served-by"),
    }


def _number(header: str | None) -> float | None:
    """As the gateway wrote it, whole or not; None where it is no number."""
    try:
        found = json.loads(header or "null")
    except ValueError:
        return None
    return found if type(found) in {int, float} and math.isfinite(found) else None


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
