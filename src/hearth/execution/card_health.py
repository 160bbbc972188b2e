"""Judges models by what they do: one whose answers are many times slower than it is known for has
lost the GPU, whatever its model server lists.

After a suspend or a reset of the driver a model server may compute on the CPU, and go on saying
that the model is on the GPU. That is 5 to 30 times slower. What else makes answers slower, such as
other requests beside, a slow reader and a card that holds itself down, is either less or known, and
then nothing is judged. A long context is allowed for: the time of a token grows with it at most in
proportion.

What is tried, in this order: the model is loaded again, the owner's command restarts the model
server, the owner is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from math import inf
from typing import Literal, TypeAlias

from hearth.dialects.frames import object_in
from hearth.dialects.gojson import lookup
from hearth.engines.table import EngineTable
from hearth.events import ModelFastAgain, ModelSlow, ModelStaysSlow
from hearth.execution.backend_watch import BackendWatch
from hearth.execution.owner_command import run_command
from hearth.execution.request import ActiveRequest
from hearth.execution.runtime import Runtime
from hearth.execution.tasks import WakeableSleep
from hearth.scheduling.inputs import ModelDoubted
from hearth.types import DAY_S, BackendCall, Usage, entity

SLOW_FACTOR = 5.0
MIN_TOKENS = 16
"""Of fewer, the time is mostly that of the first."""
SLOW_ANSWERS = 2
"""In a row. After a sleep of the machine one is enough."""
ALARM_S = 60.0
"""From the first notice until the owner is told, where somebody still waits."""
STILL_SLOW_S = 10.0
"""An answer that takes so long when that is over counts as slow, too."""
ALARM_LOOK_S = 5.0
COMMAND_TIMEOUT_S = 60.0
COMMAND_PAUSE_S = 600.0
"""The model server is not restarted again before, whichever model is slow."""
FOREIGN_MIB = 2048.0
"""A desktop has less of the card; what has more may compute on it."""
NEW_NORMAL = 20
"""After so many slow answers since the owner was told, it is how fast the model is now; after as
many of another model of the same name, too.
"""
SHORTEST_SLEEP_S = 1.0
HARMLESS = frozenset({"power_cap"})
"""Of the reasons for which a card holds its clocks down: it does so at work."""
SHORT_CONTEXT_TOKENS = 4096.0
"""Below, a token takes as long as the weights do, whatever the context."""
CONTEXT_WEIGHT = 0.3
"""Of the latest answer in the usual context, as in the usual speed."""
_PLACED = ("num_gpu", "num_thread")
_CONSTRAINED = (
    *("format", "response_format", "grammar", "json_schema", "structured_outputs", "text"),
    *("guided_json", "guided_regex", "guided_grammar", "guided_choice", "output_config"),
)
"""Fields of requests that may have a model write far more slowly: on the CPU, or by a grammar."""

Step: TypeAlias = Literal["watched", "reloaded", "to_restart", "restarted", "given_up", "accepted"]
RunCommand: TypeAlias = Callable[[Sequence[str], float], Awaitable[str]]


@entity
class _Case:
    """A model that is slow.

    Attributes:
        slow_answers: in a row; since the owner was told, once that is so.
        noticed_at: when the first remedy was tried. judged_from: answers that began before do not
        count: the last remedy came after. tried: what the owner is told.
    """

    usual_tps: float
    tps: float = 0.0
    step: Step = "watched"
    slow_answers: int = 0
    noticed_at: float = 0.0
    judged_from: float = 0.0
    tried: list[str] = field(default_factory=list)
    is_told: bool = False


class CardHealth:
    """What is known of models that are slow. `run` is the task that acts; everything else is called
    in the event loop.
    """

    def __init__(
        self,
        runtime: Runtime,
        engines: EngineTable,
        watch: BackendWatch,
        command: RunCommand = run_command,
    ) -> None:
        self._runtime = runtime
        self._engines = engines
        self._watch = watch
        self._command = command
        self._cases: dict[str, _Case] = {}
        self._beat = WakeableSleep()
        self._asleep_s = runtime.clock.asleep()
        self._has_slept = False
        self._fast_since_sleep: set[str] = set()
        self._context_tokens: dict[str, float] = {}  # of answers that were as fast as usual
        # what each model was by its last answer, and how many more it is not judged by
        self._digests: dict[str, str] = {}
        self._unjudged: dict[str, int] = {}
        self._restarted_at = -COMMAND_PAUSE_S

    def answered(self, work: ActiveRequest, *, alone: bool) -> bool:
        """Take in a complete answer, before it is reported; False where it says nothing of how fast
        its model is.

        Args:
            alone: nothing else ran, from its dispatch to its end.
        """
        model = work.model or ""
        now = self._runtime.clock.monotonic()
        self._note_sleep()
        usual_tps = self._runtime.forecasts.usual_tokens_per_s(model)
        if usual_tps is None or self._is_another(model):
            return True
        tps = self._tokens_per_s(work, now) if alone and self._is_judged(model) else None
        if tps is not None and tps * SLOW_FACTOR >= usual_tps:
            self._note_context(model, _context_tokens(work))
            self._fast(model, tps, now)
            return True
        if tps is None or tps * SLOW_FACTOR * self._allowed_for(work) >= usual_tps:
            known = self._cases.get(model)
            return known is None or known.step in {"watched", "accepted"}
        return self._slow(work, usual_tps, tps, now).step == "accepted"

    def timed_out(self, work: ActiveRequest, *, alone: bool) -> None:
        """Take in a whole answer that was given up: its model writes, but after twice the time of
        the longest answer that there can be, it was not there. One without a limit of its own may
        have gone round in circles.
        """
        model = work.model or ""
        now = self._runtime.clock.monotonic()
        self._note_sleep()
        usual_tps = self._runtime.forecasts.usual_tokens_per_s(model)
        most_tokens = work.item.max_tokens
        if usual_tps is None or work.item.kind != "generate" or most_tokens is None:
            return
        if self._is_another(model):
            return
        if alone and self._is_judged(model) and self._allowed_for(work) <= 1.0:
            took_s = now - (work.attempt.dispatched_at or now)
            most_tps = most_tokens / took_s if took_s else inf
            self._slow(work, usual_tps, min(most_tps, usual_tps / 2), now)

    def _note_sleep(self) -> None:
        asleep_s = self._runtime.clock.asleep()
        if asleep_s - self._asleep_s >= SHORTEST_SLEEP_S:
            self._asleep_s = asleep_s
            self._has_slept = True
            self._fast_since_sleep.clear()

    def _is_another(self, model: str) -> bool:
        """Has it been replaced under its name so shortly that its usual speed is that of the one
        before?
        """
        digest = self._watch.loaded_model(model).digest
        if digest and self._digests.setdefault(model, digest) != digest:
            self._digests[model] = digest
            self._unjudged[model] = NEW_NORMAL
        left = self._unjudged.get(model, 0)
        self._unjudged[model] = max(0, left - 1)
        return left > 0

    def _is_judged(self, model: str) -> bool:
        """Nothing that is known explains it if it is slow."""
        if self._watch.is_remote(model) or not self._engines.of(model).on_card:
            return False
        tracker = self._runtime.tracker
        held_down = set(tracker.reading.throttle_reasons or ()) - HARMLESS
        foreign_mib = tracker.use.foreign_mib or 0.0
        view = self._runtime.view
        is_disturbed = bool(held_down) or foreign_mib > FOREIGN_MIB or view.has_leases
        is_known = self._runtime.emulated or model in self._watch.offloaded
        # without a card (one that is lost by now was there), or where the owner says that it takes
        # nothing of it, it is on the CPU
        has_none = view.capacity_mib is None and tracker.readings != "lost"
        is_on_cpu = has_none or view.capacity_mib == inf or view.need_mib(model) == 0.0
        return not (is_disturbed or is_known or is_on_cpu or view.swap is not None)

    def _allowed_for(self, work: ActiveRequest) -> float:
        """So many times slower an answer may be by its reader, its context, and what its request
        asks for.
        """
        listed_tokens = self._watch.listed_context_tokens(work.model or "")
        if work.attempt.held_up or _asks_for_it(work.call(), listed_tokens):
            return inf
        usual_tokens = self._context_tokens.get(work.model or "", 0.0)
        return max(1.0, _context_tokens(work) / max(usual_tokens, SHORT_CONTEXT_TOKENS))

    def _note_context(self, model: str, tokens: float) -> None:
        known = self._context_tokens.get(model, tokens)
        self._context_tokens[model] = known + CONTEXT_WEIGHT * (tokens - known)

    def _tokens_per_s(self, work: ActiveRequest, now: float) -> float | None:
        attempt = work.attempt
        usage: Usage = attempt.usage
        decode_s = usage.decode_s
        if decode_s is None and work.item.streaming and attempt.first_byte_at is not None:
            decode_s = now - attempt.first_byte_at
        tokens = usage.output_tokens or 0
        if work.item.kind != "generate" or attempt.resumed is not None or tokens < MIN_TOKENS:
            return None
        return tokens / decode_s if decode_s else None

    def _fast(self, model: str, tps: float, now: float) -> None:
        self._fast_since_sleep.add(model)
        case = self._cases.pop(model, None)
        if case is not None and case.step != "watched":
            slow_s = now - case.noticed_at
            self._runtime.events.emit(
                ModelFastAgain(at=now, model=model, tokens_per_s=tps, slow_s=slow_s)
            )

    def _slow(self, work: ActiveRequest, usual_tps: float, tps: float, now: float) -> _Case:
        model = work.model or ""
        case = self._cases.setdefault(model, _Case(usual_tps))
        case.tps = tps
        if (work.attempt.dispatched_at or 0.0) >= case.judged_from:
            case.slow_answers += 1
            self._go_on(model, case, now)
            self._beat.ring()
            # a game may have begun since the card was read, or a model have been split
            self._runtime.card_beat.ring()
            self._watch.look_soon()
        return case

    def _go_on(self, model: str, case: _Case, now: float) -> None:
        """Try what comes next."""
        enough = 1 if self._has_slept and model not in self._fast_since_sleep else SLOW_ANSWERS
        if case.step == "watched" and case.slow_answers >= enough:
            case.noticed_at = now
            self._reload(model, case, now)
        elif case.step == "reloaded":
            self._restart_or_give_up(model, case, now)
        elif case.step == "restarted":
            self._give_up(model, case, now)
        elif case.step == "given_up" and case.slow_answers > NEW_NORMAL:
            case.step = "accepted"

    def _reload(self, model: str, case: _Case, now: float) -> None:
        if not self._runtime.view.loads(model):
            self._restart_or_give_up(model, case, now)
            return
        self._say(model, case, "reload", now)
        case.step = "reloaded"
        case.judged_from = now
        case.tried.append("it was loaded again")
        self._runtime.post(ModelDoubted(model=model))

    def _restart_or_give_up(self, model: str, case: _Case, now: float) -> None:
        may_restart = now - self._restarted_at >= COMMAND_PAUSE_S
        if not (may_restart and self._runtime.settings.gpu.restart_command):
            self._give_up(model, case, now)
            return
        self._say(model, case, "restart", now)
        self._restarted_at = now
        case.step = "to_restart"

    def _say(
        self, model: str, case: _Case, remedy: Literal["reload", "restart"], now: float
    ) -> None:
        self._runtime.events.emit(
            ModelSlow(
                at=now,
                model=model,
                tokens_per_s=case.tps,
                usual_tokens_per_s=case.usual_tps,
                remedy=remedy,
            )
        )

    def _give_up(self, model: str, case: _Case, now: float) -> None:
        case.step = "given_up"
        case.slow_answers = 0
        self._tell(model, case, now)

    def _tell(self, model: str, case: _Case, now: float) -> None:
        """Once for each case."""
        if case.is_told:
            return
        case.is_told = True
        self._runtime.events.emit(
            ModelStaysSlow(
                at=now,
                model=model,
                tokens_per_s=case.tps,
                usual_tokens_per_s=case.usual_tps,
                tried=tuple(case.tried),
                slow_s=now - case.noticed_at,
            )
        )

    # What takes time.

    async def run(self) -> None:
        """Run the owner's command, and tell the owner in time, until cancelled."""
        while True:
            for model, case in tuple(self._cases.items()):
                if case.step == "to_restart":
                    await self._restart(model, case)
            await self._beat.pause(self._look())

    async def _restart(self, model: str, case: _Case) -> None:
        command = self._runtime.settings.gpu.restart_command
        if not command:  # it was taken out of the settings meanwhile
            self._give_up(model, case, self._runtime.clock.monotonic())
            return
        # before it runs: whatever becomes of it, it is not run again
        case.step = "restarted"
        case.judged_from = inf
        running = asyncio.ensure_future(self._command(command, COMMAND_TIMEOUT_S))
        try:
            while not running.done():
                await asyncio.wait((running,), timeout=self._look())
        finally:
            running.cancel()
        problem = running.result()
        if self._cases.get(model) is not case:  # it was fast meanwhile
            return
        case.tried.append(f"gpu.restart_command {problem or 'was run'}")
        case.judged_from = self._runtime.clock.monotonic()
        if problem:
            self._give_up(model, case, case.judged_from)

    def _look(self) -> float:
        """Tell the owner of models that were slow for too long; seconds until the next look."""
        now = self._runtime.clock.monotonic()
        open_cases = [
            (model, case)
            for model, case in self._cases.items()
            if case.step != "watched" and not case.is_told
        ]
        pauses_s = [DAY_S]
        for model, case in open_cases:
            left_s = case.noticed_at + ALARM_S - now
            if left_s > 0:
                pauses_s.append(left_s)
            elif self._keeps_waiting(model, now):
                self._tell(model, case, now)
            else:
                pauses_s.append(ALARM_LOOK_S)
        return min(pauses_s)

    def _keeps_waiting(self, model: str, now: float) -> bool:
        """Somebody waits for it to come back, or for an answer that takes long."""
        view = self._runtime.view
        runs_long = any(
            entry.model == model and now - entry.dispatched_at >= STILL_SLOW_S
            for entry in view.running
        )
        return runs_long or (bool(view.wants(model)) and not view.is_there(model))


def _context_tokens(work: ActiveRequest) -> float:
    """What was read and written, as far as that is known."""
    usage = work.attempt.usage
    read = max(usage.prompt_tokens or 0, work.item.prompt_tokens)
    return float(read + (usage.output_tokens or 0))


def _asks_for_it(call: BackendCall, listed_tokens: int | None) -> bool:
    """Does a request name where its model is to run, or a form that its answer is to have? Another
    context than the listed one has the model loaded anew, perhaps in part on the CPU.
    """
    body = object_in(call.body)
    options = lookup(body, "options")
    is_placed = isinstance(options, dict) and (
        any(name in options for name in _PLACED)
        or (listed_tokens is not None and options.get("num_ctx", listed_tokens) != listed_tokens)
    )
    return is_placed or any(lookup(body, name) for name in _CONSTRAINED)
