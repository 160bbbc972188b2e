"""What `hearth doctor` asks of each engine, and of the models that the configuration names."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from hearth.cli.engines import ask_engines, missing_choices, shadowing_aliases
from hearth.config.engines import ENGINE_TITLES
from hearth.config.loading import exposure_problem
from hearth.config.settings import BackendMode, Settings
from hearth.engines.llama_router.traits import ARGUMENTS
from hearth.engines.small_model.files import NAME as SMALL_MODEL
from hearth.engines.small_model.files import find_small_model
from hearth.engines.table import EngineTable, Row
from hearth.errors import BackendError, BackendProtocolError, BackendUnreachable, LoadError
from hearth.types import InstalledModel

TIMEOUT_S = 3.0
LOADING = "503: Loading model"
"""In what a llama-server answers meanwhile."""
NAMED_IN = (
    "`model` of /api/chat, /api/generate, /v1/chat/completions, /v1/completions and /v1/responses,"
    " and of `message_start` in /v1/messages"
)
"""Where the answer of each dialect says which model ran; clients of all three accept another name
than they asked for.
"""


class Finding(NamedTuple):
    """A line: `FAIL` is wrong, `warn` works worse than it could."""

    level: Literal["ok", "warn", "FAIL"]
    subject: str
    says: str
    advice: str = ""


Check = Callable[[Row, tuple[InstalledModel, ...], Settings], Iterator[Finding]]
"""Of one engine that answers, and the models that it lists."""


def check_engines(settings: Settings) -> Iterator[Finding]:
    """Each engine, and the models of all."""
    asked = asyncio.run(ask_engines(settings, TIMEOUT_S))
    engines = asked.engines
    for name, row in engines.rows.items():
        title = ENGINE_TITLES[row.kind]
        subject = title if engines.is_single else name
        error = asked.errors.get(name)
        if error is not None:
            yield _not_answering(error, row, subject, settings)
            continue
        says = " ".join(filter(None, (asked.versions[name], row.url and f"at {row.url}")))
        yield Finding("ok", subject, says if engines.is_single else f"{title}: {says}")
        check = _CHECKS.get(row.kind)
        if check is not None:
            yield from check(row, engines.listed(name), settings)
    if len(asked.errors) == len(engines.rows):
        return
    names = [model.name for model in engines.installed]
    yield from check_models(names, settings, engines)
    yield from check_owners(engines)
    yield from check_aliases(names, settings, engines)


def _not_answering(error: BackendError, row: Row, subject: str, settings: Settings) -> Finding:
    # imported here, so that only commands that ask a model server wait for it
    from hearth.bootstrap.standin import named_server  # noqa: PLC0415

    remedy = _remedy_of(error, row, settings)
    is_tried = settings.backend.mode is BackendMode.AUTO and not named_server(settings)
    if isinstance(error, BackendUnreachable) and is_tried and find_small_model().run is not None:
        says = f"{error.message} {SMALL_MODEL}, a small model on the CPU, answers in its place."
        return Finding("warn", subject, says, remedy)
    return Finding("FAIL", subject, error.message, remedy)


def _remedy_of(error: BackendError, row: Row, settings: Settings) -> str:
    """What to do about a model server that does not answer, or not right."""
    setting = settings.url_setting(row.name)
    key = f"{setting.rpartition('.')[0]}.api_key"
    if not isinstance(error, BackendProtocolError):
        return f"{_START.get(row.kind, 'start it')}, or correct {setting}"
    if key in error.message:
        return f"set {key} to the key that it was started with"
    if ARGUMENTS in error.message:
        return f"restart it with {ARGUMENTS}"
    if LOADING in error.message:
        return "wait until it has loaded its model"
    return f"set {setting} to the address of {ENGINE_TITLES[row.kind]} itself"


def _check_ollama(
    row: Row, installed: tuple[InstalledModel, ...], settings: Settings
) -> Iterator[Finding]:
    del installed
    if urlsplit(row.url).hostname in {"127.0.0.1", "localhost", "::1"}:
        yield from check_ollama_settings(ollama_environment(), settings)


def _check_llama_swap(
    row: Row, installed: tuple[InstalledModel, ...], settings: Settings
) -> Iterator[Finding]:
    # imported here, so that only commands that ask a model server wait for it
    from hearth.engines.llama_swap.engine import LlamaSwap  # noqa: PLC0415

    if isinstance(row.engine, LlamaSwap):
        yield from check_idle_limits(row.engine.idle_limits_s)
    yield from check_slots(row, installed, settings)


def _check_lmstudio(
    row: Row, installed: tuple[InstalledModel, ...], settings: Settings
) -> Iterator[Finding]:
    # imported here, so that only commands that ask a model server wait for it
    from hearth.engines.lmstudio.engine import LmStudio  # noqa: PLC0415

    del installed, settings
    if isinstance(row.engine, LmStudio) and row.engine.loads_by_itself:
        says = "JIT loading is on: LM Studio loads models by itself, and ends others for them"
        yield Finding("warn", "JIT loading", says, "turn it off in Developer > Server Settings")


def _check_processes(
    row: Row, installed: tuple[InstalledModel, ...], settings: Settings
) -> Iterator[Finding]:
    # imported here, so that only commands that ask a model server wait for it
    from hearth.engines.processes.engine import Processes  # noqa: PLC0415

    del installed, settings
    if not isinstance(row.engine, Processes):
        return
    for server in row.engine.servers.values():
        try:
            yield Finding("ok", "command", f"{server.name}: {server.program()}")
        except LoadError as error:
            says, _, wrong = error.message.partition(": ")
            yield Finding("FAIL", "command", f"{server.name}: {wrong}", f"correct {says}")
    free = row.engine.ports.free()
    wanted = len(row.engine.servers)
    says = f"{free} free for {wanted} model{'' if wanted == 1 else 's'}"
    if free >= wanted:
        yield Finding("ok", "ports", says)
    else:
        yield Finding("warn", "ports", says, f"give engines.{row.name}.ports another range")


def check_idle_limits(limits_s: Mapping[str, int]) -> Iterator[Finding]:
    """What stops models by itself, as far as they run now, by model."""
    for model, limit_s in limits_s.items():
        says = f"llama-swap stops {model} by itself after {limit_s} s without a request (ttl)"
        yield Finding("warn", "ttl", says, "set `ttl: 0` for it, and `globalTTL: 0`")


def check_slots(
    row: Row, installed: tuple[InstalledModel, ...], settings: Settings
) -> Iterator[Finding]:
    """The slots of a llama-server beside `models.*.parallel`; of a model that is not loaded they
    may be unknown.
    """
    del row
    stated = {name.lower(): model.parallel for name, model in settings.models.items()}
    for model in installed:
        if (slots := model.slots) is None:
            continue
        wanted = stated.get(model.name.lower()) or slots
        says = f"{model.name}: {slots} at the same time"
        if wanted == slots:
            yield Finding("ok", "slots", says)
        else:
            advice = f"remove models.{model.name}.parallel, or start it with `-np {wanted}`"
            yield Finding("warn", "slots", f"{says}, and Hearth sends {wanted}", advice)


def check_parallel(
    row: Row, installed: tuple[InstalledModel, ...], settings: Settings
) -> Iterator[Finding]:
    """How many requests go at once to a server that does not say how many it takes."""
    del installed
    if row.parallel is not None:
        yield Finding("ok", "slots", f"{row.parallel} at the same time for each model")
        return
    setting = f"engines.{row.name}.parallel"
    says = f"{setting} is not set: {settings.gpu.parallel} at the same time for each model"
    yield Finding("warn", "slots", says, f"set {setting} to what the server takes at once")


def ollama_environment(processes: Path = Path("/proc")) -> Mapping[str, str] | None:
    """The variables of the Ollama on this machine, from its process or its unit; None where neither
    can be read.
    """
    for name in processes.glob("[0-9]*/comm"):
        with suppress(OSError):
            if (
                name.read_text().strip() == "ollama"
                and b"\0serve" in (name.parent / "cmdline").read_bytes()
            ):
                listed = (name.parent / "environ").read_bytes().decode(errors="replace").split("\0")
                return dict(pair.split("=", 1) for pair in listed if "=" in pair)
    shown = output_of("systemctl", "show", "ollama", "--property=Environment", "--value")
    return dict(pair.split("=", 1) for pair in shlex.split(shown) if "=" in pair) if shown else None


def output_of(*command: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 (fixed commands)
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def check_ollama_settings(
    environ: Mapping[str, str] | None, settings: Settings
) -> Iterator[Finding]:
    """Ollama's own settings beside ours."""
    subject = "Ollama settings"
    if environ is None:
        advice = (
            "run `sudo hearth doctor`, or look at `systemctl show ollama --property=Environment`"
        )
        yield Finding(
            "ok", subject, "cannot be read: Ollama runs as another user, or in a container", advice
        )
        return
    models = _whole(environ, "OLLAMA_MAX_LOADED_MODELS", 0)
    slots = _whole(environ, "OLLAMA_NUM_PARALLEL", 1)
    parallel = (settings.gpu.parallel, *(each.parallel or 0 for each in settings.models.values()))
    sharing = dict(_sharing_problems(slots, max(parallel), models))
    problems = sharing | dict(_host_problem(environ.get("OLLAMA_HOST", "")))
    for says, advice in problems.items():
        yield Finding("warn", subject, says, advice)
    if not sharing:
        says = f"OLLAMA_NUM_PARALLEL {slots}, OLLAMA_MAX_LOADED_MODELS {models or 'automatic'}"
        yield Finding("ok", subject, says)


