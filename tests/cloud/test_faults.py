"""Everything that can go wrong with Claude, through the whole house: what the caller hears, and what the books say afterwards."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import aiohttp
import anthropic
import ollama
import openai
import pytest

from hearth.config.gateway_config import GatewayConfig
from hearth.errors import ShuttingDown
from hearth.events import BudgetExhausted, BudgetThresholdReached, CloudCameUp, CloudWentDown, InternalFault, ItemEnded, ItemResent
from hearth.types import BackendCall, Outcome, nano_usd, usd
from tests.clients.home import HELLO, LLAMA, SLOW, house_settings
from tests.cloud.house import BOSS, CLOUD_KEYS, ELSEWHERE, HAIKU, POOR, RICH, SAVER, CloudHome, ledger_rows, open_cloud_home
from tests.emulator.waiting import until
from tests.support.fake_claude import KEY, WORDS, FakeClaude, Script, refusal
from tests.support.patience import WITHIN_S
from tests.worker.house import new_item

DENSE = Script(words=("a", "b", "c", "d", "e", "f"))
"""Every token is one byte: then the bound of a broken stream is what it costs."""
PATIENCE_S = 1.5
"""What a head needs on a loaded machine, and no more than a test may wait for what never comes."""
BODY = {"model": ELSEWHERE, "messages": HELLO}


@pytest.fixture
async def home(tmp_path):
    async with open_cloud_home(tmp_path) as opened:
        yield opened
    assert opened.cloud._purse.open_reservations == 0
    assert opened.events.of(InternalFault) == []


async def post(home: CloudHome, body: dict[str, Any], key: str = RICH, path: str = "/api/chat") -> tuple[int, bytes, dict[str, str]]:
    headers = {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(trust_env=False) as session, session.post(home.url + path, json=body, headers=headers) as got:
        return got.status, await got.read(), {name.lower(): value for name, value in got.headers.items()}


async def billed_equals_books(home: CloudHome) -> None:
    rows = await home.books()
    assert all(state in {"settled", "released"} for _, state, _, _ in rows)
    assert sum(nano_usd(settled or 0.0) for *_, settled in rows) == home.claude_api.billed_nano_usd
    shown = home.spent()
    assert nano_usd(shown["spent_today_usd"] + shown["internal_spent_today_usd"]) == home.claude_api.billed_nano_usd
    assert (shown["reserved_usd"], shown["running"]) == (0.0, [])


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "trouble",
    [
        refusal(529, "overloaded_error"),
        refusal(500, "api_error"),
        refusal(503, "api_error"),
        refusal(429, "rate_limit_error", retry_after="0"),
    ],
    ids=lambda script: str(script.status),
)
async def test_a_passing_refusal_is_tried_again_unnoticed(home: CloudHome, trouble, streaming):
    home.claude_api.scripts = [trouble]
    status, body, _ = await post(home, BODY | {"stream": streaming})
    assert status == 200
    assert b"friend" in body
    (ended,) = await home.ends(1)
    assert (ended.outcome, ended.attempts) == (Outcome.COMPLETED, 2)
    assert [event.attempt for event in home.events.of(ItemResent)] == [1]
    await billed_equals_books(home)


async def test_attempts_are_bounded(home: CloudHome):
    home.claude_api.default = refusal(529, "overloaded_error", retry_after="0")
    status, _, headers = await post(home, BODY)
    assert (status, len(home.claude_api.requests)) == (503, 3)
    assert headers["retry-after"]
    assert (await home.ends(1))[0].cost_usd is None
    assert [state for _, state, _, _ in await home.books()] == ["released"]


async def test_a_long_pause_is_the_callers_to_wait_and_nobody_sleeps_through_it(home: CloudHome):
    home.claude_api.default = refusal(429, "rate_limit_error", retry_after="120")
    async with asyncio.timeout(WITHIN_S), home.gpt(RICH) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model=ELSEWHERE, messages=HELLO)
    assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (503, "120")
    assert len(home.claude_api.requests) == 1


@pytest.mark.parametrize(
    "trouble",
    [
        refusal(401, "authentication_error", f"invalid x-api-key {KEY}"),
        refusal(403, "permission_error"),
        refusal(400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
        refusal(429, "rate_limit_error", "enforced_spend_limit_reached"),
    ],
    ids=["401", "403", "credit", "spend limit"],
)
async def test_a_refused_account_is_not_asked_again_until_a_reload(home: CloudHome, trouble):
    home.claude_api.scripts = [trouble]
    for _ in range(2):
        status, body, _ = await post(home, BODY | {"model": HAIKU})
        assert status == 503
        assert KEY.encode() not in body
    assert len(home.claude_api.requests) == 1
    assert len(home.events.of(CloudWentDown)) == 1
    assert KEY not in str(home.events.seen)
    assert home.spent()["state"] == "down"
    home.gateway.reload(home.gateway.config)
    assert (await post(home, BODY))[0] == 200
    assert len(home.events.of(CloudCameUp)) == 1
    await billed_equals_books(home)


async def test_a_refused_key_that_the_owner_has_replaced_meanwhile_says_nothing_of_the_new_one(home: CloudHome):
    home.claude_api.scripts = [refusal(529, "overloaded_error", retry_after="0.5"), refusal(401, "authentication_error")]
    asking = asyncio.ensure_future(post(home, BODY))
    await asyncio.wait_for(home.claude_api.asked.wait(), WITHIN_S)
    fresh = FakeClaude()
    settings = home.gateway.config.settings
    cloud = settings.cloud.replace(base_url=await fresh.start())
    assert home.gateway.reload(GatewayConfig(settings=settings.replace(cloud=cloud)))
    assert (await asking)[0] == 503
    assert (home.spent()["state"], home.events.of(CloudWentDown)) == ("ready", [])
    assert (await post(home, BODY))[0] == 200
    assert len(fresh.requests) == 1
    await fresh.stop()


async def test_while_claude_is_down_a_missing_model_is_simply_missing(home: CloudHome):
    home.claude_api.scripts = [refusal(401, "authentication_error")]
    await post(home, BODY)
    assert (await post(home, BODY))[0] == 404


@pytest.mark.parametrize(
    ("trouble", "status"),
    [
        (refusal(400, "invalid_request_error", "messages: too odd"), 400),
        (refusal(413, "request_too_large"), 413),
        (refusal(404, "not_found_error", "model: claude-fake-1"), 404),
        (Script(status=307, body={}, headers={"location": "http://127.0.0.1:9/"}), 502),
    ],
)
async def test_what_the_caller_has_to_change_reaches_the_caller_and_is_not_tried_again(home: CloudHome, trouble, status):
    home.claude_api.default = trouble
    assert (await post(home, BODY))[0] == status
    assert len(home.claude_api.requests) == 1
    await billed_equals_books(home)


BREAKS = {
    "cut": Script(words=DENSE.words, cut_after=3),
    "no message_stop": Script(words=DENSE.words, no_stop=True),
    "overloaded": Script(words=DENSE.words, error_after=3),
    "api error": Script(words=DENSE.words, error_after=3, error_type="api_error"),
    "no event": Script(words=DENSE.words, cut_after=3, garbage=b"event: content_block_delta\ndata: {broken\n\n"),
}


@pytest.mark.parametrize("script", BREAKS.values(), ids=BREAKS)
async def test_a_stream_that_breaks_off_is_an_error_in_every_client_and_is_paid_for(home: CloudHome, script):
    home.claude_api.default = script
    async with home.native(RICH) as native, home.gpt(RICH) as gpt, home.claude(RICH) as claude:
        with pytest.raises(ollama.ResponseError):
            [part async for part in await native.chat(model=ELSEWHERE, messages=HELLO, stream=True)]
        with pytest.raises(openai.APIError):
            [part async for part in await gpt.chat.completions.create(model=ELSEWHERE, messages=HELLO, stream=True)]
        with pytest.raises(anthropic.APIStatusError):
            [part async for part in await claude.messages.create(model=HAIKU, max_tokens=9, messages=HELLO, stream=True)]
        with pytest.raises(openai.InternalServerError):
            await gpt.chat.completions.create(model=ELSEWHERE, messages=HELLO)
    ended = await home.ends(4)
    assert {event.outcome for event in ended} == {Outcome.FAILED}
    assert all(event.cost_usd for event in ended)
    assert len(home.claude_api.requests) == 4
    await billed_equals_books(home)


@pytest.mark.parametrize("pings", [0, 1])
async def test_a_stall_ends_even_where_signs_of_life_go_on(tmp_path, pings):
    async with open_cloud_home(tmp_path, timeout_s=PATIENCE_S) as home:
        home.claude_api.default = Script(words=DENSE.words, stall_after=2, pings=pings)
        async with asyncio.timeout(WITHIN_S), home.native(RICH) as native:
            with pytest.raises(ollama.ResponseError, match="stopped answering"):
                [part async for part in await native.chat(model=ELSEWHERE, messages=HELLO, stream=True)]
        await asyncio.wait_for(home.claude_api.gone.wait(), WITHIN_S)
        await home.ends(1)
        await billed_equals_books(home)


async def test_a_call_that_never_got_a_head_may_have_been_charged_for_its_prompt(tmp_path):
    async with open_cloud_home(tmp_path, timeout_s=PATIENCE_S) as home:
        home.claude_api.default = Script(hold=True)
        assert (await post(home, BODY))[0] == 504
        ((_, state, reserved, settled),) = await home.books()
        assert (state, len(home.claude_api.requests)) == ("settled", 1)
        assert 0 < (settled or 0) < reserved


@pytest.mark.parametrize("garbage", [b"event: message_start\ndata: {broken\n\n", b"event: x\ndata: \xff\n\n", b"<html>", b""])
async def test_an_answer_that_says_nothing_from_its_beginning_may_have_been_charged_for_its_prompt(home: CloudHome, garbage):
    home.claude_api.default = Script(garbage=garbage, no_start=True)
    assert (await post(home, BODY))[0] == 502
    ((_, state, _, settled),) = await home.books()
    assert (state, len(home.claude_api.requests)) == ("settled", 1)
    assert nano_usd(settled or 0.0) >= home.claude_api.billed_nano_usd > 0


@pytest.mark.parametrize("count", [None, 0, -1, "40", 10**30])
async def test_a_prompt_that_was_not_counted_or_as_nobody_can_count_is_paid_at_its_worst(home: CloudHome, count):
    home.claude_api.default = Script(usage={"input_tokens": count})
    assert (await post(home, BODY | {"stream": False}))[0] == 200
    (ended,) = await home.ends(1)
    ((_, _, reserved, settled),) = await home.books()
    unused_tokens = home.claude_api.requests[0]["max_tokens"] - len(WORDS)
    assert nano_usd(reserved) - nano_usd(settled or 0.0) == unused_tokens * 5000
    assert (ended.prompt_tokens, ended.cost_usd) == (0, settled)


async def test_nothing_is_charged_where_nothing_was_sent(home: CloudHome):
    await home.claude_api.stop()
    assert (await post(home, BODY))[0] == 503
    assert [state for _, state, _, _ in await home.books()] == ["released"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("how", ["closes", "cancels", "cancels by number", "cancels all"])
@pytest.mark.parametrize("when", ["before the head", "in the stream"])
async def test_whoever_leaves_ends_the_call_at_once(home: CloudHome, when, how, streaming):
    home.claude_api.default = Script(hold=True) if when == "before the head" else Script(words=DENSE.words, stall_after=2, pings=0)
    asking = asyncio.ensure_future(post(home, BODY | {"stream": streaming}))
    await asyncio.wait_for(home.claude_api.stalling.wait(), WITHIN_S)
    (running,) = home.spent()["running"]
    assert (running["state"], running["model"], running["served_by"], running["why"]) == ("running", HAIKU, "claude", "not_local")
    assert "say hello" not in str(running)
    if how == "closes":
        asking.cancel()
    elif how == "cancels":
        _, body, _ = await post(home, {}, BOSS, f"/llm/requests/{running['request_id']}/cancel")
        assert json.loads(body)["cancelled"]
    elif how == "cancels by number":
        bodies = [(await post(home, {}, BOSS, f"/llm/queue/item/{running['sequence']}/cancel"))[1] for _ in range(2)]
        named = {"sequence": running["sequence"], "request_id": running["request_id"]}
        assert [json.loads(body) for body in bodies] == [named | {"cancelled": True}] * 2
    else:
        answers = [await post(home, {}, BOSS, f"/llm/requests/cancel?caller={running['caller']}") for _ in range(2)]
        assert [json.loads(body)["requests"] for _, body, _ in answers] == [[running["request_id"]], []]
    await asyncio.wait_for(home.claude_api.gone.wait(), WITHIN_S)
    (ended,) = await home.ends(1)
    assert (ended.outcome, ended.reason) == (Outcome.CANCELLED, "cancelled")
    await asyncio.gather(asking, return_exceptions=True)
    if when == "in the stream":
        await billed_equals_books(home)
    assert home.spent()["reserved_usd"] == 0.0
    _, body, _ = await post(home, {}, BOSS, f"/llm/requests/{running['request_id']}/cancel")
    assert json.loads(body)["cancelled"]


async def test_others_can_neither_see_nor_cancel_it(home: CloudHome):
    home.claude_api.default = Script(stall_after=1, pings=0)
    asking = asyncio.ensure_future(post(home, BODY))
    await asyncio.wait_for(home.claude_api.stalling.wait(), WITHIN_S)
    (running,) = home.spent()["running"]
    for address in (f"/llm/requests/{running['request_id']}/cancel", f"/llm/queue/item/{running['sequence']}/cancel"):
        assert (await post(home, {}, SAVER, address))[0] == 404
    assert not asking.done()
    asking.cancel()
    await home.ends(1)


async def test_a_call_that_runs_gets_its_grace_until_a_hurry_and_then_an_error_worth_a_retry(tmp_path):
    async with open_cloud_home(tmp_path, grace_s=WITHIN_S) as home:
        home.claude_api.scripts = [Script(words=DENSE.words, stall_after=2, pings=0), Script(words=DENSE.words * 20)]
        endless = asyncio.ensure_future(post(home, BODY | {"stream": True}))
        await asyncio.wait_for(home.claude_api.stalling.wait(), WITHIN_S)
        home.claude_api.asked.clear()
        ending = asyncio.ensure_future(post(home, BODY | {"stream": False}))
        await asyncio.wait_for(home.claude_api.asked.wait(), WITHIN_S)
        hurry = asyncio.Event()
        stopping = asyncio.ensure_future(home.gateway.stop(hurry=hurry))
        assert (await ending)[0] == 200
        hurry.set()
        await stopping
        assert b"shutting down" in (await endless)[1]
        assert [event.outcome for event in home.ended] == [Outcome.COMPLETED, Outcome.CANCELLED]
        rows = ledger_rows(home.database)
        assert [state for _, state, _, _ in rows] == ["settled", "settled"]
        assert sum(nano_usd(settled or 0) for *_, settled in rows) == home.claude_api.billed_nano_usd


async def test_a_grace_that_is_over_cuts_the_call_off(tmp_path):
    async with open_cloud_home(tmp_path, grace_s=0.1) as home:
        home.claude_api.default = Script(words=DENSE.words, stall_after=2, pings=0)
        asking = asyncio.ensure_future(post(home, BODY | {"stream": False}))
        await asyncio.wait_for(home.claude_api.stalling.wait(), WITHIN_S)
        await asyncio.wait_for(home.gateway.stop(), WITHIN_S)
        assert (await asking)[0] == 503


async def test_a_call_that_is_still_being_read_when_the_house_stops_is_refused(home: CloudHome):
    large = json.dumps(BODY | {"messages": [{"role": "user", "content": "x" * 1_200_000}]}).encode()
    new = new_item()
    new = replace(new, item=replace(new.item, model=HAIKU), call=BackendCall(method="POST", path="/api/chat", body=large))
    taking = asyncio.ensure_future(home.cloud.take(new))
    await asyncio.sleep(0)
    await home.cloud.stop(0.0)
    with pytest.raises(ShuttingDown):
        await taking


async def test_two_hundred_at_the_edge_never_overspend(tmp_path):
    async with open_cloud_home(tmp_path, daily_usd=0.03) as home:
        statuses = [status for status, _, _ in await asyncio.gather(*(post(home, BODY) for _ in range(200)))]
        assert set(statuses) == {200, 429}
        assert home.claude_api.billed_nano_usd <= nano_usd(0.03)
        rows = await home.books()
        assert len(rows) == statuses.count(200) == len(home.claude_api.requests)
        await billed_equals_books(home)
        assert home.claude_api.most_concurrent * nano_usd(rows[0][2]) <= nano_usd(0.03)


async def test_a_refusal_for_money_says_when_to_come_back_and_the_owner_hears_of_it(tmp_path):
    async with open_cloud_home(tmp_path, daily_usd=0.001) as home:
        status, body, headers = await post(home, BODY)
        assert status == 429
        assert 1 <= int(headers["retry-after"]) <= 25 * 3600
        assert b"budget" in body
        (event,) = home.events.of(BudgetExhausted)
        assert (event.caller, event.limit_usd) == ("rich", 0.001)
        assert home.claude_api.requests == []
        assert home.events.of(ItemEnded) == []


async def test_the_owner_is_told_once_when_most_is_spent(tmp_path):
    claude = FakeClaude()
    claude.default = Script(words=("word",) * 100)
    async with open_cloud_home(tmp_path, claude, daily_usd=0.02, alert_pct=5.0) as home:
        for _ in range(5):
            assert (await post(home, BODY))[0] == 200
        await home.ends(5)
        (event,) = home.events.of(BudgetThresholdReached)
        assert event.limit_usd == 0.02
        assert event.pct >= 5.0


async def test_a_call_that_could_cost_too_much_is_refused_with_the_reason(home: CloudHome):
    status, body, _ = await post(home, BODY | {"options": {"num_predict": 900_000}})
    assert status == 400
    assert b"max_per_request_usd" in body


async def test_a_model_without_a_known_price_is_not_used(home: CloudHome):
    status, body, _ = await post(home, BODY | {"model": "claude-nonsense-9"})
    assert status == 404
    assert b"cloud.prices" in body
    assert home.claude_api.requests == []


async def test_a_key_with_its_own_budget_stops_alone(home: CloudHome):
    home.claude_api.default = Script(usage={"input_tokens": 4000})
    statuses = [(await post(home, BODY, SAVER))[0] for _ in range(3)]
    assert statuses == [200, 429, 429]
    assert (await post(home, BODY, RICH))[0] == 200


async def test_the_house_itself_is_paid_for_but_not_held_up_by_what_others_spend(tmp_path):
    async with open_cloud_home(tmp_path, daily_usd=0.0) as home:
        assert (await post(home, BODY, RICH))[0] == 429
        assert (await post(home, BODY, BOSS))[0] == 200
        await home.ends(1)
        assert home.spent()["internal_spent_today_usd"] == usd(home.claude_api.billed_nano_usd) > 0
        assert home.spent()["spent_today_usd"] == 0.0


async def test_rate_limits_count_calls_to_claude(tmp_path):
    async with open_cloud_home(tmp_path, base=house_settings(per_minute=2)) as home:
        assert [(await post(home, BODY))[0] for _ in range(3)] == [200, 200, 429]
        assert len(home.claude_api.requests) == 2


async def test_claude_steps_in_while_ollama_is_down_and_steps_back_when_it_is_up(home: CloudHome):
    local = BODY | {"model": LLAMA, "options": {"num_predict": 1}}
    assert "x-hearth-served-by" not in (await post(home, local))[2]
    await home.emulator.stop()
    await home.backend_is(up=False)
    status, body, headers = await post(home, local)
    assert (status, headers["x-hearth-served-by"]) == (200, "claude")
    assert json.loads(body.splitlines()[0])["model"] == LLAMA
    await home.revive()
    await home.backend_is(up=True)
    assert "x-hearth-served-by" not in (await post(home, local))[2]


async def test_where_ollama_is_down_what_claude_may_not_do_still_goes_to_the_queue(tmp_path):
    async with open_cloud_home(tmp_path, daily_usd=0.0) as home:
        await home.emulator.stop()
        await home.backend_is(up=False)
        status, body, _ = await post(home, BODY | {"model": LLAMA})
        assert (status, b"cannot be reached" in body) == (503, True)


async def test_a_wait_that_is_too_long_is_claudes_and_a_short_one_is_not(tmp_path):
    async with open_cloud_home(tmp_path, when_wait_over_s=0.5) as home:
        slow = {"model": SLOW, "messages": HELLO, "options": {"num_predict": 1500}}
        running = [asyncio.ensure_future(post(home, slow | {"stream": True}, POOR)) for _ in range(4)]
        await home.until(lambda status: status["running"] and status["external_queue"]["pending"] >= 2)
        status, body, headers = await post(home, slow)
        assert (status, headers.get("x-hearth-served-by")) == (200, "claude"), body
        for task in running:
            task.cancel()
        await home.idle()
        _, _, headers = await post(home, slow | {"options": {"num_predict": 2}})
        assert "x-hearth-served-by" not in headers


async def test_without_keys_this_machine_may_use_claude_only_where_the_owner_says_so(tmp_path):
    for number, allowed in enumerate((False, True)):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with open_cloud_home(folder, keys=(), allow_local=allowed) as home:
            assert (await post(home, BODY))[0] == (200 if allowed else 404)


async def test_money_of_a_process_that_died_counts_as_spent_in_the_next(tmp_path):
    async with open_cloud_home(tmp_path) as home:
        reservation = home.cloud._purse.reserve(
            await home.cloud._purse.open_today(), caller="rich", lane=CLOUD_KEYS[0].lane, model=HAIKU, amount=nano_usd(0.4)
        )
        await home.cloud._purse.record(reservation)
    async with open_cloud_home(tmp_path) as again:
        await again.cloud._purse.open_today()
        assert again.spent()["spent_today_usd"] == 0.4
        assert (await post(again, BODY))[0] == 200


async def test_what_was_spent_today_is_remembered_by_the_next_process(tmp_path):
    async with open_cloud_home(tmp_path) as home:
        assert (await post(home, BODY))[0] == 200
        await home.ends(1)
        spent = home.spent()["spent_today_usd"]
    async with open_cloud_home(tmp_path) as again:
        await again.cloud._purse.open_today()
        assert again.spent()["spent_today_usd"] == spent > 0


async def test_after_a_run_full_of_faults_the_books_are_what_claude_charged(home: CloudHome):
    troubles = [
        DENSE,
        refusal(529, "overloaded_error", retry_after="0"),
        *BREAKS.values(),
        refusal(500, "api_error", retry_after="0"),
        refusal(400, "invalid_request_error"),
        Script(words=WORDS, usage={"cache_read_input_tokens": 700}),
        Script(words=DENSE.words, usage={"cache_creation_input_tokens": 90, "cache_creation": {"ephemeral_1h_input_tokens": 40}}),
    ]
    home.claude_api.scripts = troubles * 4
    keys = (RICH, BOSS)
    await asyncio.gather(*(post(home, BODY | {"stream": bool(number % 2)}, keys[number % 3 == 0]) for number in range(40)))
    await home.ends(40)
    assert len({event.sequence for event in home.ended}) == 40
    await billed_equals_books(home)


async def test_whoever_leaves_while_the_disk_takes_its_time_is_not_answered_by_claude(home: CloudHome):
    with closing(sqlite3.connect(home.database, isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")
        asking = asyncio.ensure_future(post(home, BODY))
        await until(lambda: home.spent()["reserved_usd"])
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await post(home, {}, BOSS, "/llm/requests/nothing/cancel")  # by its answer the end of the other connection has been seen
    (ended,) = await home.ends(1)
    assert (ended.outcome, home.claude_api.requests) == (Outcome.CANCELLED, [])
    assert [state for _, state, _, _ in await home.books()] == ["released"]


def move(home: CloudHome, hour: int) -> None:
    """The owner saves a time zone in which it is about that hour."""
    settings, zone = home.gateway.config.settings, f"Etc/GMT{datetime.now(UTC).hour - hour:+d}"
    assert home.gateway.reload(GatewayConfig(settings=settings.replace(scheduling=settings.scheduling.replace(time_zone=zone))))


async def test_another_time_zone_while_a_call_runs_changes_neither_its_bill_nor_what_is_shown(home: CloudHome):
    move(home, 12)
    home.claude_api.scripts = [DENSE, Script(words=DENSE.words, stall_after=2, pings=0)]
    assert (await post(home, BODY))[0] == 200
    await home.ends(1)
    asking = asyncio.ensure_future(post(home, BODY | {"stream": True}))
    await asyncio.wait_for(home.claude_api.stalling.wait(), WITHIN_S)
    shown = home.spent()
    move(home, 13)
    await until(lambda: home.spent()["reserved_usd"])
    assert home.spent() | {"running": []} == shown | {"running": []}
    asking.cancel()
    await home.ends(2)
    await billed_equals_books(home)
