"""What is told of an item as a trace: its phases, in virtual time; no OpenTelemetry here (see test_tracing_export.py)."""

from __future__ import annotations

import pytest

from hearth.config.settings import AgingSettings
from hearth.errors import SwapFailed
from hearth.events import ItemDispatched, ItemDiverged, ItemEnded, ItemInterrupted, ItemProtected, ItemQueued, ItemResumed
from hearth.observability.tracing import CHILDREN_KEPT, Origin, Span, SpanKind, Trace, TraceBuilder
from hearth.types import Outcome, Priority, Sequence
from tests.observability.samples import ended, sample
from tests.support.fake_exchange import CallFault
from tests.support.fake_ollama import LoadFault
from tests.support.virtual_time import LoopClock, in_virtual_time, sleep_until
from tests.worker.house import House, body_of, settings_with, settle

CHAT = Origin(route="/api/chat")


class Collected:
    """Every trace of a house."""

    def __init__(self, house: House) -> None:
        self.traces: list[Trace] = []
        self.gathering = TraceBuilder(clock=LoopClock(), deliver=self.traces.append)
        house.gateway.events.subscribe(self.gathering)

    def root(self, sequence: int) -> Span:
        (found,) = (trace.root for trace in self.traces if trace.root.attributes["hearth.sequence"] == sequence)
        return found


def phases(span: Span) -> list[tuple[str, float, float]]:
    """The children with their times."""
    return [(child.name, child.began_at, child.ended_at) for child in span.children]


@in_virtual_time
async def test_an_item_is_a_wait_with_its_swap_in_it_and_a_call_with_its_first_byte_in_it():
    async with House("a", "b", resident=("a",)) as house:
        seen = Collected(house)
        ticket = house.submit("b", stream=True, service_s=2.0, first_byte_s=0.5)
        seen.gathering.note(ticket.sequence, CHAT)
        await body_of(ticket)
        await settle()
        root = seen.root(ticket.sequence)
        assert (root.name, root.kind, root.began_at, root.ended_at) == ("POST /api/chat", SpanKind.SERVER, 0.0, 4.5)
        assert phases(root) == [("queue", 0.0, 2.5), ("chat b:latest", 2.5, 4.5)]
        wait, call = root.children
        assert phases(wait) == [("swap", 0.0, 2.5)]
        assert wait.children[0].attributes == {"hearth.to_model": "b:latest", "hearth.from_models": "a:latest"}
        assert phases(call) == [("first byte", 2.5, 3.0)]
        assert call.kind is SpanKind.CLIENT
        assert len(seen.gathering) == 0


@in_virtual_time
async def test_the_call_carries_what_the_conventions_name_and_the_root_what_hearth_knows():
    async with House("a", resident=("a",)) as house:
        seen = Collected(house)
        ticket = house.submit("a", caller="webui", request_id="req_9")
        seen.gathering.note(ticket.sequence, CHAT)
        await body_of(ticket)
        await settle()
        root = seen.root(ticket.sequence)
        assert root.attributes["hearth.caller"] == "webui"
        assert root.attributes["hearth.request_id"] == "req_9"
        assert root.attributes["hearth.lane"] == "external"
        assert root.attributes["hearth.outcome"] == "completed"
        assert root.attributes["http.route"] == "/api/chat"
        assert root.attributes["http.response.status_code"] == 200
        call = root.children[-1]
        assert call.attributes["gen_ai.operation.name"] == "chat"
        assert call.attributes["gen_ai.provider.name"] == "ollama"
        assert call.attributes["gen_ai.request.model"] == call.attributes["gen_ai.response.model"] == "a:latest"
        (event,) = house.events.of(ItemEnded)
        assert call.attributes["gen_ai.usage.output_tokens"] == event.output_tokens == root.attributes["hearth.output_tokens"]
        assert [name for name in root.attributes if name.startswith("gen_ai.")] == []


@in_virtual_time
async def test_what_did_not_come_over_http_says_nothing_of_http_and_nobody_says_what_is_not_known():
    async with House("a", resident=("a",)) as house:
        seen = Collected(house)
        ticket = house.submit("a")
        await body_of(ticket)
        await settle()
        root = seen.root(ticket.sequence)
        assert root.name == "item"
        assert [name for name in root.attributes if name.startswith("http.")] == []
        assert None not in [*root.attributes.values(), *root.children[-1].attributes.values()]


@in_virtual_time
async def test_an_interruption_ends_a_call_and_begins_a_wait():
    async with House("a", resident=("a",)) as house:
        seen = Collected(house)
        external = house.submit("a", service_s=2.0)
        await sleep_until(0.5)
        internal = house.internal("a", service_s=1.0)
        await body_of(internal)
        await body_of(external)
        await settle()
        root = seen.root(external.sequence)
        names = [name for name, _, _ in phases(root)]
        assert names == ["queue", "text_completion a:latest", "queue", "text_completion a:latest"]
        first, second = root.children[1], root.children[3]
        assert (first.attributes["hearth.outcome"], first.attributes["hearth.attempt"], first.error) == ("interrupted", 1, "")
        assert second.attributes["hearth.attempt"] == 2
        assert root.attributes["hearth.interruptions"] == 1
        instants = [at for _, began_at, ended_at in phases(root) for at in (began_at, ended_at)]
        assert instants == sorted(instants)
        assert (instants[0], instants[-1]) == (root.began_at, root.ended_at)


