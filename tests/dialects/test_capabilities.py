"""What a request needs of its model, and how Ollama says that the model cannot do it."""

from __future__ import annotations

from typing import Any

import pytest

from hearth.dialects.capabilities import needs_of, refusal
from hearth.dialects.gojson import folded
from hearth.dialects.routes import INFERENCE_ROUTES
from tests.support.fields import Fields

USER: Fields = {"role": "user", "content": "hi"}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "f"}}]


def turn(*parts: Fields) -> list[Any]:
    return [USER, {"role": "user", "content": [{"type": "text", "text": "see"}, *parts]}]


IMAGE_URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
INPUT_IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
BLOCK = {"type": "image", "source": {"type": "base64", "data": "AA=="}}


@pytest.mark.parametrize(
    ("path", "asked", "wanted"),
    [
        ("/api/chat", {"messages": [USER]}, ""),
        ("/api/chat", {"messages": [USER], "tools": [], "think": False}, ""),
        ("/api/chat", {"messages": [USER], "tools": TOOLS, "think": True}, "thinking tools"),
        ("/api/chat", {"messages": [USER], "think": "high"}, "thinking"),
        ("/api/chat", {"messages": [USER], "think": "very"}, ""),  # refused for itself
        ("/api/chat", {"messages": [USER, {**USER, "images": ["AA=="]}]}, "vision"),
        ("/api/chat", {"messages": [{**USER, "images": []}], "images": ["AA=="]}, ""),
        # as Go matches keys
        ("/api/chat", {"messages": [{**USER, "Images": ["AA=="]}], "Tools": TOOLS}, "tools vision"),
        (
            "/api/generate",
            {"prompt": "hi", "suffix": "x", "think": "low", "tools": TOOLS},
            "thinking insert",
        ),
        ("/api/generate", {"prompt": "hi", "images": ["AA=="], "suffix": ""}, "vision"),
        (
            "/v1/chat/completions",
            {"messages": [USER], "tools": TOOLS, "reasoning_effort": "low"},
            "thinking tools",
        ),
        ("/v1/chat/completions", {"messages": [USER], "reasoning": {"effort": "high"}}, "thinking"),
        (
            "/v1/chat/completions",
            {"messages": [USER], "reasoning_effort": "none", "think": True},
            "",
        ),
        ("/v1/chat/completions", {"messages": turn(IMAGE_URL)}, "vision"),
        (
            "/v1/completions",
            {"prompt": "hi", "suffix": "x", "tools": TOOLS, "reasoning_effort": "low"},
            "",
        ),
        (
            "/v1/responses",
            {"input": "hi", "tools": [{"type": "web_search"}], "reasoning": {"effort": "low"}},
            "thinking",
        ),
        (
            "/v1/responses",
            {"input": turn(INPUT_IMAGE), "tools": [{"type": "function", "name": "f"}]},
            "tools vision",
        ),
        (
            "/v1/messages",
            {"messages": [USER], "tools": [{"name": "f"}], "thinking": {"type": "enabled"}},
            "tools",
        ),
        ("/v1/messages", {"messages": turn({"type": "tool_result", "content": [BLOCK]})}, "vision"),
        ("/v1/messages", {"messages": [1, {"content": 5}, {"content": ["a"]}]}, ""),
    ],
)
def test_a_body_is_read_for_what_its_model_must_be_able_to_do(path, asked, wanted):
    needs = needs_of(INFERENCE_ROUTES[path], folded(asked), "m")
    assert set(needs.capabilities) == {"completion", *wanted.split()}


@pytest.mark.parametrize(
    ("path", "asked", "wanted"),
    [
        *(
            (path, {field: text}, ("embedding",) if text else ())
            for text in ("a", "")
            for path, field in (("/api/embed", "input"), ("/api/embeddings", "prompt"))
        ),
        ("/v1/embeddings", {"input": ["a"]}, ("embedding",)),
        ("/api/embed", {}, ()),
        ("/v1/responses", {"input": {}, "tools": TOOLS}, ()),
    ],
)
def test_an_embedding_of_nothing_only_loads_the_model(path, asked, wanted):
    assert needs_of(INFERENCE_ROUTES[path], folded(asked), "m").capabilities == wanted


EVERYTHING: Fields = {
    "messages": [{**USER, "images": ["AA=="]}],
    "tools": TOOLS,
    "think": True,
}
VISION = "Multimodal data provided, but model does not support multimodal requests."


@pytest.mark.parametrize(
    ("has", "name", "text"),
    [
        ("embedding", "emb:latest", '"called" does not support thinking'),
        ("embedding thinking", "emb:latest", '"called" does not support chat'),
        ("completion thinking", "m:8b", "registry.ollama.ai/library/m:8b does not support tools"),
        ("completion thinking", "me/m:8b", "registry.ollama.ai/me/m:8b does not support tools"),
        ("completion thinking", "hf.co/me/m:8b", "hf.co/me/m:8b does not support tools"),
        ("completion thinking tools", "m:8b", VISION),
        ("completion thinking tools vision", "m:8b", None),
    ],
)
def test_of_several_things_that_a_model_cannot_do_ollama_names_the_first(has, name, text):
    refused = refusal(
        needs_of(INFERENCE_ROUTES["/api/chat"], folded(EVERYTHING), "called"),
        frozenset(has.split()),
        name,
        "0.33.0",
    )
    assert (None if refused is None else (refused.message, refused.status)) == (
        None if text is None else (text, 400)
    )


@pytest.mark.parametrize(
    ("path", "has", "version", "refused"),
    [
        *(
            ("/api/embed", "completion", version, 501)
            for version in ("0.30.0", "0.33.0-rc2", "v1.2.3", "0.0.0")
        ),
        # any model could, then
        *(
            ("/api/embed", "completion", version, None)
            for version in ("0.24.0", "0.9.6", "", "unknown")
        ),
        ("/api/embeddings", "completion", "0.33.0", 500),
        ("/v1/embeddings", "completion", "0.33.0", 501),
        ("/v1/embeddings", "embedding", "0.33.0", None),
        ("/api/generate", "image", "0.33.0", None),
        ("/api/generate", "embedding", "0.24.0", 400),
    ],
)
def test_only_embedders_embed_since_ollama_runs_models_by_llama_server(path, has, version, refused):
    needs = needs_of(INFERENCE_ROUTES[path], {"input": "a", "prompt": "a"}, "m")
    answer = refusal(needs, frozenset(has.split()), "m:latest", version)
    assert (None if answer is None else answer.status) == refused
