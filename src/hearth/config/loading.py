"""From the owner's file to a `GatewayConfig`, or to a `ConfigError` that names everything that is
wrong with it.

    bytes -> text -> document -> secrets from the environment -> rules between fields -> pydantic's
    models

Never half-applies a file and never guesses. After the step of the environment no clear key of a
caller exists any more; a problem names the variable and never its content. The rules between fields
look at the plain document, so that they hold even where other values are wrong.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pydantic

from hearth.config.choices import ALL_GPUS
from hearth.config.document import (
    Document,
    KeyPath,
    Problem,
    complaints,
    config_error,
    dotted,
    line_of,
)
from hearth.config.engine_checks import (
    any_can_sleep,
    contexts_without_effect,
    effectless_of_engines,
    engine_problems,
)
from hearth.config.fields import MIN_SECRET_CHARS
from hearth.config.mode_checks import mode_problems
from hearth.config.origins import Origin, SettingPath, written_paths
from hearth.config.scheduler_settings import GpuSettings, YieldSettings
from hearth.config.settings import GatewayConfig, Settings
from hearth.errors import ConfigError
from hearth.types import LOCAL_CALLER, SEVERAL_CALLERS, JsonDict, Lane

DEFAULT_PATH = Path("config/llm_gateway.yaml")
MAX_DOCUMENT_BYTES = 256 * 1024
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}", re.ASCII)
_SECRET_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(:-)?\}", re.ASCII)
"""A default other than nothing would be the secret itself, in the file."""
_CLOUD_KEY = ("cloud", "api_key")
_ANY = "*"
_ENGINE_KEY = ("engines", _ANY, "api_key")
_REPLACED_IN = {
    ("ollama", "url"),
    ("engines", _ANY, "url"),
    _ENGINE_KEY,
    ("server", "allowed_hosts"),
    _CLOUD_KEY,
    ("cloud", "base_url"),
    ("alerts", "discord_webhook_url"),
    ("alerts", "webhook_url"),
    ("alerts", "ntfy_url"),
    ("jobs", "webhooks", "secret"),
}
_REPLACED_KEYS = (
    "auth.keys[].key, ollama.url, url and api_key of engines, cloud.api_key, cloud.base_url,"
    " jobs.webhooks.secret"
)
_REPLACED_TEXT = f"{_REPLACED_KEYS}, server.allowed_hosts and the URLs of alerts"
_OLD_NAMES = {
    ("scheduling", "timezone"): "time_zone",
    ("cloud", "daily_cloud_external_usd"): "daily_external_usd",
}
_SHORT: Mapping[SettingPath, SettingPath] = {("backend",): ("backend", "mode")}
"""What a value stands for where a section is written as one."""
_UNKNOWN_DIGEST = "0" * 64


def load_gateway_config(
    path: Path | str | None = None, environ: Mapping[str, str] | None = None
) -> GatewayConfig:
    """The configuration in a file, in `config/llm_gateway.yaml` if that exists, else the defaults;
    `environ`: what `${NAME}` refers to, if not this process's environment. Raises ConfigError with
    every problem.
    """
    if path is None and not DEFAULT_PATH.exists():
        return GatewayConfig()
    chosen = DEFAULT_PATH if path is None else Path(path)
    return parse_bytes(read_bytes(chosen), chosen, environ)


def read_bytes(path: Path) -> bytes:
    """What is in a file; of one that is too large, one byte more than it may have.

    Raises ConfigError where it cannot be read.
    """
    try:
        if not path.is_file() and path.exists():
            raise ConfigError([f"{path}: is not a regular file"])
        with path.open("rb") as stream:
            return stream.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror or error}"]) from error


def read_text(path: Path) -> str:
    """The text in a file. Raises ConfigError where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: is not UTF-8 text"]) from error


def digest_of(content: bytes) -> str:
    """What a file's content is known by: `GatewayConfig.digest`."""
    return hashlib.sha256(content).hexdigest()


def parse_bytes(
    content: bytes, path: Path, environ: Mapping[str, str] | None = None
) -> GatewayConfig:
    """The configuration in the content of the file at `path`, as `read_bytes` gives it.

    Raises ConfigError with every problem.
    """
    return replace(
        parse_config(text_of(content, path), source=str(path), environ=environ),
        source=path,
        digest=digest_of(content),
    )


