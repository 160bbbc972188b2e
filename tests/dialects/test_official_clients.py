"""The official clients raise a typed error for Hearth's refusals and for its last frame in a stream that has begun."""

from __future__ import annotations

import anthropic
import httpx
import httpx2
import ollama
import openai
import pytest

from hearth.dialects.errors import render_error, stream_error
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.errors import BackendGone, HearthError, ModelNotFound, QueueFull, RateLimited, Unauthenticated
from hearth.types import Dialect, RequestId
from tests.dialects.captured import captured
from tests.support.cases import for_each

REQUEST_ID = RequestId("req_0123456789abcdef")
GONE = BackendGone("the model server closed the connection")


def answering(status: int, content_type: str, body: bytes) -> httpx2.Client:
    """An HTTP client for the two SDKs whose every request gets this answer."""
    headers = {"content-type": content_type}
    return httpx2.Client(transport=httpx2.MockTransport(lambda _request: httpx2.Response(status, headers=headers, content=body)))


def openai_client(status: int, content_type: str, body: bytes) -> openai.OpenAI:
    return openai.OpenAI(api_key="k", base_url="http://gateway/v1", max_retries=0, http_client=answering(status, content_type, body))


def anthropic_client(status: int, content_type: str, body: bytes) -> anthropic.Anthropic:
    return anthropic.Anthropic(api_key="k", base_url="http://gateway", max_retries=0, http_client=answering(status, content_type, body))


def ollama_client(status: int, content_type: str, body: bytes) -> ollama.Client:
    headers = {"content-type": content_type}
    transport = httpx.MockTransport(lambda _request: httpx.Response(status, headers=headers, content=body))
    return ollama.Client(host="http://gateway", transport=transport)


def broken_stream(name: str, error: HearthError = GONE) -> bytes:
    """A captured stream cut after its second chunk, and our last frame."""
    stream = captured(name)
    return b"".join(stream.chunks[:2]) + stream_error(INFERENCE_ROUTES[stream.path], error, REQUEST_ID)


def test_the_ollama_client_raises_for_the_last_line_of_a_broken_chat() -> None:
    client = ollama_client(200, "application/x-ndjson", broken_stream("chat_stream"))
    texts: list[str | None] = []
    with pytest.raises(ollama.ResponseError, match="closed the connection"):
        texts.extend(part.message.content for part in client.chat(model="tiny-a", messages=[{"role": "user", "content": "x"}], stream=True))
    assert len(texts) == 2


def test_the_openai_client_raises_for_the_last_frame_of_a_broken_chat() -> None:
    client = openai_client(200, "text/event-stream", broken_stream("oai_chat_stream"))
    stream = client.chat.completions.create(model="tiny-a", messages=[{"role": "user", "content": "x"}], stream=True)
    with pytest.raises(openai.APIError, match="closed the connection") as raised:
        list(stream)
    assert raised.value.type == "api_error"


def test_the_openai_client_raises_for_the_last_frame_of_a_broken_completion_or_response() -> None:
    broken = openai_client(200, "text/event-stream", broken_stream("oai_compl_stream"))
    with pytest.raises(openai.APIError, match="closed the connection"):
        list(broken.completions.create(model="tiny-a", prompt="x", stream=True))
    broken = openai_client(200, "text/event-stream", broken_stream("oai_resp_stream"))
    with pytest.raises(openai.APIError, match="closed the connection"):
        list(broken.responses.create(model="tiny-a", input="x", stream=True))


@for_each(
    ("error", "kind"), [(GONE, "api_error"), (QueueFull("preempted, try again"), "overloaded_error"), (RateLimited(), "rate_limit_error")]
)
def test_the_anthropic_client_raises_for_the_last_event_of_a_broken_message(error: HearthError, kind: str) -> None:
    client = anthropic_client(200, "text/event-stream", broken_stream("anth_stream", error))
    stream = client.messages.create(model="tiny-a", max_tokens=5, messages=[{"role": "user", "content": "x"}], stream=True)
    with pytest.raises(anthropic.APIStatusError, match=kind) as raised:
        list(stream)
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["error"] == {"type": kind, "message": error.message}


REFUSALS: list[tuple[HearthError, type[openai.APIStatusError], type[anthropic.APIStatusError]]] = [
    (Unauthenticated(), openai.AuthenticationError, anthropic.AuthenticationError),
    (ModelNotFound("model 'x' not found"), openai.NotFoundError, anthropic.NotFoundError),
    (RateLimited(retry_after_s=3), openai.RateLimitError, anthropic.RateLimitError),
    (QueueFull(), openai.InternalServerError, anthropic.InternalServerError),
]


@for_each(("error", "by_openai", "by_anthropic"), REFUSALS)
def test_the_clients_know_the_refusals(
    error: HearthError, by_openai: type[openai.APIStatusError], by_anthropic: type[anthropic.APIStatusError]
) -> None:
    told = {dialect: render_error(dialect, error, REQUEST_ID) for dialect in Dialect}
    body = told[Dialect.OPENAI].body
    with pytest.raises(by_openai, match=error.message.split("`")[0]):
        openai_client(error.status, "application/json", body).chat.completions.create(
            model="x", messages=[{"role": "user", "content": "x"}]
        )
    claude = anthropic_client(error.status, "application/json", told[Dialect.ANTHROPIC].body)
    with pytest.raises(by_anthropic) as raised:
        claude.messages.create(model="x", max_tokens=5, messages=[{"role": "user", "content": "x"}])
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["error"]["message"] == error.message
    native = ollama_client(error.status, "application/json", told[Dialect.OLLAMA].body)
    with pytest.raises(ollama.ResponseError) as refused:
        native.generate(model="x", prompt="x")
    assert (refused.value.status_code, refused.value.error) == (error.status, error.message)
