"""The GPU for other programs over HTTP: who may have it, what is asked and answered, and how a
lease ends that lives as long as a connection.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from typing import Any, Self, get_args

import pytest

from hearth.api.leases import LOST_AFTER_MS, SIGN_OF_LIFE_S
from hearth.api.request import CONNECTION, DISCONNECTED
from hearth.config.settings import AuthSettings, GpuSettings
from hearth.events import GpuLeaseEnded, GpuLeaseTaken
from hearth.execution.gpu_leases import MAX_LEASES, LeaseSource
from hearth.types import DAY_S
from tests.api.house import ADMIN_KEY, KEYS, LOW_KEY, HttpHouse
from tests.storage.memory import Disk
from tests.support.fake_ollama import FakeModel
from tests.support.house import settle, within
from tests.support.http import Caller, Got, answer_to, drive, http_scope
from tests.support.keys import key_of
from tests.support.patience import in_time, until
from tests.support.virtual_time import LoopClock, sleep_until

LEASES = "/llm/gpu/leases"
GAMER_KEY = "hearth_gamer"
RENDER_KEY = "hearth_render"
GAMER = key_of("gamer", GAMER_KEY, may_lease=True)
RENDER = key_of("render", RENDER_KEY, may_lease=True)
JSON = {"content_type": "application/json"}
FREE = {"state": "free", "to": None, "mib": None, "since": None, "until": None}


def empty_house() -> HttpHouse:
    """Nothing is in the memory of its GPU, so a lease is granted at once."""
    return HttpHouse(
        FakeModel(name="m"),
        keys=(*KEYS, GAMER, RENDER),
        gpu=GpuSettings(home_model="", vram_gb=24.0),
    )


in_empty_house = within(empty_house)


def house_with_a_slow_disk() -> HttpHouse:
    disk = Disk()
    disk.latency_s = 1.0
    clock = LoopClock()
    documents = disk.tables(clock).documents
    return HttpHouse("m", keys=(*KEYS, GAMER), clock=clock, documents=documents)


async def take(house: HttpHouse, key: str = GAMER_KEY, **asked: Any) -> Got:
    return await house.ask("POST", LEASES, asked, key=key, **JSON)


async def state_of(house: HttpHouse) -> Any:
    return (await house.ask("GET", "/llm/gpu/status", peer="10.0.0.9")).json


def ends(house: HttpHouse) -> list[str]:
    return [event.why for event in house.events.of(GpuLeaseEnded)]


class Staying:
    """A caller who stays until it leaves, in process; `lines` are what it was sent."""

    def __init__(self, house: HttpHouse, path: str, body: Mapping[str, Any], key: str) -> None:
        self.lines: list[dict[str, Any]] = []
        self.status = 0
        self.may_read = asyncio.Event()
        self.may_read.set()
        headers = (
            (b"host", b"localhost:8411"),
            (b"content-type", b"application/json"),
            (b"authorization", f"Bearer {key}".encode()),
        )
        self.scope = http_scope("POST", path, headers, "127.0.0.1")
        self.ended = asyncio.ensure_future(
            drive(house.app, self.scope, json.dumps(body).encode() if body else b"", self._take)
        )

    @classmethod
    async def of(
        cls, house: HttpHouse, key: str = GAMER_KEY, path: str = f"{LEASES}/hold", **body: Any
    ) -> Self:
        staying = cls(house, path, body, key)
        await settle()
        return staying

    async def _take(self, message: Any) -> None:
        await self.may_read.wait()
        self.status = message.get("status", self.status)
        self.lines += map(json.loads, message.get("body", b"").splitlines())

    @property
    def states(self) -> list[str]:
        return [line["state"] for line in self.lines]

    async def leave(self) -> None:
        self.scope[DISCONNECTED].set_result(None)
        await asyncio.wait({self.ended})


@in_empty_house
async def test_a_lease_is_taken_listed_renewed_and_ended(house):
    wall = house.clock.wall()
    got = await take(house, gb=8, for_s=60, wait_s=1, reason="Blender")
    lease = {
        "id": got.json["id"],
        "mib": 8192.0,
        "reason": "Blender",
        "source": "api",
        "caller": "gamer",
        "since": wall,
        "until": wall + 60,
        "granted": True,
    }
    assert (got.status, got.json) == (201, lease)
    one = f"{LEASES}/{lease['id']}"
    assert (await house.ask("GET", LEASES, key=GAMER_KEY)).json == {"leases": [lease]}
    await sleep_until(50.0)
    renewed = await house.ask("PUT", one, {"for_s": 600}, key=GAMER_KEY, **JSON)
    assert (renewed.status, renewed.json) == (200, lease | {"until": wall + 650})
    gone = await house.ask("DELETE", one, key=GAMER_KEY)
    assert (gone.status, gone.json) == (200, {"ended": [lease["id"]]})
    assert (await house.ask("GET", LEASES, key=GAMER_KEY)).json == {"leases": []}
    assert ends(house) == ["released"]


@in_empty_house
async def test_without_a_body_it_is_all_memory_for_an_hour(house):
    got = await house.ask("POST", LEASES, key=GAMER_KEY)
    assert (got.status, got.json["mib"], got.json["reason"]) == (201, None, "")
    assert got.json["until"] - got.json["since"] == 3600
    await sleep_until(3599.0)
    assert ends(house) == []
    await sleep_until(3601.0)
    assert ends(house) == ["expired"]


@in_empty_house
async def test_a_lease_by_an_id_of_ones_own_is_taken_once_and_then_renewed(house):
    first = await take(house, id="living-room", for_s=60, wait_s=1, reason="film")
    await sleep_until(10.0)
    second = await take(house, id="living-room", for_s=60, wait_s=1, reason="film")
    assert (first.status, second.status) == (201, 200)
    assert second.json == first.json | {"until": first.json["until"] + 10}
    assert len(house.events.of(GpuLeaseTaken)) == 1
    await house.ask("DELETE", f"{LEASES}/living-room", key=GAMER_KEY)
    assert (await house.ask("DELETE", f"{LEASES}/living-room", key=GAMER_KEY)).status == 404


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gb": 8, "mib": 8192}, "body: send gb or mib, not both"),
        ({"gb": 0}, "gb: Input should be greater than 0"),
        ({"gb": -1}, "gb: Input should be greater than 0"),
        ({"mib": "8192"}, "mib: Input should be a valid number"),
        ({"for_s": 0}, "for_s: Input should be greater than 0"),
        ({"for_s": DAY_S + 1}, "for_s: Input should be less than or equal to 86400"),
        ({"for_s": True}, "for_s: Input should be a valid number"),
        ({"wait_s": 601}, "wait_s: Input should be less than or equal to 600"),
        ({"wait_s": -1}, "wait_s: Input should be greater than or equal to 0"),
        ({"reason": "x" * 201}, "reason: String should have at most 200 characters"),
        ({"reason": "two\nlines"}, "reason: must be one line of printable text"),
        ({"id": "Living Room"}, "id: String should match pattern"),
        ({"id": "games:1"}, "id: String should match pattern"),
        ({"id": ""}, "id: String should match pattern"),
        ({"id": "hold"}, "id: hold is an address; choose another id"),
        ({"hours": 2}, "hours: unknown field; leave it out"),
    ],
)
def test_what_is_not_understood_takes_no_lease_and_is_named(asked, said):
    @in_empty_house
    async def run(house: HttpHouse) -> None:
        got = await house.ask("POST", LEASES, asked, key=GAMER_KEY, **JSON)
        assert (got.status, said in got.error) == (400, True)
        held = await house.ask("POST", f"{LEASES}/hold", asked, key=GAMER_KEY, **JSON)
        unknown = asked.keys() & {"for_s", "wait_s"}
        assert held.status == 400
        assert ("unknown field" if unknown else said) in held.error
        assert house.events.of(GpuLeaseTaken) == []

    run()


@pytest.mark.parametrize("body", [b"{", b"[]", b'"all"', b'{"gb": NaN}', b'{"gb": 1e999}'])
@pytest.mark.parametrize("path", [LEASES, f"{LEASES}/hold"])
def test_what_is_no_json_object_takes_no_lease(path, body):
    @in_empty_house
    async def run(house: HttpHouse) -> None:
        assert (await house.ask("POST", path, body, key=GAMER_KEY, **JSON)).status == 400
        big = b'{"reason": "%b"}' % (b"x" * 70_000)
        assert (await house.ask("POST", path, big, key=GAMER_KEY, **JSON)).status == 413
        assert house.events.of(GpuLeaseTaken) == []

    run()


@in_empty_house
async def test_more_than_the_gpu_has_is_409_and_all_of_it_is_not(house):
    for path in (LEASES, f"{LEASES}/hold"):
        got = await house.ask("POST", path, {"gb": 25}, key=GAMER_KEY, **JSON)
        assert got.status == 409
        assert "a lease of 25.0 GiB is more than the GPU has (24.0 GiB)" in got.error
    assert (await take(house, gb=24)).status == 201


@pytest.mark.parametrize(
    ("key", "status"),
    [(None, 401), ("hearth_wrong", 401), (LOW_KEY, 403), (GAMER_KEY, 201), (ADMIN_KEY, 201)],
)
def test_a_lease_is_for_admins_and_for_keys_with_may_lease(key, status):
    @in_empty_house
    async def run(house: HttpHouse) -> None:
        got = await house.ask("POST", LEASES, {}, key=key, **JSON)
        assert got.status == status
        if status != 201:
            for method, path in (
                ("GET", LEASES),
                ("DELETE", LEASES),
                ("POST", f"{LEASES}/hold"),
                ("PUT", f"{LEASES}/x"),
                ("DELETE", f"{LEASES}/x"),
            ):
                assert (await house.ask(method, path, key=key)).status == status
        if status == 403:
            assert "`may_lease: true`" in got.error
            far = await house.ask("GET", LEASES, key=key, peer="192.168.1.9")
            assert far.error.endswith("a key with this right, or an admin's")

    run()


@within(HttpHouse)
async def test_without_keys_this_machine_may_take_a_lease_and_no_other(house):
    assert (await house.ask("POST", LEASES, {}, **JSON)).json["caller"] == "local"
    assert (await house.ask("POST", LEASES, {}, peer="10.0.0.9", **JSON)).status == 401
    assert (await house.ask("POST", LEASES, {}, origin="http://evil.example", **JSON)).status == 403


@in_empty_house
async def test_a_caller_sees_and_ends_its_own_leases_and_an_admin_all(house):
    game = (await take(house, reason="a game", id="game")).json
    await take(house, RENDER_KEY, gb=4, id="scene")
    for method, body in (("PUT", {"for_s": 5}), ("DELETE", b"")):
        got = await house.ask(method, f"{LEASES}/game", body, key=RENDER_KEY, **JSON)
        assert (got.status, got.error) == (404, "there is no such lease")
    clash = await take(house, RENDER_KEY, id="game", for_s=5)
    assert (clash.status, "another caller" in clash.error) == (409, True)
    assert (await house.ask("GET", LEASES, key=GAMER_KEY)).json == {"leases": [game]}
    seen = (await house.ask("GET", LEASES, key=ADMIN_KEY)).json["leases"]
    assert [lease["id"] for lease in seen] == ["game", "scene"]
    renewed = await take(house, ADMIN_KEY, id="game", for_s=60)
    assert (renewed.status, renewed.json["caller"]) == (200, "gamer")
    ended = await house.ask("DELETE", LEASES, key=RENDER_KEY)
    assert ended.json == {"ended": ["scene"]}
    await take(house, RENDER_KEY, id="scene")
    assert (await house.ask("DELETE", LEASES, key=ADMIN_KEY)).json == {"ended": ["game", "scene"]}
    assert ends(house) == ["released", "owner", "owner"]
    assert (await house.ask("DELETE", LEASES, key=ADMIN_KEY)).json == {"ended": []}


@in_empty_house
async def test_there_is_a_limit_to_the_number_of_leases(house):
    for _ in range(MAX_LEASES - 1):
        await take(house, mib=1)
    holding = await Staying.of(house)
    assert holding.states == ["taken", "granted"]
    for path in (LEASES, f"{LEASES}/hold"):
        got = await house.ask("POST", path, key=GAMER_KEY)
        assert (got.status, f"{MAX_LEASES} leases are held" in got.error) == (409, True)
    house.gateway.leases.take(reason="", source="games", lease_id="games:1")  # a watch's own
    await holding.leave()
    assert (await take(house)).status == 201


@in_empty_house
async def test_the_state_of_the_gpu_is_open_to_all_and_names_no_caller(house):
    wall = house.clock.wall()
    assert await state_of(house) == FREE
    await take(house, gb=8, for_s=60, reason="secret")
    assert (await state_of(house))["state"] == "yielding"
    await settle()
    yielded = {"state": "yielded", "to": "another program", "mib": 8192.0, "since": wall}
    assert await state_of(house) == yielded | {"until": wall + 60}
    house.gateway.leases.take(reason="Doom", source="games", lease_id="games:1", mib=1024.0)
    await settle()
    both = {"to": "another program, a game", "mib": 9216.0, "until": None}
    assert await state_of(house) == yielded | both
    await take(house, for_s=5)
    assert (await state_of(house))["mib"] is None
    assert house.gateway.leases.end("games:1", "released")
    assert (await state_of(house))["until"] == wall + 60
    await house.ask("DELETE", LEASES, key=ADMIN_KEY)
    assert await state_of(house) == FREE
    assert (await house.ask("POST", "/llm/gpu/status", key=ADMIN_KEY)).status == 405


@in_empty_house
async def test_leases_of_more_than_the_gpu_has_are_all_of_it(house):
    await take(house, gb=20)
    assert (await state_of(house))["mib"] == 20 * 1024.0
    await take(house, gb=20)
    assert (await state_of(house))["mib"] is None


@pytest.mark.parametrize(("wait_s", "granted"), [(0, False), (1, False), (60, True)])
def test_the_answer_waits_until_the_memory_is_free_or_for_as_long_as_was_asked(wait_s, granted):
    @within(lambda: HttpHouse(FakeModel(name="m", unload_s=5.0), keys=(GAMER,)))
    async def run(house: HttpHouse) -> None:
        house.ollama.appear("m:latest")
        await house.worker.watch.look()
        began_at = house.now
        got = await take(house, wait_s=wait_s)
        assert (got.status, got.json["granted"]) == (201, granted)
        if granted:
            assert 5.0 < house.now - began_at < 7.0
        else:
            assert house.now - began_at == wait_s
        await sleep_until(60.0)

    run()


@within(lambda: HttpHouse("m", keys=(GAMER, *KEYS)))
async def test_a_lease_that_is_ended_during_the_wait_for_it_is_409(house):
    waiting = await Staying.of(house, path=LEASES, wait_s=600, id="film")
    await house.ask("DELETE", f"{LEASES}/film", key=ADMIN_KEY)
    await waiting.ended
    assert waiting.status == 409
    await sleep_until(60.0)


@pytest.mark.parametrize(("name", "why"), [(None, ["holder_gone"]), ("own", [])])
def test_who_leaves_before_the_answer_has_no_lease_but_by_an_id_of_its_own(name, why):
    @within(lambda: HttpHouse("m", keys=(GAMER,)))
    async def run(house: HttpHouse) -> None:
        waiting = await Staying.of(house, path=LEASES, wait_s=600, id=name)
        assert not waiting.ended.done()
        await waiting.leave()
        assert ends(house) == why
        await sleep_until(60.0)  # until what is in the way is unloaded

    run()


@within(lambda: HttpHouse(FakeModel(name="m", unload_s=5.0), keys=(GAMER, *KEYS)))
async def test_the_status_says_who_has_the_gpu_and_what_waits_and_names_no_id(house):
    async def leases() -> Any:
        status = await house.ask("GET", "/llm/queue/status", key=LOW_KEY)
        assert status.status == 200
        return status.json["leases"]

    nothing = {"waiting": 0, "in_the_way": [], "held": []}
    assert await leases() == FREE | nothing
    house.ollama.appear("m:latest")
    await house.worker.watch.look()
    lease = (await take(house, for_s=60, reason="Doom", id="game")).json
    await house.begin({"model": "m", "prompt": "hi"}, path="/api/generate", key=GAMER_KEY)
    shown = await leases()
    assert shown["held"] == [{name: lease[name] for name in lease if name != "id"}]
    assert (shown["state"], shown["in_the_way"], shown["waiting"]) == ("yielding", ["m:latest"], 1)
    await sleep_until(10.0)
    shown = await leases()
    assert (shown["state"], shown["in_the_way"], shown["waiting"]) == ("yielded", [], 1)
    await house.ask("DELETE", LEASES, key=GAMER_KEY)
    assert await leases() == FREE | nothing


@pytest.mark.parametrize("source", get_args(LeaseSource))
def test_whatever_takes_a_lease_has_a_word_and_is_not_renewed_as_another(source):
    @in_empty_house
    async def run(house: HttpHouse) -> None:
        house.gateway.leases.take(reason="", source=source, lease_id="one")
        assert (await state_of(house))["to"] in {
            *("another program", "other programs", "a game", "ComfyUI", "sleep")
        }
        got = await house.ask("PUT", f"{LEASES}/one", {}, key=ADMIN_KEY, **JSON)
        assert got.status == (200 if source == "api" else 409)

    run()


@in_empty_house
async def test_a_held_lease_says_how_it_is_and_ends_with_its_connection(house):
    holding = await Staying.of(house, gb=8, reason="a render")
    first, then = holding.lines
    assert (holding.status, first["state"], first["granted"]) == (200, "taken", False)
    assert (first["source"], first["until"], first["mib"]) == ("connection", None, 8192.0)
    assert then == first | {"state": "granted", "granted": True}
    await sleep_until(2.5 * SIGN_OF_LIFE_S)
    assert holding.states == ["taken", *["granted"] * 3]
    await holding.leave()
    assert (ends(house), await state_of(house)) == (["holder_gone"], FREE)


@in_empty_house
async def test_a_held_lease_has_no_end_to_move_and_its_id_cannot_be_taken(house):
    holding = await Staying.of(house)
    name = holding.lines[0]["id"]
    put = await house.ask("PUT", f"{LEASES}/{name}", {}, key=GAMER_KEY, **JSON)
    post = await take(house, id=name)
    watched = house.gateway.leases.take(reason="", source="games", lease_id="games:1")
    other = await house.ask("PUT", f"{LEASES}/{watched.id}", {}, key=ADMIN_KEY, **JSON)
    assert [put.status, post.status, other.status] == [409, 409, 409]
    assert "as long as its connection" in put.error
    assert "Hearth has taken this lease itself" in other.error
    await holding.leave()


@pytest.mark.parametrize(
    ("key", "why"), [(GAMER_KEY, "released"), (ADMIN_KEY, "owner")], ids=["its caller", "an admin"]
)
def test_a_held_lease_that_is_ended_ends_its_connection_with_the_reason(key, why):
    @in_empty_house
    async def run(house: HttpHouse) -> None:
        holding = await Staying.of(house)
        name = holding.lines[0]["id"]
        assert (await house.ask("DELETE", f"{LEASES}/{name}", key=key)).status == 200
        got = await holding.ended
        assert (got.complete, holding.lines[-1]) == (
            True,
            {"state": "ended", "id": name, "why": why},
        )
        assert ends(house) == [why]

    run()


@in_empty_house
async def test_a_held_lease_ends_after_a_day_though_its_connection_lives(house):
    holding = await Staying.of(house)
    await sleep_until(DAY_S - 1)
    assert not holding.ended.done()
    await holding.ended
    assert (ends(house), holding.lines[-1]["why"]) == (["expired"], "expired")


@in_empty_house
async def test_a_held_lease_ends_where_its_key_is_removed(house):
    holding = await Staying.of(house)
    other = await Staying.of(house, RENDER_KEY)
    house.reload(auth=AuthSettings(keys=(*KEYS, RENDER)))
    await holding.ended
    assert holding.lines[-1]["why"] == "owner"
    assert not other.ended.done()
    await other.leave()


@in_empty_house
async def test_a_held_lease_goes_on_while_its_key_has_the_right(house):
    holding = await Staying.of(house)
    with_other_rights = key_of("gamer", GAMER_KEY, may_lease=True, local_only=True)
    house.reload(auth=AuthSettings(keys=(*KEYS, with_other_rights)))
    await settle()
    assert not holding.ended.done()
    house.reload(auth=AuthSettings(keys=(*KEYS, key_of("gamer", GAMER_KEY))))
    await holding.ended
    assert holding.lines[-1]["why"] == "owner"


@within(house_with_a_slow_disk)
async def test_a_held_lease_that_is_ended_before_its_answer_has_begun_says_so(house):
    holding = await Staying.of(house, id="a-game")
    assert (await house.ask("DELETE", f"{LEASES}/a-game", key=ADMIN_KEY)).status == 200
    await holding.ended
    assert (holding.status, [line["why"] for line in holding.lines]) == (200, ["owner"])


@in_empty_house
async def test_who_is_slow_to_hear_of_the_end_of_a_lease_does_not_end_the_next_one(house):
    slow = await Staying.of(house, id="a-game")
    slow.may_read.clear()
    await house.ask("DELETE", f"{LEASES}/a-game", key=GAMER_KEY)
    await settle()
    next_one = await Staying.of(house, id="a-game")
    await next_one.leave()
    assert ends(house) == ["released", "holder_gone"]
    await take(house, id="a-game")
    slow.may_read.set()
    await slow.ended
    assert [*house.gateway.leases.leases] == ["a-game"]


@in_empty_house
async def test_who_holds_a_lease_is_told_that_the_gateway_stops_and_can_return_to_the_next(house):
    holding = await Staying.of(house, id="a-game")
    await take(house, id="a-film")
    await house.gateway.stop(0.0)
    await holding.ended
    assert (holding.lines[-1]["why"], ends(house)) == ("stopped", [])
    assert list(house.gateway.leases.leases) == ["a-game", "a-film"]
    for path in (LEASES, f"{LEASES}/hold"):
        assert (await house.ask("POST", path, key=GAMER_KEY)).status == 503
    back = await house.ask("POST", f"{LEASES}/hold", {"id": "a-game"}, key=GAMER_KEY, **JSON)
    assert back.status == 503


@in_empty_house
async def test_connections_with_one_id_hold_one_lease_until_the_last_is_gone(house):
    first = await Staying.of(house, id="a-game", gb=4)
    second = await Staying.of(house, id="a-game", gb=8)
    await first.leave()
    assert (ends(house), (await state_of(house))["mib"]) == ([], 8192.0)
    for key, status in ((RENDER_KEY, 409), (ADMIN_KEY, 200)):
        third = await Staying.of(house, key, id="a-game", gb=8)
        assert third.status == status
        await third.leave()
    assert (await take(house, id="a-game")).status == 409
    await second.leave()
    assert ends(house) == ["holder_gone"]
    await take(house, id="a-game")
    other = await Staying.of(house, id="a-game")
    assert other.status == 409


class Connection(asyncio.BaseTransport):
    """What a request came over."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__({"socket": connected})


