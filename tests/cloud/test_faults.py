"""Everything that can go wrong with Claude, through the whole gateway: what the caller hears, and
what the ledger says afterwards.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime

import anthropic
import ollama
import openai
import pytest

from hearth.config.settings import GatewayConfig
from hearth.errors import ShuttingDown
from hearth.events import BudgetExhausted, CloudCameUp, CloudWentDown, ItemResent
from hearth.types import BackendCall, Outcome, nano_usd, usd
from tests.cloud.house import (
    BODY,
    BOSS,
    CLOUD_KEYS,
    ELSEWHERE,
    HAIKU,
    POOR,
    RICH,
    SAVER,
    CloudHome,
    ledger_rows,
    open_cloud_home,
)
from tests.support.fake_claude import KEY, WORDS, FakeClaude, Script, refusal
from tests.support.fields import Fields
from tests.support.home import HELLO, LLAMA, LONG_TOKENS, SLOW, house_settings
from tests.support.house import new_item
from tests.support.patience import WITHIN_S, in_time, until, within_limit
from tests.support.skipping import skip

DENSE = Script(words=("a", "b", "c", "d", "e", "f"))
"""Every token is one byte: then the bound of a broken stream is what it costs."""
STALLS = Script(words=DENSE.words, stall_after=2, pings=0)
LIMIT_S = 100.0
"""More than a head needs on any machine; a test skips it, and does not wait."""


async def stalled(home: CloudHome) -> None:
    await within_limit(home.claude_api.stalling.wait())


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_passing_refusal_is_tried_again_unnoticed(home: CloudHome, streaming):
    troubles = [
        refusal(529, "overloaded_error"),
        *(refusal(status, "api_error") for status in (500, 503)),
    ]
    troubles.append(refusal(429, "rate_limit_error", retry_after="0"))
    for count, trouble in enumerate(troubles, start=1):
        home.claude_api.scripts = [trouble]
        got = await home.chat(BODY | {"stream": streaming})
        assert (got.status, b"friend" in got.body) == (200, True)
        ended = (await home.ends(count))[-1]
        assert (ended.outcome, ended.attempts) == (Outcome.COMPLETED, 2)
        assert [event.attempt for event in home.events.of(ItemResent)] == [1] * count
    await home.billed_equals_ledger()


async def test_attempts_are_bounded_and_a_long_pause_is_the_callers_to_wait(home: CloudHome):
    home.claude_api.default = refusal(529, "overloaded_error", retry_after="0")
    got = await home.chat(BODY)
    asked = len(home.claude_api.requests)
    assert (got.status, asked, "retry-after" in got.headers) == (503, 3, True)
    assert (await home.ends(1))[0].cost_usd is None
    home.claude_api.default = refusal(429, "rate_limit_error", retry_after="120")
    async with in_time(), home.gpt(RICH) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model=ELSEWHERE, messages=HELLO)
    assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (503, "120")
    assert len(home.claude_api.requests) == 4
    await home.ends(2)
    await home.claude_api.stop()
    assert (await home.chat(BODY)).status == 503
    assert [state for state, _, _ in await home.ledger()] == ["released"] * 3, (
        "nothing was sent, or a refusal"
    )


ACCOUNT = {
    "401": refusal(401, "authentication_error", f"invalid x-api-key {KEY}"),
    "403": refusal(403, "permission_error"),
    "credit": refusal(
        400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API."
    ),
    "spend limit": refusal(429, "rate_limit_error", "enforced_spend_limit_reached"),
}


@pytest.mark.parametrize("trouble", ACCOUNT.values(), ids=ACCOUNT)
async def test_a_refused_account_is_not_asked_again_until_a_reload(home: CloudHome, trouble):
    home.claude_api.scripts = [trouble]
    for _ in range(2):
        got = await home.chat(BODY | {"model": HAIKU})
        assert (got.status, KEY.encode() in got.body) == (503, False)
    assert (await home.chat(BODY)).status == 404, (
        "while Claude is down, a missing model is simply missing"
    )
    assert len(home.claude_api.requests) == len(home.events.of(CloudWentDown)) == 1
    assert KEY not in str(home.events.all)
    assert home.spent()["state"] == "down"
    home.gateway.reload(home.gateway.config)
    assert (await home.chat(BODY)).status == 200
    assert len(home.events.of(CloudCameUp)) == 1
    await home.billed_equals_ledger()


async def test_a_refused_key_replaced_meanwhile_says_nothing_of_the_new_one(home: CloudHome):
    home.claude_api.scripts = [
        refusal(529, "overloaded_error", retry_after="5"),
        refusal(401, "authentication_error"),
    ]
    asking = asyncio.ensure_future(home.chat(BODY))
    await within_limit(home.claude_api.asked.wait())
    fresh = FakeClaude()
    settings = home.gateway.config.settings
    cloud = settings.cloud.replace(base_url=await fresh.start())
    assert home.gateway.reload(GatewayConfig(settings=settings.replace(cloud=cloud)))
    skip(5.0)
    assert (await asking).status == 503
    assert (home.spent()["state"], home.events.of(CloudWentDown)) == ("ready", [])
    assert ((await home.chat(BODY)).status, len(fresh.requests)) == (200, 1)
    await fresh.stop()


@pytest.mark.parametrize(
    ("trouble", "status"),
    [
        (refusal(400, "invalid_request_error", "messages: too odd"), 400),
        (refusal(413, "request_too_large"), 413),
        (refusal(404, "not_found_error", "model: claude-fake-1"), 404),
        (Script(status=307, body={}, headers={"location": "http://127.0.0.1:9/"}), 502),
    ],
)
async def test_what_the_caller_has_to_change_reaches_it_and_is_not_retried(
    home: CloudHome, trouble: Script, status: int
):
    home.claude_api.default = trouble
    assert (await home.chat(BODY)).status == status
    assert len(home.claude_api.requests) == 1
    await home.billed_equals_ledger()


BREAKS = {
    "cut": Script(words=DENSE.words, cut_after=3),
    "no message_stop": Script(words=DENSE.words, no_stop=True),
    "overloaded": Script(words=DENSE.words, error_after=3),
    "api error": Script(words=DENSE.words, error_after=3, error_type="api_error"),
    "no event": Script(
        words=DENSE.words, cut_after=3, garbage=b"event: content_block_delta\ndata: {broken\n\n"
    ),
}


@pytest.mark.parametrize("script", BREAKS.values(), ids=BREAKS)
async def test_a_stream_that_breaks_off_is_an_error_in_every_client_and_is_paid_for(
    home: CloudHome, script
):
    home.claude_api.default = script
    async with home.native(RICH) as native, home.gpt(RICH) as gpt, home.claude(RICH) as claude:
        with pytest.raises(ollama.ResponseError):
            [part async for part in await native.chat(model=ELSEWHERE, messages=HELLO, stream=True)]
        with pytest.raises(openai.APIError):
            [
                part
                async for part in await gpt.chat.completions.create(
                    model=ELSEWHERE, messages=HELLO, stream=True
                )
            ]
        with pytest.raises(anthropic.APIStatusError):
            [
                part
                async for part in await claude.messages.create(
                    model=HAIKU, max_tokens=9, messages=HELLO, stream=True
                )
            ]
        with pytest.raises(openai.InternalServerError):
            await gpt.chat.completions.create(model=ELSEWHERE, messages=HELLO)
    ended = await home.ends(4)
    assert {event.outcome for event in ended} == {Outcome.FAILED}
    assert all(event.cost_usd for event in ended)
    assert len(home.claude_api.requests) == 4
    await home.billed_equals_ledger()


@pytest.mark.parametrize("pings", [0, 1])
async def test_a_stall_ends_despite_signs_of_life_and_may_have_been_charged(tmp_path, pings):
    async with open_cloud_home(tmp_path, timeout_s=LIMIT_S) as home:
        home.claude_api.default = replace(STALLS, pings=pings)
        async with in_time(), home.native(RICH) as native:
            stream = await native.chat(model=ELSEWHERE, messages=HELLO, stream=True)
            await anext(stream)
            await stalled(home)
            skip(LIMIT_S + 1.0)
            with pytest.raises(ollama.ResponseError, match="stopped answering"):
                [part async for part in stream]
        await within_limit(home.claude_api.gone.wait())
        await home.ends(1)
        await home.billed_equals_ledger()
        home.claude_api.default = Script(hold=True)
        held = asyncio.ensure_future(home.chat(BODY | {"stream": False}))
        await until(lambda: len(home.claude_api.requests) == 2)
        skip(LIMIT_S + 1.0)
        assert (await held).status == 504
        state, reserved, settled = (await home.ledger())[-1]
        assert (state, len(home.claude_api.requests), 0 < (settled or 0) < reserved) == (
            "settled",
            2,
            True,
        )


@pytest.mark.parametrize(
    "garbage",
    [
        b"event: message_start\ndata: {broken\n\n",
        b"event: x\ndata: \xff\n\n",
        b"<html>",
        b"",
    ],
)
async def test_an_answer_that_says_nothing_may_have_been_charged_for_its_prompt(
    home: CloudHome, garbage: bytes
):
    home.claude_api.default = Script(garbage=garbage, no_start=True)
    assert (await home.chat(BODY)).status == 502
    ((state, _, settled),) = await home.ledger()
    assert state == "settled"
    assert nano_usd(settled or 0.0) >= home.claude_api.billed_nano_usd > 0
    assert len(home.claude_api.requests) == 1


async def test_a_prompt_that_nobody_can_count_is_paid_at_its_worst(home: CloudHome):
    for count, tokens in enumerate((None, 0, -1, "40", 10**30), start=1):
        home.claude_api.default = Script(usage={"input_tokens": tokens})
        assert (await home.chat(BODY | {"stream": False})).status == 200
        ended = (await home.ends(count))[-1]
        _, reserved, settled = (await home.ledger())[-1]
        unused_tokens = home.claude_api.requests[-1]["max_tokens"] - len(WORDS)
        assert nano_usd(reserved) - nano_usd(settled or 0.0) == unused_tokens * 5000
        assert (ended.prompt_tokens, ended.cost_usd) == (0, settled)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("how", ["closes", "cancels", "cancels by number", "cancels all"])
@pytest.mark.parametrize("when", ["before the head", "in the stream"])
async def test_whoever_leaves_ends_the_call_at_once(home: CloudHome, when, how, streaming):
    home.claude_api.default = Script(hold=True) if when == "before the head" else STALLS
    asking = asyncio.ensure_future(home.chat(BODY | {"stream": streaming}))
    await stalled(home)
    (running,) = home.spent()["running"]
    assert (running["state"], running["model"], running["served_by"], running["why"]) == (
        "running",
        HAIKU,
        "claude",
        "not_local",
    )
    assert "say hello" not in str(running)
    by_id = f"/llm/requests/{running['request_id']}/cancel"
    by_number = f"/llm/queue/item/{running['sequence']}/cancel"
    for address in (by_id, by_number):
        assert (await home.chat({}, SAVER, address)).status == 404, (
            "others can neither see nor cancel it"
        )
    assert not asking.done()
    if how == "closes":
        asking.cancel()
    elif how == "cancels":
        assert (await home.chat({}, BOSS, by_id)).json["cancelled"]
    elif how == "cancels by number":
        named = {
            "sequence": running["sequence"],
            "request_id": running["request_id"],
            "cancelled": True,
        }
        assert [(await home.chat({}, BOSS, by_number)).json for _ in range(2)] == [named] * 2
    else:
        answers = [
            await home.chat({}, BOSS, f"/llm/requests/cancel?caller={running['caller']}")
            for _ in range(2)
        ]
        assert [got.json["requests"] for got in answers] == [
            [running["request_id"]],
            [],
        ]
    await within_limit(home.claude_api.gone.wait())
    (ended,) = await home.ends(1)
    assert (ended.outcome, ended.reason) == (Outcome.CANCELLED, "cancelled")
    await asyncio.gather(asking, return_exceptions=True)
    if when == "in the stream":
        await home.billed_equals_ledger()
    assert home.spent()["reserved_usd"] == 0.0
    assert (await home.chat({}, BOSS, by_id)).json["cancelled"]


async def test_a_running_call_gets_its_grace_and_then_a_retryable_error(tmp_path):
    async with open_cloud_home(tmp_path, grace_s=WITHIN_S) as home:
        home.claude_api.scripts = [STALLS, Script(words=DENSE.words * 20)]
        endless = asyncio.ensure_future(home.chat(BODY | {"stream": True}))
        await stalled(home)
        home.claude_api.asked.clear()
        ending = asyncio.ensure_future(home.chat(BODY | {"stream": False}))
        await within_limit(home.claude_api.asked.wait())
        hurry = asyncio.Event()
        stopping = asyncio.ensure_future(home.gateway.stop(hurry=hurry))
        assert (await ending).status == 200
        hurry.set()
        await stopping
        assert b"shutting down" in (await endless).body
        assert [event.outcome for event in home.ended] == [Outcome.COMPLETED, Outcome.CANCELLED]
        rows = ledger_rows(home.database)
        assert [state for state, _, _ in rows] == ["settled", "settled"]
        assert (
            sum(nano_usd(settled or 0) for *_, settled in rows) == home.claude_api.billed_nano_usd
        )
    # a grace that is over cuts it off, too
    async with open_cloud_home(tmp_path, grace_s=0.1) as home:
        home.claude_api.default = STALLS
        asking = asyncio.ensure_future(home.chat(BODY | {"stream": False}))
        await stalled(home)
        await within_limit(home.gateway.stop())
        assert (await asking).status == 503


async def test_what_claude_has_answered_cannot_be_cancelled_any_more(home: CloudHome):
    new = new_item()
    ticket = await home.cloud.take(replace(new, item=replace(new.item, model=HAIKU)))
    assert ticket is not None
    await ticket.reply.head()
    await ticket.reply.body()
    assert home.gateway.worker.registry.live(ticket.sequence) is not None, (
        "its cost is not settled yet"
    )
    assert home.gateway.worker.cancel(ticket.sequence) is False
    assert [end.outcome for end in await home.ends(1)] == [Outcome.COMPLETED]


async def test_a_call_that_is_still_being_read_at_the_stop_is_refused(home: CloudHome):
    large = json.dumps(BODY | {"messages": [{"role": "user", "content": "x" * 1_200_000}]}).encode()
    new = new_item()
    new = replace(
        new,
        item=replace(new.item, model=HAIKU),
        call=BackendCall(method="POST", path="/api/chat", body=large),
    )
    taking = asyncio.ensure_future(home.cloud.take(new))
    await asyncio.sleep(0)
    await home.cloud.stop(0.0)
    with pytest.raises(ShuttingDown):
        await taking


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"options": {"num_predict": 900_000}}, 400, "one request may cost"),
        ({"model": "claude-nonsense-9"}, 404, "no known price"),
    ],
)
async def test_what_could_cost_too_much_or_is_unknown_is_refused_with_the_reason(
    home: CloudHome, change: Fields, status: int, reason: str
):
    got = await home.chat(BODY | change)
    assert (got.status, reason in got.error) == (status, True)
    assert home.claude_api.requests == []


async def test_a_refusal_for_money_says_when_to_return_and_spares_the_house(tmp_path):
    async with open_cloud_home(tmp_path, daily_usd=0.001) as home:
        got = await home.chat(BODY)
        assert (got.status, "budget" in got.error) == (429, True)
        assert 1 <= int(got.headers["retry-after"]) <= 25 * 3600
        (event,) = home.events.of(BudgetExhausted)
        assert (event.caller, event.limit_usd, home.claude_api.requests, home.ended) == (
            "rich",
            0.001,
            [],
            [],
        )
        assert (await home.chat(BODY, BOSS)).status == 200
        await home.ends(1)
        assert home.spent()["internal_spent_today_usd"] == usd(home.claude_api.billed_nano_usd) > 0
        assert home.spent()["spent_today_usd"] == 0.0
        await home.emulator.stop()
        await home.backend_is(up=False)
        got = await home.chat(BODY | {"model": LLAMA})
        assert (got.status, "cannot be reached" in got.error) == (503, True), (
            "what Claude may not do still goes to the queue"
        )


async def test_rate_limits_count_calls_to_claude(tmp_path):
    async with open_cloud_home(tmp_path, base=house_settings(per_minute=2)) as home:
        assert [(await home.chat(BODY)).status for _ in range(3)] == [200, 200, 429]
        assert len(home.claude_api.requests) == 2


async def test_claude_steps_in_while_ollama_is_down_and_steps_back_when_it_is_up(home: CloudHome):
    local = BODY | {"model": LLAMA, "options": {"num_predict": 1}}
    assert "x-hearth-served-by" not in (await home.chat(local)).headers
    await home.emulator.stop()
    await home.backend_is(up=False)
    got = await home.chat(local)
    assert (got.status, got.headers["x-hearth-served-by"]) == (200, "claude")
    assert json.loads(got.body.splitlines()[0])["model"] == LLAMA
    await home.revive()
    await home.backend_is(up=True)
    assert "x-hearth-served-by" not in (await home.chat(local)).headers


async def test_claude_steps_in_while_another_program_has_the_gpu(home: CloudHome):
    local = BODY | {"model": LLAMA, "options": {"num_predict": 1}}
    home.gateway.leases.take(reason="game", source="api", lease_id="game")
    got = await home.chat(local)
    assert (got.status, got.headers.get("x-hearth-served-by")) == (200, "claude")
    home.gateway.leases.end("game", "released")
    assert "x-hearth-served-by" not in (await home.chat(local)).headers


async def test_a_wait_that_is_too_long_is_claudes_and_a_short_one_is_not(tmp_path):
    async with open_cloud_home(tmp_path, when_wait_over_s=0.5) as home:
        slow = {"model": SLOW, "messages": HELLO, "options": {"num_predict": LONG_TOKENS}}
        running = [
            asyncio.ensure_future(home.chat(slow | {"stream": True}, POOR)) for _ in range(4)
        ]
        await home.until(
            lambda status: status["running"] and status["external_queue"]["pending"] >= 2
        )
        got = await home.chat(slow)
        assert (got.status, got.headers.get("x-hearth-served-by")) == (200, "claude"), got.body
        for task in running:
            task.cancel()
        await home.idle()
        got = await home.chat(slow | {"options": {"num_predict": 2}})
        assert "x-hearth-served-by" not in got.headers


@pytest.mark.parametrize("allowed", [False, True])
async def test_without_keys_this_machine_may_use_claude_only_where_the_owner_says_so(
    tmp_path, allowed
):
    async with open_cloud_home(tmp_path, keys=(), allow_local=allowed) as home:
        assert (await home.chat(BODY)).status == (200 if allowed else 404)


async def test_what_was_spent_or_set_aside_today_counts_as_spent_in_the_next_process(tmp_path):
    async with open_cloud_home(tmp_path) as home:
        assert (await home.chat(BODY)).status == 200
        await home.ends(1)
        spent, day = home.spent()["spent_today_usd"], await home.cloud.budget.open_today()
        await home.cloud.budget.reserve(
            day, caller="rich", lane=CLOUD_KEYS[0].lane, model=HAIKU, amount=nano_usd(0.4)
        )
    async with open_cloud_home(tmp_path) as again:
        await again.cloud.budget.open_today()
        assert again.spent()["spent_today_usd"] == pytest.approx(spent + 0.4)
        assert spent > 0
        assert (await again.chat(BODY)).status == 200


async def test_after_a_run_full_of_faults_the_ledger_is_what_claude_charged(home: CloudHome):
    troubles = [
        DENSE,
        refusal(529, "overloaded_error", retry_after="0"),
        *BREAKS.values(),
        refusal(500, "api_error", retry_after="0"),
        refusal(400, "invalid_request_error"),
        Script(words=WORDS, usage={"cache_read_input_tokens": 700}),
        Script(
            words=DENSE.words,
            usage={
                "cache_creation_input_tokens": 90,
                "cache_creation": {"ephemeral_1h_input_tokens": 40},
            },
        ),
    ]
    home.claude_api.scripts = troubles * 4
    keys = (RICH, BOSS)
    await asyncio.gather(
        *(
            home.chat(BODY | {"stream": bool(number % 2)}, keys[number % 3 == 0])
            for number in range(40)
        )
    )
    await home.ends(40)
    assert len({event.sequence for event in home.ended}) == 40
    await home.billed_equals_ledger()


async def test_another_time_zone_during_a_call_changes_neither_bill_nor_display(home: CloudHome):
    def move(hour: int) -> None:
        """The owner saves a time zone in which it is about that hour."""
        settings = home.gateway.config.settings
        zone = f"Etc/GMT{datetime.now(UTC).hour - hour:+d}"
        assert home.gateway.reload(
            GatewayConfig(
                settings=settings.replace(scheduling=settings.scheduling.replace(time_zone=zone))
            )
        )

    move(12)
    home.claude_api.scripts = [DENSE, STALLS]
    assert (await home.chat(BODY)).status == 200
    await home.ends(1)
    asking = asyncio.ensure_future(home.chat(BODY | {"stream": True}))
    await stalled(home)
    shown = home.spent() | {"running": []}
    move(13)
    await until(lambda: home.spent()["reserved_usd"])
    assert home.spent() | {"running": []} == shown
    asking.cancel()
    await home.ends(2)
    await home.billed_equals_ledger()


@pytest.mark.parametrize(
    ("models", "served_by"), [((ELSEWHERE,), "claude"), ((ELSEWHERE, LLAMA), None)]
)
async def test_claude_answers_for_an_alias_only_where_none_of_its_models_is_there(
    home: CloudHome, models, served_by
):
    settings = home.gateway.settings.replace(aliases={"coder": models})
    assert home.gateway.reload(GatewayConfig(settings=settings))
    got = await home.chat({**BODY, "model": "coder"})
    assert (got.status, got.headers.get("x-hearth-served-by")) == (200, served_by)
    shown = "coder" if served_by else LLAMA
    assert f'"model":"{shown}"'.encode() in got.body
    assert got.headers["x-hearth-model"] == (HAIKU if served_by else LLAMA)
