"""The data path to vLLM, which shows a rendered prompt by its tokens."""

from __future__ import annotations

from http import HTTPStatus

from hearth.dialects.gojson import JsonObject
from hearth.dialects.stream import count_in
from hearth.dialects.translation.parts import going_on
from hearth.engines.openai_server.calls import OpenAiCalls
from hearth.engines.vllm.traits import AS_IT_IS, DETOKENIZE, TOKENIZE
from hearth.types import Headers

_RENDERED = ("model", "messages", "tools", "chat_template_kwargs")


class VllmCalls(OpenAiCalls):
    """As `OpenAiCalls`."""

    async def render(self, fields: JsonObject, headers: Headers) -> tuple[int, JsonObject]:
        """The text of the tokens that a conversation is read as; none where the text would be read
        as other tokens.
        """
        messages = fields.get("messages")
        goes_on = bool(
            going_on(messages if isinstance(messages, list) else (), self.api, "messages")
        )
        asked: JsonObject = {name: fields[name] for name in _RENDERED if name in fields}
        asked |= {"add_generation_prompt": not goes_on, "continue_final_message": goes_on}
        status, tokenized = await self.ask(TOKENIZE, asked, headers)
        if status >= HTTPStatus.BAD_REQUEST:
            return status, tokenized
        model = fields.get("model")
        tokens = tokenized.get("tokens")
        shown = await self.ask(DETOKENIZE, {"model": model, "tokens": tokens}, headers)
        again: JsonObject = {"model": model, "prompt": shown[1].get("prompt"), **AS_IT_IS}
        status, read = await self.ask(TOKENIZE, again, headers)
        return shown if read.get("tokens") == tokens else (status, {})

    async def without_end(self, fields: JsonObject, headers: Headers) -> JsonObject:
        """Without a limit, vLLM writes 16 tokens."""
        if "max_tokens" in fields:
            return fields
        asked: JsonObject = {name: fields[name] for name in ("model", "prompt", *AS_IT_IS)}
        _, read = await self.ask(TOKENIZE, asked, headers)
        context = count_in(read, "max_model_len")
        count = count_in(read, "count")
        if context is None or count is None or count >= context:
            return fields  # it says itself what is wrong
        return {**fields, "max_tokens": context - count}
