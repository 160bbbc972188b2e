"""A server with OpenAI's API that Hearth has started for one model."""

from __future__ import annotations

from hearth.engines.openai_server.control import Control
from hearth.engines.openai_server.engine import OpenAiServer


class OwnControl(Control):
    """Asks for the one model that the server has, however it calls it."""

    async def upstream(self, model: str) -> str | None:
        """Its name for what a caller wrote: where it lists several, one of that name is needed."""
        listed = self.last_served.models or (await self.served()).models
        if len(listed) == 1:
            return listed[0].upstream
        return await super().upstream(model)


class OwnServer(OpenAiServer):
    """The server of one model, on this machine's card."""

    control_of = OwnControl
    on_card = True
