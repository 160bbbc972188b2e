"""`hearth submit` and `hearth chat`: prompts go through the queue like any other caller's, and each
answer comes out as it is made.

Texts go to stdout, everything else to stderr. Leaving early (Ctrl-C) disconnects, which cancels the
request.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from email.message import Message
from pathlib import Path

import click
from rich.console import Console

from hearth.cli import CommandFailed
from hearth.cli.client import (
    GatewayClient,
    Json,
    complete_models,
    count,
    duration,
    flag,
    gateway_options,
    json_option,
    number,
    part,
    parts,
    printable,
    read_text,
    text,
    without_controls,
)
from hearth.cli.facts import loading_model
from hearth.cli.options import PRIORITY, TEXT_FILE
from hearth.cli.views import console_for
from hearth.clock import SystemClock, new_id
from hearth.types import JsonDict, without_none

_EVERY_S = 1.0
_NS_PER_S = 1e9
_QUOTES = '"""'
_HELP = (
    "/bye ends the chat, /clear starts a new one, Ctrl-C stops an answer; a message of several"
    ' lines stands between two """'
)


@click.command
@gateway_options
@click.argument("prompt_file", type=TEXT_FILE, default="-", metavar="[FILE]")
@click.option(
    "--model",
    "-m",
    metavar="MODEL",
    shell_complete=complete_models,
    help="Default: the loaded model, else the home model.",
)
@click.option("--system", "-s", metavar="TEXT", help="A system prompt.")
@click.option(
    "--max-tokens",
    metavar="COUNT",
    type=click.IntRange(min=1),
    help="The longest answer, in tokens.",
)
@click.option("--json-mode", is_flag=True, help="Have the model answer in JSON.")
@click.option(
    "--task-type", metavar="TYPE", help="Task type. With an internal key, it sets the priority."
)
@click.option(
    "--priority",
    type=PRIORITY,
    help="Lower the priority of an internal request.",
)
@json_option("Print one JSON object at the end: the text, tokens and wait.")
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

    Without FILE, or with -, reads stdin.
    """
    prompt = read_text(prompt_file)
    wanted = {
        "model": model or _model_at_hand(client),
        "prompt": prompt,
        "stream": True,
        "system": system,
        "options": None if max_tokens is None else {"num_predict": max_tokens},
        "format": "json" if json_mode else None,
    }
    body = without_none(wanted)
    request_id = new_id("req_")
    named = {"X-Task-Type": task_type, "X-Priority": priority}
    headers = without_none(named)
    output = ""
    last = {}
    with streamed(client, "/api/generate", body, request_id, headers) as (answered, lines):
        for last in lines:
            piece = _piece(last, "response")
            output += piece
            if not as_json:
                _echo(piece)
    if as_json:
        printed = {
            "request_id": request_id,
            "model": body["model"],
            "output": output,
            "prompt_tokens": last.get("prompt_eval_count"),
            "output_tokens": last.get("eval_count"),
            **_wait_told(answered),
            "served_by": answered.get("x-hearth-served-by"),
        }
        click.echo(json.dumps(printed))
    elif not output.endswith("\n"):
        click.echo()


def _wait_told(answered: Message) -> Json:
    """What the headers of an answer say of its wait."""
    return {
        "queue_position": _number(answered.get("x-queue-position")),
        "estimated_wait_s": _number(answered.get("x-estimated-wait-seconds")),
        "wait_bound_s": _number(answered.get("x-wait-bound-seconds")),
    }


def _model_at_hand(client: GatewayClient) -> str:
    gpu = part(client.status(), "gpu")
    for model in (text(gpu, "loaded_model"), text(gpu, "home_model")):
        if model and "embed" not in model:  # as the dashboard knows models that write nothing
            return model
    raise click.UsageError(
        "no model is loaded and there is no home model: name one (`hearth models` lists them)"
    )


def _number(header: str | None) -> float | None:
    """As the gateway wrote it, whole or not; None where it is no number."""
    try:
        found = json.loads(header or "null")
    except ValueError:
        return None
    return found if type(found) in {int, float} and math.isfinite(found) else None


@click.command
@gateway_options
@click.argument("model", required=False, shell_complete=complete_models)
@click.option("--system", "-s", metavar="TEXT", help="A system prompt.")
def chat(client: GatewayClient, model: str | None, system: str | None) -> None:
    """Chat with MODEL.

    Without MODEL, with the loaded model, else the home model. Messages are read from the terminal,
    or a line each from stdin. While a request waits, its place in the queue and the model that is
    loading are shown.
    """
    interactive = sys.stdin.isatty()
    if interactive:
        client.check_alive()
    model = model or _model_at_hand(client)
    if interactive:
        with suppress(ImportError):
            # it changes `input`, and only a terminal needs it
            import readline  # noqa: F401, PLC0415
        click.echo(
            f"{printable(model)} at {client.url}. /bye ends the chat, /? lists the commands."
        )
    beginning: list[Json] = [] if system is None else [{"role": "system", "content": system}]
    messages = [*beginning]
    for typed in _typed(">>> " if interactive else ""):
        if typed == "/clear":
            messages = [*beginning]
        elif typed.startswith("/"):
            click.echo(_HELP)
        else:
            messages.append({"role": "user", "content": typed})
            try:
                answer = _answer(client, {"model": model, "messages": messages, "stream": True})
            except CommandFailed as failed:
                if not interactive:
                    raise
                failed.show()
                answer = ""
            if answer:
                messages.append({"role": "assistant", "content": answer})
            else:
                messages.pop()


def _typed(prompt: str) -> Iterator[str]:
    """What the user types, message by message, until /bye or the end of the input."""
    while True:
        try:
            line = input(prompt).strip()
            while line.startswith(_QUOTES) and not line.endswith(_QUOTES, len(_QUOTES)):
                line += "\n" + input("... " if prompt else "")
        except EOFError:
            return
        except KeyboardInterrupt:
            click.echo("\n/bye or Ctrl-D ends the chat")
            continue
        if line == "/bye":
            return
        if message := line.strip('"').strip() if line.startswith(_QUOTES) else line:
            yield message


def _answer(client: GatewayClient, body: Json) -> str:
    """Print the answer as it comes, and what it took; returns the text that came.

    Raises CommandFailed, GatewayUnreachable.
    """
    answer = ""
    thinks = False
    clock = SystemClock()
    asked_at = clock.monotonic()
    began_at = 0.0
    last: Json = {}
    try:
        with streamed(client, "/api/chat", body, new_id("req_")) as (_, lines):
            for last in lines:
                message = part(last, "message")
                began_at = began_at or clock.monotonic()
                thought = _piece(message, "thinking")
                content = _piece(message, "content")
                if thinks and content:
                    click.echo("\n")
                thinks = bool(thought) or (thinks and not content)
                _echo(thought, dim=True)
                _echo(content)
                answer += content
    except KeyboardInterrupt:
        click.echo(" (stopped)")
    else:
        tokens = number(last, "eval_count")
        took_ns = number(last, "eval_duration")
        speed = f", {tokens / took_ns * _NS_PER_S:.0f} tokens/s" if tokens and took_ns else ""
        figures = (
            f"\n({tokens or 0:.0f} tokens{speed}, the first after"
            f" {duration(began_at - asked_at)})\n"
        )
        click.echo(figures if sys.stdout.isatty() else "")
    return answer


@contextmanager
def streamed(
    client: GatewayClient,
    path: str,
    body: Json,
    request_id: str,
    headers: Mapping[str, str] | None = None,
) -> Iterator[tuple[Message, Iterator[JsonDict]]]:
    """POST to a streaming native route; gives the headers and the objects of the answer,
    and shows the wait on a terminal.

    Raises:
        CommandFailed: the gateway refuses, or the answer ends in an error or too early.
        GatewayUnreachable.
    """
    shows_progress = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    progress: AbstractContextManager[Callable[[], None]] = nullcontext(lambda: None)
    if shows_progress:
        progress = waiting_line(client, request_id, console_for(sys.stderr))
    sent = {"X-Request-Id": request_id, **(headers or {})}
    with progress as end_progress, client.send(path, body, sent) as (answered, lines):
        yield answered, _checked(lines, end_progress)


def _checked(lines: Iterator[JsonDict], began: Callable[[], None]) -> Iterator[JsonDict]:
    """The lines of the answer; `began` is called at the first with text."""
    done = False
    for line in lines:
        if "error" in line:
            raise CommandFailed(
                f"the answer ended with an error: {without_controls(str(line['error']))}"
            )
        fields = {**line, **part(line, "message")}
        if any(_piece(fields, name) for name in ("response", "content", "thinking")):
            began()
        done = flag(line, "done")
        yield line
    if not done:
        raise CommandFailed("the answer ended early")


def _piece(line: Json, name: str) -> str:
    """The text under a name as the model wrote it; empty where there is none."""
    piece = line.get(name)
    return piece if isinstance(piece, str) else ""


def _echo(piece: str, *, dim: bool = False) -> None:
    """Print a piece of an answer; a terminal gets no control characters."""
    shown = without_controls(piece) if sys.stdout.isatty() else piece
    if shown and dim and not os.environ.get("NO_COLOR"):
        shown = click.style(shown, dim=True)
    click.echo(shown, nl=False)


@contextmanager
def waiting_line(
    client: GatewayClient,
    request_id: str,
    console: Console,
    *,
    pause: Callable[[threading.Event, float], bool] = threading.Event.wait,
) -> Iterator[Callable[[], None]]:
    """A line that shows how a request's wait goes, until the function that it gives is called, or
    the block is left.

    Asks the gateway in a thread of its own, so that whoever waits for the answer is not held up.

    Args:
        pause: waits so many seconds, or until the event is set.
    """
    over = threading.Event()
    line = console.status("waiting")

    def end() -> None:
        over.set()
        line.stop()

    def ask() -> None:
        while not pause(over, _EVERY_S):
            # the answer is what counts; its own connection reports what is wrong
            with suppress(click.ClickException):
                line.update(waiting_words(client.status(), request_id))

    line.start()
    threading.Thread(target=ask, name="hearth-waiting", daemon=True).start()
    try:
        yield end
    finally:
        end()


def waiting_words(answer: Json, request_id: str) -> str:
    """What a status shows of one request that has no answer yet. Never raises."""
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
                if start_s is not None:
                    about = "very roughly" if flag(item, "estimate_is_rough") else "about"
                    place += f", starts in {about} {duration(start_s)}"
                    bound_s = number(item, "start_bound_s")
                    if bound_s:
                        place += f" (90 %: within {duration(bound_s)})"
                return place + loading
        ahead += count(queue, "pending")
    return (f"waiting, {ahead} in the queue" if ahead else "waiting") + loading
