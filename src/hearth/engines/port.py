"""What an engine is: one way to reach models, with its own wire.

`bootstrap` chooses the adapters; everybody else knows the port alone. The conformance suite in
`tests/engines` holds every implementation to it: an adapter before its server, the emulator, the
fake of the tests, and an echo that shows how little an engine needs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Protocol

from hearth.dialects.gojson import JsonObject
from hearth.dialects.replay import Sent
from hearth.dialects.stream import Ending
from hearth.types import (
    BackendCall,
    Elapsed,
    Headers,
    InstalledModel,
    LoadedModel,
    LoadOptions,
    ResidentModel,
    ResumeMode,
    SleepLevel,
)

SLEEP_TIMEOUT_S = 120.0
"""To copy 40 GB into main memory takes some 10 s where it is not short."""


class Exchange(Protocol):
    """One answer from an engine, its head already read.

    The body comes in the engine's own HTTP chunks, as bytes that were received. `close` ends the
    connection at once, never blocks, may be called twice, and is called on every path.
    """

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers:
        """End-to-end headers only: hop-by-hop fields and Transfer-Encoding are gone."""

    async def take(self) -> tuple[bytes, ...]:
        """The chunks that have come, at least one; none at the end.

        Raises:
            BackendGone: the body ended short of its framing, after the chunks taken so far.
        """
        ...

    def close(self) -> None: ...


class LaterRun(Protocol):
    """A later run of an interrupted answer. Every byte of it goes through `feed`; only what comes
    out is for the caller.
    """

    @property
    def mode(self) -> ResumeMode: ...

    @property
    def again_tokens(self) -> int:
        """Tokens of the text so far that it reads or writes again."""

    @property
    def verified_chars(self) -> int:
        """Characters of the text so far that came again, equal."""

    def feed(self, chunk: bytes, wall_s: float) -> bytes:
        """What may be passed on now; `wall_s`: seconds since 1970.

        Raises:
            StreamDiverged: it does not go on from the text so far.
            BackendError: the model server has ended it with an error.
        """
        ...

    def end(self, wall_s: float) -> tuple[Ending, bytes]:
        """How the answer has ended, and what is still to be passed on. Raises StreamDiverged."""
        ...


class Continuation(Protocol):
    """The text so far of one interrupted answer, and how this engine is asked for the rest."""

    @property
    def can_be_asked(self) -> bool:
        """The engine goes on exactly behind the text so far."""

    @property
    def has_no_text(self) -> bool:
        """There is no text so far: any answer goes on from there."""

    async def prefix(self) -> str:
        """What stands before the text when the model reads it; another one later means that the
        model would read something else then.

        Raises StreamDiverged where that cannot be known.
        """
        ...

    async def next_ask(self, elapsed: Elapsed) -> tuple[BackendCall, LaterRun] | None:
        """After `prefix`: a call for the rest, and what its answer goes through. Once more where
        that has diverged before anything came out; None where there is no other way to ask.

        Args:
            elapsed: what the attempts before this one took.

        Raises StreamDiverged.
        """
        ...


class Continuations(Protocol):
    """How answers of an engine's models go on, as it was found out."""

    def is_known(self, load: LoadedModel) -> bool:
        """It was found out whether this model's answers can be continued."""
        ...

    async def find_out(self, load: LoadedModel, model: str, call: BackendCall) -> None:
        """Ask the engine; `call`: the first stream that may have to go on."""

    def can_continue(self, load: LoadedModel) -> bool: ...

    def of(self, load: LoadedModel, call: BackendCall, sent: Sent) -> Continuation:
        """Raises StreamDiverged: an answer of this kind cannot be continued."""
        ...


