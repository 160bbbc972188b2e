"""A stream that is interrupted for internal work goes on as if nothing had happened, or says that
it cannot.

It is continued (the rest of its text is asked for, and nothing is written twice) or replayed (run
again and compared with what was sent).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, TypeAlias

import pytest

from hearth.config.settings import GatewayConfig, ModelSettings, Settings
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.errors import (
    BackendGone,
    BackendUnreachable,
    CallerGone,
    HearthError,
    ShuttingDown,
    StreamDiverged,
)
from hearth.events import (
    ItemBrokenOff,
    ItemDispatched,
    ItemDiverged,
    ItemEnded,
    ItemHeld,
    ItemInterrupted,
    ItemResumed,
    ItemStreaming,
)
from hearth.execution.request import Submission, Ticket
from hearth.types import BackendCall, Lane, Outcome, Priority, QueueItem, RequestId, ResumeMode
from tests.support import ollama_wire as wire
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES
from tests.support.fake_ollama import CallFault, Ending, FakeModel, Service
from tests.support.fields import Fields
from tests.support.house import (
    ALWAYS_PREEMPT,
    House,
    body_of,
    heard,
    settings_with,
    settle,
    text_of,
    within,
)
from tests.support.replay_readers import told
from tests.support.replay_streams import (
    BODIES,
    CHATS,
    ROUTES,
    TOLD_BY,
    Answer,
    Run,
    expected,
    native_rest,
    offering,
    stream,
)
from tests.support.virtual_time import in_virtual_time, run_virtual, sleep_until

WORDS = (" one", " two", " three", " four", " five", " six", " seven", " eight", " nine", " ten")
TEXT = "".join(WORDS)
ASSISTANT = "<assistant>"
ONLY: tuple[ResumeMode, ...] = ("continued",)
A_WORD_S = 1.0


class Pieces(Run):
    """The tokens of an answer, each in a frame of its own."""

    def cut(self, text: str) -> Any:
        place = 0
        for word in self.words:
            if place < len(text):
                yield text[place : place + len(word)]
                place += len(word)
        if text[place:]:
            yield text[place:]

    words: tuple[str, ...] = WORDS


class Model:
    """A model: what it says is a function of the text so far, whoever asks and in whichever words.

    Internal work is short.
    """

    def __init__(
        self,
        words: tuple[str, ...] = WORDS,
        *,
        replays: tuple[str, ...] = (),
        stop: str = "",
        limit: int = 0,
        calls: tuple[str, ...] = (),
    ) -> None:
        self.words = words
        self.stop = stop
        self.limit = limit
        self.calls = calls
        self.replays = replays
        """What it says when the whole is asked for a second time."""
        self.asked = 0

    @property
    def answer(self) -> Answer:
        """What a caller is to read in the end."""
        return self._answer(self.words)

    def _answer(self, words: tuple[str, ...]) -> Answer:
        kept, reason = self._until(words, self.limit)
        return Answer(
            parts=(("content", "".join(kept)), *(("call", call) for call in self.calls)),
            reason=reason,
        )

    def _until(self, words: tuple[str, ...], limit: int) -> tuple[tuple[str, ...], str]:
        text = "".join(words)
        place = text.find(self.stop) if self.stop else -1
        kept = list[str]()
        for word in words:
            left = len(text) if place < 0 else place - sum(map(len, kept))
            if left > 0:
                kept.append(word[:left])
        return (tuple(kept[:limit]), "length") if 0 < limit <= len(kept) else (tuple(kept), "stop")

    def __call__(self, call: BackendCall) -> Service:
        body = json.loads(call.body)
        if not body["stream"]:
            return Service(service_s=1.0)
        if body.get("raw") or (
            call.path == "/api/chat" and body["messages"][-1]["role"] == "assistant"
        ):
            return self._rest(body)
        self.asked += 1
        words = self.replays if self.asked > 1 and self.replays else self.words
        run = Pieces(rng=Random(self.asked))
        run.words, _ = self._until(words, self.limit)
        frames = tuple(stream(call.path, self._answer(words), run))
        return Service(frames=frames, first_byte_s=A_WORD_S, service_s=len(frames) * A_WORD_S)

    def _rest(self, body: Fields) -> Service:
        """Goes on from the text so far; from another one, it says so."""
        known = (
            body["prompt"].rpartition(ASSISTANT)[2]
            if body.get("raw")
            else body["messages"][-1]["content"]
        )
        known = re.sub(r"\A<think>\n\n?</think>\n\n", "", known)
        whole = "".join(self.words)
        if not whole.startswith(known):
            return Service(words=("WRONG",))
        rest = list[str]()
        place = 0
        for word in self.words:
            place += len(word)
            if place > len(known):
                rest.append(word[max(0, len(word) - (place - len(known))) :])
        words, reason = self._until(tuple(rest), body["options"].get("num_predict", 0))
        if not body.get("raw"):
            run = Pieces(rng=Random(0))
            run.words = words
            frames = tuple(
                native_rest("".join(words), calls=self.calls, cut=run, done=reason).splitlines(
                    keepends=True
                )
            )
            return Service(frames=frames, first_byte_s=A_WORD_S, service_s=len(frames) * A_WORD_S)
        service_s = (len(words) + 1) * A_WORD_S
        prompt_tokens = 11 + len(self.words) - len(rest)
        return Service(
            words=words,
            first_byte_s=A_WORD_S,
            service_s=service_s,
            prompt_tokens=prompt_tokens,
            done_reason=reason,
        )


def streaming(
    house: House,
    path: str = "/api/generate",
    ways: tuple[ResumeMode, ...] = ONLY,
    *,
    hides_usage: bool = False,
    **more: Any,
) -> Ticket:
    body = {**BODIES[path], "model": "m", "stream": True, **more}
    call = BackendCall(
        method="POST", path=path, body=json.dumps(body).encode(), hides_usage=hides_usage
    )
    route = INFERENCE_ROUTES[path]
    item = QueueItem(
        lane=Lane.EXTERNAL,
        priority=Priority.NORMAL,
        caller="test",
        model="m:latest",
        request_id=RequestId("req_1"),
        dialect=route.dialect,
        streaming=True,
        ways=ways,
    )
    return house.worker.submit(Submission(item=item, call=call))


def house_of(model: Callable[[BackendCall], Service], **more: Any) -> House:
    return House(
        FakeModel(name="m"),
        "b",
        resident="m",
        service=model,
        settings=more.pop("settings", AT_ONCE),
        **more,
    )


in_streaming_house = within(lambda: house_of(Model()))
in_long_streaming_house = within(lambda: house_of(Model(WORDS * 2)))
Heard: TypeAlias = "asyncio.Future[tuple[bytes, HearthError | None]]"


def listening_to(
    house: House, path: str = "/api/generate", ways: tuple[ResumeMode, ...] = ONLY, **more: Any
) -> Heard:
    return asyncio.ensure_future(heard(streaming(house, path, ways, **more)))


async def interrupted(
    house: House,
    *at: float,
    path: str = "/api/generate",
    ways: tuple[ResumeMode, ...] = ONLY,
    model: str = "m",
    **more: Any,
) -> tuple[bytes, HearthError | None]:
    """What the caller of one stream gets that internal work interrupts so long after its start."""
    began_at = house.now
    listening = listening_to(house, path, ways, **more)
    for after_s in at:
        await house.interrupt(began_at + after_s, model)
    return await listening


def how(house: House) -> list[ResumeMode]:
    """In which ways streams went on."""
    return [event.how for event in house.events.of(ItemResumed)]


REPLAYED: tuple[ResumeMode, ...] = ("replayed",)
REPLAY_FIRST: tuple[ResumeMode, ...] = ("replayed", "continued")
CONTINUE_FIRST: tuple[ResumeMode, ...] = ("continued", "replayed")
CALL = '["find", {"city": "Rome"}]'
GENERATE = "/api/generate"
MESSAGES = "/v1/messages"
SENT = "".join(WORDS[:3])
SAID = "".join(WORDS[:4])
"""What a caller has after 3.5 s, and after 4.5 s."""


def tightened(**sections: Fields) -> Settings:
    scheduling = ALWAYS_PREEMPT | sections.pop("scheduling", {})
    return settings_with(scheduling=scheduling, **sections)


AT_ONCE = tightened(scheduling={"preemption": "at_once"})


def closing(path: str, body: Fields, at: float) -> wire.Answer | None:
    """Renders as a template that closes an answer which was begun."""
    return wire.rendering(
        path, {**body, "messages": [*body["messages"], {"role": "user", "content": ""}]}, at
    )


def opening(path: str, body: Fields, at: float) -> wire.Answer | None:
    """Renders as a template that opens a thought; it shows an answer without one."""
    turns = body.get("messages") or [{"role": "user", "content": body.get("prompt", "")}]
    if body.get("raw") or turns[-1]["role"] == "assistant":
        return wire.rendering(path, body, at)
    last = {"role": "assistant", "content": "<think>\n"}
    return wire.rendering(path, {**body, "messages": [*turns, last]}, at)


def unthinking(path: str, body: Fields, at: float) -> wire.Answer | None:
    """Renders as a template that writes an empty thought before its own answer only."""
    turns = body.get("messages") or [{"role": "user", "content": body.get("prompt", "")}]
    if body.get("raw") or turns[-1]["role"] == "assistant":
        return wire.rendering(path, body, at)
    last = {"role": "assistant", "content": "<think>\n\n</think>\n\n"}
    return wire.rendering(path, {**body, "messages": [*turns, last]}, at)


def stripping(path: str, body: Fields, at: float) -> wire.Answer | None:
    """Renders as `unthinking`, and takes thoughts out of answers that were begun."""
    turns = body.get("messages") or [{"role": "user", "content": body.get("prompt", "")}]
    last = turns[-1]
    if body.get("raw") or last["role"] != "assistant":
        return unthinking(path, body, at)
    said = {**last, "content": last["content"].rpartition("</think>")[2].lstrip("\n")}
    return wire.rendering(path, {**body, "messages": [*turns[:-1], said]}, at)


def thoughtless(path: str, body: Fields, at: float) -> wire.Answer | None:
    """Renders as a model without thoughts: a wish for them is refused on Ollama's own routes."""
    refused = wire.error(path, 400, '"m" does not support thinking')
    return refused if body.get("think") else wire.rendering(path, body, at)


