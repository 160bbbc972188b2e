"""An emulated reply that is asked for again from its middle goes on as it would have, and a wrong prefix shows."""

from __future__ import annotations

import pytest

from hearth.emulator.models import default_profiles
from hearth.emulator.quirks import parse_quirk
from hearth.emulator.text import Wish, plan_reply
from tests.emulator.callers import Caller, model
from tests.emulator.conftest import StartEmulator

MODEL = default_profiles()[2]
PROMPT = "<user>hello\n<assistant>"


def said(prompt: str, wish: Wish) -> str:
    return "".join(piece.text for piece in plan_reply(MODEL, prompt, wish).pieces)


@pytest.mark.parametrize("seed", [0, 7])
def test_a_reply_goes_on_from_wherever_it_is_cut(seed: int) -> None:
    whole = said(PROMPT, Wish(seed=seed))
    rests = [whole[:cut] + said(PROMPT + whole[:cut], Wish(seed=seed)) for cut in range(len(whole))]
    wrong = [cut for cut, text in enumerate(rests) if text != whole]
    within_a_word = [cut for cut in wrong if whole[cut - 1].isalpha() and whole[cut].isalpha()]
    assert wrong == within_a_word, "words that begin alike may be finished in another way, and nothing else may differ"
    assert len(wrong) < len(whole) / 10


def test_a_reply_from_which_a_letter_is_missing_goes_on_as_another_one() -> None:
    whole = said(PROMPT, Wish(seed=0))
    assert said(PROMPT + whole[:60].replace(" ", "", 1), Wish(seed=0)) not in whole


async def test_a_warm_cache_says_something_else_where_the_quirk_is_on_and_a_cold_one_the_same(
    start_emulator: StartEmulator, session
) -> None:
    _, url = await start_emulator([model("a")], quirks=frozenset({parse_quirk("cache-drift=1")}))
    caller = Caller(session, url)
    ask = {"model": "a", "prompt": "hello", "stream": False, "options": {"seed": 3, "num_predict": 30}}
    cold, warm, still_warm = [(await caller.post("/api/generate", **ask))["response"] for _ in range(3)]
    await caller.post("/api/generate", model="a", keep_alive=0)
    assert warm == still_warm != cold
    assert (await caller.post("/api/generate", **ask))["response"] == cold
