"""What must be true of durable work when a simulated house is gone: jobs, batches, and who was to
be told.
"""

from __future__ import annotations

import ipaddress
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args
from urllib.parse import urlsplit

from hearth.errors import StorageUnavailable
from hearth.job_types import BatchEnd, JobState
from tests.dst.asks import Ask, askers_of
from tests.dst.deeds import Batch
from tests.dst.outside import Arrival
from tests.dst.world import World
from tests.support.fake_ollama import CallRecord
from tests.support.fields import Fields

BATCH_COLUMNS = (
    "status, total, completed, failed, output_file, error_file, output_file_id, "
    "error_file_id, prompt_tokens, output_tokens"
)
Calls = dict[int, list[CallRecord]]  # by whose canary is in them; a call for several is everybody's
LINK_LOCAL = ipaddress.ip_network("169.254.0.0/16")


def nothing_goes_on(
    ask: Ask, left_at: float, calls: Sequence[CallRecord], asks: Sequence[Ask] = ()
) -> None:
    """Nothing is asked for who has left, and what was being asked has been stopped; a call for
    several when the last of them leaves.
    """
    for call in calls:
        company = [asks[number] for number in askers_of(call.body)] if asks else [ask]
        last_at = left_at if all(other.left_at is not None for other in company) else None
        if last_at is not None and len(company) > 1:
            last_at = max(other.left_at or 0.0 for other in company)
        late = call.opened_at > left_at or (
            last_at is not None and (call.ended_at is None or call.ended_at > last_at)
        )
        assert not late, f"request {ask.number} was left at {left_at} and goes on: {call}"


def jobs_agree(world: World, calls: Calls) -> None:
    """Every accepted job has ended, once, with its own answer, and the store says what was said."""
    states = {
        row[0]: row[1:] for row in world.disk.rows("SELECT id, state, attempts, result FROM jobs")
    }
    ends = [end for life in world.lives for end in life.watch.jobs_ended]
    said: Counter[str] = Counter(end.job_id for end in ends)
    assert not said or max(said.values()) == 1, f"told more than once: {said}"
    most = max(settings.jobs.max_attempts for settings in world.house.settings)
    for job_id, ask in world.overnight.jobs.items():
        assert job_id in states, f"{job_id} was accepted and is lost"
        state, attempts, result = states[job_id]
        assert JobState(state).is_end, f"{job_id} is {state}"
        assert attempts <= most + sum(life.unclean for life in world.lives), (
            f"{job_id} was started {attempts} times"
        )
        # refused, kept all the same, and cancelled there before it was asked for again
        never_known = ask.key is not None and ask.given_up
        untold_for_a_reason = any(life.unclean for life in world.lives) or (
            state == "cancelled" and never_known
        )
        assert said[job_id] == 1 or untold_for_a_reason, f"nobody was told of the end of {job_id}"
        assert state != "cancelled" or ask.left_at is not None or ask.given_up, (
            f"nobody has cancelled {job_id}"
        )
        if ask.left_at is not None:
            assert state == "cancelled", f"{job_id} was cancelled and is {state}"
            nothing_goes_on(ask, ask.left_at, calls.get(ask.number, []))
        if state == "completed":
            assert json.loads(result)["response"] == ask.text, (
                f"{job_id} has another's answer: {result}"
            )
    for ask in (ask for ask in world.asks if ask.job_id and ask.refused is not None):
        if not may_be_kept(world, ask):
            assert ask.job_id not in states, f"{ask.job_id} was refused and is kept"
            assert not calls.get(ask.number), f"{ask.job_id} was refused and runs"
    for end in (end for end in ends if not end.job_id.startswith("batch_req_")):
        assert states[end.job_id][0] == end.state, (
            f"{end.job_id} is {states[end.job_id][0]}, said {end.state}"
        )


def may_be_kept(world: World, ask: Ask) -> bool:
    """It was refused by a disk that may have kept it, and the process ended before that was put
    right.
    """
    return isinstance(ask.refused, StorageUnavailable) and world.lives[ask.life].unclean


# Batches.


def lines_of(world: World, file: int | None) -> list[Fields]:
    """The lines of a file of the store, in its order."""
    if file is None:
        return []
    parts = [
        data
        for (data,) in world.disk.rows(
            f"SELECT data FROM file_parts WHERE file = {file} ORDER BY place"
        )
    ]
    size = world.disk.rows(f"SELECT bytes FROM files WHERE number = {file}")
    assert size in ([], [(sum(map(len, parts)),)]), f"file {file} says that it has {size} bytes"
    return [json.loads(line) for line in b"".join(parts).splitlines()]