@in_empty_house
async def test_the_kernel_gives_up_a_holder_whose_machine_has_vanished_and_no_other(house):
    with socket.socket() as connected:
        for path, lost_after_ms in ((LEASES, 0), (f"{LEASES}/hold", LOST_AFTER_MS)):
            asking = Staying(house, path, {}, GAMER_KEY)
            asking.scope[CONNECTION] = Connection(connected)
            await settle()
            found_ms = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert found_ms == lost_after_ms
        await asking.leave()


async def over_a_socket(url: str) -> Caller:
    """A caller who was told that it has the GPU."""
    caller = await Caller.to(url)
    await caller.post(f"{LEASES}/hold", b"{}")
    status, headers = await caller.head()
    assert (status, headers["content-type"]) == (200, "application/x-ndjson")
    assert b'"state":"' in await caller.reader.readuntil(b"}\n")
    return caller


@pytest.mark.parametrize("how", ["reset", "closed", "half closed"])
async def test_a_connection_that_ends_in_any_way_ends_its_lease(house, url, how):
    async with in_time():
        caller = await over_a_socket(url)
        if how == "reset":
            caller.leave()
        elif how == "closed":
            caller.writer.close()
        else:
            caller.writer.write_eof()
        await until(lambda: ends(house) == ["holder_gone"])
        caller.leave()


@pytest.mark.parametrize("sent", ["games:steam:1", "games%3Asteam%3a1"])
async def test_the_id_of_a_game_is_found_in_an_address_as_clients_write_it(house, url, sent):
    house.gateway.leases.take(reason="", source="games", lease_id="games:steam:1")
    request = f"DELETE {LEASES}/{sent} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    said = await answer_to(url, request.encode())
    assert (b" 200 " in said, ends(house)) == (True, ["owner"])
