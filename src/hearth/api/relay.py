"""From a submitted request to its last byte: stream the reply, and free the model the moment the caller leaves.

One task per request watches for the caller's departure, in every phase: queued, loading, prefill, streaming or not. Nothing else happens
per chunk than sending it, so chunk boundaries come out as they went in. Must never look into a chunk. Called by `api.inference`.
"""

from __future__ import annotations

import asyncio

from hearth.api.asgi import wait_gone
from hearth.api.refusals import rendered
from hearth.api.visit import Visit
from hearth.dialects.errors import stream_error
from hearth.dialects.routes import Route
from hearth.errors import HearthError
from hearth.queue import LLMQueueWorker, Ticket
from hearth.reply import ReplyHead
from hearth.types import Headers


class Relay:
    """One caller waiting for one reply."""

    def __init__(self, worker: LLMQueueWorker, visit: Visit, route: Route, ticket: Ticket, *, streaming: bool, headers: Headers) -> None:
        self._worker = worker
        self._visit = visit
        self._route = route
        self._ticket = ticket
        self._streaming = streaming
        self._headers = headers
        self._gone = False
        self._complete = False

    async def run(self) -> None:
        """Return when the reply has been sent, has failed visibly, or nobody wants it any more; the item has ended for us in each case."""
        watching = asyncio.ensure_future(self._watch())
        try:
            await self._pump()
        finally:
            watching.cancel()
            if not self._complete:
                self._leave()

    async def _watch(self) -> None:
        await wait_gone(self._visit.receive)
        self._gone = True
        self._leave()

    def _leave(self) -> None:
        """Abandoning wakes the pump up, wherever it waits for the reply."""
        self._ticket.reply.abandon()
        self._worker.cancel(self._ticket.sequence)

    async def _pump(self) -> None:
        try:
            head = await self._ticket.reply.head()
        except HearthError as error:
            await self._refuse(error)
            return
        await self._visit.answer.head(head.status, (*head.headers, *self._headers))
        try:
            await self._pass_chunks()
        except HearthError as error:
            await self._break_off(head, error)
            return
        self._complete = True
        await self._visit.answer.end()

    async def _pass_chunks(self) -> None:
        take = self._ticket.reply.take
        send = self._visit.answer.chunk
        while chunks := await take():
            for chunk in chunks:
                await send(chunk)

    async def _refuse(self, error: HearthError) -> None:
        if not self._gone:
            reply = rendered(self._visit, error, self._headers[1:])
            await self._visit.answer.whole(reply.status, reply.headers, reply.body)

    async def _break_off(self, head: ReplyHead, error: HearthError) -> None:
        """Say so in the stream where the dialect has a way; else leave the body unfinished, which closes the connection.

        A body with a declared length, or one that is a single JSON document, has no room for a second one.
        """
        if self._gone or not self._streaming or any(name == b"content-length" for name, _ in head.headers):
            return
        await self._visit.answer.chunk(stream_error(self._route, error, self._visit.request_id))
        await self._visit.answer.end()
