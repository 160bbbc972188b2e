"""`hearth chat`: talk to a model through the gateway. Ctrl-C stops an answer, not the chat."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress

import click

from hearth.cli import CommandFailed
from hearth.cli.answering import echo_piece, piece_of, streamed
from hearth.cli.client import GatewayClient, Json, complete_models, gateway_options, number, part, printable
from hearth.cli.views import duration
from hearth.clock import SystemClock, new_id

_QUOTES = '"""'
_HELP = '/bye ends the chat, /clear starts a new one, Ctrl-C stops an answer; a message of several lines stands between two """'
_NS_PER_S = 1e9


@click.command
@gateway_options
@click.argument("model", shell_complete=complete_models)
@click.option("--system", "-s", help="A system prompt.")
def chat(client: GatewayClient, model: str, system: str | None) -> None:
    """Chat with MODEL.

    Messages are read from the terminal, or a line each from stdin. While a request waits, its place in the queue and the model that is
    loading are shown.
    """
    interactive = sys.stdin.isatty()
    if interactive:
        with suppress(ImportError):
            import readline  # noqa: F401, PLC0415 (it changes `input`, and only a terminal needs it)
        click.echo(f"{printable(model)} at {client.url}. /bye ends the chat, /? lists the commands.")
    messages: list[Json] = _beginning(system)
    for said in _said(">>> " if interactive else ""):
        if said == "/clear":
            messages = _beginning(system)
        elif said.startswith("/"):
            click.echo(_HELP)
        else:
            messages.append({"role": "user", "content": said})
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


def _beginning(system: str | None) -> list[Json]:
    return [] if system is None else [{"role": "system", "content": system}]


def _said(prompt: str) -> Iterator[str]:
    """What the user says, message by message, until /bye or the end of the input."""
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
    """Print the answer as it comes, and what it took; returns the text that came. Raises CommandFailed, GatewayUnreachable."""
    pieces: list[str] = []
    thinks, clock = False, SystemClock()
    asked_at, began_at, last = clock.monotonic(), 0.0, {}
    try:
        with streamed(client, "/api/chat", body, new_id("req_")) as (_, lines):
            for last in lines:
                message = part(last, "message")
                began_at = began_at or clock.monotonic()
                thought, content = piece_of(message, "thinking"), piece_of(message, "content")
                if thinks and content:
                    click.echo("\n")
                thinks = bool(thought) or (thinks and not content)
                echo_piece(thought, dim=True)
                echo_piece(content)
                pieces.append(content)
    except KeyboardInterrupt:
        click.echo(" (stopped)")
    else:
        click.echo(f"\n{_figures(last, began_at - asked_at)}\n" if sys.stdout.isatty() else "")
    return "".join(pieces)


def _figures(last: Json, waited_s: float) -> str:
    tokens, took_ns = number(last, "eval_count"), number(last, "eval_duration")
    speed = f", {tokens / took_ns * _NS_PER_S:.0f} tokens/s" if tokens and took_ns else ""
    return f"({tokens or 0:.0f} tokens{speed}, the first after {duration(waited_s)})"