Problems = Iterator[tuple[str, str]]
"""What is wrong, and what to do."""


def _sharing_problems(slots: int, wanted: int, models: int) -> Problems:
    sends = f"OLLAMA_NUM_PARALLEL is {slots}, and Hearth sends {wanted}"
    if slots < wanted:
        yield (
            f"{sends} requests at once to one model",
            f"set OLLAMA_NUM_PARALLEL={wanted} for Ollama, or lower gpu.parallel",
        )
    elif slots > wanted:
        yield (
            f"{sends} at once: the memory of the other slots is unused",
            f"set gpu.parallel: {slots}, or OLLAMA_NUM_PARALLEL={wanted} for Ollama",
        )
    if models == 1:
        yield (
            "OLLAMA_MAX_LOADED_MODELS is 1: a small model never stays beside a large one",
            "remove it, or set it to the number of models that should stay in memory together",
        )


def _host_problem(host: str) -> Problems:
    name = urlsplit(f"//{host.rpartition('//')[2]}").hostname or "0.0.0.0"
    if host and exposure_problem(name, has_keys=False):
        yield (
            f"OLLAMA_HOST is {host}: programs on other machines can bypass Hearth",
            "set OLLAMA_HOST=127.0.0.1:11434 for Ollama, and give them Hearth's address",
        )


