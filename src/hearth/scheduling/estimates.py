"""What the scheduler has learned: speeds, lengths of answers, sizes of prompts, what a swap costs,
and when callers come back, and how far waits exceed what was expected of them.

All averages are exponential with alpha 0.3, as in llmux's switching efficiency report; a swap
observation is capped at 60 s (or the target's own median, where that is more) so that one cold
start does not spoil the average. The last gaps of a caller are kept as they were: their shape
matters (many short and a few long ones), which no average shows.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import field
from itertools import islice
from math import ceil, inf
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from hearth.scheduling.reading import Prompt, Reading
from hearth.scheduling.wait_spread import UNKNOWN_SPREAD, WaitSpread
from hearth.scheduling.wakes import Wakes
from hearth.types import Band, JsonDict, QueueItem, SleepLevel, Usage, entity

ALPHA = 0.3
SWAP_CAP_S = 60.0
SWAP_MEMORY = 9  # swaps to a model that its median is taken of
PRIOR_DECODE_TOKENS_PER_S = 40.0
PRIOR_OUTPUT_TOKENS = 200.0
PRIOR_RUN_S = 5.0
PRIOR_LISTENING_S = 0.2  # for a second of sound
PRIOR_MEDIA_S: Mapping[str, float] = MappingProxyType({"image": 10.0, "speak": 1.0})
LEAST_HEARD_S = 1.0  # to hear less than that takes as long; a header may say next to nothing
RUNS = 30  # runs over which the mean run time of a model is taken; a few would follow every outlier
LIKELY = 0.95
ENOUGH_RUNS = 19  # of fewer, the longest is not yet what 95 % stay below
EXPONENTIAL_STRETCH = 3.0  # so many times the mean, 95 % of exponential lengths stay below
# fewer runs of a model than this say little of the next; so does a load that was never measured
FEW_RUNS = 5
# shorter prompts teach nothing of that: most of what is counted then is the model's own template
MIN_PROMPT_TOKENS = 64
# a count outside this range of the guess says more about the guess (images, a cut prompt) than
# about the model
FACTORS = (0.2, 5.0)
# what an answer without a limit is taken to reach at least, when it is decided that it takes too
# long
UNBOUNDED_OUTPUT_TOKENS = 8192.0
PESSIMISTIC_TOKENS_PER_S = 10.0
"""Speed of a model that was never measured, for the same purpose: twice that of a large one split
with the CPU, since the executor doubles the limit.
"""
# output lengths are kept for this many (caller, model) pairs; the oldest pair goes first
MAX_CALLERS = 4096
KEPT_CALLERS = 1000  # of those, so many of the latest outlive a restart
# of an answer that is as long as such answers are, this share of their length is expected to be
# still to come
LEAST_REST = 0.1
IDLE_ENDS = 32  # idle times that are remembered of each set of models in memory
# sets of models of which they are remembered; the one that was not idle for longest goes first
MAX_IDLE_SETS = 64
GAPS = 32  # gaps that are remembered of each habit
MAX_HABITS = 1024  # habits that are remembered; the one that was not seen for longest goes first
STEPS = 8  # steps from one model to the next that are remembered of each caller and model
RECENT = 4  # callers of a model that may be the next to come back to it
FORMAT = 1
# nothing that was measured is larger (a restored value that is was never learned), and no answer
# gets as many tokens
MOST = 1e9

K = TypeVar("K")
V = TypeVar("V")
# a caller with nothing else open asked for this model, so many seconds after its last answer
Step = tuple[str, float]
IdleEnd = tuple[float, float, str]
"""(seconds that an idle time took, weight of the band that ended it, model that was asked for, ""
for any)
"""


def _blend(known: dict[K, float], key: K, seen: float) -> None:
    """Fold one measurement into an average."""
    old = known.get(key, seen)
    known[key] = old + ALPHA * (seen - old)


def remaining_s(began_at: float, expected_s: float, now: float) -> float:
    """Seconds that something can be expected to take yet which was to take `expected_s` in all.

    What has outlived its estimate takes as much again as it is late, and at least half the estimate
    (the median of what is left of answers of exponential length is 0.7 times the mean).
    """
    left_s = began_at + expected_s - now
    return left_s if left_s > 0 else max(-left_s, expected_s / 2)


class Measured(NamedTuple):
    """What was measured of a model, each None where it was not: seconds of a swap to it, and tokens
    per second of reading prompts and of writing answers.
    """

    load_s: float | None
    read_tokens_per_s: float | None
    write_tokens_per_s: float | None


class Estimates:
    """Learned speeds, costs and waits. Owned and changed by the scheduler alone, except for waits,
    which the queue reports; reading never learns.
    """

    def __init__(self, *, swap_prior_s: float) -> None:
        self.swap_prior_s = swap_prior_s
        self.learns = True
        # at which a model sleeps, or would once it is evicted
        self.level_of: Callable[[str], SleepLevel | None] = lambda _: None
        self._wakes = Wakes()
        self._swap_s: dict[tuple[str, str], float] = {}
        self._target_s: dict[str, float] = {}
        self._recent_swaps_s: dict[str, tuple[float, ...]] = {}
        self._decode_tps: dict[str, float] = {}
        self.reading = Reading()
        self._prompt_factor: dict[str, float] = {}
        self._output_tokens: dict[tuple[str, str], float] = {}
        self._runs: dict[str, tuple[int, float]] = {}
        self._listening: dict[str, tuple[float, float]] = {}
        """Seconds of recordings, and those that they took."""
        self._stretches: dict[str, tuple[float, ...]] = {}
        self._idle_ends: dict[tuple[str, ...], tuple[IdleEnd, ...]] = {}
        self._waits: dict[Band, WaitSpread] = {}

    def unlearning(self) -> Estimates:
        """The same knowledge for a forecast, which learns nothing from what it makes up."""
        twin = copy(self)
        twin.learns = False
        return twin

    def learn_swap(
        self, origin: str, target: str, seconds: float, level: SleepLevel | None = None
    ) -> None:
        """Fold in one measured swap; `origin` is "" for an empty GPU. It woke the target from a
        level, or started it.
        """
        if not self.learns:
            return
        if level is not None:
            self._wakes.learn(origin, target, level, seconds)
            return
        recent = self._recent_swaps_s.get(target, ())
        cap = max(SWAP_CAP_S, sorted(recent)[len(recent) // 2] if recent else 0.0)
        self._recent_swaps_s[target] = (*recent, seconds)[-SWAP_MEMORY:]
        _blend(self._target_s, target, min(seconds, cap))
        _blend(self._swap_s, (origin, target), min(seconds, cap))

    def swap_s(self, origin: str, target: str) -> float:
        """Expected seconds of a swap, whether it starts its target or wakes it: this direction,
        else this target from anywhere, else the prior.
        """
        return self.load_s(origin, target, self.level_of(target))

    def load_s(self, origin: str, target: str, level: SleepLevel | None) -> float:
        """The same of a target at a level, None for one that is stopped."""
        known = self._swap_s.get((origin, target))
        start_s = known if known is not None else self._target_s.get(target, self.swap_prior_s)
        return start_s if level is None else self._wakes.seconds(origin, target, level, start_s)

    def longest_swap_s(self, origin: str, target: str) -> float:
        """Seconds that a swap can be expected to take at most."""
        level = self.level_of(target)
        if level is None:
            return max(self.swap_s(origin, target), self.longest_s_to(target))
        return max(self.load_s(origin, target, level), self._wakes.longest_s(target, level))

    def longest_s_to(self, target: str) -> float:
        """Seconds of the longest of the last swaps to a model, 0 where none was measured."""
        return max(self._recent_swaps_s.get(target, ()), default=0.0)

    def learn_item(
        self,
        item: QueueItem,
        model: str,
        usage: Usage,
        run_s: float,
        expected_s: float,
        prompt: Prompt | None = None,
    ) -> None:
        """Fold in one finished generation.

        Args:
            run_s: from dispatch to end; stands in where the dialect carries no timings.
            expected_s: what that was expected to be at its dispatch.
            prompt: what more is known of its prompt than that.
        """
        if not self.learns:
            return
        if expected_s > 0:
            stretches = self._stretches.get(model, ())
            self._stretches[model] = (*stretches, run_s / expected_s)[-RUNS:]
        count, mean_s = self._runs.get(model, (0, 0.0))
        count += count < RUNS
        self._runs[model] = (count, mean_s + (run_s - mean_s) / count)
        self._learn_listening(item.audio_s, model, run_s)
        if usage.output_tokens:
            key = (item.caller, model)
            # to the end: the one that was not seen for longest goes first
            self._output_tokens[key] = self._output_tokens.pop(key, usage.output_tokens)
            _blend(self._output_tokens, key, usage.output_tokens)
            if len(self._output_tokens) > MAX_CALLERS:
                del self._output_tokens[next(iter(self._output_tokens))]
            decode_s = usage.decode_s or run_s
            # the first token comes with the prompt, so the time of an only one is next to nothing
            is_only_one = usage.output_tokens == 1 and usage.decode_s is not None
            if decode_s > 0 and not is_only_one:
                _blend(self._decode_tps, model, usage.output_tokens / decode_s)
        self.reading.learn(model, prompt or Prompt(usage, in_conversation=False))
        if usage.prompt_tokens and item.prompt_tokens >= MIN_PROMPT_TOKENS:
            factor = usage.prompt_tokens / item.prompt_tokens
            if FACTORS[0] <= factor <= FACTORS[1]:
                self._prompt_factor.setdefault(model, 1.0)  # the guess itself counts as seen
                _blend(self._prompt_factor, model, factor)

    def _learn_listening(self, audio_s: float, model: str, run_s: float) -> None:
        if audio_s:
            audio_s = max(LEAST_HEARD_S, audio_s)
            heard_s, took_s = self._listening.get(model, (audio_s, run_s))
            heard_s += ALPHA * (audio_s - heard_s)
            self._listening[model] = (heard_s, took_s + ALPHA * (run_s - took_s))

    def run_s(self, model: str) -> float:
        return self._runs[model][1] if model in self._runs else PRIOR_RUN_S

    def knows_runs(self, model: str) -> bool:
        """Have enough runs of a model been seen to tell how long one takes?"""
        return model in self._runs and self._runs[model][0] >= FEW_RUNS

    def usual_tokens_per_s(self, model: str) -> float | None:
        """How fast a model writes; None until enough of its answers were seen to tell."""
        return self._decode_tps.get(model) if self.knows_runs(model) else None

    def knows_load(self, model: str) -> bool:
        return model in self._target_s or self._wakes.knows(model)

    def measured(self) -> dict[str, Measured]:
        """For people: what was measured, by model."""
        read = self.reading.tokens_per_s
        return {
            model: Measured(self._target_s.get(model), read.get(model), self._decode_tps.get(model))
            for model in {*self._target_s, *read, *self._decode_tps}
        }

    def learn_idle_end(self, models: tuple[str, ...], end: IdleEnd) -> None:
        """Fold in what ended an idle time that began with these models in memory."""
        if not self.learns:
            return
        self._idle_ends[models] = (*self._idle_ends.pop(models, ()), end)[-IDLE_ENDS:]
        if len(self._idle_ends) > MAX_IDLE_SETS:
            del self._idle_ends[next(iter(self._idle_ends))]

    def idle_ends(self, models: tuple[str, ...]) -> tuple[IdleEnd, ...]:
        """What ended the last idle times that began with these models in memory, the latest
        last.
        """
        return self._idle_ends.get(models, ())

    def learn_wait(self, band: Band, expected_s: float, waited_s: float) -> None:
        """Fold in one wait for the first start, and what was expected of it at its acceptance."""
        if not self.learns:
            return
        self._waits.setdefault(band, WaitSpread()).learn(expected_s, waited_s)

    def wait_bound_s(self, band: Band, expected_s: float) -> float:
        """Seconds within which 90 % of the waits end of which this was expected."""
        spread = self._waits.get(band) or UNKNOWN_SPREAD
        return spread.bound_s(expected_s)

    def prompt_tokens(self, item: QueueItem, model: str) -> float:
        """Expected tokens of the prompt, in this model's own."""
        return item.prompt_tokens * self._prompt_factor.get(model, 1.0)

    def prompt_s(self, item: QueueItem, model: str) -> float:
        """Expected seconds of reading the prompt, nothing of it being in the prompt cache."""
        return self.prompt_tokens(item, model) / self.reading.speed(model)

    def reading_s(self, item: QueueItem, model: str, kept_tokens: int = 0) -> float:
        """Expected seconds until the prompt is read, and what the caller has of the answer."""
        prompt_s = self.prompt_s(item, model) if item.prompt_tokens else 0.0
        if kept_tokens:
            prompt_s += kept_tokens / self.reading.speed(model)
        return prompt_s

    def service_s(
        self, item: QueueItem, model: str, kept_tokens: int = 0, cached_tokens: float = 0.0
    ) -> float:
        """Expected seconds from dispatch to end, the model being resident; of the answer,
        `kept_tokens` are read and not written again; of all that is read, `cached_tokens` are in
        the prompt cache.

        A model whose answers tell no tokens is expected to take what it took before, and a
        recording what others took, by its length.
        """
        if item.audio_s:
            heard_s, took_s = self._listening.get(model, (1.0, PRIOR_LISTENING_S))
            return max(LEAST_HEARD_S, item.audio_s) * took_s / heard_s
        if model not in self._decode_tps and model in self._runs:
            return self._runs[model][1]
        if item.kind in PRIOR_MEDIA_S:
            return PRIOR_MEDIA_S[item.kind]
        output = 0.0
        if item.kind == "generate":
            output = self._output_tokens.get((item.caller, model), PRIOR_OUTPUT_TOKENS)
            if item.max_tokens is not None and item.max_tokens < output:
                output = item.max_tokens
        prompt_s = self.reading_s(item, model, kept_tokens)
        if kept_tokens:
            output = max(output - kept_tokens, output * LEAST_REST)
        if cached_tokens:
            prompt_s = max(0.0, prompt_s - cached_tokens / self.reading.speed(model))
        return prompt_s + output / self._decode_tps.get(model, PRIOR_DECODE_TOKENS_PER_S)

    def longest_s(
        self, item: QueueItem, model: str, kept_tokens: int = 0, cached_tokens: float = 0.0
    ) -> float:
        """Seconds within which 95 % of such answers end, from dispatch; nothing beyond the answer's
        own limit.
        """
        expected_s = self.service_s(item, model, kept_tokens, cached_tokens)
        longest_s = expected_s * self._stretch(model)
        if item.max_tokens is None or (model not in self._decode_tps and model in self._runs):
            return longest_s
        return max(expected_s, min(longest_s, self._up_to_s(item, model, item.max_tokens)))

    def _stretch(self, model: str) -> float:
        """How many times what was expected 95 % of the last answers took at most, and at least
        once.

        As many as of lengths that are exponential, or more, until enough were seen to tell.
        """
        seen = self._stretches.get(model, ())
        if len(seen) < ENOUGH_RUNS:
            return max((EXPONENTIAL_STRETCH, *seen))
        return max(1.0, sorted(seen)[ceil(LIKELY * len(seen)) - 1])

    def _up_to_s(self, item: QueueItem, model: str, output_tokens: float) -> float:
        decode_tps = self._decode_tps.get(model, PRIOR_DECODE_TOKENS_PER_S)
        return self.prompt_s(item, model) + min(output_tokens, MOST) / decode_tps

    def limit_s(self, item: QueueItem, model: str, context_tokens: int = 0) -> float:
        """The most seconds that a healthy answer can be expected to take: its output limit at the
        model's learned speed.

        Without a limit of its own an answer can fill the context of the model.
        """
        output = 0.0
        if item.kind == "generate":
            most = item.max_tokens
            output = (
                max(UNBOUNDED_OUTPUT_TOKENS, context_tokens) if most is None else min(most, MOST)
            )
        return self.prompt_s(item, model) + output / self._decode_tps.get(
            model, PESSIMISTIC_TOKENS_PER_S
        )

    def export(self) -> JsonDict:
        """What was learned, as values that JSON can hold. Reads only."""
        latest = islice(reversed(self._output_tokens.items()), KEPT_CALLERS)
        return {
            "format": FORMAT,
            "swap_s": [
                [origin, target, seconds] for (origin, target), seconds in self._swap_s.items()
            ],
            "wakes": self._wakes.export(),
            "target_s": dict(self._target_s),
            "recent_swaps_s": dict(self._recent_swaps_s),
            "decode_tps": dict(self._decode_tps),
            "prompt_tps": dict(self.reading.tokens_per_s),
            "kept_conversations": dict(self.reading.kept),
            "prompt_factor": dict(self._prompt_factor),
            "run_s": {model: mean_s for model, (_, mean_s) in self._runs.items()},
            "listening": dict(self._listening),
            "stretches": dict(self._stretches),
            "idle_ends": list(self._idle_ends.items()),
            "waits": [[band, spread.export()] for band, spread in self._waits.items()],
            "output_tokens": [[caller, model, tokens] for (caller, model), tokens in latest][::-1],
        }

    def forget(self) -> None:
        """Know as much as at the very first start."""
        for learned in vars(self).values():
            if isinstance(learned, dict):
                learned.clear()
        self.reading.forget()
        self._wakes.forget()

    def restore(self, document: Mapping[str, Any]) -> None:
        """Take over what an earlier process exported; another format, or one field that is not as
        `export` writes it, teaches nothing.
        """
        if document.get("format") != FORMAT:
            return
        try:
            learned: dict[str, dict[Any, Any]] = {
                f"_{name}": _measured(document.get(name, {}).items())
                for name in ("target_s", "decode_tps", "prompt_factor")
            }
            prompt_tps = _measured(document.get("prompt_tps", {}).items())
            kept = _measured(document.get("kept_conversations", {}).items())
            learned["_swap_s"] = _measured(
                ((origin, target), seconds)
                for origin, target, seconds in document.get("swap_s", ())
            )
            outputs = _measured(
                ((caller, model), tokens)
                for caller, model, tokens in document.get("output_tokens", ())
            )
            learned["_output_tokens"] = dict(islice(outputs.items(), MAX_CALLERS))
            runs = _measured(document.get("run_s", {}).items())
            learned["_runs"] = {model: (RUNS, mean_s) for model, mean_s in runs.items()}
            learned["_recent_swaps_s"] = {
                target: tuple(map(float, swaps))[-SWAP_MEMORY:]
                for target, swaps in document.get("recent_swaps_s", {}).items()
            }
            learned["_listening"] = _listened(document.get("listening", {}))
            learned["_stretches"] = {
                model: tuple(float(each) for each in seen if 0 < each <= MOST)[-RUNS:]
                for model, seen in document.get("stretches", {}).items()
            }
            learned["_idle_ends"] = {
                tuple(models): tuple(
                    (float(gap_s), float(weight), str(model))
                    for gap_s, weight, model in found[-IDLE_ENDS:]
                )
                for models, found in document.get("idle_ends", ())[-MAX_IDLE_SETS:]
            }
            learned["_waits"] = {
                Band(band): WaitSpread(seen) for band, seen in document.get("waits", ())
            }
            self._wakes.restore(document.get("wakes", ()))
        except (AttributeError, TypeError, ValueError, OverflowError):
            return
        for name, values in learned.items():
            vars(self)[name].update(values)
        self.reading.restore(prompt_tps, kept)