class Thinking(Model):
    """Says everything as a thought."""

    def __call__(self, call: BackendCall) -> Service:
        if not json.loads(call.body)["stream"]:
            return Service(service_s=1.0)
        frames = tuple(
            stream(call.path, Answer(parts=(("thinking", TEXT),)), Pieces(rng=Random(1)))
        )
        return Service(frames=frames, first_byte_s=1.0, service_s=float(len(frames)))


@dataclass
class Story:
    """What is interrupted and how, and what comes of it."""

    model: Model = field(default_factory=Model)
    at: tuple[float, ...] = (3.5,)
    ways: tuple[ResumeMode, ...] = ONLY
    path: str = GENERATE
    by: str = "m"
    faults: tuple[CallFault, ...] = ()
    render: Callable[[str, Fields, float], wire.Answer | None] | None = None
    settings: Settings = AT_ONCE
    more: Fields = field(default_factory=dict)
    text: str | None = TEXT
    """None for the beginning of the right one, more than the caller had when it was interrupted
    first.
    """
    error: type[HearthError] | None = None
    how: tuple[ResumeMode, ...] = ("continued",)
    diverged: bool = False
    """A replay said something else, and the stream went on in another way."""
    finishes: bool = False
    """Its last interruption is not carried out."""


OTHERS = [(*WORDS[:place], " elephants", *WORDS[place + 1 :]) for place in (0, 2, 3)]
DIVERGES: Fields = {
    "at": (4.5,),
    "ways": REPLAYED,
    "text": SAID,
    "error": StreamDiverged,
    "how": (),
}
STORIES = {
    "again and again": Story(
        Model(WORDS * 3), (3.5, 12.5, 20.25), text=TEXT * 3, how=("continued",) * 3
    ),
    "again, for another model": Story(
        Model(WORDS * 3),
        (3.5, 12.5, 20.25),
        by="b",
        text=TEXT * 3,
        how=("continued",) * 3,
    ),
    "before the first word any answer will do": Story(
        Model(replays=(" another", " answer")),
        (2.5,),
        path=MESSAGES,
        text=" another answer",
        how=("replayed",),
    ),
    "after the last word": Story(Model(WORDS[:3]), text=SENT),
    "the model server dies before the rest": Story(faults=(CallFault.GONE_BEFORE_HEAD,)),
    **{
        f"it dies within the rest: {fault.value}": Story(faults=(fault,), how=("continued",) * 2)
        for fault in (CallFault.GONE_MID_STREAM, CallFault.RUNNER_DIES)
    },
    **{
        f"the rest breaks off: {fault.value}": Story(faults=(fault,), text=None, error=error)
        for fault, error in ((CallFault.NO_DONE, BackendGone), (CallFault.ERROR_LINE, HearthError))
    },
    **{
        f"a thought that the template opens and the model closes at once: {path}": Story(
            at=(7.5,), path=path, render=opening
        )
        for path in ("/api/chat", "/v1/chat/completions", MESSAGES, "/v1/responses")
    },
    **{
        f"{what}, tools on offer: {path}": Story(
            at=(7.5,), path=path, render=render, more=offering(path)
        )
        for path in (MESSAGES, "/v1/responses")
        for what, render in (
            ("a thought that the template opens and the model closes at once", opening),
            ("an empty thought that the template leaves out before an answer", unthinking),
        )
    },
    "no text yet, tools on offer, whatever the template": Story(
        at=(1.5,), path=MESSAGES, render=closing, more=offering(MESSAGES), how=("replayed",)
    ),
    "a template that takes thoughts out of answers, tools on offer": Story(
        at=(7.5,), path=MESSAGES, render=stripping, more=offering(MESSAGES), how=(), finishes=True
    ),
    **{
        f"thoughts that the model does not have, with {tools or 'no'} tools": Story(
            at=(7.5,),
            path=MESSAGES,
            render=thoughtless,
            more={"thinking": {"type": "enabled", "budget_tokens": 9}, **tools},
        )
        for tools in ({}, offering(MESSAGES))
    },
    "an open thought": Story(Thinking(), (6.5,), path=MESSAGES, how=(), finishes=True),
    "a template that closes an answer, tools on offer": Story(
        at=(7.5,), path=MESSAGES, render=closing, more=offering(MESSAGES), how=(), finishes=True
    ),
    "a call behind continued text, which no replay would say again": Story(
        Model(replays=(" another", " text"), calls=(CALL,)),
        (7.5, 13.0),
        CONTINUE_FIRST,
        "/api/chat",
        more=offering("/api/chat"),
        text=TEXT + CALL,
        finishes=True,
    ),
    "a replay that differs is continued": Story(
        Model(replays=(" one", " elephants")), (4.5,), REPLAY_FIRST, diverged=True
    ),
    "a replay that does not is not": Story(at=(4.5,), ways=REPLAY_FIRST, how=("replayed",)),
    "replayed again while it is replayed": Story(at=(4.5, 7.0), ways=REPLAYED, how=("replayed",)),
    "replayed again when it has gone on": Story(
        at=(4.5, 12.5), ways=REPLAYED, how=("replayed",) * 2
    ),
    **{
        f"a replay that differs ends it: {number}": Story(Model(replays=other), **DIVERGES)
        for number, other in enumerate(OTHERS)
    },
    "a replay that ends too soon": Story(Model(replays=WORDS[:3]), **DIVERGES),
    "the model server dies before the replay": Story(
        at=(4.5,), ways=REPLAYED, faults=(CallFault.GONE_BEFORE_HEAD,), how=("replayed",)
    ),
    "a replay breaks off when it has gone on": Story(
        at=(2.5,),
        ways=REPLAYED,
        faults=(CallFault.NO_DONE,),
        text=None,
        error=BackendGone,
        how=("replayed",),
    ),
    "a replay that is refused": Story(
        at=(4.5,),
        ways=REPLAYED,
        faults=(CallFault.SERVER_ERROR,) * 2,
        text=SAID,
        error=HearthError,
        how=(),
    ),
    "a replay that keeps coming is not silent": Story(
        at=(4.5,),
        ways=REPLAYED,
        settings=tightened(ollama={"idle_timeout_s": 3.0}),
        how=("replayed",),
    ),
    "a replay that catches up at once": Story(
        Model((" all at once",)), (1.0,), REPLAYED, text=" all at once", how=()
    ),
}


