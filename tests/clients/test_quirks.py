"""Recorded requests of well-known clients: what reaches the model server, which model answers, and
what a hasty caller leaves behind.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hearth.config.settings import ClientSettings, ModelSettings, Settings
from hearth.events import ItemEnded, SwapCompleted
from hearth.types import Outcome
from tests.api.house import HttpHouse
from tests.support.fake_ollama import FakeModel
from tests.support.fields import Fields
from tests.support.home import (
    CODER,
    EMBEDDER,
    LLAMA,
    NARROW,
    SLOW,
    WIDE,
    Home,
    house_settings,
    open_home,
)
from tests.support.http import Got
from tests.support.keys import key_of
from tests.support.patience import in_time

FOLDER = Path(__file__).parent / "recorded"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def recording(name: str) -> Fields:
    """One request by the name of its file: client, path (with its query), headers, body."""
    read: Fields = json.loads((FOLDER / f"{name}.json").read_text())
    return read


LOAD_TIME = {"num_ctx", "num_thread", "use_mmap", "num_gpu"}
TASKS = ("open_webui_title", "open_webui_tags", "open_webui_follow_ups", "open_webui_title_openai")
CODER_KEY = "hearth_coder"
ONE = {"num_predict": 1}


async def forwarded(name: str, **sections: Any) -> tuple[Any, Got]:
    """What the model server is sent for a recording, and what its caller gets."""
    recorded = recording(name)
    headers = {key.replace("-", "_"): value for key, value in recorded["headers"].items()}
    model = FakeModel(name=recorded["body"]["model"], load_s=0.0)
    async with HttpHouse(model, **sections) as house:
        headers["content_type"] = "application/json"
        got = await house.ask("POST", recorded["path"], recorded["body"], **headers)
    assert got.status == 200
    return json.loads(house.ollama.calls[0].body), got


def without_seed(body: Any) -> Any:
    """A body without the seed that makes a stream repeatable."""
    options = {key: value for key, value in body.get("options", {}).items() if key != "seed"}
    return {
        **{key: value for key, value in body.items() if key not in ("seed", "options")},
        **({"options": options} if options else {}),
    }


def mended(body: Any) -> Any:
    """A recorded body as it has to arrive."""
    options = {key: value for key, value in body.get("options", {}).items() if key not in LOAD_TIME}
    kept = {key: value for key, value in body.items() if key not in ("keep_alive", "options")}
    if isinstance(kept.get("system"), list):
        kept["system"] = [
            block
            for block in kept["system"]
            if not block["text"].startswith("x-anthropic-billing-header")
        ]
    return {**kept, **({"options": options} if options else {})}


@pytest.mark.parametrize("name", NAMES)
async def test_of_a_recorded_request_nothing_but_its_quirks_is_changed(name):
    body, _ = await forwarded(name)
    assert without_seed(body) == mended(recording(name)["body"])


async def test_two_turns_of_claude_code_share_everything_up_to_the_new_message():
    one, two = [(await forwarded(f"claude_code_turn_{turn}"))[0] for turn in (1, 2)]

    assert (
        recording("claude_code_turn_1")["body"]["system"]
        != recording("claude_code_turn_2")["body"]["system"]
    )
    assert one["system"] == two["system"]
    assert one["tools"] == two["tools"]
    assert two["messages"][: len(one["messages"])] == one["messages"]


@pytest.mark.parametrize(
    "name", ["home_assistant_chat", "open_webui_chat", "continue_raw", "continue_fim"]
)
async def test_a_pinned_context_length_takes_the_place_of_what_a_client_asks_for(name):
    asked = recording(name)["body"]
    models = {asked["model"]: ModelSettings(num_ctx=16384)}

    body, got = await forwarded(name, models=models)

    assert body["options"]["num_ctx"] == 16384
    assert "keep_alive" not in body
    assert {"keep_alive", "options.num_ctx"} <= set(got.headers["x-hearth-rewrote"].split(","))


async def post(home: Home, name: str, key: str | None = None) -> Got:
    """The answer to a recording that does not stream."""
    recorded = recording(name)
    return await home.post(recorded["path"], recorded["body"], key, **recorded["headers"])


async def talk(home: Home, model: str, key: str | None = None) -> None:
    async with home.native(key) as client:
        await (
            client.embed(model=model, input="hi")
            if model == EMBEDDER
            else client.generate(model=model, prompt="hi", options=ONE)
        )


KEYS = (
    key_of("owner", "hearth_owner"),
    key_of("c", CODER_KEY, models=(CODER,)),
)
NARROW_HOUSE = house_settings(gpu=NARROW)
AS_ASKED = ClientSettings(background_tasks="as_asked")


@pytest.mark.parametrize(
    ("settings", "before", "name", "key", "answers", "loads"),
    [
        *((NARROW_HOUSE, [LLAMA], task, None, LLAMA, [LLAMA]) for task in TASKS),
        # it is in memory, too
        (house_settings(gpu=WIDE), [LLAMA, CODER], TASKS[0], None, CODER, [LLAMA, CODER]),
        (NARROW_HOUSE, [EMBEDDER], TASKS[0], None, CODER, [f"{EMBEDDER}:latest", CODER]),
        (
            house_settings(gpu=NARROW, keys=KEYS),
            [LLAMA],
            TASKS[0],
            CODER_KEY,
            CODER,
            [LLAMA, CODER],
        ),
        (NARROW_HOUSE.replace(clients=AS_ASKED), [LLAMA], TASKS[0], None, CODER, [LLAMA, CODER]),
    ],
)
async def test_a_background_task_may_be_answered_by_the_model_in_memory(
    settings: Settings,
    before: list[str],
    name: str,
    key: str | None,
    answers: str,
    loads: list[str],
):
    """Not one for embeddings, none that the key may not use, and none where the owner has tasks
    answered as asked.
    """
    async with open_home(settings) as home:
        for model in before:
            await talk(home, model, None if key is None else "hearth_owner")
        got = await post(home, name, key)
        rewrote = got.headers.get("x-hearth-rewrote", "")
        assert (got.status, got.json["model"], "model" in rewrote.split(",")) == (
            200,
            answers,
            answers == LLAMA,
        )
        assert [event.to_model for event in home.events.of(SwapCompleted)] == loads


async def test_a_completion_that_is_given_up_at_once_frees_the_slot_every_time(home):
    body = {**recording("continue_raw")["body"], "model": SLOW}
    async with aiohttp.ClientSession(trust_env=False) as session:
        for _ in range(5):
            got = await session.post(f"{home.url}/api/generate", json=body)
            await got.content.readany()
            got.close()
        async with in_time():
            await home.idle()

    assert [event.outcome for event in home.events.of(ItemEnded)] == [Outcome.CANCELLED] * 5
    await talk(home, LLAMA)
