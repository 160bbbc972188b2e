"""Asks an engine how its models' prompts are rendered, and for the rest of interrupted answers, in
the words of Ollama's own routes; other engines have these translated (`dialects.translation`).

A template that is not shown, or that does not go on with an answer that was begun, is no reason to
fail: such an answer goes on in another way, or is not interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from hearth.dialects.gojson import JsonObject
from hearth.dialects.native_form import Native, native_form
from hearth.dialects.replay import Sent
from hearth.dialects.routes import Endpoint
from hearth.engines.continuing import (
    Rest,
    ends_with_the_answer,
    goes_on_with_the_answer,
    lead_in,
    left_out_of,
    load_options_in,
    prefix_of_text,
    prompt_tokens_in,
    rendered_in,
    template_probe,
)
from hearth.engines.port import Exchange, LaterRun
from hearth.errors import HearthError, StreamDiverged
from hearth.types import BackendCall, Elapsed, LoadedModel, entity

RENDER_S = 2.0
"""How long a model server may take to show how a model's prompts are rendered."""
MOST_RENDERED_BYTES = 64 * 1024 * 1024


class Opens(Protocol):
    """The part of an engine that carries calls."""

    async def open(self, call: BackendCall) -> Exchange: ...


@entity
class Template:
    """What was found out about how a model's prompts are rendered.

    Attributes:
        lead: what it writes before an answer, None where it is not shown. goes_on_after_thoughts:
        with tools on offer, it goes on with an answer that was begun. goes_on: the same where no
        thought was sent, if need be with what it leaves out said in the answer: with True in it
        where the caller lets the model think, with False where the caller forbids that.
    """

    lead: str | None = None
    goes_on_after_thoughts: bool = False
    goes_on: frozenset[bool] = frozenset()


class Server:
    """An engine, as far as it says something about prompts."""

    def __init__(self, opens: Opens) -> None:
        self._opens = opens

    async def rendered(self, call: BackendCall) -> str | None:
        """The rendering that it shows, None where it shows none.

        Raises HearthError where it cannot be asked.
        """
        return rendered_in(await self._answer(call))

    async def counted(self, call: BackendCall) -> int | None:
        """The tokens of a prompt, None where it does not say. Raises HearthError as `rendered`."""
        return prompt_tokens_in(await self._answer(call))

    async def _answer(self, call: BackendCall) -> bytes:
        """A whole answer, empty for a refusal or too long a one."""
        exchange = await self._opens.open(call)
        try:
            parts = list[bytes]()
            size = 0
            while (chunks := await exchange.take()) and size <= MOST_RENDERED_BYTES:
                parts.extend(chunks)
                size += sum(map(len, chunks))
        finally:
            exchange.close()
        return b"".join(parts) if exchange.status < 400 and size <= MOST_RENDERED_BYTES else b""


class RenderedContinuations:
    """As `engines.port.Continuations` says.

    Args:
        read: a request of any dialect in the words of Ollama's own routes; None for one whose
        answer cannot be continued.
    """

    def __init__(
        self,
        opens: Opens,
        read: Callable[[Endpoint, JsonObject], Native | None] = native_form,
    ) -> None:
        self._read_request = read
        self._server = Server(opens)
        self._templates: dict[LoadedModel, Template] = {}

    def is_known(self, load: LoadedModel) -> bool:
        return load in self._templates

    async def find_out(self, load: LoadedModel, model: str, call: BackendCall) -> None:
        probe = partial(template_probe, model, load_options_in(call.body))
        try:
            async with asyncio.timeout(RENDER_S):
                self._templates[load] = await self._read(probe)
        except TimeoutError:
            self._templates[load] = Template()
        except HearthError:
            return  # it could not be asked: the next stream asks again

    async def _read(self, probe: Callable[..., BackendCall]) -> Template:
        """What renderings of a short conversation show."""
        template = Template()
        rendered = self._server.rendered
        plain = await rendered(probe(answered=False))
        if plain is None:
            return template
        template.lead = lead_in(plain, await rendered(probe(answered=True)) or "")
        for thinks in (True, False):
            ask = partial(probe, offering=True, think=None if thinks else False)
            offered = await rendered(ask(answered=False))
            answered = await rendered(ask(answered=True))
            if offered is None or answered is None:
                continue
            if thinks:
                template.goes_on_after_thoughts = ends_with_the_answer(answered)
            prefix = prefix_of_text(template.lead, offered, answered, thinks=thinks)
            if left_out := left_out_of(prefix, answered):
                answered = await rendered(ask(answered=True, begun=left_out)) or ""
            if goes_on_with_the_answer(prefix, answered):
                template.goes_on |= {thinks}
        return template

    def can_continue(self, load: LoadedModel) -> bool:
        template = self._templates.get(load)
        return template is not None and template.lead is not None

    def of(self, load: LoadedModel, call: BackendCall, sent: Sent) -> RenderedContinuation:
        rest = Rest(call, sent, self._read_request)
        template = self._templates.get(load, Template())
        return RenderedContinuation(self._server, template, call, sent, rest)


class RenderedContinuation:
    """As `engines.port.Continuation` says."""

    def __init__(
        self, server: Server, template: Template, call: BackendCall, sent: Sent, rest: Rest
    ) -> None:
        self._server = server
        self._template = template
        self._call = call
        self._sent = sent
        self._rest = rest
        self._prefix = ""
        self._asks = 0

    @property
    def can_be_asked(self) -> bool:
        rest = self._rest
        template = self._template
        if not rest.offers_tools or rest.has_no_text:
            return True
        if rest.has_thought:
            return template.goes_on_after_thoughts
        return rest.thinks in template.goes_on

    @property
    def has_no_text(self) -> bool:
        return self._rest.has_no_text

    async def prefix(self) -> str:
        rest = self._rest
        rendered = self._server.rendered
        lead = self._template.lead
        plain = await rendered(rest.rendering(answered=False))
        if plain is None and rest.relax_thinking():
            plain = await rendered(rest.rendering(answered=False))
        if plain is None or lead is None:
            raise StreamDiverged("the model server does not show how the prompt is rendered")
        needs_answered = rest.needs_answered(plain)
        answered = await rendered(rest.rendering(answered=True)) if needs_answered else None
        self._prefix = rest.prefix(lead, plain, answered)
        return self._prefix

    async def next_ask(self, elapsed: Elapsed) -> tuple[BackendCall, LaterRun] | None:
        rest = self._rest
        self._asks = self._asks + 1
        if self._asks == 1:
            rest.prompt_tokens = await self._server.counted(rest.counting(text=False))
        elif self._asks == 2 and rest.asked_from_before:
            # what came again is another text: ask from the very end, however that is read
            rest = rest.again(self._call, self._sent)
            self._rest = rest
        else:
            return None
        rest.before = elapsed
        rest.place(self._prefix, from_before=self._asks == 1)
        if rest.is_limited and rest.prompt_tokens is not None:
            rest.count(await self._server.counted(rest.counting(text=True)))
        call = rest.ask()
        if not rest.offers_tools:
            return call, rest
        shown = await self._server.rendered(rest.rendering_of(call))
        if not rest.is_read_as(shown) and rest.say_first(shown):
            call = rest.ask()
            shown = await self._server.rendered(rest.rendering_of(call))
        if not rest.is_read_as(shown):
            raise StreamDiverged("the model's template cannot continue an answer")
        return call, rest
