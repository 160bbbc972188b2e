"""Keys over HTTP: who uses the gateway and how much, and keys that are made, rotated and revoked in
the owner's file.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from hearth.admission.auth import digest_of
from hearth.api.keys import NewKeyBody
from hearth.config.loading import load_gateway_config
from hearth.config.settings import (
    CallerLimits,
    KeySettings,
    QueueSettings,
    RateLimitSettings,
    StorageSettings,
)
from hearth.events import KeyCreated, KeyRevoked, KeyRotated
from tests.api.house import ADMIN_KEY, HOUSE_KEY, KEYS, LOW_KEY, HttpHouse
from tests.support.home import FRIEND_KEY, LLAMA, house_settings, open_home
from tests.support.home import KEYS as HOME_KEYS
from tests.support.http import Got
from tests.support.keys import key_of
from tests.support.patience import in_time

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
JSON = {"content_type": "application/json"}


def written(file: Path, keys: tuple[KeySettings, ...] = KEYS, rest: str = "") -> None:
    """The house's configuration as an owner writes it."""
    lines = [
        f"    - name: {key.name}  # whose\n      sha256: {key.sha256}\n      lane: {key.lane}\n"
        + ("      admin: true\n" if key.admin else "")
        for key in keys
    ]
    file.write_text(f"# mine\n{rest}auth:\n  keys:\n" + "".join(lines) if keys else "# mine\n{}\n")


class KeyHouse(HttpHouse):
    """A house whose file is written by hand."""

    def __init__(self, file: Path, keys: tuple[KeySettings, ...] = KEYS, **more: Any) -> None:
        super().__init__(keys=keys, source=file, **more)
        self.file = file
        written(file, keys)

    async def order(self, name: str = "", body: Any = None, key: str | None = ADMIN_KEY) -> Got:
        path = "/llm/admin/keys" + (f"/{name}" if name else "")
        return await self.ask("POST", path, body, key=key, **JSON)

    async def answers(self, key: str | None) -> int:
        return (await self.ask("GET", "/llm/key", key=key)).status

    @property
    def kept(self) -> dict[str, KeySettings]:
        return {key.name: key for key in load_gateway_config(self.file).settings.auth.keys}


@pytest.fixture
async def keys(tmp_path: Path) -> AsyncIterator[KeyHouse]:
    async with KeyHouse(tmp_path / "hearth.yaml") as house:
        yield house


async def test_a_new_key_is_in_force_with_its_answer_and_its_secret_is_nowhere_else(keys):
    got = await keys.order("", {"name": "n8n", "may_lease": True, "models": ["m*"]})
    secret = got.json["key"]
    assert (got.status, got.headers["cache-control"]) == (201, "no-store")
    assert got.json == {
        "name": "n8n",
        "key": secret,
        "in_force": True,
        "file": str(keys.file),
        "problems": [],
    }
    assert await keys.answers(secret) == 200
    kept = keys.kept["n8n"]
    assert (kept.sha256, kept.may_lease, kept.models) == (digest_of(secret), True, ("m*",))
    assert keys.file.read_text().startswith("# mine\n")
    (event,) = keys.events.of(KeyCreated)
    assert (event.caller, event.by, event.admin) == ("n8n", "owner", False)
    listed = (await keys.ask("GET", "/llm/admin/keys", key=ADMIN_KEY)).body
    said = repr([asdict(each) for each in keys.events.all]) + keys.file.read_text()
    assert (secret in said, secret.encode() in listed, kept.sha256.encode() in listed) == (
        False,
        False,
        False,
    )


async def test_a_rotated_key_is_refused_from_then_on_and_the_new_one_has_its_rights(keys):
    before = keys.kept["house"]
    got = await keys.order("rotate", {"name": "house"})
    assert (got.status, got.json["in_force"]) == (200, True)
    assert (await keys.answers(HOUSE_KEY), await keys.answers(got.json["key"])) == (401, 200)
    assert keys.kept["house"] == before.replace(sha256=digest_of(got.json["key"]))
    (event,) = keys.events.of(KeyRotated)
    assert (event.caller, event.by) == ("house", "owner")