@for_each("story", STORIES)
@in_virtual_time
async def test_a_stream_goes_on_as_one_finishes_first_or_ends_with_an_error(story: str):
    given = STORIES[story]
    async with house_of(given.model, settings=given.settings) as house:
        house.ollama.render = given.render or house.ollama.render
        house.ollama.next_calls(None, None, *given.faults)
        said, error = await interrupted(
            house, *given.at, path=given.path, ways=given.ways, model=given.by, **given.more
        )
        assert isinstance(error, given.error or type(None))
        read = text_of(said) if given.path == GENERATE else told(given.path, said).answer.text
        if given.text is None:
            assert TEXT.startswith(read)
            assert len(read) > len(SENT) or given.at[0] < 3.5
        else:
            assert read == given.text
        assert tuple(how(house)) == given.how
        assert [event.diverged for event in house.events.of(ItemResumed)] == [given.diverged] * len(
            given.how
        )
        counts = [event.interrupt_count for event in house.events.of(ItemInterrupted)]
        assert counts == list(range(1, len(given.at) + 1 - given.finishes))
        ended = next(event for event in house.events.of(ItemEnded) if event.lane is Lane.EXTERNAL)
        assert (ended.outcome is Outcome.COMPLETED) == (error is None)
        diverged = error is not None and isinstance(error, StreamDiverged)
        assert len(house.events.of(ItemDiverged)) == diverged
        assert error is None or error.retryable or CallFault.SERVER_ERROR in given.faults
        assert not diverged or (ended.reason, ended.attempts) == ("stream_diverged", 2)


