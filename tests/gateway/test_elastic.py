"""A gateway over an Ollama and an elastic engine, `far`, that refuses, loses machines and has to
wake up.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from hearth.admission.auth import is_local_only
from hearth.api.app import HearthApp
from hearth.config.settings import AuthSettings, KeySettings
from hearth.engines.port import Engine
from hearth.engines.table import EngineTable, Row
from hearth.errors import EngineRefused, HearthError, ProxyFailed
from hearth.events import ItemResent, SwapStarted
from hearth.job_types import JobEnd, JobState
from hearth.jobs.attempt import JobRun, attempt
from hearth.types import BackendCall
from tests.jobs.house import job
from tests.support.echo_engine import Echo
from tests.support.fake_ollama import Service
from tests.support.house import House, settings_with, settle
from tests.support.http import Got, ask
from tests.support.keys import key_of
from tests.support.staying_engine import StayingEngine
from tests.support.virtual_time import in_virtual_time

OWNER, NEAR = "hearth_owner", "hearth_near"
KEYS = (key_of("owner", OWNER, admin=True), key_of("near", NEAR, local_only=True))


class Elastic(StayingEngine):
    """`faults`: what the next calls are answered with, in order. Every call takes `waking_s`."""

    title = "Elastic"

    def __init__(self) -> None:
        super().__init__("far", slots=2, on_card=False)
        self.faults: list[HearthError] = []
        self.waking_s = 0.0

    async def open(self, call: BackendCall) -> Echo:
        if self.faults:
            self.asked.append(call.body)
            raise self.faults.pop(0)
        await asyncio.sleep(self.waking_s)
        return await super().open(call)


class Home(House):
    """`a` of an Ollama, which answers in a minute, `far` beside it, and an alias of both."""

    def __init__(self, *, elastic: bool = True, resident: str = "a") -> None:
        self.far = Elastic()
        self._elastic = elastic
        settings = settings_with(keepalive={"after_s": 10.0, "every_s": 15.0})
        super().__init__(
            "a",
            "b",
            resident=resident,
            settings=settings.replace(
                aliases={"any": ("a", "far"), "out": ("far",)}, auth=AuthSettings(keys=KEYS)
            ),
            capacity_mib=9_000.0,
            service=lambda _: Service(first_byte_s=1.0, service_s=60.0),
            table=self._table,
        )
        self.app = HearthApp(self.gateway)

    def _table(self, ollama: Engine) -> EngineTable:
        return EngineTable(
            [
                Row(name="cards", engine=ollama, url="http://cards", kind="ollama"),
                Row(
                    name="cluster",
                    engine=self.far,
                    url="http://cluster",
                    kind="openai",
                    is_elastic=self._elastic,
                    spill_s=5.0 if self._elastic else None,
                    first_byte_timeout_s=600.0 if self._elastic else None,
                ),
            ]
        )

    async def ask(self, model: str, *, key: str = OWNER, **fields: Any) -> Got:
        body = {"model": model, "prompt": "one two", "stream": False} | fields
        return await ask(self.app, "POST", "/api/generate", body, key=key)

    def begin(self, model: str, *, key: str = OWNER) -> asyncio.Future[Got]:
        return asyncio.ensure_future(self.ask(model, key=key))


@in_virtual_time
async def test_what_would_wait_too_long_leaves_the_card_and_nothing_is_swapped():
    async with Home() as house:
        first = house.begin("any")
        await settle()
        second = await house.ask("any")
        assert (second.status, second.headers["x-hearth-model"]) == (200, "far")
        assert second.json["response"] == "one two"
        assert (await first).headers["x-hearth-model"] == "a"
        assert house.events.of(SwapStarted) == []


# What the engine answers in place of a machine.


@in_virtual_time
async def test_a_refused_request_waits_for_the_pause_and_is_answered():
    async with Home() as house:
        house.far.faults = [EngineRefused(retry_after_s=3.0), EngineRefused(retry_after_s=4.0)]
        began_at = house.now
        got = await house.ask("far")
        assert got.status == 200
        assert house.now - began_at == pytest.approx(7.0, abs=0.1)
        resent = [event.reason for event in house.events.of(ItemResent)]
        assert resent == ["engine_refused", "engine_refused"]
        assert len(house.far.asked) == 3


@in_virtual_time
async def test_a_request_that_is_refused_for_ten_minutes_is_told_so():
    async with Home() as house:
        house.far.faults = [EngineRefused(retry_after_s=100.0) for _ in range(20)]
        began_at = house.now
        got = await house.ask("far")
        assert (got.status, got.error) == (503, EngineRefused().message)
        assert house.now - began_at == pytest.approx(700.0, abs=1.0)


@in_virtual_time
async def test_all_who_wait_for_an_engine_that_refuses_are_told_so_after_ten_minutes():
    async with Home() as house:
        house.far.faults = [EngineRefused() for _ in range(1000)]
        began_at = house.now
        asked = [house.begin(model) for model in ("far", "far", "far", "out", "out")]
        got = await asyncio.gather(*asked)
        assert {(each.status, each.error) for each in got} == {(503, EngineRefused().message)}
        assert house.now - began_at == pytest.approx(620.0, abs=20.0)


@in_virtual_time
async def test_a_refused_request_of_an_alias_is_answered_by_the_card_when_that_is_free():
    async with Home() as house:
        first = house.begin("any")
        await settle()
        house.far.faults = [EngineRefused(retry_after_s=200.0)]
        second = await house.ask("any")
        assert (second.status, second.headers["x-hearth-model"]) == (200, "a")
        await first


@in_virtual_time
async def test_a_caller_who_leaves_is_not_asked_for_again():
    async with Home() as house:
        house.far.faults = [EngineRefused(retry_after_s=3.0)]
        waiting = house.begin("far")
        await settle()
        waiting.cancel()
        house.worker.cancel_caller("owner")
        await asyncio.sleep(10.0)
        assert len(house.far.asked) == 1


@in_virtual_time
async def test_a_request_whose_machine_was_lost_is_sent_once_more():
    async with Home() as house:
        house.far.faults = [ProxyFailed()]
        assert (await house.ask("far")).status == 200
        house.far.faults = [ProxyFailed(), ProxyFailed()]
        assert (await house.ask("far")).status == 502


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("elastic", "status"), [(True, 200), (False, 504)])
@in_virtual_time
async def test_a_machine_that_has_to_start_is_waited_for(
    *, elastic: bool, status: int, stream: bool
):
    async with Home(elastic=elastic) as house:
        house.far.waking_s = 300.0
        got = await house.ask("far", stream=stream, options={"num_predict": 5})
        if not stream:
            assert got.status == status
            return
        assert got.chunks[0].strip() in {b"", b"{}"} or b'"response":""' in got.chunks[0]
        assert (b'"done": true' in got.body) is elastic
        assert len(got.chunks) > (15 if elastic else 3)


@in_virtual_time
async def test_an_engine_that_goes_away_takes_only_its_own_models_along():
    async with Home() as house:
        house.far.is_down = True
        await asyncio.sleep(6.0)
        first = house.begin("any")
        await settle()
        assert (await house.ask("any")).headers["x-hearth-model"] == "a"
        assert (await house.ask("far")).status == 503
        assert (await first).status == 200


# Who may leave.


ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/api/chat", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}),
    ("/v1/embeddings", {"input": "hi"}),
    ("/llm/completions", {"prompt": "hi"}),
]


@pytest.mark.parametrize(("path", "body"), ASKED, ids=[path for path, _ in ASKED])
@pytest.mark.parametrize("model", ["far", "FAR", "out"])
@in_virtual_time
async def test_what_may_not_leave_is_refused_in_every_dialect(
    path: str, body: dict[str, Any], model: str
):
    async with Home() as house:
        got = await ask(house.app, "POST", path, body | {"model": model}, key=NEAR)
        assert (got.status, "local_only" in got.error) == (403, True)
        assert model in got.error
        assert house.far.asked == []


@in_virtual_time
async def test_what_may_not_leave_waits_for_the_card():
    async with Home() as house:
        first = house.begin("any", key=NEAR)
        await settle()
        second = await house.ask("any", key=NEAR)
        assert second.headers["x-hearth-model"] == "a"
        assert (await first).status == 200
        assert house.far.asked == []


@in_virtual_time
async def test_a_name_that_moves_to_other_machines_meanwhile_is_not_followed():
    async with Home() as house:
        first = house.begin("a", key=NEAR)
        await settle()
        waiting = house.begin("a", key=NEAR)
        await settle()
        house.ollama.delete("a:latest")
        house.far.set_models("far", "a")
        got = await waiting
        assert (got.status, "local_only" in got.error) == (403, True)
        assert house.far.asked == []
        await first


@in_virtual_time
async def test_a_request_without_a_model_stays_here():
    async with Home(resident="") as house:
        got = await ask(house.app, "POST", "/llm/completions", {"prompt": "hi"}, key=OWNER)
        assert (got.status, got.error.startswith("name a model")) == (400, True)
        assert house.far.asked == []


@pytest.mark.parametrize(
    ("keys", "caller", "stays"),
    [
        (KEYS, "owner", False),
        (KEYS, "near", True),
        pytest.param(KEYS, "removed", True, id="its key is gone"),
        pytest.param(KEYS, "internal", False, id="the program around Hearth"),
        pytest.param((), "local", False, id="without keys"),
    ],
)
def test_a_job_has_the_rights_that_its_key_has_when_it_starts(
    keys: tuple[KeySettings, ...], caller: str, *, stays: bool
):
    assert is_local_only(AuthSettings(keys=keys), caller) is stays


@in_virtual_time
async def test_status_and_models_say_what_is_elsewhere_and_scales():
    async with Home() as house:
        shown = (await ask(house.app, "GET", "/llm/models", key=OWNER)).json["models"]
        assert {each["name"]: (each["engine"], each["remote"]) for each in shown} == {
            "a": ("cards", False),
            "b": ("cards", False),
            "far": ("cluster", True),
        }
        health = (await ask(house.app, "GET", "/llm/health", key=OWNER)).json
        engines = health["backend"]["engines"]
        assert [each["elastic"] for each in engines] == [False, True]
        assert (await house.ask("far")).status == 200
        assert house.gpu_status["resident_models"] == ["a"]


@pytest.mark.parametrize(
    ("caller", "model", "state", "reason"),
    [
        ("owner", "far", JobState.COMPLETED, ""),
        ("near", "far", JobState.FAILED, "forbidden"),
        ("near", "out", JobState.FAILED, "forbidden"),
        ("near", "any", JobState.COMPLETED, ""),
        ("removed", "far", JobState.FAILED, "forbidden"),
    ],
)
@in_virtual_time
async def test_a_job_that_may_not_leave_does_not(
    caller: str, model: str, state: JobState, reason: str
):
    async with Home() as house:
        request = json.dumps({"model": model, "prompt": "one two", "stream": False}).encode()
        asked = replace(job(caller=caller), model=model, request=request)
        end = await attempt(JobRun(job=asked), asked, house.gateway.settings, house.worker)
        assert isinstance(end, JobEnd)
        assert (end.state, end.reason) == (state, reason)
        assert len(house.far.asked) == (caller == "owner")
