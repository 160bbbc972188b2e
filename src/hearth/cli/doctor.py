"""`hearth doctor`: is everything there that Hearth needs, and does it fit the configuration?
Changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import time
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import click

from hearth.backends.all_cards import cards_of
from hearth.backends.gpu import GpuThread
from hearth.cli import CommandFailed, ExitCode, GatewayUnreachable
from hearth.cli.client import (
    GatewayClient,
    Json,
    flag,
    json_option,
    part,
    parts,
    printable,
    text,
    texts,
)
from hearth.cli.config import find_config
from hearth.cli.doctor_engines import Finding, check_engines, output_of
from hearth.cli.doctor_yielding import (
    check_comfyui,
    check_pressure,
    check_programs,
    check_restart_command,
    check_suspend,
    found_launchers,
    hidden_programs,
)
from hearth.cli.options import PATH
from hearth.clock import SystemClock
from hearth.config.choices import ALL_GPUS, AlertType
from hearth.config.engine_checks import UNIFIED_SLEEP, sleep_is_set
from hearth.config.engines import ENGINE_TITLES
from hearth.config.loading import effectless, load_gateway_config
from hearth.config.settings import (
    BackendMode,
    GatewayConfig,
    ServerSettings,
    Settings,
)
from hearth.errors import ConfigError, GpuUnavailable
from hearth.execution.unified_memory import as_card
from hearth.storage.directory import directory_warnings
from hearth.storage.opening import database_path
from hearth.types import MIB, SERVICE, GpuReading, JsonMapping
from hearth.yielding.processes import what_is_hidden

_TIMEOUT_S = 3.0
_MIB_PER_GIB = 1024
_YEAR_S = 365 * 86_400.0
_STYLES = {"ok": "green", "warn": "yellow", "FAIL": "red"}


@click.command
@click.argument("file", type=PATH, required=False)
@click.option(
    "--key",
    metavar="KEY",
    envvar="HEARTH_KEY",
    show_envvar=True,
    help="API key of a running gateway.",
)
@json_option("Print the findings as a JSON list.")
@click.pass_context
def doctor(context: click.Context, file: Path | None, key: str | None, *, as_json: bool) -> None:
    """Check everything that Hearth needs, and say what to do.

    That is the configuration, Ollama and its settings, the models, the GPU, keys, disk, clock, and
    the gateway. Ends with 1 if something is wrong. FILE is the configuration; by default the one
    that `serve` would use.
    """
    findings = []
    for found in examined(file, key):
        findings.append(found)
        if not as_json:
            level = f"{found.level:<4}"
            if not os.environ.get("NO_COLOR"):
                level = click.style(level, fg=_STYLES[found.level])
            click.echo(f"{level} {found.subject:<15} {printable(found.says)}")
            if found.advice:
                click.echo(f"     -> {printable(found.advice)}")
    wrong = sum(each.level == "FAIL" for each in findings)
    if as_json:
        click.echo(json.dumps([each._asdict() for each in findings], indent=2))
    else:
        click.echo(f"{wrong} wrong, {sum(each.level == 'warn' for each in findings)} to look at")
    context.exit(ExitCode.FAILED if wrong else ExitCode.OK)


def examined(file: Path | None, key: str | None) -> Iterator[Finding]:
    """What was found, a subject after the other."""
    path, why = find_config(file)
    config = GatewayConfig()
    try:
        config = load_gateway_config(path)
    except ConfigError as error:
        for problem in error.problems:
            yield Finding(
                "FAIL", "configuration", problem, "correct it; the checks below use the defaults"
            )
    else:
        yield Finding("ok", "configuration", why)
        for note in (*config.notes, *effectless(config.settings)):
            yield Finding("warn", "configuration", note, "correct it, or remove the setting")
    settings = config.settings
    if settings.backend.mode is BackendMode.EMULATOR:
        yield Finding(
            "warn",
            "Ollama",
            "backend.mode is emulator: answers are made up",
            "set backend.mode to ollama or auto",
        )
    else:
        yield from check_engines(settings)
        yield from _gpu(settings)
        yield from check_programs(settings, found_launchers(), what_is_hidden())
    yield from check_comfyui(settings)
    yield from check_suspend(settings)
    yield from check_restart_command(settings)
    yield from _keys(settings)
    yield from _store(settings)
    synchronised = output_of("timedatectl", "show", "--property=NTPSynchronized", "--value")
    yield from check_clock(synchronised, SystemClock().wall())
    yield from _gateway(settings.server, key)


def _gpu(settings: Settings) -> Iterator[Finding]:
    if not settings.gpu.nvml:
        yield Finding("ok", "GPU", "not read (gpu.nvml: false)")
        return
    try:
        reading = asyncio.run(_reading(settings.gpu.device))
    except GpuUnavailable as error:
        advice = (
            "install its driver; for a model server on another machine set gpu.nvml: false,"
            " without a GPU also gpu.vram_gb: 0"
        )
        yield Finding("warn", "GPU", f"not detected: {error.message}", advice)
        yield from check_pressure(None, settings)
        return
    yield from check_gpu(reading, settings)
    yield from check_pressure(reading, settings)


async def _reading(device: str) -> GpuReading:
    thread = GpuThread(cards_of(device))
    try:
        return await thread.read()
    finally:
        await thread.aclose()


def check_gpu(reading: GpuReading, settings: Settings) -> Iterator[Finding]:
    """What the GPU reports beside `gpu.vram_gb`."""
    memory = "memory unknown"
    kind = " of unified memory" if reading.unified else ""
    if reading.total_mib is not None:
        used_gib = (reading.used_mib or 0) / _MIB_PER_GIB
        memory = f"{used_gib:.1f} of {reading.total_mib / _MIB_PER_GIB:.1f} GiB{kind} used"
    most_mib = as_card(reading, settings.gpu.reserve_gb).total_mib
    total_gib = None if most_mib is None else most_mib / _MIB_PER_GIB
    if reading.unified and total_gib is not None:
        memory += f", up to {total_gib:.1f} GiB for models"
    stated = settings.gpu.vram_gb
    if stated is not None and total_gib is not None and stated > total_gib:
        has = f"models may have {total_gib:.1f} GiB{kind}" if reading.unified else ""
        has = has or f"{reading.name} has {total_gib:.1f} GiB"
        says = f"gpu.vram_gb is {stated:g}, and {has}"
        advice = f"set gpu.vram_gb to at most {total_gib:.1f}, or remove it"
        if settings.gpu.device != ALL_GPUS and not reading.unified:
            advice += "; if the model server splits models over several GPUs, set gpu.device: all"
        yield Finding("FAIL", "GPU", says, advice)
    elif reading.throttle_reasons:
        reasons = ", ".join(reading.throttle_reasons).replace("_", " ")
        yield Finding(
            "warn",
            "GPU",
            f"{reading.name}, {memory}; throttled: {reasons}",
            "check its cooling and its power supply",
        )
    else:
        yield Finding("ok", "GPU", f"{reading.name}, {memory}")
    if reading.unified and sleep_is_set(settings):
        advice = "remove gpu.sleep.host_ram_gb (docs/sleep.md)"
        yield Finding("warn", "GPU", UNIFIED_SLEEP, advice)


def _keys(settings: Settings) -> Iterator[Finding]:
    keys = len(settings.auth.keys)
    admins = sum(key.admin for key in settings.auth.keys)
    if not keys:
        yield Finding("ok", "keys", "none: callers on this machine only")
    elif not admins:
        yield Finding(
            "warn",
            "keys",
            f"{keys}, none of them for admins",
            "hearth key new NAME --admin --write",
        )
    else:
        yield Finding("ok", "keys", f"{keys}, {admins} of them for admins")


def _store(settings: Settings) -> Iterator[Finding]:
    storage = settings.storage
    if not storage.enabled:
        says = (
            "storage.enabled is off: no jobs, no request log, and rate limits start from zero after"
            " a restart"
        )
        yield Finding("warn", "disk", says, "set it to true")
        return
    path = database_path(storage.path, os.environ)
    # not `Path.exists`, which raises where a folder may not be read
    folder = next(each for each in path.absolute().parents if os.path.exists(each))  # noqa: PTH110
    free_mib = shutil.disk_usage(folder).free / MIB
    low_mib = settings.alerts.disk_free_warning_mib
    if not os.access(folder, os.W_OK | os.X_OK):
        advice = (
            "run `sudo hearth doctor` if the gateway runs as another user; else correct its owner,"
            " or set storage.path"
        )
        yield Finding("FAIL", "disk", f"{folder} cannot be written", advice)
    elif free_mib < low_mib:
        yield Finding(
            "FAIL",
            "disk",
            f"{free_mib:.0f} MiB free at {path}",
            "free some space, or set storage.path to another disk",
        )
    else:
        yield Finding("ok", "disk", f"{free_mib / _MIB_PER_GIB:.1f} GiB free at {path}")
    for warning in directory_warnings(storage.path, path):
        says, _, advice = warning.rpartition(": ")
        yield Finding("warn", "disk", says, advice)


def check_clock(synchronised: str, now_wall_s: float) -> Iterator[Finding]:
    """The wall clock beside the age of this program, and what systemd knows of its
    synchronisation.
    """
    if now_wall_s < Path(__file__).stat().st_mtime - _YEAR_S:
        yield Finding(
            "FAIL",
            "clock",
            f"it is {time.ctime(now_wall_s)}, long before this program was installed",
            "set the clock",
        )
    elif synchronised == "no":
        yield Finding(
            "warn",
            "clock",
            "not synchronised; limits, budgets and active hours depend on it",
            "timedatectl set-ntp true",
        )
    else:
        yield Finding(
            "ok", "clock", "synchronised" if synchronised == "yes" else time.ctime(now_wall_s)
        )


def address_of(server: ServerSettings) -> str:
    """The URL at which this machine reaches a gateway with these settings."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{server.port}"