@pytest.mark.parametrize("path", ROUTES)
@in_virtual_time
async def test_the_rest_is_asked_for_and_the_caller_reads_one_whole_stream(path: str):
    model = Model()
    async with house_of(model) as house:
        ticket = streaming(house, path)
        listening = asyncio.ensure_future(heard(ticket))
        await house.interrupt(7.5, "m")
        said, error = await listening
        assert (error, told(path, said).answer) == (None, expected(path, model.answer))
        (resumed,) = house.events.of(ItemResumed)
        assert (resumed.how, resumed.verified_chars, resumed.diverged) == ("continued", 0, False)
        assert resumed.again_tokens > 0
        asked = house.ollama.calls[2]
        assert (asked.path, model.asked) == (GENERATE, 1)
        assert TEXT.startswith(json.loads(asked.body)["prompt"].rpartition(ASSISTANT)[2])
        ended = await house.end_of(ticket)
        assert (ended.outcome, ended.attempts, ended.interrupt_count) == (Outcome.COMPLETED, 2, 1)
        assert ended.output_tokens == len(WORDS)


@pytest.mark.parametrize("ways", [(), ONLY, REPLAYED, REPLAY_FIRST])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@in_virtual_time
async def test_a_usage_not_asked_for_is_counted_and_never_shown(
    path: str, ways: tuple[ResumeMode, ...]
):
    """Bodies of these routes ask for it; the way of the gateway to an emulator and back is in
    tests/clients.
    """
    model = Model()
    async with house_of(model) as house:
        for at in ((), (7.5,)) if ways else ((),):
            model.asked = 0
            began_at = house.now
            ticket = streaming(house, path, ways, hides_usage=True)
            listening = asyncio.ensure_future(heard(ticket))
            for after_s in at:
                await house.interrupt(began_at + after_s, "m")
            said, error = await listening
            assert (error, told(path, said).answer, b"usage" in said) == (
                None,
                expected(path, model.answer),
                False,
            )
            ended = await house.end_of(ticket)
            assert (ended.prompt_tokens or 0) > 0
            assert (ended.output_tokens or 0) > 0
            assert ended.interrupt_count == len(at)


DEATHS = (CallFault.GONE_MID_STREAM, CallFault.RUNNER_DIES)
"""The connection breaks, or the process of the model ends and the server says so in its own way."""


