"""`hearth simulate`: what each policy would have done with a trace, side by side. Touches no gateway. Called by `hearth.cli`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from hearth.cli.console import console_for
from hearth.cli.exits import CommandFailed
from hearth.config.loading import load_gateway_config
from hearth.config.settings import PolicyName, SchedulerSettings
from hearth.errors import ConfigError
from hearth.simulation.engine import Run
from hearth.simulation.engine import simulate as run_simulation
from hearth.simulation.measures import as_json, summary
from hearth.simulation.report import comparison
from hearth.simulation.traces import read_trace
from hearth.simulation.workloads import Workload

_FILE = click.Path(path_type=Path, dir_okay=False)


class _Trace(click.ParamType[Workload]):
    """A trace file; what is wrong with it is a usage error (exit 2)."""

    name = "file"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Workload:
        try:
            return read_trace(Path(str(value)))
        except ConfigError as error:
            return self.fail(str(error), param, ctx)


@click.command
@click.option("--trace", "workload", type=_Trace(), required=True, help="Requests, one JSON line each (docs/scheduling.md).")
@click.option(
    "--policy",
    "policies",
    type=click.Choice([policy.value for policy in PolicyName]),
    multiple=True,
    help="Policy to try; may be given more than once. Default: all of them.",
)
@click.option("--config", "config_file", type=_FILE, help="Configuration whose scheduling rules apply. Default: the built-in ones.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), help="Write the runs here; - is stdout."
)
def simulate(workload: Workload, policies: Sequence[str], config_file: Path | None, json_file: Path | None) -> None:
    """Try scheduling policies on a recorded or made-up day."""
    base = _rules(config_file)
    runs = {name: _run(workload, base, PolicyName(name)) for name in dict.fromkeys(policies or [policy.value for policy in PolicyName])}
    if json_file is not None:
        _write(json_file, json.dumps([as_json(name, run) for name, run in runs.items()]) + "\n")
    if str(json_file) != "-":
        console_for(sys.stdout, environ=os.environ).print(comparison({name: summary(run) for name, run in runs.items()}))


def _rules(config_file: Path | None) -> SchedulerSettings:
    """The built-in rules where no file is named: a result must not depend on the directory it was made in."""
    if config_file is None:
        return SchedulerSettings()
    return load_gateway_config(config_file).scheduler_settings


def _run(workload: Workload, base: SchedulerSettings, policy: PolicyName) -> Run:
    return run_simulation(workload, workload.settings(base, policy))


def _write(path: Path, text: str) -> None:
    try:
        with click.open_file(path, "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise CommandFailed(f"{path}: cannot be written: {error.strerror or error}") from error