def text_of(content: bytes, path: Path) -> str:
    """The text in the content of the file at `path`, as `read_bytes` gives it.

    Raises ConfigError where it is none, or too large.
    """
    if len(content) > MAX_DOCUMENT_BYTES:
        raise ConfigError(
            [f"{path}: is larger than {MAX_DOCUMENT_BYTES // 1024} KiB; is this the right file?"]
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{path}:{line}: is not UTF-8 text; save it as UTF-8"]) from error


def parse_config(
    text: str, *, source: str, environ: Mapping[str, str] | None = None
) -> GatewayConfig:
    """The configuration in a text that problems call `source`.

    Raises ConfigError with every problem: `source:line: path: what to do`.
    """
    document = Document(text.removeprefix("\ufeff"), source=source)
    problems = document.problems
    variables = _Variables(os.environ if environ is None else environ, problems)
    value, notes = _renamed(variables.put_into((), document.value))
    settings = Settings()
    if not isinstance(value, dict):
        problems.append(
            Problem(
                (), "must be a mapping of sections such as `queue:`; write `{}` to use all defaults"
            )
        )
    else:
        try:
            settings = Settings.model_validate(value)
        except pydantic.ValidationError as error:
            _add(complaints(error.errors(include_url=False)), problems)
    _add(_cross_problems(value), problems)
    _add(mode_problems(value, _cross_problems), problems)
    if problems:
        raise config_error(source, problems, document.lines)
    origins = {
        _SHORT.get(path, path): Origin(
            "environment" if path in variables.replaced else "file",
            line_of(path, document.lines),
        )
        for path in written_paths(value)
    }
    return GatewayConfig(settings=settings, notes=(*variables.notes, *notes), origins=origins)


def problems_of_file(path: Path, problems: Iterable[Problem]) -> ConfigError:
    """What is wrong with a file that could be read, with the lines."""
    text = read_bytes(path).decode("utf-8").removeprefix("\ufeff")
    return config_error(str(path), problems, Document(text, source=str(path)).lines)


def _add(found: Iterable[Problem], problems: list[Problem]) -> None:
    """Those that are not about a value of which something worse is known already."""
    places = {each.path for each in problems}
    problems += [each for each in found if each.path not in places]


class _Variables:
    """Puts the environment's variables in place of `${NAME}`, and digests in place of keys."""

    def __init__(self, environ: Mapping[str, str], problems: list[Problem]) -> None:
        self.notes: list[str] = []
        self.replaced: set[KeyPath] = set()
        """Where a value is from the environment, as a whole or in part."""
        self._environ = environ
        self._problems = problems

    def put_into(self, path: KeyPath, value: object) -> object:
        """The value at a path of the document with every reference replaced."""
        if path[:2] == ("auth", "keys") and len(path) == 3 and isinstance(value, dict):
            value = self._hashed(path, value)
        if isinstance(value, dict):
            found = {key: self.put_into((*path, key), each) for key, each in value.items()}
            # What optional variables leave empty is as if it was not written: the default holds,
            # and nothing counts as configured.
            return {key: each for key, each in found.items() if each != "" or value[key] == ""}
        if isinstance(value, list):
            return [self.put_into((*path, index), each) for index, each in enumerate(value)]
        return self._replaced(path, value) if isinstance(value, str) else value

    def _replaced(self, path: KeyPath, text: str) -> str:
        place = _place_of(path)
        if (
            place in (_CLOUD_KEY, _ENGINE_KEY)
            and text
            and _SECRET_REFERENCE.fullmatch(text) is None
        ):
            self._report(path, "must be ${NAME}, to keep the key out of this file")
            return ""
        if "${" not in text or (path[:1] == ("models",) and path[2:3] == ("run",)):
            return text  # macros of a command, replaced when it is started
        if place not in _REPLACED_IN:
            problem = f"`${{...}}` is replaced only in {_REPLACED_TEXT}; write the value itself"
            self._report(path, problem)
            return text
        self.replaced.add(_of_whole_list(path))
        if "${" in _REFERENCE.sub("", text):
            problem = "contains `${` without a variable name; write `${NAME}` or `${NAME:-DEFAULT}`"
            self._report(path, problem)
        return _REFERENCE.sub(lambda match: self._value_of(path, match[1], match[2]), text)

    def _report(self, path: KeyPath, text: str) -> None:
        self._problems.append(Problem(path, text))

    def _value_of(self, path: KeyPath, name: str, default: str | None) -> str:
        value = self._environ.get(name) or default
        if value is None:
            remedy = "set it, or write the value itself"
            self._report(path, f"the environment variable {name} is not set; {remedy}")
        return value or ""

    def _hashed(self, path: KeyPath, entry: JsonDict) -> JsonDict:
        """An entry of `auth.keys` with a digest in place of a key."""
        if "key" in entry and "sha256" in entry:
            self._report((*path, "key"), "give either sha256 or key, not both")
        elif "key" not in entry and "sha256" not in entry:
            text = "is missing: give sha256, or key: ${NAME} (`hearth key new NAME` prints one)"
            self._report((*path, "sha256"), text)
        if "key" not in entry:
            return entry
        rest = {name: value for name, value in entry.items() if name != "key"}
        return {"sha256": self._digest_of((*path, "key"), entry["key"])} | rest

    def _digest_of(self, path: KeyPath, reference: object) -> str:
        match = _SECRET_REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
        if match is None:
            text = "must be ${NAME}, to keep the key out of this file; or give its sha256 instead"
            self._report(path, text)
            return _UNKNOWN_DIGEST
        self.replaced.add(_of_whole_list(path))
        name, is_optional = match.groups()
        key = self._environ.get(name, "")
        if not key and is_optional:
            text = f"the environment variable {name} is not set, so nobody has this key"
            self.notes.append(f"{dotted(path)}: {text}")
            # No key has this digest. Without the entry, a file whose only key is not set would
            # let everybody on this machine in.
            return f"{path[2]:064x}"
        if problem := _key_problem(key):
            self._report(path, f"the environment variable {name} {problem}")
        return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _of_whole_list(path: KeyPath) -> KeyPath:
    """The place of a value; a list is one."""
    index = next((at for at, step in enumerate(path) if isinstance(step, int)), len(path))
    return path[:index]


def _place_of(path: KeyPath) -> KeyPath:
    """A path without places in lists, and without the names of engines."""
    named = tuple(step for step in path if isinstance(step, str))
    return (named[0], _ANY, *named[2:]) if named[:1] == ("engines",) else named


def _key_problem(key: str) -> str | None:
    if not key:
        return "is not set; set it, or give sha256 instead"
    if not (key.isascii() and key.isprintable() and " " not in key):
        return "contains a character that HTTP headers do not allow"
    if len(key) < MIN_SECRET_CHARS:
        return f"has fewer than {MIN_SECRET_CHARS} characters; make one with `hearth key new NAME`"
    return None


def _renamed(document: object) -> tuple[object, tuple[str, ...]]:
    """The document with the names that Donna's gateway uses replaced by ours, unless ours is there
    too, and a note for each of them.
    """
    if not isinstance(document, dict):
        return document, ()
    notes = []
    found = dict(document)
    if isinstance(found.get("ollama_health_check"), bool):
        notes.append(
            "ollama_health_check: has no effect, Hearth always checks its model server"
            " (backend.check_interval_s); remove it"
        )
        del found["ollama_health_check"]
    backend = found.get("backend")
    if "auto" in (backend, _at(backend, "mode")):
        notes.append(
            "backend.mode: with `auto` the emulator answers no longer where a URL, keys, models or"
            " a service manager are there"
        )
    for (section, old), new in _OLD_NAMES.items():
        entries = found.get(section)
        if isinstance(entries, dict) and old in entries and new not in entries:
            found[section] = {
                new if name == old else name: value for name, value in entries.items()
            }
            notes.append(f"{section}.{old}: read as {section}.{new}; rename it")
    return found, tuple(notes)


def _cross_problems(document: object) -> Iterator[Problem]:
    """What is wrong between fields of a document whose keys are hashed already."""
    listed = _at(document, "auth", "keys")
    keys = listed if isinstance(listed, list) else []
    host = _at(document, "server", "host")
    if isinstance(host, str) and (exposed := exposure_problem(host, has_keys=bool(keys))):
        yield Problem(("server", "host"), exposed)
    hosts = _at(document, "server", "allowed_hosts")
    if isinstance(hosts, list) and "*" in hosts and not keys:
        text = "`*` needs auth.keys: without them, a web page could reach Hearth under its own name"
        yield Problem(("server", "allowed_hosts"), text)
    yield from _repeated(keys, "name", "every key needs a name of its own")
    yield from _repeated(keys, "sha256", "every caller needs a key of its own")
    for index, entry in enumerate(keys):
        # its caller would pass for the owner of what is shared
        if _at(entry, "name") == SEVERAL_CALLERS:
            text = (
                f"must not be {SEVERAL_CALLERS}, which stands for several callers of an embedding"
                " request; choose another name"
            )
            yield Problem(("auth", "keys", index, "name"), text)
    yield from _alias_problems(document)
    yield from engine_problems(_at(document, "engines"), _at(document, "models"))
    # a budget that forgets at each start is none
    if _at(document, *_CLOUD_KEY) and _at(document, "storage", "enabled") is False:
        yield Problem(_CLOUD_KEY, "needs the store: remove `storage.enabled: false` or this key")


def _alias_problems(document: object) -> Iterator[Problem]:
    """Names of `aliases` that mean something else as well, and models that are none."""
    found = _at(document, "aliases")
    aliases = found if isinstance(found, dict) else {}
    known = _at(document, "models")
    models = {"gpu.home_model": _at(document, "gpu", "home_model")}
    models |= {f"models.{name}": name for name in (known if isinstance(known, dict) else ())}
    taken = {_folded(name): where for where, name in models.items() if isinstance(name, str)}
    names = {_folded(name): name for name in reversed(aliases) if isinstance(name, str)}
    for alias, choices in aliases.items():
        place: KeyPath = ("aliases", alias)
        if not isinstance(alias, str):
            continue
        first = names[_folded(alias)]
        if "*" in alias:
            yield Problem(place, "must not contain `*`, which stands for any name in auth.keys")
        elif first != alias:
            yield Problem(place, f"is the same name as aliases.{first}; remove one")
        elif _folded(alias) in taken:
            where = taken[_folded(alias)]
            yield Problem(place, f"is a model ({where}); give the alias a name of its own")
        yield from _choice_problems(place, choices if isinstance(choices, list) else [], names)


def _choice_problems(
    place: KeyPath, models: list[object], aliases: Container[str]
) -> Iterator[Problem]:
    """What is wrong with the models of one alias."""
    first: dict[str, int] = {}
    for index, model in enumerate(models):
        if not isinstance(model, str):
            continue
        if "*" in model:
            yield Problem((*place, index), "must be one model: `*` is not replaced here")
        elif _folded(model) in aliases:
            yield Problem((*place, index), "is an alias itself; name the models")
        elif first.setdefault(_folded(model), index) != index:
            text = f"is the same as entry {first[_folded(model)] + 1}; remove one"
            yield Problem((*place, index), text)


def _folded(model: str) -> str:
    """A model's name as it is compared, however it is spelled."""
    return model.lower().removesuffix(":latest")


def _repeated(keys: list[object], field: str, remedy: str) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, entry in enumerate(keys):
        value = _at(entry, field)
        if isinstance(value, str):
            earlier = first.setdefault(value.lower() if field == "sha256" else value, index)
            if earlier != index:
                text = f"is the same as auth.keys[{earlier}]; {remedy}"
                yield Problem(("auth", "keys", index, field), text)


def _at(value: object, *path: str) -> object:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def exposure_problem(host: str, *, has_keys: bool) -> str | None:
    """Why Hearth must not listen on `host`, None where it may: without keys all are one anonymous
    caller, only this machine may ask.
    """
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host.lower() == "localhost"  # names are not resolved
    if has_keys or is_loopback:
        return None
    return (
        "without auth.keys, anyone who can reach this address could use the GPU and spend the"
        " budget; add a key (`hearth key new NAME`), or listen on 127.0.0.1"
    )


def effectless(settings: Settings) -> Iterator[str]:
    """Settings that can have no effect, each with the reason; they are no mistakes."""
    keys = {key.name: key for key in settings.auth.keys}
    for name in settings.rate_limits.callers:
        if name not in keys and (keys or name != LOCAL_CALLER):
            yield f"rate_limits.callers.{name}: no key in auth.keys has this name"
        elif name in keys and keys[name].lane is Lane.INTERNAL:
            yield (
                f"rate_limits.callers.{name}: its key is in the internal lane, which has no limits"
            )
    for index, name in enumerate(settings.queue.paused_callers):
        if keys and name not in {*keys, Lane.INTERNAL.value}:
            yield f"queue.paused_callers[{index}]: no key in auth.keys has the name {name}"
    for index, key in enumerate(settings.auth.keys):
        if key.allow_cloud and not settings.cloud.api_key:
            yield f"auth.keys[{index}].allow_cloud: cloud.api_key is not set"
        elif key.allow_cloud and key.local_only:
            yield (
                f"auth.keys[{index}].allow_cloud: has no effect, because local_only of this key"
                " is set"
            )
        if key.daily_usd is not None and not key.allow_cloud:
            yield f"auth.keys[{index}].daily_usd: has no effect without allow_cloud"
    yield from _effectless_of_models(settings)


def _effectless_of_models(settings: Settings) -> Iterator[str]:
    yield from effectless_of_engines(settings)
    if settings.engines and "url" in settings.ollama.model_fields_set:
        yield "ollama.url: has no effect, because engines is set"
    is_slotted = {row.kind for row in settings.engine_rows.values()} == {"llama_server"}
    if is_slotted and "parallel" in settings.gpu.model_fields_set:
        yield "gpu.parallel: has no effect; the slots of a llama_server are used (`-np`)"
    yield from contexts_without_effect(settings)
    yield from _effectless_of_gpu(settings.gpu)
    yield from _effectless_of_sleep(settings)


def _effectless_of_gpu(gpu: GpuSettings) -> Iterator[str]:
    if gpu.device == ALL_GPUS and not gpu.nvml:
        yield "gpu.device: has no effect, because gpu.nvml is false"
    yielding = gpu.yielding
    if yielding.comfyui_gb is not None and not yielding.comfyui:
        yield "gpu.yield.comfyui_gb: has no effect without gpu.yield.comfyui"
    if yielding.watch == "pressure" and not gpu.nvml:
        yield "gpu.yield.watch: pressure does no more than named, because gpu.nvml is false"
    if yielding.watch == "pressure" and yielding.headroom_gb == 0:
        yield "gpu.yield.watch: pressure does no more than named, because headroom_gb is 0"
    for name, gb in (("game_gb", yielding.game_gb), ("comfyui_gb", yielding.comfyui_gb)):
        if gb == 0:
            yield f"gpu.yield.{name}: 0 frees nothing; without it, all memory is freed"
    if yielding.game_gb is not None and yielding.watch == "off":
        yield "gpu.yield.game_gb: has no effect with gpu.yield.watch: off"
    if yielding.programs != YieldSettings().programs and yielding.watch in {"off", "games"}:
        yield f"gpu.yield.programs: has no effect with gpu.yield.watch: {yielding.watch}"


def _effectless_of_sleep(settings: Settings) -> Iterator[str]:
    sleep = settings.gpu.sleep
    if sleep.host_ram_gb:
        if not any_can_sleep(settings):
            yield "gpu.sleep.host_ram_gb: has no effect: no engine and no model has a way to sleep"
        elif not settings.gpu.nvml:
            yield "gpu.sleep.host_ram_gb: has no effect, because gpu.nvml is false"
        return
    for name in ("max_residual_gb", "policy"):
        if name in sleep.model_fields_set:
            yield f"gpu.sleep.{name}: has no effect without gpu.sleep.host_ram_gb"


def changed_meanings(settings: Settings) -> Iterator[str]:
    """Settings that meant something else in the release before, and what they mean now."""
    scheduling = settings.scheduling
    gpu = settings.gpu
    if gpu.swap_timeout_s != type(gpu)().swap_timeout_s:
        yield (
            "gpu.swap_timeout_s: bounds how long a load shows no progress, no longer the load as a"
            " whole; a model gets at least twice its longest load so far"
        )
    if scheduling.announcements and "schedule_drain_minutes" in scheduling.model_fields_set:
        yield (
            "scheduling.schedule_drain_minutes: holds back what could still run at the announced"
            " task (95 % of such answers are shorter), no longer only what is expected to"
        )
    if (
        "max_interrupt_count" in settings.queue.model_fields_set
        and scheduling.preemption == "priced"
    ):
        yield (
            "queue.max_interrupt_count: no longer protects streams that can be continued, which"
            " have turns (scheduling.others_share), and counts no loads that were undone;"
            " scheduling.preemption: at_once is as before"
        )
    alerts = settings.alerts
    has_target = alerts.discord_webhook_url or alerts.webhook_url or alerts.ntfy_url
    if has_target and "swaps_per_hour_warning" not in gpu.alerts.model_fields_set:
        yield (
            "gpu.alerts.swaps_per_hour_warning: is off unless it is set, no longer 4; null says"
            " that off is meant"
        )
    limits = settings.rate_limits
    named = {
        "default": limits.default,
        **{f"callers.{name}": own for name, own in limits.callers.items()},
    }
    for name, own in named.items():
        for unit in ("minute", "hour"):
            requests = getattr(own, f"requests_per_{unit}")
            embeddings = getattr(own, f"embeddings_per_{unit}")
            if requests is not None and embeddings is None:
                yield (
                    f"rate_limits.{name}.requests_per_{unit}: no longer counts embeddings; they"
                    f" have embeddings_per_{unit}, which is"
                    f" {limits.default_of(f'embeddings_per_{unit}'):g} unless you set it"
                )