@pytest.mark.parametrize("fault", DEATHS)
@pytest.mark.parametrize("path", ROUTES)
@in_virtual_time
async def test_a_stream_in_which_the_model_server_dies_goes_on_where_it_stopped(
    path: str, fault: CallFault
):
    model = Model(WORDS * 2)
    async with house_of(model) as house:
        house.ollama.next_calls(fault)
        ticket = streaming(house, path)
        said, error = await heard(ticket)
        assert (error, told(path, said).answer) == (None, expected(path, model.answer))
        (broken,), (resumed,) = house.events.of(ItemBrokenOff), house.events.of(ItemResumed)
        assert (broken.attempt, broken.ran_s > 0) == (1, True)
        assert (resumed.how, resumed.attempt, resumed.again_tokens > 0) == ("continued", 2, True)
        reloads = [call.kind for call in house.ollama.control if call.kind in ("load", "unload")]
        assert reloads == (["unload", "load"] if fault is CallFault.RUNNER_DIES else [])
        ended = await house.end_of(ticket)
        assert (ended.outcome, ended.attempts, ended.interrupt_count) == (Outcome.COMPLETED, 2, 0)


@in_long_streaming_house
async def test_a_stream_goes_on_when_a_model_server_that_died_is_back(house):
    listening = listening_to(house)
    await sleep_until(5.5)
    house.ollama.go_down()
    await sleep_until(10.0)
    assert not listening.done()
    house.ollama.come_up()
    said, error = await listening
    assert (text_of(said), error, how(house)) == (TEXT * 2, None, ["continued"])


@pytest.mark.parametrize("leaves", [False, True])
@in_long_streaming_house
async def test_a_stream_that_waits_to_go_on_ends_with_a_stop_and_with_its_caller(
    house, leaves: bool
):
    ticket = streaming(house)
    listening = asyncio.ensure_future(heard(ticket))
    await sleep_until(5.5)
    house.ollama.go_down()
    await sleep_until(6.0)
    if leaves:
        house.cancel(ticket)
    else:
        await house.worker.stop(0.0)
    _, error = await listening
    assert isinstance(error, CallerGone if leaves else ShuttingDown)
    ended = await house.end_of(ticket)
    assert (ended.outcome, len(house.events.of(ItemBrokenOff))) == (Outcome.CANCELLED, 1)


@pytest.mark.parametrize("wedged", [False, True])
@in_virtual_time
async def test_a_silent_stream_goes_on_after_a_reload_where_its_model_is_stuck(wedged: bool):
    async with house_of(
        Model(WORDS * 2), settings=tightened(ollama={"idle_timeout_s": 5.0})
    ) as house:
        listening = listening_to(house)
        await sleep_until(5.5)
        house.ollama.fall_silent()
        if wedged:
            house.ollama.wedge("m:latest")
        said, error = await listening
        assert (text_of(said), error, how(house)) == (TEXT * 2, None, ["continued"])
        assert [event.reason for event in house.events.of(ItemBrokenOff)] == ["backend_timeout"]
        assert [call.kind for call in house.ollama.control if call.kind == "load"] == [
            "load"
        ] * wedged


@in_long_streaming_house
async def test_a_stream_waits_for_an_absent_server_as_long_as_any_request(house):
    listening = listening_to(house)
    await sleep_until(5.5)
    house.ollama.go_down()
    said, error = await listening
    assert (type(error), house.now < 5.5 + 12.0) == (BackendUnreachable, True)
    assert (TEXT * 2).startswith(text_of(said))
    house.ollama.come_up()


@pytest.mark.parametrize("ways", [REPLAY_FIRST, REPLAYED])
@in_streaming_house
async def test_a_replay_goes_on_where_a_stream_broke_off(house, ways: tuple[ResumeMode, ...]):
    house.ollama.next_calls(CallFault.RUNNER_DIES)
    said, error = await heard(streaming(house, ways=ways))
    assert (text_of(said), error, how(house)) == (TEXT, None, ["replayed"])


@pytest.mark.parametrize("ways", [CONTINUE_FIRST, ONLY])
@in_virtual_time
async def test_it_goes_on_twice_at_most_and_then_ends_with_the_error(ways: tuple[ResumeMode, ...]):
    for deaths in (2, 3):
        async with house_of(Model(WORDS * 3)) as house:
            house.ollama.next_calls(*[CallFault.GONE_MID_STREAM] * deaths)
            said, error = await heard(streaming(house, ways=ways))
            assert len(house.events.of(ItemBrokenOff)) == 2
            assert isinstance(error, BackendGone) is (deaths == 3)
            assert (TEXT * 3).startswith(text_of(said))
            assert (text_of(said) == TEXT * 3) is (deaths == 2)


@pytest.mark.parametrize("path", ROUTES)
@in_streaming_house
async def test_a_stream_that_cannot_go_on_ends_with_the_error_of_the_model_server(house, path: str):
    for fault in DEATHS:
        house.ollama.next_calls(fault)
        said, error = await heard(streaming(house, path, ways=()))
        told_by_ollama = fault is CallFault.RUNNER_DIES and not path.startswith("/v1/")
        assert isinstance(error, BackendGone) is not told_by_ollama
        assert (wire.RUNNER_DIED.encode() in said) is told_by_ollama
        assert house.events.of(ItemEnded)[-1].outcome is Outcome.FAILED
    assert house.events.of(ItemBrokenOff) == []


