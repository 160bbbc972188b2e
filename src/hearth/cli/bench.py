"""`hearth bench`: measure the installed models on this GPU, for the configuration. Talks to Ollama itself, so no gateway may be at work."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click
import httpx
import ollama

from hearth.cli import CommandFailed, ExitCode
from hearth.cli.client import GatewayClient, printable
from hearth.cli.config import load_found
from hearth.cli.doctor import address_of
from hearth.types import SERVICE, canonical_model

_NS_PER_S = 1e9
_GIB = 1024**3
_ANSWER_TOKENS = 128
_ANSWER_TIMEOUT_S = 300.0
_UNLOAD_LOOKS, _UNLOAD_LOOK_S = 100, 0.1
_PROMPT = "Describe, in plain words, how a house is heated. " + "The stove burns wood, and the warm air rises through the rooms. " * 40
_ERRORS = (ollama.ResponseError, httpx.HTTPError, ConnectionError)


class Measured(NamedTuple):
    """One model; None for what it does not do. Memory in GiB."""

    load_s: float
    reads_per_s: float | None
    writes_per_s: float | None
    memory_gib: float
    on_gpu_gib: float


@click.command
@click.argument("models", nargs=-1, metavar="[MODEL...]")
@click.option("--config", "file", type=click.Path(path_type=Path), help="Configuration file; default: the one that `serve` would use.")
@click.option("--ollama-url", help="Where Ollama listens, instead of ollama.url.")
@click.pass_context
def bench(context: click.Context, models: tuple[str, ...], file: Path | None, ollama_url: str | None) -> None:
    """Measure the installed models for the configuration.

    Unloads everything, then loads each MODEL (by default all) and sends it one prompt. Prints `models:` with sizes and speeds. Stop the
    gateway first. Ends with 1 if a model could not be measured.
    """
    settings = load_found(file).settings
    _require_idle(address_of(settings.server))
    url = ollama_url or settings.ollama.url
    contexts = {canonical_model(name).lower(): each.num_ctx for name, each in settings.models.items() if each.num_ctx}
    measured: dict[str, Measured] = {}
    failed = 0
    with closing(ollama.Client(url, timeout=settings.gpu.swap_timeout_s + _ANSWER_TIMEOUT_S, trust_env=False)) as client:
        try:
            installed = sorted(each.model for each in client.list().models if each.model)
        except _ERRORS as error:
            raise CommandFailed(f"no Ollama at {url}: {error}") from error
        click.echo("models:")
        for name in models or installed:
            num_ctx = contexts.get(canonical_model(name).lower())
            try:
                measured[name] = _measure(client, name, {} if num_ctx is None else {"num_ctx": num_ctx})
            except _ERRORS as error:
                failed += 1
                click.echo(f"  # {printable(name)} could not be measured: {printable(error)}")
            else:
                click.echo(_entry(name, measured[name], num_ctx))
    if measured:
        click.echo(f"gpu:\n  swap_cost_prior_s: {median(each.load_s for each in measured.values()):.1f}")
    context.exit(ExitCode.FAILED if failed else ExitCode.OK)


def _require_idle(url: str) -> None:
    try:
        alive = GatewayClient(url).fetch("/healthz")
    except click.ClickException:
        return
    if alive.get("service") == SERVICE:
        raise CommandFailed(f"a gateway runs at {url}, and both would load models: stop it first (`systemctl --user stop hearth`)")


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


def _measure(client: ollama.Client, name: str, options: Mapping[str, int]) -> Measured:
    """Unload everything, then load the model and ask it once. Raises what the client raises."""
    _unload_all(client)
    can_generate = "completion" in (client.show(name).capabilities or ["completion"])
    if can_generate:
        wish = {**options, "num_predict": _ANSWER_TOKENS}
        answer: ollama.GenerateResponse | ollama.EmbedResponse = client.generate(name, _PROMPT, options=wish, keep_alive="1m")
    else:
        answer = client.embed(name, _PROMPT, options=options, keep_alive="1m")
    resident = next((each for each in client.ps().models if canonical_model(each.model or "") == canonical_model(name)), None)
    memory, on_gpu = (0, 0) if resident is None else (resident.size or 0, resident.size_vram or 0)
    return Measured(
        load_s=(answer.load_duration or 0) / _NS_PER_S,
        reads_per_s=_per_s(answer.prompt_eval_count, answer.prompt_eval_duration),
        writes_per_s=_per_s(answer.eval_count, answer.eval_duration),
        memory_gib=memory / _GIB,
        on_gpu_gib=on_gpu / _GIB,
    )


def _per_s(tokens: int | None, took_ns: int | None) -> float | None:
    return tokens / took_ns * _NS_PER_S if tokens and took_ns else None


def _entry(name: str, found: Measured, num_ctx: int | None) -> str:
    verbs = {"reads": found.reads_per_s, "writes": found.writes_per_s}
    speeds = [f"{verb} {speed:.0f} tokens/s" for verb, speed in verbs.items() if speed]
    partly = ["partly on the CPU"] if found.on_gpu_gib < found.memory_gib else []
    known = {"vram_gb": f"{found.on_gpu_gib:.1f}"} if found.on_gpu_gib else {}
    known |= {"num_ctx": str(num_ctx)} if num_ctx else {}
    lines = [f"  # {', '.join((f'loads in {found.load_s:.1f} s', *speeds, *partly))}", f'  "{printable(name)}":{"" if known else " {}"}']
    return "\n".join((*lines, *(f"    {setting}: {value}" for setting, value in known.items())))
