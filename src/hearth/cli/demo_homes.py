"""The homes that `hearth demo` shows: their models, their callers, and what these ask."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

from hearth.config.engines import EngineSettings, RunSettings
from hearth.config.scheduler_settings import ModelSettings
from hearth.config.settings import (
    AuthSettings,
    CallerLimits,
    GatewayConfig,
    KeySettings,
    RateLimitSettings,
    Settings,
    StorageSettings,
    Window,
)
from hearth.types import JsonDict, JsonMapping, Lane, Priority, frozen

VISITOR = "you"
_REQUESTS_PER_MINUTE = 120
_REQUESTS_PER_HOUR = 2000
Asked = tuple[float, str, str, JsonMapping]
"""A request on a fixed rhythm: the pause before it in seconds, its caller, its path, its body."""


@frozen
class Home:
    """What is shown.

    Attributes:
        intro: printed first, with the fields `url`, `key`, `program`, and `speed`. config: how
        the gateway is set, where every delay is so many times as long.
    """

    intro: str
    round: tuple[Asked, ...]
    config: Callable[[float], GatewayConfig]


def _callers_of(asked: tuple[Asked, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(caller for _, caller, _, _ in asked))


def key_of(caller: str) -> str:
    """Not secret: the demo's gateway listens on this machine only."""
    return f"hearth-demo-{caller}"


def _settings(home_model: str, callers: tuple[str, ...], pace: float) -> Settings:
    """Active hours all day, and a home model that comes back soon; `pace` stretches every delay,
    and the limits with it.

    The warnings about swaps are far off: this home swaps on purpose, and ten times as often as a
    real one.
    """
    usual = Settings()
    limits = CallerLimits(
        requests_per_minute=max(_REQUESTS_PER_MINUTE, round(_REQUESTS_PER_MINUTE / pace)),
        requests_per_hour=max(_REQUESTS_PER_HOUR, round(_REQUESTS_PER_HOUR / pace)),
    )
    keys = tuple(
        KeySettings(
            name=name,
            sha256=hashlib.sha256(key_of(name).encode()).hexdigest(),
            lane=Lane.INTERNAL if name == "assistant" else Lane.EXTERNAL,
            admin=name == VISITOR,
        )
        for name in (*callers, VISITOR)
    )
    return usual.replace(
        auth=AuthSettings(keys=keys),
        scheduling=usual.scheduling.replace(
            active_hours=(Window(start_minute=0, end_minute=0),),
            max_swap_wait_s=12.0 * pace,
            preempt_min_remaining_s=0.2 * pace,
            preempt_restart_bound_s=1.0 * pace,
        ),
        priority_map={"parse_task": Priority.CRITICAL},
        rate_limits=RateLimitSettings(default=limits),
        gpu=usual.gpu.replace(
            home_model=home_model,
            restore_home_delay_s=3.0 * pace,
            swap_cost_prior_s=1.0 * pace,
            alerts=usual.gpu.alerts.replace(swap_overhead_pct_warning=90.0),
        ),
    )


def _chat(model: str, content: str) -> JsonDict:
    return {"model": model, "messages": [{"role": "user", "content": content}]}


def _generate(model: str, prompt: str, max_tokens: int) -> JsonDict:
    return {"model": model, "prompt": prompt, "options": {"num_predict": max_tokens}}


# The emulated home.