@in_virtual_time
async def test_an_answer_given_up_for_repeating_itself_is_not_asked_for_again():
    """Without a word after 30 equal tokens; on these routes it looks as if the model had died."""
    for path in (MESSAGES, "/v1/responses"):
        for words, goes_on in ((("no ",) * 40, False), (("no ", "yes ") * 20, True)):
            model = Model(words)
            async with house_of(model) as house:
                house.ollama.next_calls(CallFault.NO_DONE)
                _, error = await heard(streaming(house, path))
                assert (error is None) is goes_on
                assert len(house.events.of(ItemBrokenOff)) == goes_on


@pytest.mark.parametrize("calls", [(), (CALL,)])
@pytest.mark.parametrize("path", CHATS)
@in_virtual_time
async def test_a_stream_with_tools_on_offer_goes_on_by_chat_whose_parser_finds_calls(
    path: str, calls: tuple[str, ...]
):
    model = Model(calls=calls)
    async with house_of(model) as house:
        listening = listening_to(house, path, **offering(path))
        await house.interrupt(7.5, "m")
        await house.interrupt(12.5, "b")
        said, error = await listening
        assert error is None
        reason = TOLD_BY.get(path, "stop") if calls else "stop"
        assert told(path, said).answer == Answer(parts=model.answer.parts, reason=reason)
        assert how(house) == ["continued", "continued"]
        assert [call.path for call in house.ollama.calls if json.loads(call.body)["stream"]] == [
            path,
            "/api/chat",
            "/api/chat",
        ]


@pytest.mark.parametrize("limit", [0, 20])
@in_virtual_time
async def test_the_tokens_so_far_are_counted_before_a_limited_rest_else_at_the_end(limit: int):
    async with house_of(Model(limit=limit)) as house:
        house.ollama.count = lambda prompt: 7 + 2 * prompt.count(" ")
        ticket = streaming(house, options={"num_predict": limit} if limit else {})
        listening = asyncio.ensure_future(heard(ticket))
        await house.interrupt(3.5, "m")
        said, error = await listening
        assert (text_of(said), error) == (TEXT, None)
        prompts = [
            json.loads(call.body)["prompt"].rpartition(ASSISTANT)[2] for call in house.ollama.counts
        ]
        assert prompts == ["", SENT] if limit else [""]
        asked = json.loads(house.ollama.calls[2].body)["options"]
        assert asked.get("num_predict") == (limit - 6 if limit else None)
        ended = await house.end_of(ticket)
        assert (ended.prompt_tokens, ended.output_tokens) == (7, 6 + 7 if limit else 14 - 7 + 7)


@in_streaming_house
async def test_a_server_that_is_slow_to_render_holds_up_nobody_and_is_asked_again(house):
    listening = listening_to(house)
    await sleep_until(3.5)
    house.ollama.render_s = 5.0
    urgent = house.internal("m")
    await sleep_until(4.0)
    house.ollama.render_s = 0.0
    await body_of(urgent)
    assert house.ollama.calls[0].ended_at == 3.5
    assert (
        next(event.at for event in house.events.of(ItemDispatched) if event.lane is Lane.INTERNAL)
        <= 3.5 + 0.05
    )
    said, error = await listening
    assert (text_of(said), error) == (TEXT, None)


@in_virtual_time
async def test_a_model_that_often_replays_something_else_is_not_replayed_any_more():
    model = Model(replays=(" one", " elephants"))
    async with house_of(
        model, settings=tightened(scheduling={"preempt_finish_bound_s": 60.0})
    ) as house:
        for _ in range(4):
            model.asked = 0
            assert (await interrupted(house, 4.5, ways=REPLAY_FIRST))[1] is None
        assert [event.diverged for event in house.events.of(ItemResumed)] == [
            True,
            True,
            True,
            False,
        ]
        model.asked, interruptions = 0, len(house.events.of(ItemInterrupted))
        assert text_of((await interrupted(house, 4.5, ways=REPLAYED))[0]) == TEXT
        assert len(house.events.of(ItemInterrupted)) == interruptions, (
            "what could only be replayed finishes"
        )
        assert len(house.events.of(ItemHeld)) == 1


@in_virtual_time
async def test_replays_that_said_something_else_are_forgotten_over_ten_that_did_not():
    model = Model()
    differs = (" one", " elephants")
    async with house_of(model) as house:
        for replays in (differs, differs, *[()] * 10, differs, differs):
            model.asked = 0
            model.replays = replays
            assert (await interrupted(house, 4.5, ways=REPLAY_FIRST))[1] is None
        assert [event.diverged for event in house.events.of(ItemResumed)] == [
            True,
            True,
            *[False] * 10,
            True,
            True,
        ]


@pytest.mark.parametrize(("ways", "resumed"), [(ONLY, []), (CONTINUE_FIRST, ["replayed"] * 2)])
@in_streaming_house
async def test_a_server_that_renders_nothing_is_asked_once(house, ways, resumed):
    house.ollama.render = lambda *_: None
    for _ in range(2):
        said, error = await interrupted(house, 3.5, ways=ways)
        assert (text_of(said), error) == (TEXT, None)
    assert (how(house), len(house.ollama.renderings)) == (resumed, 1)


def another_template(house: House) -> None:
    house.ollama.render = lambda path, body, at: wire.rendering(
        path, {**body, "prompt": "something else"}, at
    )