def batches_agree(world: World, calls: Calls) -> None:
    """Every accepted batch has ended, as it had to; each of its lines is written once, with its own
    answer, and the counts are theirs.
    """
    if not world.overnight.batches:
        return
    rows = {
        row[0]: row[1:]
        for row in world.disk.rows(
            f"SELECT id, ended_wall_s, expires_wall_s, {BATCH_COLUMNS} FROM batches"
        )
    }
    told = Counter(end.batch_id for life in world.lives for end in life.watch.batches_ended)
    for batch in world.overnight.batches.values():
        assert batch.batch_id in rows or not batch.accepted, (
            f"{batch.batch_id} was accepted and is lost"
        )
        if batch.batch_id not in rows:
            continue
        ended_wall_s, expires_wall_s, status, *counts = rows[batch.batch_id]
        assert status in get_args(BatchEnd), f"{batch.batch_id} is {status}"
        least = 0 if any(life.unclean for life in world.lives) else 1
        assert least <= told[batch.batch_id] <= 1, (
            f"{batch.batch_id} was told to have ended {told[batch.batch_id]} times"
        )
        was_cancelled = batch.given_up or batch.refused_by_disk
        reasons = {
            "failed": batch.spoiled,
            "completed": not batch.spoiled,
            "cancelled": was_cancelled,
            "expired": ended_wall_s >= expires_wall_s,
        }
        assert reasons[status], f"{batch.batch_id} is {status} without a reason"
        _lines_are_right(world, batch, counts, calls)
        ended_at = ended_wall_s - world.clock._wall_at_start
        for ask in batch.asks:
            mine = calls.get(ask.number, [])
            assert not (batch.spoiled and mine), f"{batch.batch_id} was not in order, and runs"
            assert not (batch.refused_by_disk and mine) or may_be_kept(world, ask), (
                f"{batch.batch_id} was refused and runs"
            )
            late = [
                call for call in mine if call.ended_at is None or call.ended_at > ended_at + 1e-3
            ]
            assert not late, f"{batch.batch_id} ended at {ended_at} and goes on: {late}"
    for end in (end for life in world.lives for end in life.watch.batches_ended):
        said = (end.state, end.requests, end.completed, end.failed)
        assert rows[end.batch_id][2:6] == said, (
            f"{end.batch_id} is {rows[end.batch_id]}, said {said}"
        )
    assert world.disk.rows("SELECT id FROM jobs WHERE id LIKE 'batch_req_%'") == [], (
        "jobs of batches are left"
    )
    assert world.disk.rows("SELECT line FROM batch_lines WHERE job IS NOT NULL") == [], (
        "lines of batches are left"
    )


def _lines_are_right(world: World, batch: Batch, counts: list[Any], calls: Calls) -> None:
    total, completed, failed, output, error, output_id, error_id, prompt_tokens, output_tokens = (
        counts
    )
    done = lines_of(world, output)
    undone = lines_of(world, error)
    assert (len(done), len(undone)) == (completed, failed), (
        f"{batch.batch_id} counts {completed} and {failed}"
    )
    assert (output_id is not None, error_id is not None) == (completed > 0, failed > 0), (
        f"{batch.batch_id} shows the wrong files"
    )
    ids = Counter(line["custom_id"] for line in (*done, *undone))
    if total:
        assert total == len(batch.asks), (
            f"{batch.batch_id} has {total} requests of {len(batch.asks)}"
        )
        assert ids == Counter(ask.canary for ask in batch.asks), (
            f"{batch.batch_id} has written {ids}"
        )
    by_id = {ask.canary: ask for ask in batch.asks}
    # a broken server's, which embeds with 200
    for line in (line for line in done if "error" not in line["response"]["body"]):
        ask = by_id[line["custom_id"]]
        ask.parts = [json.dumps(line["response"]["body"]).encode()]
        ask.status = line["response"]["status_code"]
        assert (ask.status, ask.said()) == (200, ask.text), (
            f"{ask.canary} of {batch.batch_id} has another's answer: {line}"
        )
        assert calls.get(ask.number), f"{ask.canary} of {batch.batch_id} was never run"
    order = [int(line["custom_id"][6:-1]) for line in done]
    assert order == sorted(order), f"the answers of {batch.batch_id} are out of order"
    used = [line["response"]["body"].get("usage", {}) for line in done]
    tokens = (
        sum(each.get("prompt_tokens", 0) for each in used),
        sum(each.get("completion_tokens", 0) for each in used),
    )
    assert (prompt_tokens, output_tokens) == tokens, (
        f"{batch.batch_id} counts {prompt_tokens}, {output_tokens} tokens of {tokens}"
    )