class Engine(Protocol):
    """One model server. Raises only `hearth.errors`.

    Loads and probes end with whoever awaits them; every other control call ends by itself and is
    never cancelled midway.
    """

    @property
    def title(self) -> str:
        """What an owner calls it."""

    @property
    def addresses(self) -> Collection[str]:
        """Those of `dialects.routes` that it serves as they are; the gateway has no others."""

    @property
    def loads_on_request(self) -> bool:
        """It loads and unloads models when it is asked; else those that it lists are in memory for
        as long as it lists them, and `unload` raises LoadError.
        """

    @property
    def counts_unasked(self) -> bool:
        """A stream says how many tokens it has without being asked."""

    @property
    def loads_can_be_cut(self) -> bool:
        """A load whose caller leaves is given up, and its memory free a moment later."""

    @property
    def on_card(self) -> bool:
        """Its models take memory of this machine's card."""

    @property
    def ignores_case(self) -> bool:
        """It takes the names of its models in any case."""

    @property
    def loses_slots(self) -> bool:
        """A stream that is cut off may cost a slot for good, so that a probe has to tell before the
        next call.
        """

    @property
    def processes(self) -> re.Pattern[str]:
        """Found in the names of the processes that hold its models' memory on the card."""

    def pins_context(self, path: str) -> bool:
        """Calls of this address carry the context that the owner has pinned; those of others have a
        model loaded anew with its own.
        """

    def saves(self, model: str) -> bool:
        """What it has read of this model's conversations outlives an unload."""

    def sleeps(self, model: str) -> tuple[SleepLevel, ...]:
        """The levels at which a model can sleep, quickest to wake first. Empty: it is only
        stopped.
        """

    def asleep(self) -> Mapping[str, SleepLevel]:
        """The models that it has put to sleep, as far as it knows, by their canonical names."""

    # Names.

    def canonical(self, name: str) -> str:
        """The one spelling of a name that this engine would list for what somebody wrote. Case is
        kept; compare case-insensitively where spellings meet.
        """

    def how_to_install(self, model: str) -> str:
        """The command that puts a model on the disk."""

    def how_to_manage(self, url: str) -> str:
        """How models are managed without Hearth, as an advice."""

    # The data path: bytes in, bytes out, one call at a time on a connection.

    def check_request(self, path: str, fields: JsonObject) -> None:
        """Called before a request waits; `fields` are `folded`.

        Raises BadRequest: it asks for something that this engine cannot be asked for; names the
        field.
        """

    async def open(self, call: BackendCall) -> Exchange:
        """Send the call and read the answer's head.

        Cancelling it closes the connection. No redirects, no overall timeout, and no retries,
        except that a kept connection which turns out to be dead before any byte of an answer is
        replaced by a new one: the caller owns all of that.

        Raises:
            BackendUnreachable: no connection could be made.
            BackendGone: the connection ended before a head was read.
        """
        ...

    # What is there.

    async def version(self) -> str:
        """Raises BackendUnreachable when nothing answers."""

    async def installed(self) -> tuple[InstalledModel, ...]:
        """The models on disk, by their canonical names; the very same tuple for as long as it
        lists the same.
        """

    async def capabilities(self, model: str) -> frozenset[str] | None:
        """What a model on disk can do; None where the engine does not say.

        Raises ModelNotFound.
        """

    async def resident(self) -> tuple[ResidentModel, ...]:
        """What is in memory now, by canonical names; nothing that sleeps.

        Raises BackendTimeout where the engine is there and does not say, as while a model hangs.
        """

    async def memory_mib(self) -> float | None:
        """Main memory that the engine's processes hold, None where they cannot be seen from
        here.
        """

    # Into memory, and out.

    async def load(self, model: str, options: LoadOptions) -> None:
        """Ask for `model` to be loaded and kept; returns when the engine says so, whenever that
        is.

        Cancelling it gives the load up.

        Raises ModelNotFound, LoadError, BackendUnreachable.
        """

    async def unload(self, model: str) -> None:
        """Ask for `model` to be dropped, awake or asleep; it may still be listed for a while
        afterwards. One that can only sleep sleeps as deeply as it can.

        Raises ModelNotFound (deleted meanwhile, though it may still be in memory), LoadError,
        BackendUnreachable.
        """

    async def sleep(self, model: str, level: SleepLevel) -> None:
        """Put a model to sleep at one of its levels; nothing runs on it, and `load` wakes it. What
        that has freed is not known.

        Raises as `unload`.
        """

    async def probe(self, model: str, options: LoadOptions, timeout_s: float) -> bool:
        """Have a loaded model make one token. False where nothing comes within the time; whatever
        else is answered counts as an answer.

        It ends with whoever awaits it: it would take a slot for nothing.
        """

    # Going on with an interrupted answer.

    def continuations(self) -> Continuations | None:
        """New ones, which know nothing yet; None where no answer of this engine is continued."""

    async def aclose(self) -> None:
        """End all connections; whoever waits on one gets BackendGone."""