def another_model(house: House) -> None:
    house.ollama.pulled += 1


def another_context(house: House) -> None:
    house.gateway.reload(
        GatewayConfig(
            settings=house.gateway.config.settings.replace(
                models={"m": ModelSettings(num_ctx=2048)}
            )
        )
    )


@pytest.mark.parametrize(
    ("change", "ways", "ends"),
    [
        (another_template, ONLY, StreamDiverged),
        (another_template, CONTINUE_FIRST, None),
        (another_model, ONLY, StreamDiverged),
        (another_model, CONTINUE_FIRST, StreamDiverged),
        (another_context, REPLAYED, StreamDiverged),
    ],
)
@in_streaming_house
async def test_what_changed_during_an_interruption_is_not_continued_or_replayed(
    house, change, ways, ends
):
    listening = listening_to(house, ways=ways)
    await sleep_until(3.5)
    # until the model server was looked at again
    urgent = [house.internal("m") for _ in range(8)]
    await settle()
    change(house)
    await body_of(urgent[-1])
    said, error = await listening
    assert (type(error) if error else None) is ends
    assert text_of(said) == (SENT if ends else TEXT)


@in_virtual_time
async def test_a_model_that_drops_a_last_blank_is_asked_from_the_whole_text():
    class Hasty(Model):
        rests = 0

        def _rest(self, body: Fields) -> Service:
            self.rests += 1
            return Service(words=("elephants",)) if self.rests == 1 else super()._rest(body)

    model = Hasty(words=("one ", "two ", "three ", "four"))
    async with house_of(model) as house:
        said, error = await interrupted(house, 3.5)
        assert (text_of(said), error, model.rests) == ("one two three four", None, 2)
        first, second = (json.loads(call.body)["prompt"] for call in house.ollama.calls[2:])
        assert (first + " ", second.endswith("one two three ")) == (second, True)


@in_virtual_time
async def test_a_text_that_the_context_has_no_room_for_is_replayed():
    class Full(Model):
        def _rest(self, body: Fields) -> Service:
            assert body["truncate"] is False
            house.ollama.refuse_next = (
                "the prompt is longer than the context length currently available to the model"
            )
            return Service()

    async with house_of(Full()) as house:
        said, error = await interrupted(house, 3.5, ways=CONTINUE_FIRST)
        assert (text_of(said), error, how(house)) == (TEXT, None, ["replayed"])


@pytest.mark.parametrize(("ways", "leaves_at"), [(ONLY, 6.75), (ONLY, None), (REPLAYED, 7.0)])
@in_streaming_house
async def test_a_caller_who_leaves_while_it_goes_on_frees_the_model(house, ways, leaves_at):
    ticket = streaming(house, ways=ways)
    listening = asyncio.ensure_future(heard(ticket))
    await sleep_until(3.5)
    house.ollama.render_s = 5.0 if leaves_at is None else 0.0
    urgent = house.internal("m")
    await (settle() if leaves_at is None else sleep_until(leaves_at))
    house.cancel(ticket)
    await body_of(urgent)
    await listening
    assert (await house.end_of(ticket)).outcome is Outcome.CANCELLED
    left = [] if leaves_at is None else [(leaves_at, Ending.CLOSED)]
    assert [(call.ended_at, call.ending) for call in house.ollama.calls[2:]] == left


@in_virtual_time
async def test_a_resumed_stream_is_expected_to_take_its_text_as_read():
    async with house_of(Model(words=WORDS * 3)) as house:
        ticket = streaming(house)
        listening = asyncio.ensure_future(heard(ticket))
        await house.interrupt(12.5, "m")
        await sleep_until(15.0)
        entry = house.worker.scheduler.gateway.entries[ticket.sequence]
        assert entry.kept_tokens == 12
        whole_s = house.worker.scheduler.device.estimates.service_s(entry.item, "m:latest")
        assert entry.expected_end_at - entry.dispatched_at < whole_s
        await listening


@in_streaming_house
async def test_a_replayed_stream_goes_on_as_one_and_sends_nothing_before(house):
    ticket = streaming(house, ways=REPLAYED)
    parts = list[bytes]()
    listening = asyncio.ensure_future(heard(ticket, parts))
    await house.interrupt(4.5, "m")
    known = len(parts)
    await sleep_until(9.4)
    assert len(parts) == known
    said, _ = await listening
    assert [json.loads(line)["done"] for line in said.splitlines()].count(True) == 1
    (stopped,), (resumed,) = house.events.of(ItemInterrupted), house.events.of(ItemResumed)
    assert (stopped.at, resumed.verified_chars) == (4.5, len(SAID))
    assert [
        event.attempt
        for event in house.events.of(ItemStreaming)
        if event.sequence == ticket.sequence
    ] == [1, 2]
    assert house.ollama.calls[0].ending is Ending.CLOSED
    assert house.ollama.calls[0].body == house.ollama.calls[2].body


@in_virtual_time
async def test_a_stream_longer_than_what_is_kept_finishes_first():
    async with house_of(
        Model(), settings=tightened(scheduling={"replay_limit_mib": 0.0001})
    ) as house:
        listening = listening_to(house, ways=REPLAYED)
        await sleep_until(4.0)
        assert [entry.unresumable for entry in house.worker.scheduler.gateway.running] == [True]
        await house.interrupt(4.5, "m")
        assert listening.done()
        said, error = await listening
        assert (text_of(said), error, house.events.of(ItemInterrupted)) == (TEXT, None, [])


