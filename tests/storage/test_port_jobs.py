"""Jobs in any store: every state is left once, and what was accepted is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from math import inf

import pytest

from hearth.config.settings import AuthSettings, JobSettings, KeySettings, Settings
from hearth.errors import KeyReused, QueueFull
from hearth.job_types import JobEnd, JobState, StoreLimits
from hearth.jobs.service import limits_of
from hearth.types import DAY_S, MIB, Lane
from tests.jobs.house import job
from tests.storage import port
from tests.storage.port import JobsAndOutbox
from tests.support.stopped_clock import WALL

LIMITS = StoreLimits(max_queued=100, max_bytes=1 << 20)
DONE = JobEnd(
    state=JobState.COMPLETED, status=200, content_type="application/json", result=b'{"x":1}'
)
LETTER = job(task_type="letter", job_key="7")
SIZE = len(job().request)
NEVER = inf
"""No cancel of the same job was reported as failed."""

Process = Callable[[], Awaitable[JobsAndOutbox]]


@pytest.fixture
def process(process: port.Process) -> Process:
    async def start() -> JobsAndOutbox:
        return (await process()).jobs

    return start


async def recovered(
    table: JobsAndOutbox, *, requeue: bool = True
) -> tuple[set[int], list[tuple[str, str, int]]]:
    suspects, failed = await table.recover(requeue=requeue, max_attempts=3)
    return set(suspects), [(each.job_id, each.reason, each.attempts) for each in failed]


async def waiting(table: JobsAndOutbox) -> list[tuple[str, int]]:
    """The ids of the jobs that wait, in order, and how often each was started."""
    return [(each.job_id, each.attempts) for each in (await table.waiting(None, 100))[2]]


async def done(table: JobsAndOutbox, number: int, end: JobEnd = DONE) -> None:
    assert await table.claim(number)
    assert await table.finish(number, end)


async def test_a_job_goes_its_way_and_keeps_its_result_but_not_its_request(process):
    table = await process()
    accepted = await table.accept(job(), LIMITS)
    assert (accepted.job_id, (await table.find("job_1")).state) == ("job_1", JobState.QUEUED)
    started = await table.claim(accepted.number)
    assert (started.path, started.request, started.attempts) == ("/api/generate", job().request, 1)
    assert await table.claim(accepted.number) is None
    assert (await table.find("job_1")).state is JobState.RUNNING
    assert await table.finish(accepted.number, DONE)
    found = await table.find("job_1")
    assert (found.state, found.status, found.result, found.attempts) == (
        JobState.COMPLETED,
        200,
        b'{"x":1}',
        1,
    )
    room = len(b'{"x":1}') + SIZE
    with pytest.raises(QueueFull):
        await table.accept(job("job_2"), replace(LIMITS, max_bytes=room - 1))
    assert (await table.accept(job("job_2"), replace(LIMITS, max_bytes=room))).job_id == "job_2"


@pytest.mark.parametrize(
    "end", [DONE, JobEnd(state=JobState.FAILED, reason="x", error="y\ud83d"), None]
)
async def test_a_job_that_has_ended_never_changes_again(process, end):
    table = await process()
    await table.accept(job(), LIMITS)
    await table.claim(1)
    assert await (table.cancel("job_1", NEVER) if end is None else table.finish(1, end))
    before = await table.find("job_1")
    assert not await table.finish(1, DONE)
    assert not await table.cancel("job_1", NEVER)
    assert not await table.put_back(1, counted=True, not_before_wall_s=None)
    assert await table.claim(1) is None
    assert await table.find("job_1") == before
    table = await process()
    assert (await recovered(table), table.queued) == ((set(), []), 0)


async def test_a_job_that_is_put_back_starts_again_and_counts_what_counts(process):
    table = await process()
    await table.accept(job(), LIMITS)
    for counted, attempts in ((False, 1), (True, 1), (True, 2), (True, 3)):
        assert (await table.claim(1)).attempts == attempts
        assert await table.put_back(1, counted=counted, not_before_wall_s=WALL + 5)
        assert (await table.find("job_1")).not_before_wall_s == WALL + 5


async def test_the_next_process_finds_jobs_in_order_and_running_ones_as_suspects(process):
    table = await process()
    for n in range(5):
        await table.accept(job(f"job_{n}", task_type="t", job_key=str(n), off_peak=n == 4), LIMITS)
    await table.claim(2)
    table.note_dispatch(2)
    # a job that waits again counts as one that has not run
    await table.put_back(2, counted=True, not_before_wall_s=None)
    for number in (2, 3):
        await table.claim(number)
    for requeue in (False, True, True):  # recovering again and again burns no attempts
        table = await process()
        assert (await recovered(table, requeue=requeue), table.queued) == (
            ({2, 3} if not requeue else set(), []),
            5,
        )
    assert await waiting(table) == [
        ("job_0", 0),
        ("job_1", 2),
        ("job_2", 1),
        ("job_3", 0),
        ("job_4", 0),
    ]
    assert (await table.find("job_4")).off_peak
    for number in (2, 3):
        await table.claim(number)
    assert await recovered(table) == (set(), [])  # of this process
    table = await process()
    assert await recovered(table) == ({3}, [("job_1", "interrupted_by_restart", 3)])
    assert await recovered(await process()) == (set(), [])


async def test_a_task_type_and_a_key_are_one_job_until_it_has_ended(process):
    table = await process()
    assert (await table.accept(LETTER, LIMITS)).job_id == "job_1"
    for starts in (False, True):
        if starts:
            await table.claim(1)
        assert (await table.accept(replace(LETTER, job_id="job_2"), LIMITS)).job_id == "job_1"
    for n, (caller, task_type, key) in enumerate(
        (("test", "research", "7"), ("test", "letter", "8"), ("you", "letter", "7")), 2
    ):
        assert (
            await table.accept(
                job(f"job_{n}", caller=caller, task_type=task_type, job_key=key), LIMITS
            )
        ).job_id == f"job_{n}"
    await table.finish(1, DONE)
    assert (await table.accept(replace(LETTER, job_id="job_5"), LIMITS)).job_id == "job_5"


async def answered_with_the_letter(process: Process) -> JobsAndOutbox:
    """A letter with a key of its own, and two other keys that it was the answer to; it has ended,
    and its process died.
    """
    table = await process()
    for name in ("own", "second", "third"):
        assert (
            await table.accept(
                replace(LETTER, job_id=f"job_{name}", idempotency_key=name, digest="d1"), LIMITS
            )
        ).job_id == "job_own"
    await done(table, 1)
    return await process()


@pytest.mark.parametrize("key", ["own", "second"])
@pytest.mark.parametrize(
    ("later_s", "change", "same"),
    [
        (0.0, {"task_type": None, "job_key": None}, True),
        (DAY_S - 1, {}, True),
        (DAY_S + 1, {}, False),
        (0.0, {"caller": "somebody else"}, False),
        (0.0, {"idempotency_key": "other"}, False),
        (0.0, {"idempotency_key": None}, False),
    ],
)
async def test_a_key_stands_for_the_job_that_answered_it_for_a_day(
    process, clock, key, later_s, change, same
):
    table = await answered_with_the_letter(process)
    clock.advance(later_s)
    new = replace(LETTER, **{"job_id": "job_9", "idempotency_key": key, "digest": "d1"} | change)
    if same:
        with pytest.raises(KeyReused):
            await table.accept(replace(new, digest="d2"), LIMITS)
    assert (await table.accept(new, LIMITS)).job_id == ("job_own" if same else "job_9")
    assert len(await table.list_jobs()) == (1 if same else 2)


async def test_a_key_stands_for_its_job_while_it_waits_and_may_then_be_reused(process, clock):
    table = await process()
    new = replace(LETTER, idempotency_key="key", digest="d1")
    await table.accept(new, LIMITS)
    clock.advance(10 * DAY_S)
    assert (
        await table.accept(replace(new, job_id="job_2", task_type=None), LIMITS)
    ).job_id == "job_1"
    await table.cancel("job_1", NEVER)
    await table.accept(replace(LETTER, job_id="job_9"), LIMITS)
    for later_s in (0.0, DAY_S - 1):
        clock.advance(later_s)
        assert (
            await table.accept(replace(new, job_id="job_10", digest="d2"), LIMITS)
        ).job_id == "job_9"
        await table.cancel("job_9", NEVER)


SETTINGS = Settings(
    auth=AuthSettings(keys=(KeySettings(name="guest", sha256="0" * 64),)),
    jobs=JobSettings(
        max_queued=10, max_stored_mib=100 * SIZE / MIB, caller_share_pct=50, internal_room_pct=20
    ),
)
OUTSIDE = limits_of(SETTINGS, Lane.EXTERNAL)


@pytest.mark.parametrize(
    ("limits", "kept", "refused", "says"),
    [
        (replace(LIMITS, max_queued=2), {"me": 2}, "me", "jobs.max_queued"),
        (replace(LIMITS, max_bytes=3 * SIZE + 10), {"me": 3}, "me", "jobs.max_stored_mib"),
        (replace(LIMITS, own_max_bytes=2 * SIZE + 1), {"you": 2, "me": 2}, "me", "forget=true"),
        (OUTSIDE, {"greedy": 5}, "greedy", "caller_share_pct of jobs.max_queued"),
        (OUTSIDE, {"greedy": 5, "othe": 3}, "third", "jobs.max_queued"),
        (
            limits_of(SETTINGS, Lane.INTERNAL),
            {"greedy": 5, "othe": 5},
            "third",
            "jobs.max_queued",
        ),
        (
            limits_of(SETTINGS.replace(auth=AuthSettings()), Lane.EXTERNAL),
            {"greedy": 10},
            "greedy",
            "jobs.max_queued",
        ),
    ],
)
async def test_no_more_jobs_wait_and_no_more_is_kept_than_allowed(
    process, limits, kept, refused, says
):
    table, number = await process(), 0
    for caller, count in kept.items():
        for _ in range(count):
            number += 1
            await table.accept(job(f"job_{number}", caller=caller), limits)
    with pytest.raises(QueueFull) as full:
        await table.accept(job("job_x", caller=refused), limits)
    assert says in full.value.for_owner().message
    assert "jobs." not in full.value.message
    assert len(await table.list_jobs(limit=100)) == number


async def test_a_caller_that_keeps_its_share_is_refused_until_it_forgets_a_job(process):
    table = await process()
    share = replace(LIMITS, own_max_bytes=2 * SIZE)
    await table.accept(job("job_1"), share)
    await done(table, 1, JobEnd(state=JobState.COMPLETED, result=b"x" * 2 * SIZE))
    assert not await table.remove("job_2")
    with pytest.raises(QueueFull, match="forget=true"):
        await table.accept(job("job_2"), share)
    assert await table.remove("job_1")
    await table.accept(job("job_2"), share)
    assert not await table.remove("job_2")


async def test_a_message_waits_from_the_end_of_its_job_until_it_is_told(process, clock):
    table = await process()
    for n, url in enumerate(("http://hook.lan/s3cret", None, None), 1):
        await table.accept(job(f"job_{n}", webhook_url=url), LIMITS)
    assert await table.deliveries(10) == ()
    for number in (1, 2):
        await done(table, number)
    table = await process()
    (delivery,) = await table.deliveries(10)
    assert (delivery.job_id, delivery.url, delivery.state, delivery.due_wall_s) == (
        "job_1",
        "http://hook.lan/s3cret",
        "completed",
        WALL,
    )
    assert await table.note_delivery("job_1", "waiting", 1, WALL + 5)
    assert [(again.attempts, again.due_wall_s) for again in await table.deliveries(10)] == [
        (1, WALL + 5)
    ]
    clock.advance(10 * DAY_S)
    assert [await table.forget(clock.wall() - 7 * DAY_S) for _ in range(2)] == [True, False]
    assert {record.job_id for record in await table.list_jobs()} == {"job_1", "job_3"}
    assert [
        await table.note_delivery("job_1", "delivered", attempts, None) for attempts in (2, 3)
    ] == [True, False]
    assert await table.deliveries(10) == ()
    assert (await table.find("job_1")).webhook == "delivered"
    assert await table.forget(clock.wall() - 7 * DAY_S)


async def test_every_way_to_an_end_has_its_message(process):
    table = await process()
    for n in range(1, 4):
        await table.accept(job(f"job_{n}", webhook_url="http://hook.lan/"), LIMITS)
    await table.cancel("job_1", NEVER)
    await table.claim(3)
    table.note_dispatch(3)
    await done(table, 2)
    table = await process()
    await recovered(table, requeue=False)
    states = {delivery.job_id: delivery.state for delivery in await table.deliveries(10)}
    assert states == {
        "job_1": JobState.CANCELLED,
        "job_2": JobState.COMPLETED,
        "job_3": JobState.FAILED,
    }
