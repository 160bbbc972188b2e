"""`hearth simulate`: what each policy would have done with a trace, a workload that ships, or the
gateway's own log, side by side.

Asks a gateway only with `--from-log`, and changes nothing there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import urlencode

import click
from rich.console import Console
from rich.progress import Progress

from hearth.cli import CommandFailed
from hearth.cli.client import GatewayClient, gateway_options
from hearth.cli.options import FILE, TEXT_FILE
from hearth.cli.tables import Fitting
from hearth.cli.views import console_for
from hearth.cli.workloads import ALL, WorkloadName, list_option, workloads_named
from hearth.clock import Clock, SystemClock
from hearth.config.choices import Sharing
from hearth.config.loading import load_gateway_config
from hearth.config.settings import GatewayConfig, PolicyName, SchedulerSettings
from hearth.engines.ollama.traits import canonical_model as canonical
from hearth.errors import ConfigError
from hearth.installation import how_to_install, packages_of_extra
from hearth.scheduling.core import Scheduler
from hearth.simulation import callers
from hearth.simulation.aliasing import BoundOnArrival, with_aliases
from hearth.simulation.engine import SimulationRun
from hearth.simulation.engine import simulate as run_workload
from hearth.simulation.estimating import EstimateError, Estimating
from hearth.simulation.logged import workload_from_log
from hearth.simulation.measures import (
    as_json,
    comparison,
    scoreboard,
    summary,
)
from hearth.simulation.traces import read_trace, trace_text
from hearth.simulation.workloads import Workload
from hearth.types import JsonDict

PAGE_ROWS = 1000
"""The most that the gateway lists at once."""
SILENT_S = 1.0
"""What is over by then shows no bar."""
ESTIMATES = 50
"""Arrivals of a run whose wait is estimated: each costs a few milliseconds."""
_SHARING = {"adaptive", "adaptive, fair", "adaptive, fifo"}
_POLICIES = [policy.value for policy in PolicyName]
_EXPENDABLE = ("estimate off by\nmedian s (%)", "interrupted", "busy\n%", "makespan\ns")


Runs = dict[str | None, list[tuple[str, SimulationRun, EstimateError]]]
"""By workload, which is None where it has no name: what each policy made of it."""


class Try(NamedTuple):
    """A run of a workload; `on_arrival`: its aliases are bound when a request arrives."""

    title: str
    workload: Workload
    settings: SchedulerSettings
    on_arrival: bool = False


def _aliases_of(
    _context: click.Context, _parameter: click.Parameter, values: Sequence[str]
) -> Mapping[str, Sequence[str]]:
    """`--alias NAME=MODEL,MODEL`."""
    found: dict[str, Sequence[str]] = {}
    for value in values:
        name, _, listed = value.partition("=")
        models = [model for model in listed.split(",") if model]
        if not name or not models or name in found:
            raise click.BadParameter("write NAME=MODEL,MODEL, each name once")
        taken = {model for others in found.values() for model in others}
        if len({*models}) < len(models) or taken & {*models}:
            raise click.BadParameter("name each model once")
        found[name] = models
    return found


@click.command
@click.option(
    "--trace",
    "trace_file",
    type=FILE,
    help="Requests, one JSON line each (docs/scheduling/traces.md).",
)
@click.option(
    "--workload",
    "names",
    type=WorkloadName(),
    metavar="NAME",
    multiple=True,
    help=(
        f"A built-in workload, as --list prints them, or {ALL} of the short ones; may be given"
        " more than once."
    ),
)
@list_option
@click.option(
    "--scoreboard",
    "scores",
    is_flag=True,
    help=(
        "The figures that `adaptive` must reach: long runs, adversaries, estimates and their bounds"
        " (about two minutes)."
    ),
)
@click.option("--from-log", "from_log", is_flag=True, help="The log of a running gateway.")
@click.option(
    "--since",
    metavar="WHEN",
    default="7d",
    help="With --from-log: what ended since then, as for `hearth log`.",
)
@gateway_options
@click.option(
    "--policy",
    "policies",
    type=click.Choice(_POLICIES),
    multiple=True,
    help="Policy to try; may be given more than once. Default: all of them.",
)
@click.option(
    "--config",
    "config_file",
    type=FILE,
    help="Configuration to take the scheduling and GPU settings from. Default: built-in.",
)
@click.option(
    "--alias",
    "aliases",
    metavar="NAME=MODEL,MODEL",
    callback=_aliases_of,
    multiple=True,
    help=(
        "Also try with requests for these models as requests for any of them; may be given more"
        " than once."
    ),
)
@click.option(
    "--alias-caller",
    "alias_callers",
    metavar="NAME",
    multiple=True,
    help="With --alias: only the requests of this caller; may be given more than once.",
)
@click.option("--json", "json_file", type=TEXT_FILE, help="Write the runs here; - is stdout.")
@click.option(
    "--plot",
    "plot_file",
    type=FILE,
    help=(
        "Draw the GPU's day and the waits into this PNG; of several workloads, the mean waits."
        " Needs matplotlib."
    ),
)
@click.option(
    "--save", "save_file", type=TEXT_FILE, help="Write what is simulated as a trace; - is stdout."
)
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
    client: GatewayClient,
    scores: bool,
    aliases: Mapping[str, Sequence[str]],
    alias_callers: tuple[str, ...],
) -> None:
    """Try scheduling policies on a recorded or generated day.

    Give one of --trace, --workload (--list prints their names), --from-log and --scoreboard.
    """
    # Not the file that `serve` would use: a result must not depend on the directory it was made in.
    config = GatewayConfig() if config_file is None else load_gateway_config(config_file)
    config = config.with_names(canonical)
    settings = config.scheduler_settings
    _require_one(trace_file is not None, bool(names), from_log, scores)
    if scores:
        _print_scores(settings)
        return
    workloads = _workloads(names, trace_file, lambda: _logged(client, since, config))
    aliased = _all_aliased(workloads, aliases, alias_callers)
    if len(workloads) > 1 and save_file is not None:
        raise click.UsageError("--save takes one workload; name it with --workload")
    if plot_file is not None and find_spec("matplotlib") is None:
        raise CommandFailed(
            f"--plot needs matplotlib: {how_to_install(packages_of_extra('plots'))}"
        )
    if save_file is not None:
        _write(save_file, trace_text(next(iter((aliased or workloads).values()))).encode())
    tried = [PolicyName(name) for name in dict.fromkeys(policies or _POLICIES)]
    compete = bool(names) and callers.COMPETING.keys() >= set(names)
    with_changes = from_log or compete
    runs = run_policies(workloads, settings, tried, with_changes=with_changes, aliased=aliased)
    if json_file is not None:
        _write(json_file, json.dumps(_as_json(runs)).encode() + b"\n")
    if plot_file is not None:
        _write(plot_file, _picture(runs))
    if "-" not in {str(json_file), str(save_file)}:
        _print(runs)


def _require_one(*given: bool) -> None:
    """Raises UsageError for several sources of workloads, and for none."""
    if sum(given) != 1:
        raise click.UsageError(
            "give one of --trace FILE, --workload NAME (`hearth simulate --list` prints the names),"
            " --from-log and --scoreboard"
        )


def _print_scores(settings: SchedulerSettings) -> None:
    for what, found in scoreboard(settings):
        click.echo(f"{what}: {found}")


def _all_aliased(
    workloads: Mapping[str | None, Workload],
    aliases: Mapping[str, Sequence[str]],
    callers: tuple[str, ...],
) -> dict[str | None, Workload]:
    """The workloads with what `--alias` asks for; none where it asks for nothing."""
    if aliases:
        return {name: _aliased(each, aliases, callers) for name, each in workloads.items()}
    if callers:
        raise click.UsageError("--alias-caller needs --alias")
    return {}


def _aliased(
    workload: Workload, aliases: Mapping[str, Sequence[str]], callers: tuple[str, ...]
) -> Workload:
    for model in chain.from_iterable(aliases.values()):
        if model not in workload.models:
            known = ", ".join(workload.models)
            raise click.UsageError(f"--alias: nothing is known of {model}, only of {known}")
    if unknown := set(callers) - {job.caller for job in workload.jobs}:
        raise click.UsageError(f"--alias-caller: nobody is called {', '.join(sorted(unknown))}")
    return with_aliases(workload, aliases, callers)


def _workloads(
    names: tuple[str, ...], trace_file: Path | None, logged: Callable[[], Workload]
) -> dict[str | None, Workload]:
    """By name, which is None where there is only one and it has none."""
    if names:
        return dict(workloads_named(names))
    if trace_file is None:
        return {None: logged()}
    try:
        return {None: read_trace(trace_file)}
    except ConfigError as error:
        raise click.UsageError(f"the trace cannot be used:\n{error}") from error


def _logged(client: GatewayClient, since: str, config: GatewayConfig) -> Workload:
    items = list(rows(client, "/llm/log", "items", since))
    workload, left_out = workload_from_log(
        items, rows(client, "/llm/swaps", "swaps", since), config
    )
    if not workload.jobs:
        raise CommandFailed(
            f"the log has no request since {since} that ran on a model; try --since with a longer"
            " time"
        )
    if left_out:
        click.echo(
            f"{left_out} of {len(items)} logged requests are left out: they never ran on the GPU",
            err=True,
        )
    return workload


def rows(client: GatewayClient, page: str, field: str, since: str) -> Iterator[object]:
    """All rows since then, page by page, the latest first.

    A page begins where the last one ended, that instant included, so that of rows of one instant
    none is missed; what was listed before is left out. Where a whole page is of one instant, the
    next one skips what was listed of it.
    """
    until: str | None = None
    skip = 0
    listed = set[str]()
    while True:
        asked = (
            {"since": since, "limit": PAGE_ROWS}
            | ({} if until is None else {"until": until})
            | ({"skip": skip} if skip else {})
        )
        answer = client.fetch(f"{page}?{urlencode(asked)}").get(field)
        found = answer if isinstance(answer, list) else []
        yield from (row for row in found if repr(row) not in listed)
        listed = {repr(row) for row in found}
        ended = _instant(found[-1]) if len(found) == PAGE_ROWS else None
        if ended is None:
            return
        skip = skip + PAGE_ROWS if ended == until else 0
        until = ended


def _instant(row: object) -> str | None:
    """When a row ended, as the gateway reads it; rounded up, so that the row is within."""
    ended_wall_s = row.get("ended_wall_s") if isinstance(row, dict) else None
    if not isinstance(ended_wall_s, int | float):
        return None
    try:
        return (
            datetime.fromtimestamp(ended_wall_s, tz=UTC) + timedelta(microseconds=1)
        ).isoformat()
    except (OverflowError, ValueError, OSError):
        return None


def run_policies(
    workloads: Mapping[str | None, Workload],
    base: SchedulerSettings,
    policies: Sequence[PolicyName],
    *,
    with_changes: bool = False,
    aliased: Mapping[str | None, Workload] = MappingProxyType({}),
) -> Runs:
    """Every policy on every workload, in this order; `with_changes`: then `adaptive` with each
    setting changed that could matter; `aliased`: then every policy on the same with aliases, chosen
    on arrival, and when a request starts.
    """
    runs: Runs = {name: [] for name in workloads}
    tries = {
        name: _tries(workload, base, policies, with_changes=with_changes)
        for name, workload in workloads.items()
    }
    for name, workload in aliased.items():
        tries[name] += _tries_of_aliases(workload, base, policies)
    done = 0
    with progress_bar(
        console_for(sys.stderr),
        SystemClock(),
        sum(len(each.jobs) * len(tries[name]) for name, each in workloads.items()),
    ) as show:
        for name, workload in workloads.items():
            for each in tries[name]:
                scheduler = Scheduler(each.settings)
                brain = Estimating(scheduler, every=max(1, len(workload.jobs) // ESTIMATES))
                handle = brain.handle
                if each.on_arrival:
                    handle = BoundOnArrival(scheduler, handle).handle
                run = run_workload(
                    each.workload,
                    each.settings,
                    handle,
                    keep_decisions=False,
                    on_progress=partial(show, done),
                )
                runs[name].append((each.title, run, brain.error()))
                done += len(workload.jobs)
    return runs


def _tries(
    workload: Workload,
    base: SchedulerSettings,
    policies: Sequence[PolicyName],
    *,
    with_changes: bool,
) -> list[Try]:
    """What is run."""
    tries = [
        Try(policy.value, workload, workload.settings(base, policy, canonical))
        for policy in policies
    ]
    if PolicyName.ADAPTIVE in policies:
        settings = workload.settings(base, PolicyName.ADAPTIVE, canonical)
        others = list(_other_sleep(workload, settings))
        if with_changes:
            others += _changed(workload, settings)
        tries += [Try(title, workload, changed) for title, changed in others]
    return tries


def _tries_of_aliases(
    workload: Workload, base: SchedulerSettings, policies: Sequence[PolicyName]
) -> Iterator[Try]:
    for policy in policies:
        settings = workload.settings(base, policy, canonical)
        title = f"{policy.value}, aliases"
        yield Try(f"{title} on arrival", workload, settings, on_arrival=True)
        yield Try(title, workload, settings)


def _changed(
    workload: Workload, settings: SchedulerSettings
) -> Iterator[tuple[str, SchedulerSettings]]:
    """The other value of each setting that a workload can show the worth of."""
    if any(job.conversation for job in workload.jobs):
        warm = not settings.scheduling.warm_conversations
        scheduling = settings.scheduling.replace(warm_conversations=warm)
        title = "adaptive, warm" if warm else "adaptive, not warm"
        yield title, replace(settings, scheduling=scheduling)
    if len({callers.name_of(job) for job in workload.jobs}) > 1:
        sharing: Sharing = "fifo" if settings.queue.sharing == "fair" else "fair"
        queue = settings.queue.replace(sharing=sharing)
        yield f"adaptive, {sharing}", replace(settings, queue=queue)


def _other_sleep(
    workload: Workload, settings: SchedulerSettings
) -> Iterator[tuple[str, SchedulerSettings]]:
    """The other ways for models that can sleep: none does, or each by its age alone."""
    sleep = settings.gpu.sleep
    if not workload.sleeps or not sleep.host_ram_gb:
        return
    for title, changed in (
        ("adaptive, stopped", sleep.replace(host_ram_gb=0.0)),
        ("adaptive, by age", sleep.replace(policy="ages")),
        ("adaptive, by use", sleep.replace(policy="lru")),
    ):
        if changed != sleep:
            yield title, replace(settings, gpu=settings.gpu.replace(sleep=changed))


@contextmanager
def progress_bar(
    console: Console, clock: Clock, total: int
) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, from the first second on; gives what takes how many requests are done,
    and how many more of the present run.
    """
    began_at = clock.monotonic()
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task("simulating", total=total)

    def show(before: int, requests: int) -> None:
        if clock.monotonic() - began_at > SILENT_S:
            bar.start()  # does nothing the second time
            bar.update(task, completed=before + requests)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()