async def test_a_revoked_key_is_refused_from_then_on(keys):
    got = await keys.order("revoke", {"name": "low"})
    assert (got.status, got.json["in_force"], "key" in got.json) == (200, True, False)
    assert (await keys.answers(LOW_KEY), "low" in keys.kept) == (401, False)
    assert [each.caller for each in keys.events.of(KeyRevoked)] == ["low"]


@pytest.mark.parametrize(
    ("name", "body", "status", "said"),
    [
        ("", {"name": "owner"}, 409, "has a key of that name already"),
        ("", {"name": "Küche"}, 400, "name: use 1 to 64 letters"),
        ("", {"name": "a\nb"}, 400, "name: "),
        ("", {"name": ""}, 400, "name: "),
        ("", {"name": 7}, 400, "name: "),
        ("", {}, 400, "name: Field required"),
        ("", {"name": "a", "sha256": "a" * 64}, 400, "sha256: unknown field"),
        ("", {"name": "a", "admin": "yes"}, 400, "admin: "),
        ("", {"name": "a", "lane": "fast"}, 400, "lane: "),
        ("", {"name": "a", "models": ["two words"]}, 400, "models"),
        ("", {"name": "a", "users_from": "x-api-key"}, 400, "users_from: "),
        ("rotate", {"name": "nobody"}, 404, "no key of that name: house, low, owner"),
        ("rotate", {"name": "nobody", "force": True}, 400, "force: unknown field"),
        ("revoke", {"name": "x' OR 1=1"}, 404, "no key of that name"),
        ("revoke", {"name": "x" * 300}, 400, "name: "),
        ("revoke", {"name": "low", "force": "yes"}, 400, "force: "),
    ],
)
async def test_what_cannot_be_is_refused_and_the_file_stays(keys, name, body, status, said):
    before = keys.file.read_text()
    got = await keys.order(name, body)
    assert (got.status, said in got.error, keys.file.read_text()) == (status, True, before), (
        got.body
    )


@pytest.mark.parametrize("name", ["", "rotate", "revoke"])
async def test_keys_are_for_admins_and_not_for_other_sites(keys, name):
    before = keys.file.read_text()
    body = {"name": "low"}
    assert (await keys.order(name, body, key=LOW_KEY)).status == 403
    path = "/llm/admin/keys" + (f"/{name}" if name else "")
    evil = {"origin": "http://evil.example"}
    assert (await keys.ask("POST", path, body, key=ADMIN_KEY, **JSON, **evil)).status == 403
    assert (await keys.ask("GET", "/llm/admin/keys", key=LOW_KEY)).status == 403
    assert keys.file.read_text() == before


async def test_an_admin_is_not_locked_out_by_accident(keys):
    refused = await keys.order("revoke", {"name": "owner"})
    assert (refused.status, "the key of owner itself" in refused.error) == (409, True)
    assert '"force": true' in refused.error
    made = await keys.order("", {"name": "second", "admin": True})
    second = made.json["key"]
    assert (await keys.order("revoke", {"name": "owner"}, key=second)).status == 200
    assert (await keys.order("revoke", {"name": "second"}, key=second)).status == 409
    forced = await keys.order("revoke", {"name": "second", "force": True}, key=second)
    assert (forced.status, sorted(keys.kept)) == (200, ["house", "low"])


async def test_two_admins_who_revoke_each_other_at_once_leave_one(keys):
    second = (await keys.order("", {"name": "second", "admin": True})).json["key"]
    both = await asyncio.gather(
        keys.order("revoke", {"name": "second"}), keys.order("revoke", {"name": "owner"}, second)
    )
    assert sorted(got.status for got in both) == [200, 409]
    assert len({"owner", "second"} & set(keys.kept)) == 1


