"""Prices and bounds: exact to the nano-USD, and never below what Claude can charge."""

from __future__ import annotations

import json
from typing import Any

import pytest
from genai_prices import Usage, calc_price

from hearth.backends.claude import price_of
from hearth.cloud.budget import caps_for
from hearth.cloud.calls import (
    FIRST_DELAY_S,
    IMAGE_TOKENS,
    LONGEST_ADVICE_S,
    OVERHEAD_TOKENS,
    asks_for_claude,
    claude_model,
    encoded,
    price_in,
    prompt_bound_tokens,
    retry_delay_s,
)
from hearth.cloud.service import DOWN_S, CloudHealth
from hearth.config.settings import AuthSettings, BudgetSettings, CloudPriceSettings, CloudSettings, KeySettings, Settings
from hearth.dialects.claude_answer import Meter
from hearth.errors import BackendBusy, BackendError, BackendGone, BackendTimeout, BackendUnreachable, BadRequest, CloudUnavailable
from hearth.events import CloudCameUp, CloudWentDown
from hearth.types import BilledTokens, Price, Rates, Sequence, nano_usd, usd
from tests.support.cases import for_each
from tests.support.recorder import Recorder

CHEAP = Rates.in_usd(input_usd=1, output_usd=5, cache_read_usd=0.1, cache_write_usd=1.25, cache_write_hour_usd=2)
DEAR = Rates.in_usd(input_usd=2, output_usd=7.5, cache_read_usd=0.2, cache_write_usd=2.5, cache_write_hour_usd=4)
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 100_000}}


def test_a_bill_is_the_sum_of_its_tokens_rounded_up_on_the_bill_and_absurd_counts_are_cut():
    tokens = BilledTokens(input=3, output=7, cache_read=11, cache_write=13, cache_write_hour=17)
    assert CHEAP.cost_nano_usd(tokens) == 3 * 1000 + 7 * 5000 + 11 * 100 + 13 * 1250 + 17 * 2000
    odd = Rates.in_usd(input_usd=0.0375, output_usd=0, cache_read_usd=0, cache_write_usd=0, cache_write_hour_usd=0)
    assert [odd.cost_nano_usd(BilledTokens(input=count)) for count in (1000, 1)] == [37_500, 38]
    assert CHEAP.cost_nano_usd(BilledTokens(input=-5, output=-1)) == 0
    assert CHEAP.cost_nano_usd(BilledTokens(input=10**30)) == 10**8 * 1000


def test_long_prompts_have_their_own_rates_and_the_bound_takes_the_dearer():
    price = Price(usual=CHEAP, long=DEAR, long_from_tokens=100)
    assert price.cost_nano_usd(BilledTokens(input=60, cache_read=40)) == 60_000 + 4000
    assert price.cost_nano_usd(BilledTokens(input=61, cache_read=40)) == 122_000 + 8000
    assert price.bound_nano_usd(100, 10) == 100 * 2000 + 10 * 5000
    assert price.bound_nano_usd(101, 10) == 101 * 4000 + 10 * 7500


def test_a_bound_is_never_below_any_bill_within_it():
    price = Price(usual=CHEAP, long=DEAR, long_from_tokens=100)
    for prompt in (0, 1, 99, 100, 101, 500):
        for read, written, hour in ((0, 0, 0), (prompt, 0, 0), (0, prompt, 0), (0, 0, prompt)):
            plain = prompt - read - written - hour
            tokens = BilledTokens(input=plain, output=10, cache_read=read, cache_write=written, cache_write_hour=hour)
            assert price.cost_nano_usd(tokens) <= price.bound_nano_usd(prompt, 10)


def test_dollars_and_nanos_are_the_same_money():
    for nano in (0, 1, 5, 123_456_789, 5 * 10**9, 10**15 + 1):
        assert nano_usd(usd(nano)) == nano


@for_each("model", ["claude-haiku-4-5", "claude-haiku-5-5", "claude-sonnet-4-5", "claude-opus-5-5", CloudSettings().model])
async def test_the_list_knows_the_models_and_bills_as_it_says(model):
    price = await price_of(model)
    assert price is not None
    for prompt in (1000, 150_000, 250_000):
        tokens = BilledTokens(input=prompt - 700, output=900, cache_read=500, cache_write=200)
        usage = Usage(input_tokens=prompt, output_tokens=900, cache_read_tokens=500, cache_write_tokens=200)
        listed = calc_price(usage, model, provider_id="anthropic").total_price
        assert price.cost_nano_usd(tokens) == pytest.approx(float(listed) * 1e9, abs=1)


