"""What a message looks like at each kind of target, and that nothing in a name takes effect
there.
"""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from hearth.alerts.channels import (
    COMPOSERS,
    NAMED_ALERTS,
    NTFY_BYTES,
    ROOMS,
    TEXT_CHARS,
    discord_text,
    in_one_message,
    lines_of,
)
from hearth.alerts.delivery import CAPACITY
from hearth.alerts.rules import Alert, shown
from hearth.config.settings import AlertType
from hearth.types import Post
from tests.alerts.harness import TITLE, alert, down, message, up
from tests.support.examples import EXAMPLES
from tests.support.fake_webhooks import why_discord_refuses
from tests.support.fields import Fields

SECRET = "canary-9f8e7d"
URL = f"https://discord.com/api/webhooks/1/{SECRET}?thread_id=7"
NASTY = (
    "@everyone <@123> **bold** [x](https://evil.test) `code` ```block``` > quote "
    "# head ~~gone~~ ||spoiler|| \x1b[2J\n\u202ea :smile:"
)


def embed_of(post: Post) -> Fields:
    (embed,) = json.loads(post.body)["embeds"]
    return dict(embed)


def units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def test_every_target_has_its_own_form_and_no_repr_shows_the_address():
    discord, webhook, ntfy = (
        COMPOSERS[name](URL, message(alert("ünï", text="ünï is out")))
        for name in ("discord", "webhook", "ntfy")
    )
    body = json.loads(discord.body)
    assert (set(body), body["allowed_mentions"]) == (
        {"allowed_mentions", "embeds", "username"},
        {"parse": []},
    )
    assert (
        embed_of(discord).items()
        >= {
            "title": discord_text(f"Hearth (warning): {TITLE}", 256),
            "description": "ünï is out",
            "timestamp": "2026-01-05T00:00:00.000Z",
        }.items()
    )
    assert (discord.url, webhook.url, ntfy.url) == (f"{URL}&wait=true", URL, URL)
    assert (ntfy.body.decode(), ntfy.headers["Title"]) == (
        "ünï is out",
        f"Hearth (warning): {TITLE}",
    )
    assert SECRET not in repr((discord, webhook, ntfy))


def test_a_webhook_gets_every_alert_by_itself():
    body = json.loads(COMPOSERS["webhook"](URL, message(alert(suppressed=2), up(), dropped=1)).body)
    full = {
        "type": "starvation",
        "subject": "webui",
        "title": TITLE,
        "text": "it is full",
        "severity": "warning",
    }
    over = {
        "type": "backend_down",
        "subject": "",
        "title": "Resolved: Model server down",
        "text": "it is up",
        "severity": "information",
    }
    lines = [
        f"Warning: {TITLE}: it is full 2 more like this since the last message.",
        "Resolved: Model server down: it is up",
    ]
    assert body == {
        "source": "hearth",
        "title": "Hearth (warning): 2 alerts",
        "severity": "warning",
        "resolved": False,
        "dropped": 1,
        "text": "\n".join([*lines, "1 more could not be sent in time and were dropped."]),
        "at": "2026-01-05T00:00:00.000Z",
        "alerts": [
            full | {"resolved": False, "suppressed": 2},
            over | {"resolved": True, "suppressed": 0},
        ],
    }


@pytest.mark.parametrize(
    ("of", "colour", "priority", "tag"),
    [
        (down(), 0xE74C3C, "5", "rotating_light,critical"),
        (alert(), 0xF1C40F, "4", "warning,warning"),
        (alert(kind=AlertType.TEST), 0x3498DB, "3", "information_source,information"),
        (up(), 0x2ECC71, "3", "white_check_mark"),
    ],
)
def test_how_bad_it_is_can_be_seen(of, colour, priority, tag):
    assert embed_of(COMPOSERS["discord"](URL, message(of)))["color"] == colour
    headers = COMPOSERS["ntfy"](URL, message(of)).headers
    assert (headers["Priority"], headers["Tags"]) == (priority, tag)


@pytest.mark.parametrize("name", COMPOSERS)
def test_a_digest_names_the_worst_first_and_counts_the_rest_if_there_is_one(name):
    alerts = [alert(f"c{number}", text=f"caller {number} was refused") for number in range(40)]
    post, whole = (
        COMPOSERS[name](URL, message(*each, dropped=9))
        for each in ([*alerts, down()], alerts[:NAMED_ALERTS])
    )
    text = (
        embed_of(post)["description"].replace("\\", "") if name == "discord" else post.body.decode()
    )
    assert "Hearth (critical): 41 alerts" in (
        post.headers.get("Title") or post.body.decode().replace("\\", "")
    )
    assert text.index("Critical: Model server down: it is down") < text.index(
        f"Warning: {TITLE}: caller 0"
    )
    assert ("And 16 more." in text, b"And " in whole.body) == (True, False)
    assert "9 more could not be sent in time and were dropped." in text