HOME_MODEL = "qwen2.5:32b-instruct-q6_K"
_CODER = "qwen2.5-coder:14b"
_LLAMA = "llama3.1:8b"
_REVIEW = "def heat(room, target):\n    return target - room.temperature\n" * 1400
"""About 25,000 tokens: at the coder's 2,000 tokens/s it keeps the GPU long enough to be
interrupted.
"""
_COOK = ("chat", "/api/chat", _chat(_LLAMA, "What can I cook with leeks?"))
_NAME = ("editor", "/v1/chat/completions", _chat(_CODER, "Name this function."))
_NOTE = (
    "notes",
    "/api/embed",
    {"model": "nomic-embed-text", "input": "The boiler was serviced in May."},
)
_TASK = (
    "assistant",
    "/api/generate",
    _generate(HOME_MODEL, "Turn this into a task: call the chimney sweep on Monday.", 30)
    | {"stream": False},
)
ROUND: tuple[Asked, ...] = (
    (
        0.5,
        "writer",
        "/api/generate",
        _generate(HOME_MODEL, "Write a story about the hearth of a house.", 200),
    ),
    (0.4, *_COOK),
    (0.3, *_NAME),
    (0.8, *_TASK),
    *(
        (0.2, *request)
        for request in (_COOK, _NAME, _NOTE, _COOK, _NAME, _NOTE, _COOK, _NAME, _COOK, _NAME)
    ),
    (4.0, "editor", "/v1/chat/completions", _chat(_CODER, f"Review this file:\n{_REVIEW}")),
    (
        1.2,
        "assistant",
        "/api/generate",
        _generate(HOME_MODEL, "Which of today's tasks is urgent?", 30) | {"stream": False},
    ),
)
CALLERS = _callers_of(ROUND)
EMULATED = Home(
    intro="""\
Dashboard: {url}/#key={key}
A home with one GPU that holds one model at a time. The models are emulated, {speed:g} times as
fast as real.
  assistant  internal: its requests go before all others
  writer, chat, editor, notes  external: their requests wait in a queue
Chat with a model yourself, or watch the queue in a terminal:
  {program} chat llama3.1:8b --url {url} --key {key}
  {program} top --url {url} --key {key}
""",
    round=ROUND,
    config=lambda pace: GatewayConfig(settings=_settings(HOME_MODEL, CALLERS, pace)),
)


# The home with real servers.

REAL_MODEL = "smollm2:135m"
REAL_CODER = "smollm2-coder:135m"
"""The same weights with twice the context, in a server of its own."""
_ROW = "llamacpp"
_RESERVED_GB = 0.6


def _short_chat(model: str, content: str, tokens: int) -> JsonDict:
    return _chat(model, content) | {"max_tokens": tokens, "stream": True}


_REAL_COOK = (
    "chat",
    "/api/chat",
    _chat(REAL_MODEL, "What can I cook with leeks?") | {"options": {"num_predict": 40}},
)
_REAL_NAME = (
    "editor",
    "/v1/chat/completions",
    _short_chat(REAL_CODER, "Name a function that adds two numbers.", 20),
)
_REAL_TASK = (
    "assistant",
    "/api/generate",
    _generate(REAL_MODEL, "Turn this into a task: call the chimney sweep on Monday.", 20)
    | {"stream": False},
)
REAL_ROUND: tuple[Asked, ...] = (
    (
        0.5,
        "writer",
        "/api/generate",
        _generate(REAL_MODEL, "Write a story about the hearth of a house.", 200),
    ),
    (1.0, *_REAL_NAME),
    (1.0, *_REAL_COOK),
    (2.0, *_REAL_TASK),
    *(
        (0.4, *request)
        for request in (_REAL_NAME, _REAL_COOK, _REAL_NAME, _REAL_COOK, _REAL_NAME, _REAL_COOK)
    ),
    (
        4.0,
        "editor",
        "/v1/chat/completions",
        _short_chat(REAL_CODER, "Explain what a queue is to a child.", 150),
    ),
    (3.0, *_REAL_TASK),
)


def real_home(servers: Mapping[str, RunSettings]) -> Home:
    """The small model in two servers of llama.cpp, of which one runs at a time.

    Args:
        servers: how those of `REAL_MODEL` and `REAL_CODER` are started.
    """

    def config(pace: float) -> GatewayConfig:
        settings = _settings(REAL_MODEL, _callers_of(REAL_ROUND), pace)
        models = {
            name: ModelSettings(engine=_ROW, vram_gb=_RESERVED_GB, run=run)
            for name, run in servers.items()
        }
        return GatewayConfig(
            settings=settings.replace(
                engines={_ROW: EngineSettings(kind="processes")},
                models=models,
                gpu=settings.gpu.replace(vram_gb=1.0, nvml=False),
                storage=StorageSettings(enabled=False),
            )
        )

    return Home(
        intro=f"""\
Dashboard: {{url}}/#key={{key}}
A home with room for one model at a time, and two real servers of llama.cpp on the CPU, with a
small model (SmolLM2, 135 million parameters) as {REAL_MODEL} and {REAL_CODER}.
  assistant  internal: its requests go before all others
  writer, chat, editor  external: their requests wait in a queue
Chat with a model yourself, or watch the queue in a terminal:
  {{program}} chat {REAL_MODEL} --url {{url}} --key {{key}}
  {{program}} top --url {{url}} --key {{key}}
""",
        round=REAL_ROUND,
        config=config,
    )