def learn_job_ids(world: World) -> None:
    """Which job each line of a batch became, from what was written about it."""
    by_canary = {
        ask.canary: ask for batch in world.overnight.batches.values() for ask in batch.asks
    }
    if by_canary:
        for output, error in world.disk.rows("SELECT output_file, error_file FROM batches"):
            for line in (*lines_of(world, output), *lines_of(world, error)):
                by_canary[line["custom_id"]].job_id = line["id"]


# Who was to be told.


def hooks_agree(world: World) -> None:
    """Whoever was to be told of an end was told, or given up for a reason, and nobody else;
    messages are signed, to harmless places.
    """
    hooks = world.hooks
    if hooks is None:
        return
    rows = {
        row[0]: row[1:]
        for row in world.disk.rows(
            "SELECT id, state, webhook, webhook_attempts, ended_wall_s FROM jobs"
        )
    }
    arrivals: dict[str, list[Arrival]] = {}
    for arrival in hooks.arrivals:
        arrivals.setdefault(arrival.post.headers["webhook-id"], []).append(arrival)
    may_tell = (
        ask
        for ask in world.asks
        if ask.webhook_url is not None and (ask.refused is None or may_be_kept(world, ask))
    )
    wanted = {ask.job_id: ask for ask in may_tell}
    assert set(arrivals) <= set(wanted), f"nobody asked to be told of {set(arrivals) - set(wanted)}"
    assert not hooks.unwanted, f"the owner does not allow {hooks.unwanted}"
    for job_id, (state, webhook, attempts, ended_wall_s) in rows.items():
        if job_id not in wanted:
            assert webhook == "none", f"{job_id} tells somebody"
            continue
        for arrival in arrivals.get(job_id, []):
            _message_is_right(wanted[job_id], arrival, state, ended_wall_s)
        _told_or_given_up(world, wanted[job_id], webhook, attempts, arrivals.get(job_id, []))


def _message_is_right(ask: Ask, arrival: Arrival, state: str, ended_wall_s: float) -> None:
    assert ipaddress.ip_address(arrival.address) not in LINK_LOCAL, (
        f"{ask.job_id} was told to {arrival.address}"
    )
    assert arrival.post.url == ask.webhook_url
    said = json.loads(arrival.post.body)
    told = (said["job_id"], said["state"], said["ended_wall_s"])
    assert told == (ask.job_id, state, ended_wall_s), f"{ask.job_id} is {state}, told {said}"
    assert arrival.wall_s >= ended_wall_s, f"{ask.job_id} was told of before it ended"
    assert ask.canary.encode() not in arrival.post.body, f"a prompt was told: {arrival}"
    assert 0.0 <= arrival.wall_s - int(arrival.post.headers["webhook-timestamp"]) < 4.0


def _told_or_given_up(
    world: World, ask: Ask, webhook: str, attempts: int, mine: list[Arrival]
) -> None:
    settings = [settings.jobs.webhooks for settings in world.house.settings]
    host = urlsplit(ask.webhook_url or "").hostname or ""
    job_id = ask.job_id
    taken = sum(arrival.answer == "" for arrival in mine)
    deaths = sum(life.killed for life in world.lives) + len(world.trouble.hits)
    assert webhook in {"delivered", "failed"}, f"{job_id} is still {webhook}"
    if webhook == "delivered":
        assert 1 <= taken <= 1 + deaths, f"{job_id} was told of {taken} times"
        return
    assert taken <= deaths, f"{job_id} is given up, and was told"
    gone = any(arrival.answer == "http_410" for arrival in mine)
    tried = attempts >= min(each.max_attempts for each in settings)
    forbidden = any(host not in each.allowed_hosts for each in settings)
    assert gone or tried or forbidden, f"{job_id} was given up after {attempts} attempts: {mine}"