@pytest.mark.parametrize("name", ROOMS)
@pytest.mark.parametrize("chars", [10, 300, 900, 2500])
def test_every_critical_alert_is_whole_in_one_of_the_messages(name, chars):
    text = "x" * chars
    waiting: list[Alert] = [alert(f"c{number}", text="y" * 900) for number in range(30)]
    waiting += [alert(f"m{each}", AlertType.SWAP_FAILED, text=text) for each in range(40)]
    room = ROOMS[name]
    lines: list[str] = []
    while waiting:
        taken = in_one_message(waiting, room)
        said = lines_of(message(*taken, dropped=3), room)
        assert room.length("\n".join(said)) <= room.limit
        lines += said
        waiting = [each for each in waiting if each not in taken]
    critical = [number for number, line in enumerate(lines) if line.endswith(text)]
    others = [number for number, line in enumerate(lines) if "y" * 20 in line]
    assert (len(critical), max(critical) < min(others, default=len(lines))) == (40, True)


def test_a_critical_alert_that_is_longer_than_a_message_fills_one_alone():
    long = alert("m", AlertType.SWAP_FAILED, text="x" * 9_000)
    for room in ROOMS.values():
        assert in_one_message([alert(), long, down()], room) == [long]
        (line,) = lines_of(message(long), room)
        assert (room.length(line), line[-1]) == (room.limit, "…")


@pytest.mark.parametrize("count", [1, 2, 25, 26, CAPACITY])
@pytest.mark.parametrize("char", ["x", "*", "@", "ü", "\U0001f600", "\\", "\n"])
def test_whatever_is_said_fits_into_what_each_target_takes(count, char):
    alerts = [alert(f"c{number}", text=char * 5000) for number in range(count)]
    discord, webhook, ntfy = (
        COMPOSERS[name](URL, message(*alerts, dropped=3)) for name in ("discord", "webhook", "ntfy")
    )
    embed = embed_of(discord)
    assert (
        units(embed["description"]) <= 4096,
        units(embed["title"]) <= 256,
        why_discord_refuses(discord.body),
    ) == (True, True, None)
    assert NTFY_BYTES - 4 < len(ntfy.body) <= NTFY_BYTES
    assert char in ntfy.body.decode(), "cut between two characters"
    assert len(json.loads(webhook.body)["text"]) == TEXT_CHARS


MARKUP = re.compile(
    r"^\s*([>#+-]|[0-9]+\.)"  # a quote, a heading, a list
    r"|:[\w+~-]+:|://"  # an emoji, a link
    r"|_.+_(?![0-9A-Za-z_])"  # italics, or underlined
)


@hypothesis_settings(max_examples=200 * EXAMPLES, deadline=None, derandomize=True)
@given(
    text=st.text(max_size=300)
    | st.text(st.sampled_from("@<>#*_~`|[]()\\:-+.!e v\n1\U0001f600"), max_size=300),
    limit=st.integers(20, 200),
)
def test_no_markup_takes_effect_and_no_limit_is_passed(text, limit):
    said = discord_text(shown(text, 1000), limit)
    assert units(said) <= limit
    literal = re.sub(r"\\([^0-9A-Za-z\s])", "\0", said.replace("\u200b", ""))
    assert not set(literal) & set("\\*~`|<[@")
    assert not MARKUP.search(literal)
    assert "@everyone" not in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "text",
    [
        "Model server down: it is down (http_500). 3 more, since 12.5 s!",
        "home_assistant took 60% - more than usual -> see the log #4",
        "qwen2.5:32b did not load; 192.168.1.7:11434 at 07:30",
    ],
)
def test_punctuation_that_is_no_markup_to_discord_stands_as_it_is(text):
    """A phone's notification shows the backslash."""
    assert discord_text(text, 1000) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (":tada: a:b:c at http://a", "\\:tada: a\\:b:c at http\\://a"),
        ("_a_ a__b__c a_", "\\_a\\_ a\\_\\_b\\_\\_c a\\_"),
        ("> a > b", "\\> a > b"),
        ("-# a", "\\-# a"),
        (" 1. a 2. b", " 1\\. a 2. b"),
        ("[a](b)", "\\[a](b)"),
    ],
)
def test_what_discord_would_take_for_markup_is_escaped(text, said):
    assert discord_text(text, 1000) == said


def test_a_text_that_fits_is_unchanged():
    said = discord_text(shown(NASTY, 1000), 1000)
    assert re.sub(r"\\([^0-9A-Za-z\s])", r"\1", said).replace("\u200b", "") == re.sub(
        "[\x1b\n\u202e]", "?", NASTY
    )
    assert (discord_text("x" * 20, 20), shown("x" * 100)) == ("x" * 20, "x" * 100)


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("x" * 21, "x" * 19 + "…"),
        ("x" * 18 + "**", "x" * 18 + "…"),
        ("\U0001f600" * 11, "\U0001f600" * 9 + "…"),
    ],
)
def test_a_long_text_is_cut_between_characters(text, cut):
    assert discord_text(text, 20) == cut
    assert shown("x" * 101) == "x" * 99 + "…"