async def test_the_first_key_has_to_be_that_of_an_admin(tmp_path):
    async with KeyHouse(tmp_path / "hearth.yaml", keys=()) as house:
        refused = await house.order("", {"name": "tv"}, key=None)
        assert (refused.status, "no admin rights" in refused.error) == (409, True)
        made = await house.order("", {"name": "me", "admin": True}, key=None)
        assert (made.status, made.json["in_force"]) == (201, True)
        assert (await house.answers(None), await house.answers(made.json["key"])) == (401, 200)


async def test_keys_that_are_made_at_once_are_all_there(keys):
    names = [f"caller-{number}" for number in range(8)]
    made = await asyncio.gather(*(keys.order("", {"name": name}) for name in names))
    assert [(got.status, got.json["in_force"]) for got in made] == [(201, True)] * 8
    assert {name: keys.kept[name].sha256 for name in names} == {
        got.json["name"]: digest_of(got.json["key"]) for got in made
    }
    same = await asyncio.gather(*(keys.order("", {"name": "same"}) for _ in range(4)))
    assert sorted(got.status for got in same) == [201, 409, 409, 409]


async def test_what_was_saved_by_hand_meanwhile_stays_and_comes_into_force(keys):
    written(keys.file, rest="queue: {max_external_depth: 7}\n")
    assert (await keys.order("", {"name": "tv"})).status == 201
    assert keys.gateway.settings.queue.max_external_depth == 7
    keys.file.write_text(keys.file.read_text() + "quue: {}\n")
    before = keys.file.read_text()
    got = await keys.order("", {"name": "pc"})
    assert (got.status, "nothing was changed" in got.error) == (422, True)
    assert ("quue" in got.json["problems"][0], "key" in got.json) == (True, False)
    assert keys.file.read_text() == before


async def test_a_file_that_cannot_be_edited_is_answered_with_what_to_do_by_hand(keys):
    keys.file.with_name(keys.file.name + ".new").mkdir()
    got = await keys.order("", {"name": "voice", "lane": "internal", "priority": "critical"})
    assert (got.status, "cannot be written" in got.error) == (409, True)
    assert got.json["command"] == (f"hearth key new voice --assistant --write --config {keys.file}")
    (entry,) = yaml.safe_load(got.json["lines"])["auth"]["keys"]
    assert entry["sha256"] == digest_of(got.json["key"])
    full = await keys.order("", {"name": "tv", "models": ["m"]})
    assert full.json["command"] == "", "no command can say so"
    rotated = await keys.order("rotate", {"name": "low"})
    assert rotated.json["lines"] == f'sha256: "{digest_of(rotated.json["key"])}"'
    assert rotated.json["command"] == f"hearth key rotate low --write --config {keys.file}"
    revoked = await keys.order("revoke", {"name": "low"})
    assert revoked.json["command"] == f"hearth key revoke low --config {keys.file}"
    assert keys.events.of(KeyCreated) == []


async def test_keys_in_brackets_are_left_to_their_owner(keys):
    keys.file.write_text(
        f"auth: {{keys: [{{name: owner, sha256: {KEYS[0].sha256}, admin: true}}]}}"
    )
    got = await keys.order("", {"name": "tv"})
    assert (got.status, "edit the file by hand" in got.error) == (409, True)
    assert digest_of(got.json["key"]) in got.json["lines"]


async def test_without_a_file_there_are_lines_and_how_to_make_one():
    async with HttpHouse() as house:
        body = {"name": "me", "admin": True}
        got = await house.ask("POST", "/llm/admin/keys", body, **JSON)
        assert (got.status, "hearth config example" in got.error) == (409, True)
        assert digest_of(got.json["key"]) in got.json["lines"]