def _as_json(runs: Runs) -> list[JsonDict]:
    """The runs; those of a workload that ships with its name."""
    return [
        ({} if name is None else {"workload": name})
        | as_json(*each)
        | {"callers": callers.as_json(each[1])}
        for name, found in runs.items()
        for each in found
    ]


def _print(runs: Runs) -> None:
    console = console_for(sys.stdout)
    for title, found in runs.items():
        console.print(Fitting(comparison(found, title=title), expendable=_EXPENDABLE))
        sharing = [(name, run) for name, run, _ in found if name in _SHARING]
        if len(sharing) > 1:
            console.print()
            compete = title in callers.COMPETING
            console.print(callers.table(sharing, compete=compete))
        if len(runs) > 1:
            console.print()


def _picture(runs: Runs) -> bytes:
    from hearth.simulation.plots import (  # noqa: PLC0415 (matplotlib is not paid for by others)
        draw_means_png,
        draw_png,
    )

    if len(runs) > 1:
        return draw_means_png(
            {
                name or "": {policy: summary(run).mean_wait_s for policy, run, _ in found}
                for name, found in runs.items()
            }
        )
    ((title, found),) = runs.items()
    return draw_png({policy: run for policy, run, _ in found}, title=title)


def _write(path: Path, content: bytes) -> None:
    try:
        with click.open_file(path, "wb") as stream:
            stream.write(content)
    except OSError as error:
        raise CommandFailed(f"{path}: cannot be written: {error.strerror or error}") from error
