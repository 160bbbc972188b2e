"""What is wrong between the rows of `engines`, and the `models` that name them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from hearth.config.document import Problem
from hearth.config.engines import ELASTIC_KINDS, SLEEP_LEVELS_OF
from hearth.config.settings import Settings

_STARTED_WITH: Mapping[str, str] = MappingProxyType(
    {
        "llama_server": "a llama_server is started with `-c`",
        "llama_router": "a llama_router starts it with `ctx-size` of its preset",
        "llama_swap": "llama-swap starts it with its `cmd`",
        "processes": "`run.command` starts it with its context",
        "vllm": "a vllm is started with `--max-model-len`",
        "sglang": "an sglang is started with `--context-length`",
        "openai": "the server decides on its context",
    }
)
"""Where the context of a model is that has none of Hearth's, by kind of the engine."""


def engine_problems(engines: object, models: object) -> Iterator[Problem]:
    """What is wrong with the rows of `engines` and with the `models` that name them, beside each
    value for itself.
    """
    rows = engines if isinstance(engines, dict) else {}
    urls: dict[str, str] = {}
    names: dict[str, str] = {}
    for name, row in rows.items():
        if not isinstance(row, dict) or not isinstance(name, str):
            continue
        folded = name.lower()
        if names.setdefault(folded, name) != name:
            text = f"is the same name as engines.{names[folded]}; give it another one"
            yield Problem(("engines", name), text)
        yield from _row_problems(name, row)
        url = row.get("url")
        if isinstance(url, str) and url:
            first = urls.setdefault(url.rstrip("/"), name)
            if first != name:
                yield Problem(("engines", name, "url"), f"is the URL of engines.{first}, too")
    given = models if isinstance(models, dict) else {}
    for model, about in given.items():
        if isinstance(about, dict):
            yield from _model_problems(model, about, rows)
    yield from _upstream_problems(given)


def _upstream_problems(models: Mapping[object, object]) -> Iterator[Problem]:
    """Of two models that are started under one name, calls would reach only one."""
    first: dict[tuple[object, str], object] = {}
    for model, about in models.items():
        upstream = about.get("upstream_name") if isinstance(about, dict) else None
        if not isinstance(about, dict) or not isinstance(upstream, str) or not about.get("run"):
            continue
        other = first.setdefault((about.get("engine"), upstream.lower()), model)
        if upstream and other != model:
            text = f"is that of models.{other}, too; give each a name of its own"
            yield Problem(("models", str(model), "upstream_name"), text)


def _row_problems(name: str, row: Mapping[str, object]) -> Iterator[Problem]:
    if row.get("kind") not in {"processes", None} and not row.get("url"):
        yield Problem(("engines", name, "url"), "is missing")


def _model_problems(
    model: object, about: Mapping[str, object], rows: Mapping[object, object]
) -> Iterator[Problem]:
    engine = about.get("engine")
    row = rows.get(engine) if engine else None
    if engine and row is None:
        known = ", ".join(str(name) for name in rows) or "none"
        yield Problem(("models", str(model), "engine"), f"is no row of engines ({known})")
    run = about.get("run")
    if isinstance(run, dict) and bool(run.get("sleep_command")) != bool(run.get("wake_command")):
        missing = "wake_command" if run.get("sleep_command") else "sleep_command"
        text = "is missing: a model is put to sleep only where it can be woken"
        yield Problem(("models", str(model), "run", missing), text)
    if isinstance(row, dict) and row.get("kind") == "processes" and not about.get("run"):
        yield Problem(("models", str(model), "run"), "is missing: how its server is started")


def effectless_of_engines(settings: Settings) -> Iterator[str]:
    """Settings of engines, and of how models run, that can have no effect."""
    for name, row in settings.engines.items():
        if row.kind == "processes":
            for field in ("url", "api_key"):
                if getattr(row, field):
                    yield (
                        f"engines.{name}.{field}: has no effect: Hearth starts the servers of"
                        " `processes` itself"
                    )
        if row.elastic and row.kind not in ELASTIC_KINDS:
            yield f"engines.{name}.elastic: has no effect; it is for {' and '.join(ELASTIC_KINDS)}"
        if not row.elastic and "spill_when_wait_over_s" in row.model_fields_set:
            yield (
                f"engines.{name}.spill_when_wait_over_s: has no effect; it is for engines with"
                " `elastic: true`"
            )
    has_processes = {name for name, row in settings.engines.items() if row.kind == "processes"}
    for model, about in settings.models.items():
        if about.run is not None and not (
            about.engine in has_processes or (not about.engine and len(has_processes) == 1)
        ):
            yield (
                f"models.{model}.run: has no effect: `engine` must be the name of an engine of the"
                " kind `processes`"
            )
    yield from _named_twice(settings)
    yield from _never_asleep(settings)


UNIFIED_SLEEP = (
    "gpu.sleep.host_ram_gb: has no effect in unified memory, where a model that sleeps would free"
    " nothing: models are stopped"
)


def sleep_is_set(settings: Settings) -> bool:
    """Models are to sleep; whether the memory is unified, no configuration can know."""
    return settings.gpu.sleep.host_ram_gb > 0 and any_can_sleep(settings)


def any_can_sleep(settings: Settings) -> bool:
    """Some engine or model is configured so that it can be put to sleep."""
    runs = (about.run for about in settings.models.values())
    return any(row.sleep for row in settings.engines.values()) or any(
        run is not None and run.sleep_command for run in runs
    )


def _never_asleep(settings: Settings) -> Iterator[str]:
    """Ways to sleep that nobody uses."""
    for name, row in settings.engines.items():
        levels = SLEEP_LEVELS_OF.get(row.kind, ())
        if row.sleep and (not levels or row.elastic):
            kinds = " or ".join(SLEEP_LEVELS_OF)
            yield f"engines.{name}.sleep: has no effect; it is for {kinds}, if not elastic"
            continue
        for level in sorted(set(row.sleep) - {*levels}):
            yield f"engines.{name}.sleep: `{level}` has no effect; {row.kind} has no such level"
        allowed = [level for level in levels if level in row.sleep]
        if len(allowed) > 1 and not settings.gpu.sleep.host_ram_gb:
            yield (
                f"engines.{name}.sleep: `{allowed[0]}` has no effect without"
                f" gpu.sleep.host_ram_gb; what has to be stopped sleeps at `{allowed[-1]}`"
            )
    for model, about in settings.models.items():
        if about.run is not None and about.run.sleep_command and not settings.gpu.sleep.host_ram_gb:
            yield f"models.{model}.run.sleep_command: has no effect without gpu.sleep.host_ram_gb"


def _named_twice(settings: Settings) -> Iterator[str]:
    """Names for a model of an engine that has another one already."""
    names: dict[tuple[str, str], str] = {}
    for model, about in settings.models.items():
        if about.upstream_name:
            first = names.setdefault((about.engine, about.upstream_name.lower()), model)
            if first != model:
                yield (
                    f"models.{model}.upstream_name: has no effect: it is that of models.{first};"
                    " use an alias for another name"
                )


def contexts_without_effect(settings: Settings) -> Iterator[str]:
    """`num_ctx` of models whose servers are started with their context."""
    rows = settings.engine_rows
    only = next(iter(rows.values())) if len(rows) == 1 else None
    for name, model in settings.models.items():
        row = rows.get(model.engine, only)
        how = _STARTED_WITH.get("" if row is None else row.kind)
        if how is not None and model.num_ctx is not None:
            yield f"models.{name}.num_ctx: has no effect; {how}"
