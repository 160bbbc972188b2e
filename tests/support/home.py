"""A whole house on loopback sockets: emulated model server, gateway and HTTP server in the test's
own event loop.

`start_home` assembles one; what a test needs to see or break is on `Home`. Nothing here stands in
for a part of the gateway.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import aiohttp
import anthropic
import ollama
import openai

from hearth.api.app import HearthApp
from hearth.bootstrap import running_gateway
from hearth.clock import Clock, SystemClock
from hearth.config.settings import (
    AuthSettings,
    BackendMode,
    BackendSettings,
    CallerLimits,
    GatewayConfig,
    GpuSettings,
    KeySettings,
    ModelSettings,
    QueueSettings,
    RateLimitSettings,
    SchedulingSettings,
    ServerSettings,
    Settings,
    StartedStreams,
    Window,
)
from hearth.emulator import Emulator
from hearth.emulator.models import EmulatedModel, default_profiles
from hearth.gateway import Gateway
from hearth.types import Lane, Priority
from tests.support.fields import Fields
from tests.support.http import Got, ask
from tests.support.keys import key_of
from tests.support.patience import in_time
from tests.support.reading import read_to_its_end
from tests.support.recorder import Recorder

CODER = "qwen2.5-coder:14b"
LLAMA = "llama3.1:8b"
EMBEDDER = "nomic-embed-text"
SLOW = "slow:latest"
"""A model that writes a token every fifty milliseconds and never ends by itself."""
LONG_TOKENS = 12_000
"""Ten minutes of a slow model: longer than any test looks, on a busy machine too. `SkippingClock`
ends it. The official clients ask for no more without streaming.
"""
LONG = {"num_predict": LONG_TOKENS}

ADMIN_KEY = "hearth_admin"
HOUSE_KEY = "hearth_house"
FRIEND_KEY = "hearth_friend"
GUEST_KEY = "hearth_guest"
KEYS = (
    key_of("owner", ADMIN_KEY, admin=True),
    key_of("house", HOUSE_KEY, lane=Lane.INTERNAL),
    key_of("friend", FRIEND_KEY),
    key_of("guest", GUEST_KEY, models=("llama*", EMBEDDER)),
)

HELLO: Any = [{"role": "user", "content": "say hello"}]
WEATHER_QUESTION: Any = [{"role": "user", "content": "What is the weather in Paris now?"}]
WEATHER_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "weather", "parameters": WEATHER_PARAMETERS},
}
BOOK_SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "year": {"type": "integer"}},
    "required": ["title", "year"],
}

WHOLE_DAY = (Window(start_minute=0, end_minute=0),)
SPEED = 500.0

NARROW = GpuSettings(home_model="", restore_home_delay_s=3600)
"""A card of unknown size: one model at a time, so that every change of model is a swap."""
WIDE = GpuSettings(home_model=LLAMA, vram_gb=24, restore_home_delay_s=3600)
"""Room for all the models of these tests but one at once."""


def house_settings(
    *,
    gpu: GpuSettings = WIDE,
    queue: QueueSettings | None = None,
    per_minute: int = 100_000,
    keys: tuple[KeySettings, ...] = (),
    wait_when_down_s: float = 0.05,
    tasks: Mapping[str, Priority] = MappingProxyType({}),
    started_streams: StartedStreams = "resume",
) -> Settings:
    """Settings under which nothing but what a test asks for refuses, delays or interrupts."""
    sizes = {profile.name: ModelSettings(vram_gb=profile.vram_gib) for profile in _profiles()}
    return Settings(
        scheduling=SchedulingSettings(
            active_hours=WHOLE_DAY,
            preempt_min_remaining_s=0,
            preempt_restart_bound_s=0.0,
            started_streams=started_streams,
        ),
        queue=queue or QueueSettings(max_external_depth=1000),
        priority_map=tasks,
        rate_limits=RateLimitSettings(
            default=CallerLimits(requests_per_minute=per_minute, requests_per_hour=1_000_000)
        ),
        gpu=gpu,
        models={} if gpu is NARROW else sizes,
        backend=BackendSettings(mode=BackendMode.OLLAMA, wait_when_down_s=wait_when_down_s),
        server=ServerSettings(shutdown_grace_s=0),
        auth=AuthSettings(keys=keys),
    )


@dataclass
class Home:
    """The running parts; `url` is the gateway's, `direct_url` the emulator's own."""

    url: str
    direct_url: str
    gateway: Gateway
    emulator: Emulator
    events: Recorder
    app: HearthApp

    async def ask(self, method: str, path: str, body: Any = b"", **more: Any) -> Got:
        """What its application answers in process; see `ask`."""
        return await ask(self.app, method, path, body, **more)

    async def post(self, path: str, body: Fields, key: str | None = None, **headers: str) -> Got:
        """What is answered on a socket; whoever stops waiting for it has left."""
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        async with (
            aiohttp.ClientSession(trust_env=False) as session,
            session.post(self.url + path, json=body, headers=headers) as got,
        ):
            said = {name.lower(): value for name, value in got.headers.items()}
            return Got(got.status, said, (await read_to_its_end(got),), complete=True)

    def native(self, key: str | None = None) -> ollama.AsyncClient:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return ollama.AsyncClient(host=self.url, headers=headers, trust_env=False)

    def gpt(self, key: str = "x") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def claude(self, key: str = "x") -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=self.url, api_key=key, max_retries=0)

    async def until(self, condition: Callable[[Fields], object]) -> Fields:
        """The queue's status as soon as it fulfils the condition; raises `TimeoutError` where it
        does not in time.
        """
        async with in_time():
            async for _ in self.gateway.worker.changes():
                status: Fields = self.gateway.worker.get_status()
                if condition(status):
                    return status
        raise AssertionError("the gateway has stopped")

    async def running(self, model: str) -> Fields:
        """The item that runs on `model`, as soon as one does."""
        status = await self.until(
            lambda status: any(item["model"] == model for item in status["running"])
        )
        found: Fields = next(item for item in status["running"] if item["model"] == model)
        return found

    async def idle(self) -> None:
        """Return when nothing runs and nothing waits."""
        await self.until(lambda status: not status["running"] and not waiting(status))

    async def revive(self) -> None:
        """Put a new model server where the old one was."""
        self.emulator = new_emulator()
        await self.emulator.start(port=int(self.direct_url.rpartition(":")[2]))


class StartHome(Protocol):
    """Starts houses that are taken down after the test."""

    async def __call__(self, settings: Settings | None = None) -> Home: ...


async def exhaust(answer: object) -> None:
    """Read a stream to its end; whole answers have come already."""
    if isinstance(answer, AsyncIterable):
        async for _ in answer:
            pass


def waiting(status: Fields) -> int:
    """Items that wait in both lanes."""
    pending: int = status["external_queue"]["pending"] + status["internal_queue"]["pending"]
    return pending


class SkippingClock(SystemClock):
    """Time as it is, and more where a test wants to see the end of something long."""

    def __init__(self) -> None:
        self._skipped_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._skipped_s

    def skip(self, seconds: float) -> None:
        """All that a model server would have written by then is written at once."""
        self._skipped_s += seconds


def new_emulator(clock: Clock | None = None) -> Emulator:
    """An emulated model server with the models of these tests, not listening yet."""
    return Emulator(_models(), clock=clock or SystemClock(), speed=SPEED, seed=1, max_loaded=5)


def _profiles() -> tuple[EmulatedModel, ...]:
    slow = EmulatedModel(
        name=SLOW,
        size_gib=1,
        vram_gib=1,
        prompt_tokens_per_s=1000,
        decode_tokens_per_s=20 / SPEED,
        load_s=1.0,
        unload_s=0.5,
    )
    return (*default_profiles(), slow)


def _models() -> list[EmulatedModel]:
    return [model.model_copy(update={"ends": model.name != SLOW}) for model in _profiles()]


@asynccontextmanager
async def open_home(
    settings: Settings, emulator: Emulator | None = None, *, store: bool = False
) -> AsyncIterator[Home]:
    """A house for the time of the block; `emulator` in place of one with the models of these
    tests.
    """
    emulator = emulator or new_emulator()
    events = Recorder()
    async with AsyncExitStack() as stack:
        direct_url = await emulator.start()
        stack.push_async_callback(emulator.stop)
        config = GatewayConfig(settings=settings)
        running = running_gateway(
            config,
            port=0,
            backend_mode=BackendMode.OLLAMA,
            backend_url=direct_url,
            sinks=(events,),
            store=store,
        )
        gateway, url = await stack.enter_async_context(running)
        home = Home(
            url=url,
            direct_url=direct_url,
            gateway=gateway,
            emulator=emulator,
            events=events,
            app=HearthApp(gateway),
        )
        try:
            yield home
        finally:
            if home.emulator is not emulator:
                stack.push_async_callback(home.emulator.stop)