def _gateway(server: ServerSettings, key: str | None) -> Iterator[Finding]:
    url = address_of(server)
    client = GatewayClient(url, key)
    try:
        alive = client.fetch("/healthz", timeout_s=_TIMEOUT_S)
    except (GatewayUnreachable, CommandFailed):
        alive = {}
    if alive.get("service") != SERVICE:
        yield _of_port(urlsplit(url).hostname or "", server.port)
        return
    yield Finding("ok", "port", f"Hearth answers at {url}")
    yield _of_dashboard(url)
    try:
        yield from check_status(client.status())
    except (GatewayUnreachable, CommandFailed) as error:
        yield Finding(
            "warn",
            "gateway",
            error.message.splitlines()[0],
            "give an API key in HEARTH_KEY, or with --key",
        )


def _of_port(host: str, port: int) -> Finding:
    try:
        socket.create_connection((host, port), timeout=_TIMEOUT_S).close()
    except OSError:
        return Finding(
            "warn",
            "port",
            f"{port} is free: no gateway runs",
            "start it: `hearth serve`, or `systemctl --user start hearth`",
        )
    return Finding(
        "FAIL", "port", f"another program listens at port {port}", "stop it, or set server.port"
    )


def _of_dashboard(url: str) -> Finding:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        # the gateway's own address
        asked = urllib.request.Request(f"{url}/", headers={"Accept": "text/html"})  # noqa: S310
        with opener.open(asked, timeout=_TIMEOUT_S) as page:
            whole = b"<html" in page.read(MIB)
    except (OSError, HTTPException):
        whole = False
    if whole:
        return Finding("ok", "dashboard", f"{url}/")
    return Finding("FAIL", "dashboard", f"no page at {url}/", "install Hearth again")


