"""`/llm/admin/keys`: who may use the gateway, with what is left of each limit, and the keys
themselves, which are made, rotated and revoked in the owner's file; `/llm/key`: one's own.

A secret is in one answer, never in a log, an event or an error.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Annotated

from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, Field

from hearth.admission.auth import digest_of
from hearth.admission.limits import COUNTED
from hearth.api.dependencies import Caller
from hearth.clock import new_api_key
from hearth.config import fields
from hearth.config.choices import KeepaliveShow
from hearth.config.key_edits import (
    NAME_ADVICE,
    NEW_NAME,
    add_key,
    digest_line,
    entry_of,
    lines_of,
    revoke_key,
    rotate_key,
)
from hearth.config.settings import KeySettings
from hearth.errors import (
    ConfigError,
    EditByHand,
    EditFailed,
    EditRefused,
    HearthError,
    StorageUnavailable,
)
from hearth.events import Event, KeyCreated, KeyRevoked, KeyRotated
from hearth.gateway import Gateway
from hearth.types import (
    HOUR_S,
    LOCAL_CALLER,
    SEVERAL_CALLERS,
    JsonDict,
    Lane,
    Priority,
    frozen,
)

KEYS_PATH = "/llm/admin/keys"
OWN_KEY_PATH = "/llm/key"
DIGEST_SHOWN = 8
"""Characters of a digest that tell keys apart."""
_NOTHING: JsonDict = dict.fromkeys(("requests", "failed", "prompt_tokens", "output_tokens"), 0)
_NEVER: JsonDict = {"24h": _NOTHING, "30d": _NOTHING, "last_end_wall_s": None}
_FORCE = 'send `"force": true`'
_NO_FILE = (
    "this gateway was started without a configuration file: make one with `hearth config example >"
    " config/llm_gateway.yaml`, put these lines into it, and start the gateway again"
)
_UNUSABLE = (
    "nothing was changed: the configuration file has problems, or would have them afterwards"
)


def _new_name(text: str) -> str:
    if NEW_NAME.fullmatch(text) is None:
        raise ValueError(NAME_ADVICE)
    return text


class NewKeyBody(BaseModel, extra="forbid"):
    """What `POST /llm/admin/keys` takes: the name of the caller, and its rights as in `auth.keys`.
    `force`: also where nobody could manage the gateway afterwards.
    """

    name: Annotated[str, AfterValidator(_new_name)]
    lane: Lane = Lane.EXTERNAL
    max_priority: fields.PriorityName = Priority.CRITICAL
    priority: fields.PriorityName = Priority.NORMAL
    models: fields.Items[fields.ModelName] = ()
    users_from: fields.HeaderName = ""
    admin: fields.Flag = False
    may_lease: fields.Flag = False
    may_set_mode: fields.Flag = False
    allow_cloud: fields.Flag = False
    local_only: fields.Flag = False
    daily_usd: fields.Usd | None = None
    keepalive_show: KeepaliveShow | None = None
    force: fields.Flag = False

    def key(self, sha256: str) -> KeySettings:
        """The entry of `auth.keys`."""
        rights = self.model_dump(exclude_unset=True, exclude={"force"})
        return KeySettings.model_validate({"sha256": sha256, **rights})


class RotateBody(BaseModel, extra="forbid", strict=True):
    """What `POST /llm/admin/keys/rotate` takes."""

    name: Annotated[str, Field(min_length=1, max_length=fields.MAX_NAME_CHARS)]


class RevokeBody(RotateBody):
    """What `POST /llm/admin/keys/revoke` takes.

    `force`: also the key that asks, and the last one of an admin.
    """

    force: bool = False


class KeyPages:
    """The handlers; each returns what its page shows."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def listed(self) -> JsonDict:
        """Every key and what its caller has used; `others`: who asked without one, or with one that
        is gone, in the last 30 days.
        """
        used = await self._used(None)
        keys = {key.name: key for key in self._gateway.settings.auth.keys}
        others = {*(used or ()), *(() if keys else (LOCAL_CALLER,))} - {*keys, SEVERAL_CALLERS}
        source = self._gateway.config.source
        return {
            "file": None if source is None else str(source),
            "keys": [self._shown(name, key, used) for name, key in keys.items()],
            "others": [self._shown(name, None, used) for name in sorted(others)],
        }

    async def own(self, caller: Caller) -> JsonDict:
        """The key that asks: its rights, and what it has used."""
        used = await self._used(caller.caller)
        keys = self._gateway.settings.auth.keys
        key = next((key for key in keys if key.name == caller.caller), None)
        return self._shown(caller.caller, key, used)

    async def create(self, asked: NewKeyBody, caller: Caller) -> JSONResponse:
        """Make a key, and put its digest into the configuration file.

        Raises EditRefused: there is one of that name, or nobody would be an admin.
        """
        secret = new_api_key()
        key = asked.key(digest_of(secret))
        edit = _Edit(
            run=partial(add_key, key=key, keep_admin=not asked.force),
            event=KeyCreated(at=self._now(), caller=key.name, by=caller.caller, admin=key.admin),
            digest=key.sha256,
            instead={"key": secret, "lines": lines_of(key)},
            command=_command_for(key),
        )
        return await self._carried_out(key.name, edit, status=201)

    async def rotate(self, asked: RotateBody, caller: Caller) -> JSONResponse:
        """Give a caller another secret; the old one is refused from now on.

        Raises KeyUnknown; EditRefused for a key from the environment.
        """
        secret = new_api_key()
        digest = digest_of(secret)
        edit = _Edit(
            run=partial(rotate_key, name=asked.name, sha256=digest),
            event=KeyRotated(at=self._now(), caller=asked.name, by=caller.caller),
            digest=digest,
            instead={"key": secret, "lines": digest_line(digest)},
            command=f"hearth key rotate {shlex.quote(asked.name)} --write",
        )
        return await self._carried_out(asked.name, edit)

    async def revoke(self, asked: RevokeBody, caller: Caller) -> JSONResponse:
        """Remove a key. Raises KeyUnknown; EditRefused where that would lock an admin out."""
        if asked.name == caller.caller and not asked.force:
            raise EditRefused(
                f"this request came with the key of {asked.name} itself: revoke it with another"
                f" admin key, or {_FORCE}"
            )
        edit = _Edit(
            run=partial(revoke_key, name=asked.name, keep_admin=not asked.force),
            event=KeyRevoked(at=self._now(), caller=asked.name, by=caller.caller),
            command=f"hearth key revoke {shlex.quote(asked.name)}",
        )
        return await self._carried_out(asked.name, edit)

    async def _carried_out(self, name: str, edit: _Edit, status: int = 200) -> JSONResponse:
        """Edit the file and put it in force, or say what is to be done by hand."""
        source = self._gateway.config.source
        if source is None:
            return _answer({"error": _NO_FILE, **edit.instead}, 409)
        try:
            await asyncio.to_thread(edit.run, source)
        except EditByHand as error:
            return _answer({"error": error.message, **edit.instead}, 409)
        except EditFailed as error:
            command = f"{edit.command} --config {shlex.quote(str(source))}" if edit.command else ""
            return _answer({"error": error.message, "command": command, **edit.instead}, 409)
        except ConfigError as error:
            return _answer({"error": _UNUSABLE, "problems": list(error.problems)}, 422)
        self._gateway.events.emit(edit.event)
        with suppress(HearthError):  # the file has it, and so has the next start
            await self._gateway.reload_file()
        digests = {key.name: key.sha256 for key in self._gateway.settings.auth.keys}
        in_force = digests.get(name) == edit.digest
        secret = {"key": edit.instead["key"]} if edit.instead else {}
        problems = [] if in_force else self._gateway.config_summary()["problems"]
        outcome = {"name": name, "in_force": in_force, "file": str(source), "problems": problems}
        return _answer(outcome | secret, status)

    def _now(self) -> float:
        return self._gateway.clock.monotonic()

    def _shown(
        self, name: str, key: KeySettings | None, used: dict[str, JsonDict] | None
    ) -> JsonDict:
        """What is known of a caller; its rights where it has a `key`."""
        usage = None if used is None else dict(used.get(name, _NEVER))
        ended = None if usage is None else usage.pop("last_end_wall_s")
        rights: JsonDict = {"name": name}
        if key is not None:
            rights = key.model_dump(mode="json") | {"sha256": key.sha256[:DIGEST_SHOWN]}
        return rights | {
            "last_seen_wall": self._gateway.seen.of(name) or ended,
            "paused": name in self._gateway.settings.queue.paused_callers,
            "limits": self._limits(name, key),
            "budget": self._budget(name, key),
            "usage": usage,
        }

    def _limits(self, name: str, key: KeySettings | None) -> JsonDict | None:
        """Those in force, with how much of each is used; None where none holds."""
        limiter = self._gateway.rate_limiter
        is_limited = limiter.limits(name) if key is None else key.lane is Lane.EXTERNAL
        if not is_limited:
            return None
        now = self._now()
        shown: JsonDict = {"when_exceeded": "wait" if limiter.waits(name) else "refuse"}
        for kind in COUNTED:
            usage = limiter.get_usage(name, now, kind)
            shown[f"{kind}_per_minute"] = {"used": usage.minute, "limit": usage.minute_limit}
            shown[f"{kind}_per_hour"] = {"used": usage.hour, "limit": usage.hour_limit}
        return shown

    def _budget(self, name: str, key: KeySettings | None) -> JsonDict | None:
        """What it has spent on Claude today; None for whom may not spend anything."""
        cloud = self._gateway.cloud
        if cloud is None or key is None or not key.allow_cloud:
            return None
        return dict(cloud.budget.by_caller().get(name, {"used_usd": 0.0, "limit_usd": None}))

    async def _used(self, caller: str | None) -> dict[str, JsonDict] | None:
        """By name; None where no log is kept, or it cannot be read now."""
        history = self._gateway.history
        if history is None:
            return None
        last_hour = int(self._gateway.clock.wall() // HOUR_S)
        with suppress(StorageUnavailable):
            return await history.by_caller(last_hour=last_hour, caller=caller)
        return None


@frozen
class _Edit:
    """An edit of the file, what is emitted once it is there, and the digest that the key then has.

    `instead`: what is answered where the owner has to make it by hand, by `command` where somebody
    may write the file who this process is not.
    """

    run: Callable[[Path], None]
    event: Event
    digest: str | None = None
    instead: JsonDict = field(default_factory=dict)
    command: str = ""


def _answer(content: JsonDict, status: int) -> JSONResponse:
    return JSONResponse(content, status_code=status, headers={"cache-control": "no-store"})


def _command_for(key: KeySettings) -> str:
    """The command that makes such a key; empty where it has rights that the command cannot name."""
    is_assistant = key.lane is Lane.INTERNAL and key.priority is Priority.CRITICAL
    sayable = {"name", "sha256", "lane", "admin", "may_lease", "may_set_mode"}
    if entry_of(key).keys() - sayable - ({"priority"} if is_assistant else set()):
        return ""
    options = {
        "--assistant": is_assistant,
        "--lane internal": key.lane is Lane.INTERNAL and not is_assistant,
        "--admin": key.admin,
        "--may-lease": key.may_lease,
        "--may-set-mode": key.may_set_mode,
    }
    chosen = [option for option, is_chosen in options.items() if is_chosen]
    return " ".join(("hearth key new", shlex.quote(key.name), *chosen, "--write"))