def _whole(environ: Mapping[str, str], name: str, default: int) -> int:
    value = environ.get(name, "")
    return int(value) if value.isdecimal() else default


def check_models(
    installed: list[str], settings: Settings, engines: EngineTable
) -> Iterator[Finding]:
    """The models that the configuration names beside those that are installed."""
    if not installed:
        how = engines.first.engine.how_to_install("llama3.1:8b")
        yield Finding("FAIL", "models", "none is installed", how)
        return
    known = {name.lower() for name in installed}
    named = {
        "gpu.home_model": settings.gpu.home_model,
        **{f"models.{name}": name for name in settings.models},
    }
    missing = {
        where: name
        for where, name in named.items()
        if name and engines.canonical(name).lower() not in known
    }
    for where, name in missing.items():
        yield Finding(
            "FAIL" if where == "gpu.home_model" else "warn",
            "models",
            f"{where}: {name} is not installed",
            engines.how_to_install(name),
        )
    if not missing:
        yield Finding(
            "ok",
            "models",
            f"{len(installed)} installed; home model {settings.gpu.home_model or 'none'}",
        )


def check_owners(engines: EngineTable) -> Iterator[Finding]:
    """The models that several engines list, where the owner has not said which one is asked."""
    rows_of: dict[str, list[str]] = {}
    for name, row in engines.rows.items():
        for model in engines.listed(name):
            called = engines.canonical(engines.called(row, model.name)).lower()
            rows_of.setdefault(called, []).append(name)
    assigned = {model for name in engines.rows for model in engines.assigned_to(name)}
    for called, rows in rows_of.items():
        if len(rows) > 1 and called not in assigned:
            says = (
                f"{called} is listed by {', '.join(rows)}: whichever of them answers first has it"
            )
            yield Finding("warn", "models", says, f"set models.{called}.engine: {rows[0]}")


def check_aliases(
    installed: list[str], settings: Settings, engines: EngineTable
) -> Iterator[Finding]:
    """The names that stand for several models, and how an answer says which of them ran."""
    aliases = settings.aliases
    if not aliases:
        return
    known = {name.lower() for name in installed}
    for problem in shadowing_aliases(aliases, known, engines.canonical):
        yield Finding("FAIL", "aliases", f"{problem.path[1]} {problem.text}", "rename the alias")
    for where, model in missing_choices(aliases, known, engines.canonical):
        says = f"{where}: {model} is not installed, so it is passed over"
        yield Finding("warn", "aliases", says, engines.how_to_install(model))
    named = "; ".join(f"{name}: {', '.join(models)}" for name, models in aliases.items())
    told = (
        "an answer names the model that ran in the header X-Hearth-Model, unless signs of life went"
        f" before it, and in {NAMED_IN}"
    )
    yield Finding("ok", "aliases", f"{named} ({told})")


_START = {
    "ollama": "start it (`systemctl start ollama`)",
    "llama_server": "start it (`llama-server -m FILE`)",
    "llama_router": f"start it (`llama-server --models-preset FILE {ARGUMENTS}`)",
    "llama_swap": "start it (`llama-swap --config FILE`)",
    "vllm": "start it (`vllm serve MODEL`)",
    "sglang": "start it (`python -m sglang.launch_server --model-path MODEL`)",
    "lmstudio": "start it (`lms server start`)",
}
_CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "ollama": _check_ollama,
        "llama_server": check_slots,
        "llama_router": check_slots,
        "llama_swap": _check_llama_swap,
        "openai": check_parallel,
        "vllm": check_parallel,
        "sglang": check_parallel,
        "lmstudio": _check_lmstudio,
        "processes": _check_processes,
    }
)
"""Beside what is asked of every engine."""