@in_virtual_time
async def test_a_replay_waits_for_a_reader_who_stands_still_no_longer_than_any_stream():
    narrow = tightened(server={"write_buffer_mib": 0.0001, "write_deadline_s": 2.0})
    async with house_of(Model(), settings=narrow) as house:
        ticket = streaming(house, ways=REPLAYED)
        listening = asyncio.ensure_future(heard(ticket))
        await house.interrupt(4.5, "m")
        listening.cancel()
        await sleep_until(60.0)
        assert (await house.end_of(ticket)).outcome is Outcome.CANCELLED
        assert house.ollama.calls[-1].ending is Ending.CLOSED


# At random.

LETTERS = (
    "a",
    " b",
    " ",
    "\n",
    "é",
    "中",
    "😀",
    "E",
    "N",
    "D",
    "<",
    "&",
    '"',
    "\\",
    "\u2028",
    "\ufffd",
    " EN",
)


def drawn(rng: Random) -> Model:
    words = tuple(
        "".join(rng.choices(LETTERS, k=rng.choice((1, 1, 2)))).rstrip() or rng.choice(LETTERS)
        for _ in range(rng.randint(1, 14))
    )
    stop = rng.choice(("", "", "END", "ND", "\n\n", "é中"))
    return Model(
        words,
        stop=stop,
        limit=rng.choice((0, 0, 0, rng.randint(1, 14))),
        calls=(CALL,) * rng.choice((0, 0, 1, 2)),
    )


async def _many(rounds: int, rng: Random) -> tuple[int, int]:
    """Streams of all dialects with stop sequences, limits and any text, interrupted at random
    instants up to three times.
    """
    wrong = interruptions = 0
    async with house_of(Model()) as house:
        for _ in range(rounds):
            path = rng.choice(ROUTES)
            model = drawn(rng)
            house.ollama._service = model
            stops = [model.stop] if model.stop else []
            limit = {"num_predict": model.limit} if model.limit else {}
            more: Fields = {"options": {**limit, "stop": stops}}
            if path.startswith("/v1/"):
                name = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
                more = {
                    "stop_sequences" if path == "/v1/messages" else "stop": stops,
                    **({name: model.limit} if model.limit else {}),
                }
            if path == "/v1/responses":
                model.stop = ""
            if path not in CHATS or model.stop or model.limit:  # what ends a text so leaves no call
                model.calls = ()
            tools = offering(path) if path in CHATS and (model.calls or rng.random() < 0.3) else {}
            if not model.answer.text:
                continue
            began_at = house.now
            listening = listening_to(
                house, path, rng.choice((ONLY, CONTINUE_FIRST)), **more, **tools
            )
            for _ in range(rng.randint(1, 3)):
                await house.interrupt(
                    began_at + rng.uniform(0.0, 2.0 * len(model.words)), rng.choice(("m", "b"))
                )
            said, error = await listening
            wrong += (
                error is not None
                or told(path, said).answer.parts != expected(path, model.answer).parts
            )
        interruptions = len(house.events.of(ItemInterrupted))
        assert len(house.events.of(ItemStreaming)) >= interruptions
        assert all(event.outcome is Outcome.COMPLETED for event in house.events.of(ItemEnded))
    return wrong, interruptions


def test_no_character_is_lost_doubled_or_out_of_order_over_many_interruptions():
    """10,000 interruptions in `make reliability`."""
    rounds = 200 if EXAMPLES == 1 else 500 * EXAMPLES
    wrong, interruptions = run_virtual(lambda: _many(rounds, Random(7)), horizon_s=1e9)
    assert wrong == 0
    assert interruptions > 0.8 * rounds


async def _many_replayed(rounds: int, rng: Random) -> tuple[int, int]:
    """Streams interrupted at random instants, up to three times, a third of them with another
    answer the second time.
    """
    wrong = diverged = 0
    async with house_of(Model()) as house:
        for _ in range(rounds):
            first = tuple(rng.choices(WORDS, k=rng.randint(1, 12)))
            second = (
                first if rng.random() < 0.66 else tuple(rng.choices(WORDS, k=rng.randint(1, 12)))
            )
            house.ollama._service = Model(first, replays=second)
            instants = [rng.uniform(0.0, 2.0 * len(first)) for _ in range(rng.randint(1, 3))]
            said, error = await interrupted(house, *instants, ways=REPLAYED)
            text = text_of(said)
            diverged += error is not None
            is_right = (
                text in ("".join(first), "".join(second))
                if error is None
                else "".join(first).startswith(text)
            )
            wrong += not is_right
    return wrong, diverged


def test_no_wrong_byte_reaches_anybody_over_many_interruptions():
    rounds = 200 if EXAMPLES == 1 else 500 * EXAMPLES
    counts = [
        run_virtual(partial(_many_replayed, 10, Random(seed)), horizon_s=1e9)
        for seed in range(rounds // 10)
    ]
    wrong, diverged = (sum(each) for each in zip(*counts, strict=True))
    assert wrong == 0
    assert rounds * 0.1 < diverged < rounds * 0.5
