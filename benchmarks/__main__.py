"""`python -m benchmarks [NAME ...]`, which is `make bench`: what Hearth costs, beside the numbers
it has to reach.

Everything happens on loopback, on free ports and in a temporary folder; nothing that is already
running is touched.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import click
from rich.console import Console

from benchmarks import (
    accepting,
    attack,
    continuing,
    crowd,
    decisions,
    embeddings,
    engine,
    escapes,
    games,
    guard,
    homes,
    household,
    ingester,
    overhead,
    packing,
    pages,
    programs,
    prompt_cache,
    saving,
    selection,
    slot,
    source,
    startup,
    two_agents,
)
from benchmarks.findings import Finding, as_json, markdown, table
from benchmarks.litellm import NotInstalledError
from benchmarks.machine import Machine, sentence

Measure = Callable[[int, Path], list[Finding]]

LITELLM = "litellm"
HOUSEHOLD = "household"
PROMPT_CACHE = "prompt_cache"
PACKING = "packing"
TWO_AGENTS = "two_agents"
SAVING = "saving"
GAMES = "games"
SOURCE = "source"
PAGES = "pages"
MEASURES: dict[str, Measure] = {
    "overhead": overhead.measure,
    LITELLM: overhead.measure_with_litellm,
    "engine": engine.measure,
    "start": startup.measure,
    "slot": slot.measure,
    "selection": selection.measure,
    "crowd": crowd.measure,
    "embeddings": embeddings.measure,
    "accepting": accepting.measure,
    "continuing": continuing.measure,
    "decisions": decisions.measure,
    "attack": attack.measure,
    "escapes": escapes.measure,
    "guard": guard.measure,
    "homes": homes.measure,
    "ingester": ingester.measure,
    "programs": programs.measure,
    HOUSEHOLD: household.measure,
    PROMPT_CACHE: prompt_cache.measure,
    PACKING: packing.measure,
    TWO_AGENTS: two_agents.measure,
    SAVING: saving.measure,
    GAMES: games.measure,
    SOURCE: source.measure,
    PAGES: pages.measure,
}
_ASKED_FOR = {LITELLM, HOUSEHOLD, PROMPT_CACHE, PACKING, SAVING, GAMES, SOURCE, PAGES}
"""Measured only where they are named: they install or download something, take long, or measure
the code itself.
"""
DRAWN = {"overhead", LITELLM, "decisions", "homes"}
WIDTH = 150
"""Columns of the table where it does not go to a terminal."""
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command
@click.argument("names", nargs=-1, type=click.Choice(tuple(MEASURES)))
@click.option(
    "--rounds",
    type=click.IntRange(1, 50),
    default=5,
    show_default=True,
    help="Alternating rounds; medians are shown.",
)
@click.option(
    "--json", "json_file", type=_FILE, help="Write the machine and the findings to a file, too."
)
@click.option(
    "--markdown", "markdown_file", type=_FILE, help="Write the table as the documentation has it."
)
@click.option(
    "--plot",
    "plot_file",
    type=_FILE,
    help="Draw requests, chunks, added latency, decisions and homes into this PNG.",
)
def main(
    names: tuple[str, ...],
    rounds: int,
    json_file: Path | None,
    markdown_file: Path | None,
    plot_file: Path | None,
) -> None:
    """Measure what Hearth costs; without NAMES everything but `litellm`, which is `overhead` with
    LiteLLM, installed for it, beside it, `household`, `prompt_cache`, `packing`, `saving` and
    `games`, for which a model is downloaded, `source`, which counts the code, and `pages`, which
    writes a log of a million requests.
    """
    if plot_file is not None and not DRAWN & set(chosen(names)):
        raise click.UsageError(f"--plot draws one of {', '.join(sorted(DRAWN))}")
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH)
    machine = Machine()
    findings = [finding for name in chosen(names) for finding in _measured(name, rounds, console)]
    facts = machine.facts()
    console.print(table(findings))
    console.print(sentence(facts), highlight=False)
    if json_file is not None:
        json_file.write_text(
            json.dumps({"machine": facts, "findings": as_json(findings)}, indent=2) + "\n"
        )
    if markdown_file is not None:
        markdown_file.write_text(f"{sentence(facts)}\n\n{markdown(findings, overhead.LABELS)}")
    if plot_file is not None:
        from benchmarks.plot import draw_png  # noqa: PLC0415 - matplotlib takes a second that nobody else pays

        plot_file.write_bytes(draw_png(findings, sentence(facts)))


def chosen(names: tuple[str, ...]) -> list[str]:
    """What is measured, in the order of `MEASURES`: `litellm` contains `overhead`."""
    wanted = set(names or (name for name in MEASURES if name not in _ASKED_FOR))
    if LITELLM in wanted:
        wanted.discard("overhead")
    return [name for name in MEASURES if name in wanted]


def _measured(name: str, rounds: int, console: Console) -> list[Finding]:
    console.print(f"measuring: {name}", style="dim", end=" ")
    began_at = monotonic()
    with TemporaryDirectory(prefix="hearth-bench-") as folder:
        try:
            findings = MEASURES[name](rounds, Path(folder))
        except NotInstalledError as error:
            subject = name.replace("_", " ")
            findings = [Finding(subject=subject, name="", unit="", measured=None, note=str(error))]
    console.print(f"{monotonic() - began_at:.0f} s", style="dim", highlight=False)
    return findings


if __name__ == "__main__":
    main()
