"""`hearth simulate`: what each policy would have done with a trace, a workload that ships, or the gateway's own log, side by side.

Asks a gateway only with `--from-log`, and changes nothing there. Called by `hearth.cli`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import SplitResult

import click

from hearth.cli.console import console_for
from hearth.cli.exits import CommandFailed
from hearth.cli.fitting import Fitting
from hearth.cli.gateway_options import gateway_options
from hearth.cli.simulate_runs import PolicyRun, RunProgress, run_policies
from hearth.cli.simulate_sources import ALL, SourceOptions, sources
from hearth.clock import SystemClock
from hearth.config.gateway_config import GatewayConfig
from hearth.config.loading import load_gateway_config
from hearth.config.settings import PolicyName
from hearth.simulation.measures import as_json, findings, summary
from hearth.simulation.report import comparison
from hearth.simulation.scoreboard import scoreboard
from hearth.simulation.trace_text import trace_text
from hearth.simulation.workloads import LONG, WORKLOADS

_FILE = click.Path(path_type=Path, dir_okay=False)
_OUT = click.Path(path_type=Path, dir_okay=False, allow_dash=True)
_POLICIES = [policy.value for policy in PolicyName]
_EXPENDABLE = ("estimate off by\nmedian s (%)", "interrupted", "busy\n%", "makespan\ns")


@click.command
@click.option("--trace", "trace_file", type=_FILE, help="Requests, one JSON line each (docs/scheduling.md).")
@click.option(
    "--workload",
    "names",
    type=click.Choice([*WORKLOADS, *LONG, ALL]),
    metavar="NAME",
    multiple=True,
    help=f"A workload that ships ({', '.join([*WORKLOADS, *LONG])}), or {ALL} of the short ones; may be given more than once.",
)
@click.option(
    "--scoreboard", "scores", is_flag=True, help="What `adaptive` is held to: long runs, adversaries, estimates (about a minute)."
)
@click.option("--from-log", "from_log", is_flag=True, help="What a running gateway has in its log.")
@click.option("--since", default="7d", show_default=True, help="With --from-log: what ended since then, as for `hearth log`.")
@gateway_options
@click.option(
    "--policy",
    "policies",
    type=click.Choice(_POLICIES),
    multiple=True,
    help="Policy to try; may be given more than once. Default: all of them.",
)
@click.option("--config", "config_file", type=_FILE, help="Configuration whose rules and GPU apply. Default: the built-in ones.")
@click.option("--json", "json_file", type=_OUT, help="Write the runs here; - is stdout.")
@click.option(
    "--plot",
    "plot_file",
    type=_FILE,
    help="Draw the GPU's day and the waits into this PNG; of several workloads, the mean waits. Needs matplotlib.",
)
@click.option("--save", "save_file", type=_OUT, help="Write what is simulated as a trace; - is stdout.")
def simulate(
    policies: Sequence[str],
    config_file: Path | None,
    json_file: Path | None,
    plot_file: Path | None,
    save_file: Path | None,
    *,
    trace_file: Path | None,
    names: tuple[str, ...],
    from_log: bool,
    since: str,
    address: SplitResult,
    key: str | None,
    scores: bool,
) -> None:
    """Try scheduling policies on a recorded or made-up day.

    Give one of --trace, --workload, --from-log and --scoreboard.
    """
    config = _config(config_file)
    if scores:
        for what, found in scoreboard(config.scheduler_settings):
            click.echo(f"{what}: {found}")
        return
    wanted = SourceOptions(trace_file=trace_file, names=names, from_log=from_log, since=since, address=address, key=key)
    chosen = sources(wanted, config)
    if len(chosen) > 1 and save_file is not None:
        raise click.UsageError("--save takes one workload; name it with --workload")
    if plot_file is not None:
        _check_plots()
    if save_file is not None:
        _write(save_file, trace_text(chosen[0].workload))
    tried = [PolicyName(name) for name in dict.fromkeys(policies or _POLICIES)]
    progress = RunProgress(console_for(sys.stderr, environ=os.environ), SystemClock())
    with progress.over(sum(len(source.workload.jobs) for source in chosen) * len(tried)):
        runs = run_policies(chosen, config.scheduler_settings, tried, progress)
    if json_file is not None:
        _write(json_file, json.dumps([_entry(run) for run in runs]) + "\n")
    if plot_file is not None:
        _plot(plot_file, runs)
    if "-" not in {str(json_file), str(save_file)}:
        _print(runs)


def _config(config_file: Path | None) -> GatewayConfig:
    """The built-in rules where no file is named: a result must not depend on the directory it was made in."""
    return GatewayConfig() if config_file is None else load_gateway_config(config_file)


def _entry(run: PolicyRun) -> dict[str, object]:
    """A run; of a workload that ships, with its name."""
    named = {} if run.workload is None else {"workload": run.workload}
    return {**named, **as_json(run.policy, run.run, run.estimates)}


def _print(runs: Sequence[PolicyRun]) -> None:
    console = console_for(sys.stdout, environ=os.environ)
    titles = dict.fromkeys(run.workload for run in runs)
    for title in titles:
        rows = [findings(run.policy, run.run, run.estimates) for run in runs if run.workload == title]
        console.print(Fitting(comparison(rows, title=title), expendable=_EXPENDABLE))
        if len(titles) > 1:
            console.print()


def _check_plots() -> None:
    """Before anything is simulated. Raises CommandFailed where there is nothing to draw with."""
    if find_spec("matplotlib") is None:
        raise CommandFailed("--plot needs matplotlib: run `.venv/bin/pip install matplotlib` in the folder of Hearth")


def _plot(path: Path, runs: Sequence[PolicyRun]) -> None:
    from hearth.simulation.plots import draw_means_png, draw_png  # noqa: PLC0415 (matplotlib is not paid for by others)

    means_s: dict[str, dict[str, float]] = {}
    for run in runs:
        means_s.setdefault(run.workload or "", {})[run.policy] = summary(run.run).mean_wait_s
    try:
        path.write_bytes(
            draw_means_png(means_s) if len(means_s) > 1 else draw_png({run.policy: run.run for run in runs}, title=runs[0].workload)
        )
    except OSError as error:
        raise CommandFailed(f"{path}: cannot be written: {error.strerror or error}") from error


def _write(path: Path, text: str) -> None:
    try:
        with click.open_file(path, "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise CommandFailed(f"{path}: cannot be written: {error.strerror or error}") from error
