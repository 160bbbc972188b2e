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
from hearth.config.settings import (
    AuthSettings,
    BudgetSettings,
    CloudPriceSettings,
    CloudSettings,
    KeySettings,
    Settings,
)
from hearth.dialects.claude_answer import Meter
from hearth.engines.ollama.traits import OllamaTraits
from hearth.errors import (
    BackendBusy,
    BackendError,
    BackendGone,
    BackendTimeout,
    BackendUnreachable,
    BadRequest,
    CloudUnavailable,
)
from hearth.events import CloudCameUp, CloudWentDown
from hearth.types import BilledTokens, Price, Rates, Sequence, nano_usd, usd
from tests.support.fields import Fields
from tests.support.recorder import Recorder

CHEAP = Rates.in_usd(
    input_usd=1, output_usd=5, cache_read_usd=0.1, cache_write_usd=1.25, cache_write_hour_usd=2
)
DEAR = Rates.in_usd(
    input_usd=2, output_usd=7.5, cache_read_usd=0.2, cache_write_usd=2.5, cache_write_hour_usd=4
)
ODD = Rates.in_usd(
    input_usd=0.0375, output_usd=0, cache_read_usd=0, cache_write_usd=0, cache_write_hour_usd=0
)
STEPPED = Price(usual=CHEAP, long=DEAR, long_from_tokens=100)
IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "A" * 100_000},
}


@pytest.mark.parametrize(
    ("price", "tokens", "nano"),
    [
        (
            CHEAP,
            {"input": 3, "output": 7, "cache_read": 11, "cache_write": 13, "cache_write_hour": 17},
            3_000 + 35_000 + 51_350,
        ),
        # rounded up on the bill
        *((ODD, {"input": count}, nano) for count, nano in ((1000, 37_500), (1, 38))),
        *(
            (CHEAP, tokens, nano)
            for tokens, nano in (
                ({"input": -5, "output": -1}, 0),
                ({"input": 10**30}, 10**8 * 1000),
            )
        ),
        *(
            (STEPPED, {"input": count, "cache_read": 40}, nano)
            for count, nano in ((60, 64_000), (61, 130_000))
        ),
    ],
)
def test_a_bill_is_the_sum_of_its_tokens_and_absurd_counts_are_cut(price, tokens, nano):
    assert price.cost_nano_usd(BilledTokens(**tokens)) == nano


@pytest.mark.parametrize("prompt", [0, 1, 99, 100, 101, 500])
def test_the_bound_takes_the_dearest_rates_and_is_above_any_bill(prompt):
    bound = STEPPED.bound_nano_usd(prompt, 10)
    assert bound == prompt * (2000 if prompt <= 100 else 4000) + 10 * (
        5000 if prompt <= 100 else 7500
    )
    for kind in ("input", "cache_read", "cache_write", "cache_write_hour"):
        assert STEPPED.cost_nano_usd(BilledTokens(**{kind: prompt, "output": 10})) <= bound


@pytest.mark.parametrize("nano", [0, 1, 5, 123_456_789, 5 * 10**9, 10**15 + 1])
def test_dollars_and_nanos_are_the_same_money(nano):
    assert nano_usd(usd(nano)) == nano


@pytest.mark.parametrize(
    "model",
    [
        "claude-haiku-4-5",
        "claude-haiku-5-5",
        "claude-sonnet-4-5",
        "claude-opus-5-5",
        CloudSettings().model,
    ],
)
@pytest.mark.parametrize("prompt", [1000, 150_000, 250_000])
async def test_the_list_knows_the_models_and_bills_as_it_says(model, prompt):
    price = await price_of(model)
    assert price is not None
    tokens = BilledTokens(input=prompt - 700, output=900, cache_read=500, cache_write=200)
    usage = Usage(
        input_tokens=prompt, output_tokens=900, cache_read_tokens=500, cache_write_tokens=200
    )
    listed = calc_price(usage, model, provider_id="anthropic").total_price
    assert price.cost_nano_usd(tokens) == pytest.approx(float(listed) * 1e9, abs=1)
    assert await price_of("claude-nonsense-9") is None


@pytest.mark.parametrize(
    ("given", "rates"),
    [
        ({}, (300_000, 3_750_000, 6_000_000)),
        ({"cache_read_usd": 1, "cache_write_usd": 4}, (1_000_000, 4_000_000, 6_000_000)),
    ],
)
def test_the_owners_prices_fill_in_the_usual_ratios(given, rates):
    own = price_in(CloudPriceSettings(input_usd=3, output_usd=15, **given)).usual
    assert (own.cache_read, own.cache_write, own.cache_write_hour) == rates


