"""Which model answers what a chat client asks for on its own account: one that is in memory, so that a title never costs a swap.

A stand-in is named when the request comes, not when it starts: whatever else is in memory then may be a model for embeddings, which
cannot answer at all. So only models stand in that callers have talked to, and the home model. Must never let a key use a model it may
not. Called by `api.inference`.
"""

from __future__ import annotations

from hearth.admission.auth import Identity
from hearth.admission.gate import may_use
from hearth.config.settings import BackgroundTasks
from hearth.dialects.envelope import Envelope
from hearth.errors import ModelNotFound
from hearth.gateway import Gateway
from hearth.types import WorkKind, canonical_model


class StandIns:
    """Remembers which models callers talk to, and finds one of them in memory."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._talkative: set[str] = set()

    def note(self, envelope: Envelope) -> None:
        """A request was accepted: its model can answer."""
        if envelope.kind is WorkKind.GENERATE:
            self._talkative.add(canonical_model(envelope.model).lower())

    async def instead_of(self, identity: Identity, envelope: Envelope) -> str | None:
        """The model that answers a background task in place of the one it names; None where that one does.

        A task that streams is left alone: its answer is watched, and has to repeat itself when it is interrupted.
        """
        wanted = self._gateway.config.settings.clients.background_tasks is BackgroundTasks.RESIDENT
        if not wanted or envelope.background is None or envelope.streaming:
            return None
        if not may_use(identity.models, envelope.model):  # refused by the gate, in the order of all refusals
            return None
        try:
            named = await self._gateway.resolve(envelope.model)
        except ModelNotFound:
            return None
        return await self._found(identity, named)

    async def _found(self, identity: Identity, named: str) -> str | None:
        models = await self._gateway.models()
        here = [str(model["name"]) for model in models if model["resident"] and model.get("phase") != "unloading"]
        if named in here:
            return None
        home = self._gateway.worker.scheduler.state.home
        able = [name for name in here if (name == home or name.lower() in self._talkative) and may_use(identity.models, name)]
        return min(able, key=lambda name: (name != home, name), default=None)
