"""A stream that is interrupted for the house's own work is continued: the rest of its text is asked for, and nothing is written twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.errors import BackendGone, HearthError, StreamDiverged
from hearth.events import ItemDispatched, ItemDiverged, ItemEnded, ItemHeld, ItemInterrupted, ItemResumed, ItemStreaming
from hearth.execution.request import Submission, Ticket
from hearth.types import BackendCall, Lane, Outcome, Priority, QueueItem, RequestId, Way
from tests.dialects.replay_play import expected
from tests.dialects.replay_readers import told
from tests.dialects.replay_streams import ROUTES, Answer, Run, stream
from tests.dialects.test_continuing import BODIES, CHATS, TOLD_BY, chat_rest, offering
from tests.support import ollama_wire as wire
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES
from tests.support.fake_ollama import CallFault, Ending, FakeModel, Service
from tests.support.virtual_time import in_virtual_time, run_virtual, sleep_until
from tests.worker.house import House, body_of, settings_with, settle

WORDS = (" one", " two", " three", " four", " five", " six", " seven", " eight", " nine", " ten")
TEXT = "".join(WORDS)
AT_ONCE = settings_with(scheduling={"preempt_min_remaining_s": 0.0, "preempt_restart_bound_s": 0.0})
ASSISTANT = "<assistant>"
ONLY = (Way.CONTINUE,)
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
    """A model: what it says is a function of the text so far, whoever asks and in whichever words. Internal work is short."""

    def __init__(
        self, words: tuple[str, ...] = WORDS, *, replays: tuple[str, ...] = (), stop: str = "", limit: int = 0, calls: tuple[str, ...] = ()
    ) -> None:
        self.words, self.stop, self.limit, self.calls = words, stop, limit, calls
        self.replays = replays
        """What it says when the whole is asked for a second time."""
        self.asked = 0

    @property
    def answer(self) -> Answer:
        """What a caller is to read in the end."""
        return self._answer(self.words)

    def _answer(self, words: tuple[str, ...]) -> Answer:
        kept, reason = self._until(words, self.limit)
        return Answer(parts=(("content", "".join(kept)), *(("call", call) for call in self.calls)), reason=reason)

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
        if body.get("raw") or (call.path == "/api/chat" and body["messages"][-1]["role"] == "assistant"):
            return self._rest(body)
        self.asked += 1
        words = self.replays if self.asked > 1 and self.replays else self.words
        run = Pieces(rng=Random(self.asked))
        run.words, _ = self._until(words, self.limit)
        frames = tuple(stream(call.path, self._answer(words), run))
        return Service(frames=frames, first_byte_s=A_WORD_S, service_s=len(frames) * A_WORD_S)

    def _rest(self, body: dict[str, Any]) -> Service:
        """Goes on from the text so far; from another one, it says so."""
        known = body["prompt"].rpartition(ASSISTANT)[2] if body.get("raw") else body["messages"][-1]["content"]
        whole = "".join(self.words)
        if not whole.startswith(known):
            return Service(words=("WRONG",))
        rest, place = list[str](), 0
        for word in self.words:
            place += len(word)
            if place > len(known):
                rest.append(word[max(0, len(word) - (place - len(known))) :])
        words, reason = self._until(tuple(rest), body["options"].get("num_predict", 0))
        if not body.get("raw"):
            run = Pieces(rng=Random(0))
            run.words = words
            frames = tuple(chat_rest("".join(words), self.calls, run, reason).splitlines(keepends=True))
            return Service(frames=frames, first_byte_s=A_WORD_S, service_s=len(frames) * A_WORD_S)
        service_s, prompt_tokens = (len(words) + 1) * A_WORD_S, 11 + len(self.words) - len(rest)
        return Service(words=words, first_byte_s=A_WORD_S, service_s=service_s, prompt_tokens=prompt_tokens, done_reason=reason)


def streaming(house: House, path: str = "/api/generate", ways: tuple[Way, ...] = ONLY, **more: Any) -> Ticket:
    body = {**BODIES[path], "model": "m", "stream": True, **more}
    call = BackendCall(method="POST", path=path, body=json.dumps(body).encode())
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
    return House(FakeModel(name="m"), "b", resident=("m",), service=model, settings=more.pop("settings", AT_ONCE), **more)


async def heard(ticket: Ticket) -> tuple[bytes, HearthError | None]:
    """All that reaches the caller, and the error that it ends with."""
    parts: list[bytes] = []
    try:
        await ticket.reply.head()
        while chunks := await ticket.reply.take():
            parts.extend(chunks)
    except HearthError as error:
        return b"".join(parts), error
    return b"".join(parts), None


async def interrupt(house: House, at: float, model: str = "m") -> None:
    await sleep_until(at)
    await body_of(house.submit(model, lane=Lane.INTERNAL))


def texts(data: bytes) -> str:
    return "".join(json.loads(line)["response"] for line in data.splitlines())


@for_each("path", ROUTES)
@in_virtual_time
async def test_the_rest_is_asked_for_and_the_caller_reads_one_whole_stream(path: str):
    model = Model()
    async with house_of(model) as house:
        ticket = streaming(house, path)
        listening = asyncio.ensure_future(heard(ticket))
        await interrupt(house, 7.5)
        said, error = await listening
        assert error is None
        assert told(path, said).answer == expected(path, model.answer)
        (resumed,) = house.events.of(ItemResumed)
        assert (resumed.how, resumed.verified_chars, resumed.diverged) == (Way.CONTINUE, 0, False)
        assert resumed.again_tokens > 0
        rest = json.loads(house.ollama.calls[2].body)
        assert house.ollama.calls[2].path == "/api/generate"
        assert TEXT.startswith(rest["prompt"].rpartition(ASSISTANT)[2])
        assert model.asked == 1
        ended = await house.end_of(ticket)
        assert (ended.outcome, ended.attempts, ended.interrupt_count) == (Outcome.COMPLETED, 2, 1)
        assert ended.output_tokens == len(WORDS)


CALL = '["find", {"city": "Rome"}]'


@for_each("calls", [(), (CALL,)])
@for_each("path", CHATS)
@in_virtual_time
async def test_a_stream_with_tools_on_offer_goes_on_by_chat_whose_parser_finds_calls(path: str, calls: tuple[str, ...]):
    model = Model(calls=calls)
    async with house_of(model) as house:
        listening = asyncio.ensure_future(heard(streaming(house, path, **offering(path))))
        await interrupt(house, 7.5)
        await interrupt(house, 12.5, "b")
        said, error = await listening
        assert error is None
        reason = TOLD_BY.get(path, "stop") if calls else "stop"
        assert told(path, said).answer == Answer(parts=model.answer.parts, reason=reason)
        assert [event.how for event in house.events.of(ItemResumed)] == [Way.CONTINUE, Way.CONTINUE]
        assert [call.path for call in house.ollama.calls if json.loads(call.body)["stream"]] == [path, "/api/chat", "/api/chat"]


@in_virtual_time
async def test_a_call_that_begins_after_the_text_was_continued_finishes_first_since_no_replay_would_say_it_again():
    model = Model(replays=(" another", " text"), calls=(CALL,))
    async with house_of(model) as house:
        listening = asyncio.ensure_future(heard(streaming(house, "/api/chat", (Way.CONTINUE, Way.REPLAY), **offering("/api/chat"))))
        await interrupt(house, 7.5)
        await interrupt(house, 13.0)  # between the call and the end
        said, error = await listening
        assert error is None
        assert told("/api/chat", said).answer.parts == model.answer.parts
        assert len(house.events.of(ItemInterrupted)) == 1


@in_virtual_time
async def test_where_a_template_closes_an_answer_that_was_begun_a_stream_with_tools_on_offer_finishes_first():
    def closing(path: str, body: dict[str, Any], at: float) -> wire.Answer | None:
        turns = [*body["messages"], {"role": "user", "content": ""}]
        return wire.rendering(path, {**body, "messages": turns}, at)

    async with house_of(Model()) as house:
        house.ollama.render = closing
        listening = asyncio.ensure_future(heard(streaming(house, "/v1/messages", **offering("/v1/messages"))))
        await interrupt(house, 7.5)
        said, error = await listening
        assert (error, told("/v1/messages", said).answer.text) == (None, TEXT)
        assert len(house.events.of(ItemHeld)) == 1
        assert house.events.of(ItemInterrupted) == []


@in_virtual_time
async def test_an_interruption_sends_the_cancel_at_once_and_the_urgent_call_starts_within_50_ms():
    async with house_of(Model()) as house:
        listening = asyncio.ensure_future(heard(streaming(house, "/v1/messages")))
        await interrupt(house, 6.25)
        await listening
        assert house.ollama.calls[0].ended_at == 6.25
        urgent = [event.at for event in house.events.of(ItemDispatched) if event.lane is Lane.INTERNAL]
        assert urgent[0] <= 6.25 + 0.05


@in_virtual_time
async def test_a_server_that_is_slow_to_render_holds_up_nobody_and_is_asked_again():
    async with house_of(Model()) as house:
        listening = asyncio.ensure_future(heard(streaming(house)))
        await sleep_until(3.5)
        house.ollama.render_s = 5.0
        urgent = house.submit("m", lane=Lane.INTERNAL)
        await sleep_until(4.0)
        house.ollama.render_s = 0.0
        await body_of(urgent)
        dispatched = [event.at for event in house.events.of(ItemDispatched) if event.lane is Lane.INTERNAL]
        assert dispatched[0] <= 3.5 + 0.05
        said, error = await listening
        assert (texts(said), error) == (TEXT, None)


@pytest.mark.parametrize("other", ["m", "b"])
@in_virtual_time
async def test_it_may_be_interrupted_again_and_again(other: str):
    async with house_of(Model(words=WORDS * 3)) as house:
        listening = asyncio.ensure_future(heard(streaming(house)))
        for at in (3.5, 12.5, 20.25):
            await interrupt(house, at, other)
        said, error = await listening
        assert (texts(said), error) == (TEXT * 3, None)
        assert [event.how for event in house.events.of(ItemResumed)] == [Way.CONTINUE] * len(house.events.of(ItemInterrupted))
        assert len(house.events.of(ItemInterrupted)) == 3


@in_virtual_time
async def test_before_the_first_word_there_is_nothing_to_continue_and_any_answer_will_do():
    path = "/v1/messages"
    model = Model(replays=(" another", " answer"))
    async with house_of(model) as house:
        listening = asyncio.ensure_future(heard(streaming(house, path)))
        await interrupt(house, 2.5)
        said, error = await listening
        assert error is None
        assert told(path, said).answer == Answer(parts=(("content", " another answer"),))


@in_virtual_time
async def test_a_replay_that_differs_is_continued_from_what_was_sent():
    model = Model(replays=(" one", " elephants"))
    async with house_of(model) as house:
        listening = asyncio.ensure_future(heard(streaming(house, ways=(Way.REPLAY, Way.CONTINUE))))
        await interrupt(house, 4.5)
        said, error = await listening
        assert (texts(said), error) == (TEXT, None)
        (resumed,) = house.events.of(ItemResumed)
        assert (resumed.how, resumed.diverged) == (Way.CONTINUE, True)
        assert house.events.of(ItemDiverged) == []


@in_virtual_time
async def test_a_replay_that_reproduces_is_not_continued():
    async with house_of(Model()) as house:
        listening = asyncio.ensure_future(heard(streaming(house, ways=(Way.REPLAY, Way.CONTINUE))))
        await interrupt(house, 4.5)
        said, error = await listening
        assert (texts(said), error) == (TEXT, None)
        assert [event.how for event in house.events.of(ItemResumed)] == [Way.REPLAY]


@in_virtual_time
async def test_a_model_that_often_replays_something_else_is_not_replayed_any_more():
    model = Model(replays=(" one", " elephants"))
    settings = settings_with(scheduling={"preempt_min_remaining_s": 0.0, "preempt_restart_bound_s": 0.0, "preempt_finish_bound_s": 60.0})
    async with house_of(model, settings=settings) as house:
        for _ in range(4):
            model.asked, began_at = 0, house.now
            listening = asyncio.ensure_future(heard(streaming(house, ways=(Way.REPLAY, Way.CONTINUE))))
            await interrupt(house, began_at + 4.5)
            assert (await listening)[1] is None
        assert [event.diverged for event in house.events.of(ItemResumed)] == [True, True, True, False]
        model.asked, began_at, interrupted = 0, house.now, len(house.events.of(ItemInterrupted))
        listening = asyncio.ensure_future(heard(streaming(house, ways=(Way.REPLAY,))))
        await interrupt(house, began_at + 4.5)
        assert texts((await listening)[0]) == TEXT
        assert len(house.events.of(ItemInterrupted)) == interrupted, "what could only be replayed finishes"
        assert len(house.events.of(ItemHeld)) == 1


@pytest.mark.parametrize(("ways", "how"), [(ONLY, None), ((Way.CONTINUE, Way.REPLAY), Way.REPLAY)])
@in_virtual_time
async def test_a_server_that_renders_nothing_is_asked_once_and_its_streams_are_replayed_or_finish(ways: tuple[Way, ...], how: Way | None):
    async with house_of(Model()) as house:
        house.ollama.render = lambda *_: None
        for _ in range(2):
            began_at = house.now
            listening = asyncio.ensure_future(heard(streaming(house, ways=ways)))
            await interrupt(house, began_at + 3.5)
            said, error = await listening
            assert (texts(said), error) == (TEXT, None)
        assert [event.how for event in house.events.of(ItemResumed)] == ([] if how is None else [how, how])
        assert len(house.ollama.renderings) == 1


@pytest.mark.parametrize(("ways", "ends"), [(ONLY, StreamDiverged), ((Way.CONTINUE, Way.REPLAY), None)])
@in_virtual_time
async def test_a_template_that_was_changed_meanwhile_is_not_continued_with(ways: tuple[Way, ...], ends: type[HearthError] | None):
    async with house_of(Model()) as house:
        listening = asyncio.ensure_future(heard(streaming(house, ways=ways)))
        await sleep_until(3.5)
        urgent = house.submit("m", lane=Lane.INTERNAL)
        await settle()
        house.ollama.render = lambda path, body, at: wire.rendering(path, {**body, "prompt": "something else"}, at)
        await body_of(urgent)
        said, error = await listening
        assert (type(error) if error else None) is ends
        assert texts(said) == ("".join(WORDS[:3]) if ends else TEXT)


@pytest.mark.parametrize("ways", [ONLY, (Way.CONTINUE, Way.REPLAY)])
@in_virtual_time
async def test_another_model_of_the_same_name_neither_continues_nor_replays(ways: tuple[Way, ...]):
    async with house_of(Model()) as house:
        listening = asyncio.ensure_future(heard(streaming(house, ways=ways)))
        await sleep_until(3.5)
        urgent = [house.submit("m", lane=Lane.INTERNAL) for _ in range(8)]  # until the model server was looked at again
        house.ollama.pulled += 1
        await body_of(urgent[-1])
        said, error = await listening
        assert isinstance(error, StreamDiverged)
        assert texts(said) == "".join(WORDS[:3])


@in_virtual_time
async def test_a_text_that_the_context_has_no_room_for_is_replayed():
    class Full(Model):
        def _rest(self, body: dict[str, Any]) -> Service:
            assert body["truncate"] is False
            house.ollama.refuse_next = "the prompt is longer than the context length currently available to the model"
            return Service()

    async with house_of(Full()) as house:
        listening = asyncio.ensure_future(heard(streaming(house, ways=(Way.CONTINUE, Way.REPLAY))))
        await interrupt(house, 3.5)
        said, error = await listening
        assert (texts(said), error) == (TEXT, None)
        assert [event.how for event in house.events.of(ItemResumed)] == [Way.REPLAY]


@in_virtual_time
async def test_an_open_tool_call_or_thought_finishes_first():
    class Thinking(Model):
        def __call__(self, call: BackendCall) -> Service:
            if not json.loads(call.body)["stream"]:
                return Service(service_s=1.0)
            run = Pieces(rng=Random(1))
            frames = tuple(stream(call.path, Answer(parts=(("thinking", TEXT),)), run))
            return Service(frames=frames, first_byte_s=1.0, service_s=float(len(frames)))

    async with house_of(Thinking()) as house:
        listening = asyncio.ensure_future(heard(streaming(house, "/v1/messages")))
        await interrupt(house, 6.5)
        said, error = await listening
        assert error is None
        assert told("/v1/messages", said).answer.text == TEXT
        assert house.events.of(ItemInterrupted) == []


@in_virtual_time
async def test_a_server_that_dies_before_the_rest_begins_is_asked_once_more():
    async with house_of(Model()) as house:
        house.ollama.next_calls(None, None, CallFault.GONE_BEFORE_HEAD)
        listening = asyncio.ensure_future(heard(streaming(house)))
        await interrupt(house, 3.5)
        said, error = await listening
        assert (texts(said), error) == (TEXT, None)


@for_each("fault", [CallFault.GONE_MID_STREAM, CallFault.NO_DONE, CallFault.ERROR_LINE])
@in_virtual_time
async def test_a_rest_that_breaks_off_ends_the_stream_with_an_error_after_right_text(fault: CallFault):
    async with house_of(Model()) as house:
        house.ollama.next_calls(None, None, fault)
        listening = asyncio.ensure_future(heard(streaming(house)))
        await interrupt(house, 3.5)
        said, error = await listening
        assert error is not None
        assert error.retryable
        assert isinstance(error, BackendGone) or fault is CallFault.ERROR_LINE
        assert TEXT.startswith(texts(said))
        assert len(texts(said)) > len("".join(WORDS[:3]))


@in_virtual_time
async def test_a_caller_who_leaves_during_the_rest_frees_the_model():
    async with house_of(Model()) as house:
        ticket = streaming(house)
        listening = asyncio.ensure_future(heard(ticket))
        await interrupt(house, 3.5)
        await sleep_until(6.75)
        house.worker.cancel(ticket.sequence)
        await listening
        await settle()
        assert (house.ollama.calls[2].ended_at, house.ollama.calls[2].ending) == (6.75, Ending.CLOSED)


@in_virtual_time
async def test_a_caller_who_leaves_while_the_prompt_is_rendered_frees_the_model():
    async with house_of(Model()) as house:
        ticket = streaming(house)
        listening = asyncio.ensure_future(heard(ticket))
        await sleep_until(3.5)
        house.ollama.render_s = 5.0
        urgent = house.submit("m", lane=Lane.INTERNAL)
        await settle()
        house.worker.cancel(ticket.sequence)
        await body_of(urgent)
        await listening
        assert (await house.end_of(ticket)).outcome is Outcome.CANCELLED
        assert len(house.ollama.calls) == 2


@in_virtual_time
async def test_a_rest_without_a_word_is_an_end():
    model = Model(words=WORDS[:3])
    async with house_of(model) as house:
        listening = asyncio.ensure_future(heard(streaming(house)))
        await interrupt(house, 3.5)
        said, error = await listening
        assert (texts(said), error) == ("".join(WORDS[:3]), None)
        assert told("/api/generate", said).answer == model.answer


@in_virtual_time
async def test_what_a_resumed_stream_is_expected_to_take_counts_the_text_so_far_as_read():
    async with house_of(Model(words=WORDS * 3)) as house:
        ticket = streaming(house)
        listening = asyncio.ensure_future(heard(ticket))
        await interrupt(house, 12.5)
        await sleep_until(15.0)
        entry = house.worker.scheduler.state.entries[ticket.sequence]
        assert entry.kept_tokens == 12
        whole_s = house.worker.scheduler.state.estimates.service_s(entry.item, "m:latest")
        assert entry.expected_end_at - entry.dispatched_at < whole_s
        await listening


LETTERS = ("a", " b", " ", "\n", "é", "中", "😀", "E", "N", "D", "<", "&", '"', "\\", "\u2028", "\ufffd", " EN")


def drawn(rng: Random) -> Model:
    words = tuple("".join(rng.choices(LETTERS, k=rng.choice((1, 1, 2)))).rstrip() or rng.choice(LETTERS) for _ in range(rng.randint(1, 14)))
    stop = rng.choice(("", "", "END", "ND", "\n\n", "é中"))
    return Model(words, stop=stop, limit=rng.choice((0, 0, 0, rng.randint(1, 14))), calls=(CALL,) * rng.choice((0, 0, 1, 2)))


async def _many(rounds: int, rng: Random) -> tuple[int, int]:
    """Streams of all dialects with stop sequences, limits and any text, interrupted at random instants up to three times."""
    wrong = interruptions = 0
    async with house_of(Model()) as house:
        for _ in range(rounds):
            path, model = rng.choice(ROUTES), drawn(rng)
            house.ollama._service = model
            stops, limit = [model.stop] if model.stop else [], {"num_predict": model.limit} if model.limit else {}
            more: dict[str, Any] = {"options": {**limit, "stop": stops}}
            if path.startswith("/v1/"):
                name = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
                more = {"stop_sequences" if path == "/v1/messages" else "stop": stops, **({name: model.limit} if model.limit else {})}
            if path == "/v1/responses":
                model.stop = ""
            if path not in CHATS or model.stop or model.limit:  # what ends a text so leaves no call
                model.calls = ()
            tools = offering(path) if path in CHATS and (model.calls or rng.random() < 0.3) else {}
            if not model.answer.text:
                continue
            began_at = house.now
            listening = asyncio.ensure_future(
                heard(streaming(house, path, rng.choice((ONLY, (Way.CONTINUE, Way.REPLAY))), **more, **tools))
            )
            for _ in range(rng.randint(1, 3)):
                await sleep_until(began_at + rng.uniform(0.0, 2.0 * len(model.words)))
                await body_of(house.submit(rng.choice(("m", "b")), lane=Lane.INTERNAL))
            said, error = await listening
            wrong += error is not None or told(path, said).answer.parts != expected(path, model.answer).parts
        interruptions = len(house.events.of(ItemInterrupted))
        assert len(house.events.of(ItemStreaming)) >= interruptions
        assert all(event.outcome is Outcome.COMPLETED for event in house.events.of(ItemEnded))
    return wrong, interruptions


def test_no_character_is_lost_doubled_or_out_of_order_over_many_interruptions():
    """10,000 interruptions in `make reliability`."""
    wrong, interruptions = run_virtual(lambda: _many(500 * EXAMPLES, Random(7)), horizon_s=1e9)
    assert wrong == 0
    assert interruptions > 400 * EXAMPLES
