"""`hearth bench`: measure the installed models on this GPU, for the configuration.

Talks to Ollama itself, so no gateway may be at work.
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from statistics import median

import click
import httpx
import ollama

from hearth.cli import CommandFailed, ExitCode
from hearth.cli.client import GatewayClient, printable
from hearth.cli.config import OLLAMA_URL, load_found
from hearth.cli.doctor import address_of
from hearth.cli.options import CONFIG
from hearth.config.engines import ENGINE_TITLES
from hearth.config.settings import ENGINE
from hearth.engines.ollama.traits import OllamaTraits
from hearth.types import SERVICE

_NS_PER_S = 1e9
_GIB = 1024**3
_ANSWER_TOKENS = 128
_ANSWER_TIMEOUT_S = 300.0
_UNLOAD_LOOKS = 100
_UNLOAD_LOOK_S = 0.1
_PROMPT = (
    "Describe, in plain words, how a house is heated. "
    + "The stove burns wood, and the warm air rises through the rooms. " * 40
)
_ERRORS = (ollama.ResponseError, httpx.HTTPError, ConnectionError)


@click.command
@click.argument("models", nargs=-1, metavar="[MODEL...]")
@CONFIG
@OLLAMA_URL
@click.pass_context
def bench(
    context: click.Context, models: tuple[str, ...], file: Path | None, ollama_url: str | None
) -> None:
    """Measure the installed models for the configuration.

    Unloads everything, then loads each MODEL (by default all) and sends it one prompt. Prints
    `models:` with sizes and speeds. Stop the gateway first. Ends with 1 if a model could not be
    measured.
    """
    settings = load_found(file).settings
    _require_idle(address_of(settings.server))
    rows = settings.engine_rows.values()
    row = next((each for each in rows if each.kind == ENGINE), settings.engine_row)
    if ollama_url is None and row.kind != ENGINE:
        raise CommandFailed(f"a {ENGINE_TITLES[row.kind]} loads no models, so none is measured")
    url = ollama_url or row.url
    contexts = {
        OllamaTraits.canonical(name).lower(): each.num_ctx
        for name, each in settings.models.items()
        if each.num_ctx
    }
    loads_s: list[float] = []
    failed = 0
    with closing(
        ollama.Client(url, timeout=settings.gpu.swap_timeout_s + _ANSWER_TIMEOUT_S, trust_env=False)
    ) as client:
        try:
            installed = sorted(each.model for each in client.list().models if each.model)
        except _ERRORS as error:
            raise CommandFailed(f"no Ollama at {url}: {error}") from error
        click.echo("models:")
        for name in models or installed:
            try:
                pinned = contexts.get(OllamaTraits.canonical(name).lower())
                load_s, entry = _measured(client, name, pinned)
            except _ERRORS as error:
                failed += 1
                click.echo(f"  # {printable(name)} could not be measured: {printable(error)}")
            else:
                loads_s.append(load_s)
                click.echo(entry)
    if loads_s:
        click.echo(f"gpu:\n  swap_cost_prior_s: {median(loads_s):.1f}")
    context.exit(ExitCode.FAILED if failed else ExitCode.OK)


def _require_idle(url: str) -> None:
    try:
        alive = GatewayClient(url).fetch("/healthz")
    except click.ClickException:
        return
    if alive.get("service") == SERVICE:
        raise CommandFailed(
            f"a gateway runs at {url}, and both would load models: stop it first (`systemctl --user"
            " stop hearth`)"
        )


def _unload_all(client: ollama.Client) -> None:
    for resident in client.ps().models:
        name = resident.model or ""
        try:
            client.generate(name, keep_alive=0)
        except ollama.ResponseError:  # it only embeds
            client.embed(name, "", keep_alive=0)
    for _ in range(_UNLOAD_LOOKS):
        if not client.ps().models:
            return
        time.sleep(_UNLOAD_LOOK_S)


def _measured(client: ollama.Client, name: str, num_ctx: int | None) -> tuple[float, str]:
    """Unload everything, then load the model and ask it once: seconds of the load, and the lines
    for `models`. Raises as the client.
    """
    _unload_all(client)
    options = {"num_ctx": num_ctx} if num_ctx else {}
    answer: ollama.GenerateResponse | ollama.EmbedResponse
    if "completion" in (client.show(name).capabilities or ["completion"]):
        answer = client.generate(
            name, _PROMPT, options={**options, "num_predict": _ANSWER_TOKENS}, keep_alive="1m"
        )
    else:
        answer = client.embed(name, _PROMPT, options=options, keep_alive="1m")
    resident = next(
        (
            each
            for each in client.ps().models
            if OllamaTraits.canonical(each.model or "") == OllamaTraits.canonical(name)
        ),
        None,
    )
    size, on_gpu = (0, 0) if resident is None else (resident.size or 0, resident.size_vram or 0)
    load_s = (answer.load_duration or 0) / _NS_PER_S
    remarks = [f"loads in {load_s:.1f} s"]
    for verb, tokens, took_ns in (
        ("reads", answer.prompt_eval_count, answer.prompt_eval_duration),
        ("writes", answer.eval_count, answer.eval_duration),
    ):
        remarks += (
            [f"{verb} {tokens / took_ns * _NS_PER_S:.0f} tokens/s"] if tokens and took_ns else []
        )
    remarks += ["partly on the CPU"] if on_gpu < size else []
    known = ({"vram_gb": f"{on_gpu / _GIB:.1f}"} if on_gpu else {}) | {
        key: str(value) for key, value in options.items()
    }
    lines = [f"  # {', '.join(remarks)}", f'  "{printable(name)}":{"" if known else " {}"}']
    return load_s, "\n".join(
        (*lines, *(f"    {setting}: {value}" for setting, value in known.items()))
    )