def _listened(found: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """As of `Estimates`, without what cannot have been measured."""
    return {
        model: (float(heard_s), float(took_s))
        for model, (heard_s, took_s) in found.items()
        if 0 < heard_s <= MOST and 0 < took_s <= MOST
    }


def _measured(found: Iterable[tuple[K, float]]) -> dict[K, float]:
    """Without what cannot have been measured: nothing, less than nothing, or more than all of this
    world.
    """
    return {key: float(value) for key, value in found if 0 < value <= MOST}


@entity
class Habit:
    """When a caller comes back to a model.

    `since` is its last end there; `waits`: it had other items open then.
    """

    caller: str
    since: float
    waits: bool
    band: Band = Band.EXTERNAL  # of its last request there
    choices: tuple[str, ...] = ()  # any of these could have served that
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=GAPS))

    @property
    def is_external(self) -> bool:
        return self.band >= Band.INTERRUPTED


class HabitKey(NamedTuple):
    caller: str
    model: str
    waits: bool  # the caller had other items open


class Arrivals:
    """When work comes, changed by the scheduler alone. `open_callers`: of each item that was
    accepted already.

    A gap runs from the end of a caller's item to the caller's next item for that model, and is
    noted only if nobody else used the model in between: that is the situation in which it is asked
    for. What a caller has still open with us makes a difference, since it may be waiting for that;
    so its gaps are kept apart for both cases. Of each caller it is also learned which model it asks
    for after which. An internal caller comes back whatever others do meanwhile, so its gaps are
    noted by themselves.
    """

    def __init__(self, *, learns: bool = True, open_callers: Iterable[str] = ()) -> None:
        # Facts are reported here, but not where nothing reads of them: that is a fourth of all the
        # work.
        self.learns = learns
        self._habits: dict[HabitKey, Habit] = {}
        # by model, those of the callers who used it last, the latest first
        self._recent: dict[str, list[HabitKey]] = {}
        self._answered: dict[str, tuple[str, float]] = {}  # model and end of a caller's last item
        self._steps: dict[tuple[str, str], deque[Step]] = {}  # by caller and the model it had
        self._open: dict[str, int] = Counter(open_callers)
        # by model and caller, the latest last
        self._internal: dict[str, dict[str, Habit]] = {}

    def arrived(self, caller: str, model: str | None, now: float) -> None:
        is_open = self._open.get(caller, 0)
        self._open[caller] = is_open + 1
        if is_open:
            return
        answered = self._answered.get(caller)
        if answered is not None and model is not None:
            key = (caller, answered[0])
            steps = self._steps.get(key) or deque(maxlen=STEPS)
            steps.append((model, now - answered[1]))
            _note_last(self._steps, key, steps)
        # Who names no model comes back to the one that served it.
        served_by = model or (answered[0] if answered is not None else "")
        internal = self._internal.get(served_by, {}).get(caller)
        if internal is not None:
            internal.gaps.append(now - internal.since)

    def came_back(self, caller: str, model: str, now: float) -> None:
        """An item has come for a model for which nothing waited and on which nothing ran."""
        for key in self._recent.get(model, ()):
            habit = self._habits.get(key)
            if key.caller != caller or habit is None:
                continue
            # A caller that waited for another answer has had it meanwhile, so it came back for that
            # and not after this gap: to hold the model would have been in vain.
            _, answered_at = self._answered.get(caller, ("", 0.0))
            in_vain = habit.waits and answered_at > habit.since
            habit.gaps.append(inf if in_vain else now - habit.since)

    def left(self, caller: str) -> None:
        """An item is gone, however it ended. Reported before `ended`."""
        count = self._open.pop(caller) - 1
        if count:
            self._open[caller] = count

    def ended(
        self,
        caller: str,
        model: str,
        now: float,
        band: Band = Band.EXTERNAL,
        choices: tuple[str, ...] = (),
    ) -> None:
        """An item of this band has run to its end, which any of `choices` might have served."""
        _note_last(self._answered, caller, (model, now))
        key = HabitKey(caller, model, caller in self._open)
        habit = self._habits.get(key) or Habit(caller, now, key.waits)
        habit.since = now
        habit.band = band
        habit.choices = choices
        _note_last(self._habits, key, habit)
        others = [other for other in self._recent.get(model, ()) if other.caller != caller]
        self._recent[model] = [key, *others[: RECENT - 1]]
        if not habit.is_external:
            self._note_internal(caller, model, now, habit)

    def _note_internal(self, caller: str, model: str, now: float, last: Habit) -> None:
        known = self._internal.get(model, {})
        habit = known.pop(caller, None) or Habit(caller, now, waits=False)
        habit.since = now
        habit.band = last.band
        habit.choices = last.choices
        known[caller] = habit
        if len(known) > RECENT:
            del known[next(iter(known))]
        _note_last(self._internal, model, known)

    def internal_habits(self, model: str) -> list[Habit]:
        """The habits of the internal callers who used a model last, the latest first."""
        return list(reversed(self._internal.get(model, {}).values()))

    def next_steps(self) -> list[Step]:
        """What the caller that was answered last did after such answers before, the latest last."""
        if not self._answered:
            return []
        caller = next(reversed(self._answered))
        return list(self._steps.get((caller, self._answered[caller][0]), ()))

    def habit_of(self, caller: str, model: str) -> Habit | None:
        """When a caller that has used a model lately comes back to it."""
        internal = self._internal.get(model, {}).get(caller)
        if internal is not None:
            return internal
        return next((habit for habit in self.habits(model) if habit.caller == caller), None)

    def habits(self, model: str) -> list[Habit]:
        """The habits of those who used a model last, the latest first."""
        found = map(self._habits.get, self._recent.get(model, ()))
        return [habit for habit in found if habit is not None]


def _note_last(known: dict[K, V], key: K, value: V) -> None:
    """Write as the latest of at most `MAX_HABITS`."""
    known.pop(key, None)
    known[key] = value
    if len(known) > MAX_HABITS:
        del known[next(iter(known))]