def message(*content: Any, role: str = "user") -> Fields:
    return {"messages": [{"role": role, "content": [*content]}]}


def called(given: Any) -> Fields:
    return message({"type": "tool_use", "id": "a", "name": "b", "input": given}, role="assistant")


@pytest.mark.parametrize(
    ("body", "images"),
    [
        (message({"type": "text", "text": "öäü" * 100}), 0),
        (message(IMAGE, {"type": "tool_result", "content": [IMAGE]}), 2),
        (
            message(
                {
                    "type": "document",
                    "source": {
                        "type": "content",
                        "content": [{"type": "text", "text": "a"}, IMAGE],
                    },
                }
            ),
            1,
        ),
        # What only looks like an image is text.
        *((called(given), 0) for given in (IMAGE, {"content": [IMAGE]})),
        (
            {
                "messages": [],
                "tools": [
                    {"name": "b", "input_schema": {"type": "object", "properties": {"c": IMAGE}}}
                ],
            },
            0,
        ),
        (
            {
                "messages": [],
                "output_config": {"format": {"type": "json_schema", "schema": {"const": IMAGE}}},
            },
            0,
        ),
    ],
)
def test_text_is_bounded_by_its_bytes_and_images_by_their_ceiling(body, images):
    sent = encoded("m", body)
    assert json.loads(sent) == {"model": "m", "stream": True, **body}
    assert (
        prompt_bound_tokens(body, len(sent))
        == len(sent) - images * 100_000 + images * IMAGE_TOKENS + OVERHEAD_TOKENS
    )
    assert b"?" in encoded("m", {"messages": "\ud800"})  # half a character does not stop a call


def delta(**fields: str) -> Fields:
    return {"type": "content_block_delta", "delta": {"type": "some_delta", **fields}}


def usage(kind: str = "message_delta", **tokens: Any) -> Fields:
    return (
        {"type": kind, "message": {"usage": tokens}}
        if kind == "message_start"
        else {"type": kind, "usage": tokens}
    )


CACHED = {
    "cache_creation_input_tokens": 30,
    "cache_read_input_tokens": 4,
    "cache_creation": {"ephemeral_1h_input_tokens": 10},
}
BEGUN = usage("message_start", input_tokens=9, output_tokens=1, **CACHED)
ALL_CACHED = {"cache_read": 4, "cache_write": 20, "cache_write_hour": 10}
THOUGHT = {"type": "content_block_start", "content_block": {"type": "thinking", "thinking": ""}}
METERED: list[tuple[bool, list[Any], dict[str, int]]] = [
    (
        False,
        [delta(text="abc"), usage(output_tokens=2), usage(output_tokens=5, input_tokens=11)],
        {"input": 11, "output": 5},
    ),
    # Without a report every byte may have been a token, and thoughts all that was allowed.
    (False, [], {"output": 1}),
    (False, [delta(text="añ")], {"output": 3}),
    (False, [delta(text="añ"), delta(partial_json='{"a"')], {"output": 7}),
    (False, [delta(text="x" * 500)], {"output": 50}),
    (True, [], {"output": 50}),
    (False, [THOUGHT], {"output": 50}),
    # What is malformed counts nothing.
    *((False, [{"type": kind}], {"output": 1}) for kind in (5, None, "message_start")),
    *((False, [usage(output_tokens=tokens)], {"output": 1}) for tokens in (-4, True, 10**9)),
    (
        False,
        [
            usage(
                "message_start",
                cache_creation={"ephemeral_1h_input_tokens": 2**63},
                input_tokens="many",
            )
        ],
        {"output": 1},
    ),
    (False, [{"type": "content_block_delta", "delta": 3}], {"output": 1}),
]


@pytest.mark.parametrize(("thinks", "events", "tokens"), METERED)
def test_the_meter_takes_the_last_report(thinks, events, tokens):
    meter = Meter(max_tokens=50, thinks=thinks)
    assert meter.tokens == BilledTokens(output=50 if thinks else 0)
    for event in (BEGUN, *events):
        meter.note(event)
    assert meter.tokens == BilledTokens(**{"input": 9, **ALL_CACHED, **tokens})


