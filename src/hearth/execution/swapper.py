"""The machinery of a swap: unload and wait until it is gone, load and verify that it is there. Decides nothing.

Ollama must never arbitrate between models: it can wedge for ever when a model that waits to be evicted is asked for again (ollama/ollama
issue 17408). So a model is told to go only when nothing runs on it, the next one is loaded with an empty prompt on a connection that no
caller can cancel, and neither counts as done until `/api/ps` agrees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from hearth.config.settings import load_options
from hearth.errors import BackendUnreachable, HearthError, ModelNotFound, SwapFailed, SwapTimedOut
from hearth.execution.backend_watch import BackendWatch
from hearth.execution.runtime import Runtime, cancel_all
from hearth.scheduling.inputs import BackendState, Input, Loaded, LoadFailed, Unloaded, UnloadFailed
from hearth.types import ResidentModel

UNLOAD_TIMEOUT_S = 15.0
"""Ollama waits up to 5 s for VRAM to come back; past three times that the model is stuck."""
POLL_S = 0.25
"""How often Ollama itself looks, so looking more often shows nothing sooner."""


class Swapper:
    """Carries out loads and unloads, one task each, and remembers why the last one of a model failed."""

    def __init__(self, runtime: Runtime, watch: BackendWatch) -> None:
        self._runtime = runtime
        self._post = runtime.post
        self._control = watch.control
        self._name_of = watch.known_name
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: dict[str, HearthError] = {}
        self._stuck: HearthError | None = None
        self._loaded: dict[str, ResidentModel] = {}
        """Models as they were when they were last loaded."""

    def error_of(self, model: str) -> HearthError:
        return self._errors.get(model) or self._stuck or SwapFailed(f"model '{model}' could not be loaded")

    def offloaded(self, model: str) -> bool:
        """Part of the model was left in main memory when it was last loaded."""
        loaded = self._loaded.get(model)
        return loaded is not None and 0 < loaded.vram_mib < loaded.size_mib

    def context_tokens(self, model: str) -> int:
        """The context that the model was last loaded with, 0 where that is not known."""
        loaded = self._loaded.get(model)
        return 0 if loaded is None else loaded.context_tokens or 0

    def load(self, model: str) -> None:
        self._spawn(self._load(model), f"load {model}", LoadFailed(model=model))

    def unload(self, model: str) -> None:
        self._spawn(self._unload(model), f"unload {model}", UnloadFailed(model=model))

    def _spawn(self, work: Coroutine[None, None, None], name: str, broken: Input) -> None:
        """Start a task; `broken` is its report if a defect keeps it from making one, so that the swap ends all the same."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._forget(ended, broken))

    def _forget(self, ended: asyncio.Task[None], broken: Input) -> None:
        self._tasks.discard(ended)
        if not ended.cancelled() and (error := ended.exception()) is not None:
            self._runtime.report_fault("swapper", error)
            self._post(broken)

    async def _load(self, model: str) -> None:
        settings = self._runtime.settings
        options = load_options(settings, model)
        try:
            await self._control.load(model, options, settings.gpu.swap_timeout_s)
            resident = await self._find(model)
            if resident is None and await self._freed(model):
                await self._control.load(model, options, settings.gpu.swap_timeout_s)
                resident = await self._find(model)
        except HearthError as error:
            permanent = isinstance(error, ModelNotFound | SwapTimedOut)
            self._failed(model, error, LoadFailed(model=model, permanent=permanent))
            return
        if resident is None:
            lie = SwapFailed(f"the model server reported '{model}' as loaded, but does not list it")
            self._failed(model, lie, LoadFailed(model=model, unlisted=True))
            return
        self._errors.pop(model, None)
        self._loaded[model] = resident
        self._post(Loaded(model=model, vram_mib=resident.vram_mib or None, embeds=resident.embeds))

    def _failed(self, model: str, error: HearthError, report: Input) -> None:
        self._errors[model] = error
        if isinstance(error, BackendUnreachable):
            self._post(BackendState(up=False))
        self._post(report)

    async def _unload(self, model: str) -> None:
        deadline = asyncio.get_running_loop().time() + UNLOAD_TIMEOUT_S
        try:
            await self._control.unload(model)
            while await self._find(model) is not None:
                if asyncio.get_running_loop().time() >= deadline:
                    self._stuck = SwapFailed(f"model '{model}' could not be unloaded")
                    raise self._stuck
                await asyncio.sleep(POLL_S)
        except ModelNotFound:
            pass  # deleted while in memory: no call reaches it by name any more, and the model server gives its room to the next load
        except HearthError as error:
            self._failed(model, error, UnloadFailed(model=model))
            return
        self._post(Unloaded(model=model))

    async def _freed(self, model: str) -> bool:
        """Models made from the same weights are in memory once, under the name loaded first. Is that deleted, another one makes it go."""
        lost, deadline = await self._lost(), asyncio.get_running_loop().time() + UNLOAD_TIMEOUT_S
        if not lost:
            return False
        await self._control.unload(model)
        while await self._lost() == lost:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def _lost(self) -> set[str]:
        """What is in memory under names that are no longer on the disk."""
        on_disk = {self._name_of(known.name) for known in await self._control.installed()}
        return {self._name_of(found.name) for found in await self._control.resident()} - on_disk

    async def _find(self, model: str) -> ResidentModel | None:
        resident = await self._control.resident()
        wanted = self._name_of(model)
        return next((found for found in resident if self._name_of(found.name) == wanted), None)

    async def aclose(self) -> None:
        """Forget what is under way; the model server finishes it or not, and the next start asks what is there."""
        await cancel_all(self._tasks)
