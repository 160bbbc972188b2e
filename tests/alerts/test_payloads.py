"""What a message looks like at each kind of target, and that nothing in a name takes effect there."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from hearth.alerts.channels import COMPOSERS, NAMED_ALERTS, NTFY_BYTES, TEXT_CHARS, discord_text
from hearth.alerts.delivery import CAPACITY
from hearth.alerts.rules import Severity, shown
from hearth.types import Post
from tests.alerts.samples import alert, down, message, up
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES
from tests.support.fake_webhooks import why_discord_refuses

SECRET = "canary-9f8e7d"
URL = f"https://discord.com/api/webhooks/1/{SECRET}?thread_id=7"
NASTY = "@everyone <@123> **bold** [x](https://evil.test) `code` ```block``` > quote # head ~~gone~~ ||spoiler|| \x1b[2J\n\u202ea :smile:"


def embed_of(post: Post) -> dict[str, Any]:
    (embed,) = json.loads(post.body)["embeds"]
    return dict(embed)


def units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def test_discord_gets_one_embed_that_can_notify_nobody_and_is_asked_to_answer():
    post = COMPOSERS["discord"](URL, message(alert(text="it is full")))
    body = json.loads(post.body)
    assert body["allowed_mentions"] == {"parse": []}
    assert set(body) == {"allowed_mentions", "embeds", "username"}
    assert (embed_of(post)["title"], embed_of(post)["description"]) == ("Hearth\\: Queue full", "it is full")
    assert embed_of(post)["timestamp"] == "2026-01-05T00:00:00.000Z"
    assert post.url == f"{URL}&wait=true"
    assert why_discord_refuses(post.body) is None


@for_each(
    ("of", "colour", "priority", "tag"),
    [
        (alert(severity=Severity.ERROR), 0xE74C3C, "5", "rotating_light"),
        (alert(), 0xF1C40F, "4", "warning"),
        (alert(severity=Severity.INFO), 0x3498DB, "3", "information_source"),
        (up(), 0x2ECC71, "3", "white_check_mark"),
    ],
)
def test_how_bad_it_is_can_be_seen(of, colour, priority, tag):
    assert embed_of(COMPOSERS["discord"](URL, message(of)))["color"] == colour
    headers = COMPOSERS["ntfy"]("https://ntfy.sh/x", message(of)).headers
    assert (headers["Priority"], headers["Tags"]) == (priority, tag)


def test_ntfy_gets_the_text_as_the_body_and_the_title_in_a_header():
    post = COMPOSERS["ntfy"]("https://ntfy.sh/x", message(alert("ünï", text="ünï is out")))
    assert (post.url, post.body.decode(), post.headers["Title"]) == ("https://ntfy.sh/x", "ünï is out", "Hearth: Queue full")


def test_a_webhook_gets_every_alert_by_itself():
    body = json.loads(COMPOSERS["webhook"](URL, message(alert(suppressed=2), up(), dropped=1)).body)
    fields = ("type", "subject", "title", "text", "severity", "resolved", "suppressed")
    assert [tuple(each[field] for field in fields) for each in body["alerts"]] == [
        ("queue_full", "webui", "Queue full", "it is full", "warning", False, 2),
        ("backend_down", "", "Resolved: Model server down", "it is up", "warning", True, 0),
    ]
    assert {len(each) for each in body.pop("alerts")} == {len(fields)}
    lines = ["Queue full: it is full 2 more like this since the last message.", "Resolved: Model server down: it is up"]
    text = "\n".join([*lines, "1 more could not be sent in time and were dropped."])
    known = {"source": "hearth", "title": "Hearth: 2 alerts", "severity": "warning", "resolved": False, "dropped": 1}
    assert body == known | {"text": text, "at": "2026-01-05T00:00:00.000Z"}


@for_each("name", COMPOSERS)
def test_a_digest_names_the_worst_first_and_counts_the_rest(name):
    alerts = [alert(f"c{number}", text=f"caller {number} was refused") for number in range(40)]
    post = COMPOSERS[name]("https://host/x", message(*alerts, down(), dropped=9))
    text = embed_of(post)["description"].replace("\\", "") if name == "discord" else post.body.decode()
    assert "Hearth: 41 alerts" in (post.headers.get("Title") or post.body.decode().replace("\\", ""))
    assert text.index("Model server down: it is down") < text.index("Queue full: caller 0")
    assert "And 16 more." in text
    assert "9 more could not be sent in time and were dropped." in text


def test_a_digest_that_names_all_counts_no_rest():
    text = COMPOSERS["ntfy"]("https://ntfy.sh/x", message(*(alert(f"c{number}") for number in range(NAMED_ALERTS)))).body.decode()
    assert text.count("Queue full") == NAMED_ALERTS
    assert " more." not in text


@for_each("count", [1, 2, 25, 26, CAPACITY])
@for_each("char", ["x", "*", "@", "\U0001f600", "\\", "\n"])
def test_whatever_is_said_fits_into_what_discord_takes(count, char):
    alerts = [alert(f"c{number}", text=char * 3000) for number in range(count)]
    post = COMPOSERS["discord"](URL, message(*alerts, dropped=3))
    embed = embed_of(post)
    assert units(embed["description"]) <= 4096
    assert units(embed["title"]) <= 256
    assert why_discord_refuses(post.body) is None


@for_each("char", ["x", "ü", "\U0001f600"])
def test_what_is_too_long_for_ntfy_or_a_webhook_is_cut_between_two_characters(char):
    post = COMPOSERS["ntfy"]("https://ntfy.sh/x", message(alert(text=char * 5000)))
    assert NTFY_BYTES - 4 < len(post.body) <= NTFY_BYTES
    assert set(post.body.decode()) == {char}
    assert len(json.loads(COMPOSERS["webhook"](URL, message(alert(text=char * 5000))).body)["text"]) == TEXT_CHARS


@hypothesis_settings(max_examples=200 * EXAMPLES, deadline=None, derandomize=True)
@given(
    text=st.text(max_size=300) | st.text(st.sampled_from("@<>#*_~`|[]()\\:-+.!e v\n1\U0001f600"), max_size=300), limit=st.integers(20, 200)
)
def test_no_markup_takes_effect_and_no_limit_is_passed(text, limit):
    said = discord_text(shown(text, 1000), limit)
    assert units(said) <= limit
    literal = re.sub(r"\\([^0-9A-Za-z\s])", "", said.replace("\u200b", ""))
    assert not set(literal) & set("\\*_~`|>#[]()<:@")
    assert "@everyone" not in said
    assert "\n" not in said


@for_each(
    ("text", "said"),
    [("x" * 20, "x" * 20), ("x" * 21, "x" * 19 + "…"), ("x" * 18 + "**", "x" * 18 + "…"), ("\U0001f600" * 11, "\U0001f600" * 9 + "…")],
)
def test_a_text_is_cut_at_its_limit_between_two_characters(text, said):
    assert discord_text(text, 20) == said


def test_a_text_that_fits_reads_as_it_was_written():
    said = discord_text(shown(NASTY, 1000), 1000)
    assert re.sub(r"\\([^0-9A-Za-z\s])", r"\1", said).replace("\u200b", "") == NASTY.replace("\x1b", "?").replace("\n", "?").replace(
        "\u202e", "?"
    )


@for_each("name", COMPOSERS)
def test_no_repr_shows_the_address(name):
    assert SECRET not in repr(COMPOSERS[name](URL, message()))


def test_a_name_is_one_line_and_short():
    assert shown("a\nb\x1b\u202e") == "a?b??"
    assert shown("x" * 101) == "x" * 99 + "…"
    assert shown("x" * 100) == "x" * 100