async def test_a_model_without_a_price_has_none():
    assert await price_of("claude-nonsense-9") is None


def test_the_owners_prices_fill_in_the_usual_ratios():
    rates = price_in(CloudPriceSettings(input_usd=3, output_usd=15)).usual
    assert (rates.cache_read, rates.cache_write, rates.cache_write_hour) == (300_000, 3_750_000, 6_000_000)
    own = price_in(CloudPriceSettings(input_usd=3, output_usd=15, cache_read_usd=1, cache_write_usd=4)).usual
    assert (own.cache_read, own.cache_write) == (1_000_000, 4_000_000)


@for_each(
    ("content", "images"),
    [
        ("öäü" * 100, 0),
        ([IMAGE, {"type": "tool_result", "content": [IMAGE]}], 2),
        ([{"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "a"}, IMAGE]}}], 1),
    ],
)
def test_text_is_bounded_by_its_bytes_and_images_by_their_ceiling(content, images):
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": content}]}
    sent = encoded("m", body)
    assert json.loads(sent) == {"model": "m", "stream": True, **body}
    assert prompt_bound_tokens(body, len(sent)) == len(sent) - images * 100_000 + images * IMAGE_TOKENS + OVERHEAD_TOKENS


@for_each(
    "body",
    [
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": IMAGE}]}]},
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {"content": [IMAGE]}}]}]},
        {"messages": [], "tools": [{"name": "b", "input_schema": {"type": "object", "properties": {"c": IMAGE}}}]},
        {"messages": [], "output_config": {"format": {"type": "json_schema", "schema": {"const": IMAGE}}}},
    ],
)
def test_what_only_looks_like_an_image_is_text(body):
    sent = encoded("m", body)
    assert prompt_bound_tokens(body, len(sent)) >= len(sent)


def test_lone_surrogates_do_not_stop_a_call():
    assert b"?" in encoded("m", {"messages": "\ud800"})


def started(usage: dict[str, Any], *, max_tokens: int = 50, thinks: bool = False) -> Meter:
    meter = Meter(max_tokens=max_tokens, thinks=thinks)
    meter.note({"type": "message_start", "message": {"usage": usage}})
    return meter


def delta(**fields: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "delta": {"type": "some_delta", **fields}}


def test_the_meter_takes_the_last_report():
    cached = {"cache_creation_input_tokens": 30, "cache_read_input_tokens": 4, "cache_creation": {"ephemeral_1h_input_tokens": 10}}
    meter = started({"input_tokens": 9, "output_tokens": 1, **cached})
    meter.note(delta(text="abc"))
    meter.note({"type": "message_delta", "usage": {"output_tokens": 2}})
    meter.note({"type": "message_delta", "usage": {"output_tokens": 5, "input_tokens": 11}})
    assert meter.tokens == BilledTokens(input=11, output=5, cache_read=4, cache_write=20, cache_write_hour=10)


def test_without_a_report_every_byte_may_have_been_a_token_and_thoughts_all_that_was_allowed():
    meter, counted = started({"input_tokens": 9, "output_tokens": 1}), []
    for event in ({}, delta(text="añ"), delta(partial_json='{"a"'), delta(text="x" * 500)):
        meter.note(event)
        counted.append(meter.tokens.output)
    assert counted == [1, 3, 7, 50]
    assert started({"input_tokens": 9}, thinks=True).tokens.output == 50
    seen = started({"input_tokens": 9})
    seen.note({"type": "content_block_start", "content_block": {"type": "thinking", "thinking": ""}})
    assert seen.tokens.output == 50


@for_each(
    "event",
    [
        {},
        {"type": 5},
        {"type": "message_start"},
        {"type": "message_delta", "usage": {"output_tokens": -4}},
        {"type": "message_delta", "usage": {"output_tokens": True}},
        {"type": "message_delta", "usage": {"output_tokens": 10**9}},
        {"type": "message_start", "message": {"usage": {"cache_creation": {"ephemeral_1h_input_tokens": 2**63}}}},
        {"type": "content_block_delta", "delta": 3},
        {"type": "message_start", "message": {"usage": {"input_tokens": "many"}}},
    ],
)
def test_malformed_events_count_nothing(event):
    meter = Meter(max_tokens=5, thinks=False)
    meter.note(event)
    assert meter.tokens == BilledTokens()


