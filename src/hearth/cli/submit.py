"""`hearth submit`: a prompt from a file or stdin goes through the queue like any other caller's, and the answer comes out as it is made.

The text goes to stdout, everything else to stderr. Leaving (Ctrl-C) hangs up, which cancels the request.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import click

from hearth.cli.answering import echo_piece, piece_of, streamed
from hearth.cli.client import GatewayClient, complete_models, gateway_options, json_option, part, text
from hearth.clock import new_id
from hearth.types import Priority

_FILE = click.Path(path_type=Path, dir_okay=False, allow_dash=True)


@click.command
@gateway_options
@click.argument("prompt_file", type=_FILE, default="-", metavar="[FILE]")
@click.option("--model", "-m", shell_complete=complete_models, help="Default: the loaded model, else the home model.")
@click.option("--system", "-s", help="A system prompt.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="The longest answer, in tokens.")
@click.option("--json-mode", is_flag=True, help="Have the model answer in JSON.")
@click.option("--task-type", help="Task type. With an internal key, it sets the priority.")
@click.option("--priority", type=click.Choice([each.name.lower() for each in Priority]), help="Lower the priority of an internal request.")
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
    body: dict[str, object] = {"model": model or _model_at_hand(client), "prompt": prompt, "stream": True}
    body |= {"system": system} if system is not None else {}
    body |= {"options": {"num_predict": max_tokens}} if max_tokens is not None else {}
    body |= {"format": "json"} if json_mode else {}
    request_id = new_id("req_")
    named = {"X-Task-Type": task_type, "X-Priority": priority}
    headers = {name: value for name, value in named.items() if value is not None}
    pieces, last = [], {}
    with streamed(client, "/api/generate", body, request_id, headers) as (answered, lines):
        for last in lines:
            piece = piece_of(last, "response")
            pieces.append(piece)
            if not as_json:
                echo_piece(piece)
    output = "".join(pieces)
    if as_json:
        printed = {
            "request_id": request_id,
            "model": body["model"],
            "output": output,
            "prompt_tokens": last.get("prompt_eval_count"),
            "output_tokens": last.get("eval_count"),
            "queue_position": _number(answered.get("x-queue-position")),
            "estimated_wait_s": _number(answered.get("x-estimated-wait-seconds")),
            "served_by": answered.get("x-hearth-served-by"),
        }
        click.echo(json.dumps(printed))
    elif not output.endswith("\n"):
        click.echo()


def read_text(path: Path) -> str:
    """The text in a file, `-` for stdin. Raises UsageError, also where it is empty."""
    if str(path) == "-" and sys.stdin.isatty():
        click.echo("Type the text; Ctrl-D ends it.", err=True)
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        prompt = raw.decode("utf-8-sig")
    except OSError as error:
        raise click.UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{path}: is not text in UTF-8") from error
    if not prompt.strip():
        raise click.UsageError("the text is empty: name a file, or pipe the text in")
    return prompt


def _model_at_hand(client: GatewayClient) -> str:
    gpu = part(client.status(), "gpu")
    if model := text(gpu, "loaded_model") or text(gpu, "home_model"):
        return model
    raise click.UsageError("no model is loaded and there is no home model: name one with --model (`hearth models` lists them)")


def _number(header: str | None) -> float | None:
    """As the gateway wrote it, whole or not; None where it is no number."""
    try:
        found = json.loads(header or "null")
    except ValueError:
        return None
    return found if type(found) in {int, float} and math.isfinite(found) else None