async def test_the_list_says_what_is_left_of_each_limit(tmp_path):
    limits = RateLimitSettings(
        default=CallerLimits(requests_per_minute=10),
        callers={"low": CallerLimits(requests_per_minute=3, when_exceeded="wait")},
    )
    file = tmp_path / "hearth.yaml"
    paused = QueueSettings(paused_callers=("low",))
    async with KeyHouse(file, rate_limits=limits, queue=paused) as house:
        await house.begin(CHAT | {"model": "allowed"}, key=LOW_KEY)
        got = (await house.ask("GET", "/llm/admin/keys", key=ADMIN_KEY)).json
        rows = {row["name"]: row for row in got["keys"]}
        assert (got["file"], list(rows), got["others"]) == (
            str(file),
            ["owner", "house", "low"],
            [],
        )
        low = rows["low"]
        assert low["limits"]["requests_per_minute"] == {"used": 1, "limit": 3}
        assert low["limits"]["when_exceeded"] == "wait"
        assert rows["owner"]["limits"]["requests_per_minute"] == {"used": 0, "limit": 10}
        assert (rows["house"]["limits"], rows["house"]["lane"]) == (None, "internal")
        assert (low["last_seen_wall"] <= house.clock.wall(), rows["house"]["last_seen_wall"]) == (
            True,
            None,
        )
        assert (low["models"], low["admin"], low["usage"], low["budget"]) == (
            ["allowed*"],
            False,
            None,
            None,
        )
        own = (await house.ask("GET", "/llm/key", key=LOW_KEY)).json
        assert [row["paused"] for row in rows.values()] == [False, False, True]
        assert own == low | {"last_seen_wall": own["last_seen_wall"]}
        assert own["last_seen_wall"] > low["last_seen_wall"]
        assert len(own["sha256"]) == 8
        await house.ask("POST", "/llm/requests/cancel", key=LOW_KEY)


async def test_without_keys_there_is_the_local_caller():
    async with HttpHouse() as house:
        got = (await house.ask("GET", "/llm/admin/keys")).json
        assert (got["keys"], [row["name"] for row in got["others"]]) == ([], ["local"])
        own = (await house.ask("GET", "/llm/key")).json
        assert (own["name"], own["limits"], "lane" in own) == ("local", None, False)


async def test_usage_and_the_last_request_are_known_after_a_restart(tmp_path):
    gone = key_of("gone", "hearth_gone")
    database = StorageSettings(path=str(tmp_path / "hearth.db"), reserve_mib=0)
    settings = house_settings(keys=(*HOME_KEYS, gone)).replace(storage=database)
    async with open_home(settings, store=True) as home:
        for key in (FRIEND_KEY, FRIEND_KEY, "hearth_gone"):
            async with home.native(key) as client:
                await client.generate(LLAMA, "hi", options={"num_predict": 2})
        await home.idle()
    settings = house_settings(keys=HOME_KEYS).replace(storage=database)
    async with open_home(settings, store=True) as home, in_time():
        got = (await home.ask("GET", "/llm/admin/keys", key="hearth_admin")).json
        rows = {row["name"]: row for row in got["keys"]}
        usage = rows["friend"]["usage"]
        assert usage["24h"] == usage["30d"]
        assert (usage["24h"]["requests"], usage["24h"]["output_tokens"]) == (2, 4)
        assert rows["guest"]["usage"]["30d"]["requests"] == 0
        assert abs(rows["friend"]["last_seen_wall"] - home.gateway.clock.wall()) < 3600
        assert rows["guest"]["last_seen_wall"] is None
        assert [(row["name"], row["usage"]["30d"]["requests"]) for row in got["others"]] == [
            ("gone", 1)
        ]
        own = (await home.ask("GET", "/llm/key", key=FRIEND_KEY)).json
        assert own["usage"] == usage


def test_a_new_key_takes_every_right_of_the_configuration():
    taken = {name: field.annotation for name, field in NewKeyBody.model_fields.items()}
    del taken["force"]
    rights = {name: field.annotation for name, field in KeySettings.model_fields.items()}
    del rights["sha256"]
    assert taken == rights
    body = NewKeyBody(name="a")
    assert body.key("a" * 64) == KeySettings(name="a", sha256="a" * 64)