@for_each(
    ("error", "attempt", "again"),
    [
        (BackendBusy(), 1, True),
        (BackendBusy(), 2, True),
        (BackendBusy(), 3, False),
        (BackendError(), 1, True),
        (BackendUnreachable(), 1, True),
        (BackendBusy(retry_after_s=3.0), 1, True),
        (BackendBusy(retry_after_s=LONGEST_ADVICE_S), 1, True),
        (BackendBusy(retry_after_s=LONGEST_ADVICE_S + 0.1), 1, False),
        (BackendGone(), 1, False),
        (BackendTimeout(), 1, False),
        (BadRequest(), 1, False),
        (CloudUnavailable(), 1, False),
    ],
)
def test_only_what_certainly_was_not_charged_and_may_pass_is_tried_again(error, attempt, again):
    delay_s = retry_delay_s(error, attempt, max_retries=2, sequence=Sequence(1))
    assert (delay_s is not None) is again
    if again and error.retry_after_s is not None:
        assert delay_s == error.retry_after_s


def test_delays_grow_up_to_a_limit_and_are_spread():
    delays = [retry_delay_s(BackendBusy(), attempt, max_retries=9, sequence=Sequence(1)) or 0.0 for attempt in range(1, 9)]
    assert [round(delay_s / delays[0]) for delay_s in delays] == [1, 2, 4, 8, 16, 16, 16, 16]
    assert FIRST_DELAY_S * 0.75 <= delays[0] <= FIRST_DELAY_S * 1.25
    assert len({retry_delay_s(BackendBusy(), 1, max_retries=9, sequence=Sequence(number)) for number in range(20)}) == 20


@for_each(
    ("asked", "gets"),
    [
        ("llama3.1:8b", "claude-small"),
        ("qwen2.5:32b-instruct", "claude-large"),
        ("mistral", "claude-mid"),
        ("mistral:latest", "claude-mid"),
        (None, "claude-small"),
        ("claude-opus-5", "claude-opus-5"),
    ],
)
def test_a_local_name_leads_to_the_model_that_the_owner_chose(asked, gets):
    cloud = CloudSettings(model="claude-small", models={"qwen2.5:32b*": "claude-large", "mistral": "claude-mid"})
    assert claude_model(asked, cloud) == gets
    assert [asks_for_claude(name) for name in ("claude-x", "Claude-X", "my-claude", None)] == [True, True, False, False]


def test_both_daily_limits_hold_and_a_key_has_its_own():
    keys = (KeySettings(name="a", sha256="0" * 64, daily_usd=0.25),)
    settings = Settings(auth=AuthSettings(keys=keys), budget=BudgetSettings(daily_external_usd=5.0), cloud=CloudSettings())
    assert (caps_for(settings, "a").external, caps_for(settings, "a").caller) == (5 * 10**9, 25 * 10**7)
    tighter = Settings(cloud=CloudSettings(daily_external_usd=2.0), budget=BudgetSettings(daily_external_usd=5.0))
    looser = Settings(cloud=CloudSettings(daily_external_usd=9.0), budget=BudgetSettings(daily_external_usd=5.0))
    assert [caps_for(each, "b").external for each in (tighter, looser)] == [2 * 10**9, 5 * 10**9]
    assert caps_for(tighter, "b").caller is None


def test_a_refusal_counts_for_a_while_and_is_emitted_again_where_it_lasts():
    events = Recorder()
    health = CloudHealth(events)
    for error in (BackendBusy(), None):
        health.note(error, 1.0, began_at=1.0)
    assert (health.is_down(1.0), events.all) == (False, [])  # neither says anything of the account
    for at in (100.0, 101.0):
        health.note(CloudUnavailable(), at, began_at=at)
    assert [health.is_down(101.0 + DOWN_S - 0.1), health.is_down(101.0 + DOWN_S)] == [True, False]
    health.note(CloudUnavailable(), 2000.0, began_at=2000.0)
    assert [event.at for event in events.of(CloudWentDown)] == [100.0, 2000.0]
    health.note(BackendBusy(), 2001.0, began_at=2001.0)
    assert health.is_down(2001.0)
    health.note(None, 2002.0, began_at=2001.5)
    assert not health.is_down(2002.0)
    assert [event.down_s for event in events.of(CloudCameUp)] == [1902.0]


def test_an_answer_that_began_before_the_refusal_does_not_take_it_back():
    events = Recorder()
    health = CloudHealth(events)
    health.note(CloudUnavailable(), 100.0, began_at=99.0)
    health.note(None, 101.0, began_at=98.0)
    assert (health.is_down(101.0), events.of(CloudCameUp)) == (True, [])
    health.forget()
    health.note(None, 103.0, began_at=102.0)
    assert [event.down_s for event in events.of(CloudCameUp)] == [3.0]