@pytest.mark.parametrize(
    ("error", "attempt", "again"),
    [
        *((BackendBusy(), attempt, attempt < 3) for attempt in (1, 2, 3)),
        *((error, 1, True) for error in (BackendError(), BackendUnreachable())),
        *(
            (BackendBusy(retry_after_s=delay_s), 1, delay_s <= LONGEST_ADVICE_S)
            for delay_s in (3.0, LONGEST_ADVICE_S, 10.1)
        ),
        *(
            (error, 1, False)
            for error in (BackendGone(), BackendTimeout(), BadRequest(), CloudUnavailable())
        ),
    ],
)
def test_only_what_certainly_was_not_charged_and_may_pass_is_tried_again(error, attempt, again):
    delay_s = retry_delay_s(error, attempt, max_retries=2, sequence=Sequence(1))
    assert (delay_s is not None) is again
    assert not again or error.retry_after_s in (None, delay_s)


def test_delays_grow_up_to_a_limit_and_are_spread():
    delays = [
        retry_delay_s(BackendBusy(), attempt, max_retries=9, sequence=Sequence(1)) or 0.0
        for attempt in range(1, 9)
    ]
    assert [round(delay_s / delays[0]) for delay_s in delays] == [1, 2, 4, 8, 16, 16, 16, 16]
    assert FIRST_DELAY_S * 0.75 <= delays[0] <= FIRST_DELAY_S * 1.25
    assert (
        len(
            {
                retry_delay_s(BackendBusy(), 1, max_retries=9, sequence=Sequence(number))
                for number in range(20)
            }
        )
        == 20
    )


@pytest.mark.parametrize(
    ("asked", "gets"),
    [
        ("llama3.1:8b", "claude-small"),
        ("qwen2.5:32b-instruct", "claude-large"),
        *((name, "claude-mid") for name in ("mistral", "mistral:latest")),
        (None, "claude-small"),
        *((name, name) for name in ("claude-opus-5", "Claude-X")),
        ("my-claude", "claude-small"),
    ],
)
def test_a_local_name_leads_to_the_model_that_the_owner_chose(asked, gets):
    cloud = CloudSettings(
        model="claude-small", models={"qwen2.5:32b*": "claude-large", "mistral": "claude-mid"}
    )
    assert (claude_model(asked, cloud, OllamaTraits.canonical), asks_for_claude(asked)) == (
        gets,
        asked == gets,
    )


@pytest.mark.parametrize(
    ("cloud_usd", "caller", "external", "own"),
    [(None, "a", 5, 0.25), (None, "b", 5, None), (2.0, "b", 2, None), (9.0, "b", 5, None)],
)
def test_both_daily_limits_hold_and_a_key_has_its_own(cloud_usd, caller, external, own):
    auth = AuthSettings(keys=(KeySettings(name="a", sha256="0" * 64, daily_usd=0.25),))
    cloud = CloudSettings(daily_external_usd=cloud_usd)
    caps = caps_for(
        Settings(auth=auth, budget=BudgetSettings(daily_external_usd=5.0), cloud=cloud), caller
    )
    assert (caps.external, caps.caller) == (
        nano_usd(external),
        None if own is None else nano_usd(own),
    )


def test_a_refusal_counts_for_a_while_and_is_emitted_again_where_it_lasts():
    health = CloudHealth(events := Recorder())
    for error in (BackendBusy(), None):
        health.note(error, 1.0, began_at=1.0)
    assert (health.is_down(1.0), events.all) == (False, [])  # neither says anything of the account
    for at in (100.0, 101.0):
        health.note(CloudUnavailable(), at, began_at=at)
    assert [health.is_down(101.0 + DOWN_S - 0.1), health.is_down(101.0 + DOWN_S)] == [True, False]
    health.note(CloudUnavailable(), 2000.0, began_at=2000.0)
    assert [event.at for event in events.of(CloudWentDown)] == [100.0, 2000.0]
    # an answer that began before the refusal does not take it back
    for error, began_at in ((BackendBusy(), 2001.0), (None, 1999.0)):
        health.note(error, 2001.0, began_at=began_at)
        assert (health.is_down(2001.0), events.of(CloudCameUp)) == (True, [])
    health.forget()
    assert not health.is_down(2001.0)
    health.note(None, 2002.0, began_at=2001.5)
    assert [event.down_s for event in events.of(CloudCameUp)] == [1902.0]
