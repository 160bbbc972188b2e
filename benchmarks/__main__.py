"""`python -m benchmarks [NAME ...]`, which is `make bench`: what Hearth costs, beside the numbers it has to reach.

Everything happens on loopback, on free ports and in a temporary folder; nothing that is already running is touched.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console

from benchmarks import accepting, crowd, decisions, embeddings, overhead, slot, startup
from benchmarks.findings import Finding, as_json, table

Measure = Callable[[int, Path], list[Finding]]

MEASURES: dict[str, Measure] = {
    "overhead": overhead.measure,
    "start": startup.measure,
    "slot": slot.measure,
    "crowd": crowd.measure,
    "embeddings": embeddings.measure,
    "accepting": accepting.measure,
}
DECISIONS = "decisions"
NAMES = (*MEASURES, DECISIONS)


@click.command
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option("--rounds", type=click.IntRange(1, 50), default=5, show_default=True, help="Alternating rounds; medians are shown.")
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the findings to a file, too.")
def main(names: tuple[str, ...], rounds: int, file: Path | None) -> None:
    """Measure what Hearth costs; without NAMES everything."""
    console = Console(file=sys.stdout)
    chosen, findings = names or NAMES, list[Finding]()
    with TemporaryDirectory(prefix="hearth-bench-") as folder:
        for name in [name for name in MEASURES if name in chosen]:
            console.print(f"measuring: {name}", style="dim")
            findings += MEASURES[name](rounds, Path(folder))
    if findings:
        console.print(table(findings))
    if file is not None:
        file.write_text(json.dumps(as_json(findings), indent=2) + "\n")
    if DECISIONS in chosen:
        decisions.main()


if __name__ == "__main__":
    main()
