"""What each answer means."""

from __future__ import annotations

import pytest

from hearth.alerts.channels import DEFAULT_WAIT_S, MAX_WAIT_S, Answer, Outcome, Verdict, backoff_s, verdict_of
from tests.support.fake_webhooks import REPLIES, Reply
from tests.support.virtual_time import WALL_AT_START

MEANINGS: dict[str, tuple[Outcome, float]] = {
    "204": (Outcome.DELIVERED, 0.0),
    "200": (Outcome.DELIVERED, 0.0),
    "200 with the bucket empty": (Outcome.DELIVERED, 1.5),
    "302": (Outcome.REFUSED, 0.0),
    "400": (Outcome.REFUSED, 0.0),
    "401": (Outcome.GONE, 0.0),
    "404": (Outcome.GONE, 0.0),
    "429 json": (Outcome.WAIT, 0.3),
    "429 json with Via": (Outcome.WAIT, 0.3),
    "429 header": (Outcome.WAIT, 7.0),
    "429 header with Via": (Outcome.WAIT, 7.0),
    "429 bare": (Outcome.WAIT, DEFAULT_WAIT_S),
    "429 bare with Via": (Outcome.WAIT, DEFAULT_WAIT_S),
    "500": (Outcome.RETRY, 0.0),
    "502 html": (Outcome.RETRY, 0.0),
    "503 with a date": (Outcome.RETRY, 60.0),
}


def answer_of(reply: Reply) -> Answer:
    return Answer(status=reply.status, headers={name.lower(): value for name, value in reply.headers.items()}, body=reply.body)


def test_every_answer_of_the_fake_has_a_meaning():
    assert set(MEANINGS) == set(REPLIES)


@pytest.mark.parametrize("name", REPLIES)
def test_what_an_answer_means(name):
    outcome, wait_s = MEANINGS[name]
    assert verdict_of(answer_of(REPLIES[name]), WALL_AT_START) == Verdict(outcome=outcome, wait_s=wait_s)


@pytest.mark.parametrize("failure", ["timeout", "dns", "connect", "tls", "broken"])
def test_no_answer_is_tried_again_and_named(failure):
    answer = Answer(failure=failure)
    assert verdict_of(answer, 0.0).outcome is Outcome.RETRY
    assert (answer.name, answer.delivered) == (failure, False)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(403, Outcome.GONE), (410, Outcome.GONE), (408, Outcome.RETRY), (425, Outcome.RETRY), (413, Outcome.REFUSED), (304, Outcome.REFUSED)],
)
def test_other_statuses(status, outcome):
    assert verdict_of(Answer(status=status), 0.0).outcome is outcome


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b"{}",
        b'{"retry_after": null}',
        b'{"retry_after": -1}',
        b'{"retry_after": "soon"}',
        b'{"retry_after": NaN}',
        b'{"retry_after": true}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
@pytest.mark.parametrize("header", ["", "soon", "-3", "nan", "Mon, 05 Jan 1970 00:00:00 GMT", "99999 99999"])
def test_a_429_that_says_nothing_usable_waits_the_default(body, header):
    answer = Answer(status=429, headers={"retry-after": header}, body=body)
    assert verdict_of(answer, WALL_AT_START).wait_s == DEFAULT_WAIT_S


@pytest.mark.parametrize(
    ("asked", "wait_s"), [("90000", MAX_WAIT_S), ("1e308", MAX_WAIT_S), ("1e999", DEFAULT_WAIT_S), ("1" * 400, DEFAULT_WAIT_S)]
)
def test_no_answer_silences_a_target_for_more_than_an_hour(asked, wait_s):
    assert verdict_of(Answer(status=429, body=f'{{"retry_after": {asked}}}'.encode()), 0.0).wait_s == wait_s


def test_where_body_and_headers_disagree_the_longer_wait_holds():
    answer = Answer(status=429, headers={"retry-after": "3", "x-ratelimit-reset-after": "4.5"}, body=b'{"retry_after": 2.25}')
    assert verdict_of(answer, 0.0).wait_s == 4.5


def test_the_pause_after_failures_grows_and_is_bounded():
    assert [backoff_s(failures) for failures in (1, 2, 3, 7, 10_000)] == [1.0, 2.0, 4.0, 60.0, 60.0]