def check_status(status: JsonMapping) -> Iterator[Finding]:
    """What a running gateway reports of itself."""
    yield from _of_backend(part(status, "backend"))
    yield from _of_store(part(status, "storage"))
    yield from _of_conversations(part(status, "conversations"))
    watch = part(status, "yield_watch")
    if watch.get("hidden") == "hidden":  # by its unit, which this command is not in
        yield hidden_programs(text(watch, "watch"), "hidden", "gateway")
    config = part(status, "config")
    for problem in texts(config, "problems"):
        says = f"the configuration was refused, the old one is in force: {problem}"
        yield Finding("FAIL", "gateway", says, "hearth config check")
    if pending := ", ".join(texts(config, "restart_pending")):
        says = f"settings wait for a restart: {pending}"
        yield Finding("warn", "gateway", says, "restart Hearth")
    for target in parts(part(status, "alerts"), "targets"):
        if problem := text(target, "problem"):
            says = f"alerts to {text(target, 'name')} are {text(target, 'state')}: {problem}"
            yield Finding("FAIL", "gateway", says, "hearth admin alert test")
    for alert in parts(part(status, "alerts"), "active"):
        severity = text(alert, "severity")
        says = f"{severity} alert {text(alert, 'type')} {text(alert, 'subject')}".strip()
        yield Finding("warn", "gateway", says, _remedy(text(alert, "type")))


def _remedy(alert_type: str) -> str:
    unknown = "use the `hearth` of the gateway's version"
    return next((each.remedy for each in AlertType if each == alert_type), unknown)


def _of_backend(backend: Json) -> Iterator[Finding]:
    title = ENGINE_TITLES.get(text(backend, "kind"), "Ollama")
    if flag(backend, "emulator"):
        remedy = "start Hearth without it"
        if backend.get("instead_of"):
            remedy = "start Ollama; Hearth then uses it"
        yield Finding("FAIL", "gateway", "the emulator answers: texts are made up", remedy)
    elif backend.get("up") is False:
        says = "it cannot reach its model server"
        if problem := text(backend, "problem"):
            says = f"its model server does not answer as {title} does: {problem}"
        yield Finding("FAIL", "gateway", says, f"see the line about {title}")


def _of_conversations(conversations: Json) -> Iterator[Finding]:
    if problem := text(conversations, "problem"):
        says = f"conversations are lost with each unload: {problem}"
        yield Finding("warn", "gateway", says, "set conversations.directory to another one")
    off = [text(each, "model") for each in parts(conversations, "models") if each["switched_off"]]
    if off:
        says = f"conversations are no longer saved, since that failed twice: {', '.join(off)}"
        remedy = "use another build of llama.cpp's server, or restart Hearth to try again"
        yield Finding("warn", "gateway", says, remedy)


def _of_store(storage: Json) -> Iterator[Finding]:
    if flag(storage, "clock_in_doubt"):
        says = "it jumped ahead, so no old data is deleted"
        yield Finding("warn", "clock", says, "hearth admin confirm-clock")
    if frames := storage.get("wal_frames_unreadable"):
        kept = text(storage, "damaged_copy")
        says = f"{frames} frames could not be read at the start; {kept or 'nothing'} is kept"
        remedy = "check the disk"
        if kept:
            remedy += f"; `sqlite3 {kept} .recover` on a copy of it finds what is left"
        yield Finding("warn", "store", says, remedy)