@in_virtual_time
async def test_a_call_that_failed_unseen_is_an_error_and_the_item_is_none():
    async with House("a", resident=("a",)) as house:
        seen = Collected(house)
        house.ollama.next_calls(CallFault.GONE_BEFORE_HEAD)
        ticket = house.submit("a")
        await body_of(ticket)
        await settle()
        root = seen.root(ticket.sequence)
        failed = root.children[1]
        assert (failed.error, failed.attributes["error.type"], failed.attributes["hearth.outcome"]) == (
            "backend_gone",
            "backend_gone",
            "resent",
        )
        assert (root.error, root.children[-1].error) == ("", "")


@in_virtual_time
async def test_loads_that_failed_stand_in_the_wait_and_the_item_is_an_error():
    async with House("a") as house:
        seen = Collected(house)
        house.ollama.next_loads(LoadFault.FAIL, LoadFault.FAIL)
        ticket = house.submit("a")
        with pytest.raises(SwapFailed):
            await body_of(ticket)
        await settle()
        root = seen.root(ticket.sequence)
        assert (root.error, root.attributes["error.type"], root.attributes["hearth.outcome"]) == ("swap_failed", "swap_failed", "failed")
        (wait,) = root.children
        assert [span.error for span in wait.children] == ["swap_failed", "swap_failed"]


@in_virtual_time
async def test_who_leaves_while_its_model_loads_has_waited_for_a_part_of_the_swap_and_is_no_error():
    async with House("a", "b", resident=("a",)) as house:
        seen = Collected(house)
        ticket = house.submit("b")
        await sleep_until(1.5)
        house.worker.cancel(ticket.sequence)
        await settle()
        root = seen.root(ticket.sequence)
        assert (root.error, root.attributes["hearth.outcome"]) == ("", Outcome.CANCELLED.value)
        assert phases(root) == [("queue", 0.0, 1.5)]
        (swap,) = root.children[0].children
        assert (swap.name, swap.ended_at) == ("swap", 1.5)
        await sleep_until(5.0)


@in_virtual_time
async def test_a_swap_to_another_model_is_no_part_of_a_wait():
    async with House("a", "b", "c", resident=("a",)) as house:
        seen = Collected(house)
        first, second = house.submit("b"), house.submit("c")
        await body_of(first)
        await body_of(second)
        await settle()
        for ticket, model in (first, "b:latest"), (second, "c:latest"):
            (swap,) = seen.root(ticket.sequence).children[0].children
            assert swap.attributes["hearth.to_model"] == model


@in_virtual_time
async def test_a_swap_counts_from_when_the_item_came():
    async with House("a", "b", resident=("a",)) as house:
        seen = Collected(house)
        house.submit("b")
        await sleep_until(1.0)
        late = house.submit("b", request_id="req_2")
        await body_of(late)
        await settle()
        wait = seen.root(late.sequence).children[0]
        assert phases(wait) == [("swap", 1.0, 2.5)]


@in_virtual_time
async def test_a_promotion_is_marked_where_it_happened():
    settings = settings_with(scheduling={"aging": AgingSettings(promote_after_s=1.0)})
    async with House("a", "b", resident=("a",), settings=settings) as house:
        seen = Collected(house)
        first = house.internal("a", priority=Priority.BACKGROUND, service_s=3.0)
        second = house.internal("a", priority=Priority.BACKGROUND, request_id="req_2")
        await body_of(first)
        await body_of(second)
        await settle()
        (mark,) = seen.root(second.sequence).marks
        assert (mark.name, mark.at, mark.attributes) == ("promoted", 1.0, {"hearth.band": "normal"})


@in_virtual_time
async def test_what_happens_to_a_call_is_marked_on_it():
    async with House("a") as house:
        seen = Collected(house)
        for at, kind in enumerate((ItemQueued, ItemDispatched, ItemProtected, ItemResumed, ItemDiverged)):
            seen.gathering.emit(sample(kind, at=float(at), sequence=Sequence(1)))
        seen.gathering.emit(ended(at=9.0))
        (root,) = (trace.root for trace in seen.traces)
        assert [(mark.name, mark.at) for mark in root.children[-1].marks] == [("protected", 2.0), ("resumed", 3.0), ("diverged", 4.0)]
        assert root.marks == ()


@in_virtual_time
async def test_what_ends_without_having_begun_is_ignored():
    async with House("a") as house:
        seen = Collected(house)
        seen.gathering.emit(ended())
        seen.gathering.note(Sequence(1), CHAT)
        assert (seen.traces, len(seen.gathering)) == ([], 0)


@in_virtual_time
async def test_an_item_that_is_interrupted_for_ever_does_not_grow_for_ever():
    async with House("a") as house:
        seen = Collected(house)
        for kind in (ItemQueued, *(ItemDispatched, ItemInterrupted) * 300):
            seen.gathering.emit(sample(kind, at=0.0, sequence=Sequence(1)))
        seen.gathering.emit(ended(at=9.0))
        children = seen.traces[0].root.children
        assert len(children) == CHILDREN_KEPT
        assert children[-1].ended_at == 9.0, "the last one is worth more than those before it"
