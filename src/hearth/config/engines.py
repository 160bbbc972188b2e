"""The settings of engines, and of the models that they run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, Strict

from hearth.config import fields
from hearth.config.fields import RESTART, Section
from hearth.types import SleepLevel

EngineKind: TypeAlias = Literal[
    "ollama",
    "llama_server",
    "llama_router",
    "llama_swap",
    "lmstudio",
    "vllm",
    "sglang",
    "openai",
    "processes",
]
ENGINE_TITLES: Mapping[str, str] = MappingProxyType(
    {
        "ollama": "Ollama",
        "llama_server": "llama-server",
        "llama_router": "llama-server (router)",
        "llama_swap": "llama-swap",
        "lmstudio": "LM Studio",
        "vllm": "vLLM",
        "sglang": "SGLang",
        "openai": "OpenAI-compatible server",
        "processes": "processes",
    }
)
"""What an owner calls each kind."""
ELASTIC_KINDS = ("openai", "vllm")
"""Those that may stand for many machines behind one address."""
SLEEP_LEVELS_OF: Mapping[str, tuple[SleepLevel, ...]] = MappingProxyType(
    {"vllm": ("offload", "discard"), "sglang": ("offload",)}
)
"""The levels that `sleep` may name, by kind, quickest to wake first."""
STAYING_KINDS = frozenset({"llama_server", "openai", "sglang", "vllm"})
"""Those whose models Hearth neither loads nor unloads."""
KINDS_WITH_RULES = ("llama_server", "llama_swap", "processes")
"""Those that load and unload models by rules of their own, too: what they do is no fault. A
llama-server may sleep after some idle time. That a process of Hearth's own has ended is reported
where it is seen.
"""
_PORTS = re.compile(r"(\d{4,5})-(\d{4,5})", re.ASCII)
_MACROS = re.compile(r"\$\{([^}]*)\}")
_MACRO_NAMES = re.compile(r"PORT|MODEL|env\.[A-Za-z_][A-Za-z0-9_]*")
MOST_PORT = 65_535


def port_range(text: str) -> range:
    """The ports of `FIRST-LAST`. Raises ValueError."""
    given = _PORTS.fullmatch(text)
    ports = range(int(given[1]), int(given[2]) + 1) if given else range(0)
    if not ports or ports[0] < 1024 or ports[-1] > MOST_PORT:
        raise ValueError("must be two ports from 1024 on, as in 15800-15899")
    return ports


def _checked_ports(text: str) -> str:
    port_range(text)
    return text


def argument(text: str) -> str:
    """One argument of a command, with macros that are known. Raises ValueError for others."""
    if "\0" in text:
        raise ValueError("must not contain a zero byte")
    for name in _MACROS.findall(text):
        if not _MACRO_NAMES.fullmatch(name):
            raise ValueError(
                f"has the unknown macro ${{{name}}}; known are ${{PORT}}, ${{MODEL}} and"
                " ${env.NAME}"
            )
    return text


Argument = Annotated[str, Strict(), AfterValidator(argument)]
Command = Annotated[fields.Items[Argument], Field(max_length=1000)]


def _ready(text: str) -> str:
    if text != "port" and not text.startswith("/"):
        raise ValueError("must be a path such as /health, or `port`")
    return text


class RunSettings(Section):
    """How a model's server is started, by an engine of the kind `processes`."""

    command: Annotated[Command, RESTART, Field(min_length=1)]
    """Program and arguments as a list, run without a shell. `${PORT}` is the port to listen on,
    `${MODEL}` the name of the model, `${env.NAME}` a variable of Hearth's environment.
    """
    env: Annotated[fields.ReadOnlyTable[fields.Name, Argument], RESTART] = Field(
        default=fields.EMPTY, repr=False
    )
    """Environment variables in addition to Hearth's own. `config show` hides the values."""
    ready: Annotated[str, Strict(), AfterValidator(_ready), RESTART] = "/health"
    """Path that answers 200 once the server can take requests, or `port`: it is ready as soon as
    it listens.
    """
    start_timeout_s: Annotated[fields.Timeout, RESTART] = 300.0
    """Maximum seconds from the start until it is ready."""
    sleep_command: Annotated[Command, RESTART] = ()
    """Experimental: command that has the server give the memory of the GPU back, and keep its
    weights in main memory. Needs `wake_command` (docs/sleep.md).
    """
    wake_command: Annotated[Command, RESTART] = ()
    """Command that wakes it; when it has ended with exit code 0, the server takes requests."""
    sleep_timeout_s: Annotated[fields.Timeout, RESTART] = 60.0
    """Maximum seconds that each of these two commands may take."""
    stop: Annotated[Command, RESTART] = ()
    """Command that stops the server, in place of SIGTERM."""
    stop_grace_s: Annotated[fields.Timeout, RESTART] = 10.0
    """Seconds that the server has to end by itself before it is killed."""


class EngineSettings(Section):
    """A model server, or the models that Hearth starts itself."""

    kind: Annotated[EngineKind, RESTART]
    """What it is (docs/engines.md): `ollama`; `llama_server`, llama.cpp's server with one model;
    `llama_router`, the same as a router of several; `llama_swap`; `lmstudio`; `vllm`; `sglang`;
    `openai`, any server with OpenAI's API; or `processes`, servers that Hearth starts and stops.
    """
    url: Annotated[fields.ServerUrlOrNothing, RESTART] = ""
    """URL of the server, without `/v1` or `/api`. `${NAME}` is read from the environment. Not for
    `processes`.
    """
    api_key: Annotated[fields.ApiKey, RESTART] = Field(default="", repr=False)
    """Key that the server requires, as `${NAME}` from the environment; sent to this URL only.

    Empty: none.
    """
    elastic: Annotated[fields.Flag, RESTART] = False
    """It scales by itself behind one address, on other machines, as Ray Serve does. Its models are
    always there and take no memory of this machine. For `openai` and `vllm`.
    """
    parallel: Annotated[fields.Slots | None, RESTART] = None
    """Requests that each of its models serves at the same time, where `models.NAME.parallel` does
    not say otherwise. Unset: what the server reports, else `gpu.parallel`.
    """
    spill_when_wait_over_s: Annotated[fields.Duration, RESTART] = 5.0
    """For an elastic engine: a request for an alias goes there only if it would wait longer than
    this for the alias's other models.
    """
    first_byte_timeout_s: Annotated[fields.Timeout | None, RESTART] = None
    """Seconds that its models may take to send their first byte. Unset:
    `ollama.first_byte_timeout_s`, but 600 for an elastic engine, which may have to start a machine.
    """
    sleep: Annotated[fields.Items[SleepLevel], RESTART] = ()
    """Experimental, for `vllm` and `sglang`: the levels at which its models may sleep to make room
    (docs/sleep.md). `offload` keeps the weights in main memory, `discard`, for `vllm` alone, only
    the process.
    """
    ports: Annotated[str, Strict(), AfterValidator(_checked_ports), RESTART] = "15800-15899"
    """For `processes`: the ports that servers are given."""
