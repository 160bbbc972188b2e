"""Which conversations a model server can go on with without reading them again, and what their loss
would cost.

A model server keeps what it has read in the prompt cache of the model, and loses it with the
unload. So leaving a model costs more than the swap: the seconds in which the conversations whose
callers come back are read again (`reread_s`). They are part of what a swap costs wherever that is
weighed: in the policies, in the holds, turns and grace of `sharing`, in what an interruption costs
(`preemption`), in the choice of what is evicted (`residency`), and in what is loaded while nothing
waits (`home`).

1. A conversation (`QueueItem.conversation`) is warm on the model that has read it: from the first
   byte of its answer, until the model is unloaded or so many others were read there that the server
   has no room for it (`Reading.kept`: one more than the model has slots, until that was seen).
2. Reading it again takes its tokens at the learned speed (`Reading.speed`). What the engine saves
   before an unload (`kept_over_stop`) costs nothing: it is warm again with the next load.
3. What is expected is that times the chance of its return, and 300 s at most for a model. The
   chance is 1 where a request of it waits. Else, with k of its gaps longer than the time since its
   last use, it is k / (k + 0.5), or 0.5 / (1 + the number of its gaps) where k is 0. Where fewer
   than three of its gaps are known, those of its caller count for the last conversation of each,
   and all is multiplied with the share of this caller's requests that went on with a conversation.
   It fades with the time since the last use: after 900 s it is 1/e of that.

The table lives as long as the gateway's process. A restarted gateway knows what reading costs, and
learns with the first answers what is warm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from math import exp
from typing import TYPE_CHECKING, NamedTuple

from hearth.scheduling.reading import Prompt
from hearth.types import Band, QueueItem, Usage, entity

if TYPE_CHECKING:
    from hearth.scheduling.estimates import Estimates, Habit
    from hearth.scheduling.listing import Listing
    from hearth.scheduling.residency import Resident
    from hearth.scheduling.state import DeviceState
    from hearth.scheduling.waiting import Entry, WaitingRoom

FADE_S = 900.0
MOST_READ_S = 300.0
"""Reading that takes longer counts as this: nobody is to wait for hours since a prompt is read for
one.
"""
DOUBT = 0.5  # returns counted as missing although none was seen
UNKNOWN = 0.5  # chance of a return of which nothing is known
GAPS = 8  # gaps that are remembered of each conversation
MIN_GAPS = 3  # with fewer, those of its caller say more
LATE = 1.1
LATE_S = 0.1  # a caller may be this much later than it was before
MOST_CONVERSATIONS = 32
"""Conversations that are remembered of a model, warm or not; the one that was not used for longest
goes first.
"""
LIKELY_TURNS = 4.0
"""So many of five requests of a caller of whom nothing is known are taken to go on."""
TURNS = 64.0  # requests of a caller by which is judged whether they go on with conversations
MOST_CALLERS = 1024  # of which that is remembered; the one that was not seen for longest goes first
MOST_LOST = 256
"""Conversations that are remembered of those that were unloaded, to count what is read again."""
UNSEEN_KEPT = 1
"""So many conversations are believed to be kept beside those in the slots, until that was seen:
llama.cpp has a cache in main memory for them.
"""
LEAST_TOKENS = 256  # shorter conversations say nothing of the size of a prompt cache
MOSTLY = 0.5  # share of a conversation that is found in a prompt cache which has kept it
SHORTENED = 0.5
"""A prompt that is shorter than this share of the last one does not go on where that ended: its
program has summed the conversation up.
"""

ConversationKey = tuple[str, str]
"""Caller and conversation."""


@entity
class Conversation:
    """What a model server has read of a conversation."""

    caller: str
    tokens: float  # of prompt and answer, as far as the server has counted them
    guessed_tokens: float  # the same by the estimates that are made of prompts
    guessed_prompt_tokens: float
    used_at: float
    habit: Habit | None  # when its caller comes back; None where nobody knows
    band: Band  # of its requests
    gaps_s: tuple[float, ...] = ()  # from its use to its next request, the latest last

    @property
    def known_gaps(self) -> Iterable[float]:
        """After how long it goes on, else its caller comes back."""
        if len(self.gaps_s) >= MIN_GAPS or self.habit is None:
            return self.gaps_s
        return self.habit.gaps or self.gaps_s

    def warm_tokens(self, guessed_prompt_tokens: float) -> float:
        """How much of a prompt that goes on with it need not be read."""
        if guessed_prompt_tokens < SHORTENED * self.guessed_prompt_tokens:
            return 0.0
        return min(self.guessed_tokens, guessed_prompt_tokens)

    def chance(self, quiet_s: float, share: float, *, is_latest: bool) -> float:
        """How likely its caller returns to it; `share`: of its caller's requests that go on with a
        conversation; `is_latest`: it is the last that this caller has used on the model.
        """
        gaps = tuple(self.known_gaps if is_latest else self.gaps_s)
        later = sum([gap_s * LATE + LATE_S > quiet_s for gap_s in gaps])
        known = later / (later + DOUBT) if later else UNKNOWN / (1 + len(gaps))
        if len(self.gaps_s) < MIN_GAPS:
            known *= share
        return known * exp(-quiet_s / FADE_S)


class Remembered(NamedTuple):
    """What was known of a conversation when its attempt was dispatched."""

    tokens: float
    # so many others were used on the model since; None where that was unloaded meanwhile
    depth: int | None
    is_lost: bool  # the server was believed to have lost it


class Warmth(NamedTuple):
    """What is warm on a model."""

    conversations: int
    tokens: int
    reread_s: float  # expected, should the model be unloaded now


class PromptCaches:
    """What the prompt caches of a device's model server hold. Changed by the scheduler alone.

    Attributes:
        tables: the conversations of each resident model, warm or not, the one that was used last at
        the end. saved: those that outlive the unload of their model, until it is loaded again.
        lost: tokens of those that were unloaded. reread_tokens, reread_s_by_model: what
        was read although it had been read before. turns: by caller, its last requests and how many
        of them went on with a conversation.
    """

    def __init__(
        self,
        residents: Mapping[str, Resident],
        estimates: Estimates,
        waiting: WaitingRoom,
        listing: Listing,
        *,
        enabled: bool,
    ) -> None:
        self.enabled = enabled
        self.tables: dict[str, dict[ConversationKey, Conversation]] = {}
        self.saved: dict[str, dict[ConversationKey, Conversation]] = {}
        self.lost: dict[tuple[str, ConversationKey], float] = {}
        self.reread_tokens: dict[str, float] = {}
        self.reread_s_by_model: dict[str, float] = {}
        self.turns: dict[str, tuple[float, float]] = {}
        self._residents = residents
        self._estimates = estimates
        self._waiting = waiting
        self._listing = listing

    def copied(
        self, residents: Mapping[str, Resident], estimates: Estimates, waiting: WaitingRoom
    ) -> PromptCaches:
        """The same for a forecast, which changes no conversation but makes it anew."""
        twin = PromptCaches(residents, estimates, waiting, self._listing, enabled=self.enabled)
        twin.tables = {model: dict(table) for model, table in self.tables.items()}
        twin.saved = dict(self.saved)
        twin.lost = dict(self.lost)
        twin.turns = dict(self.turns)
        return twin

    def switch(self, *, on: bool) -> None:
        self.enabled = on
        if not on:
            self.forget()

    def forget(self) -> None:
        """Another model server has come, or nobody wants to know."""
        self.tables.clear()
        self.saved.clear()
        self.lost.clear()

    def remembered(self, entry: Entry, model: str) -> Remembered | None:
        """What is known of the conversation of an entry that is dispatched on a resident model."""
        item = entry.item
        key = item.conversation_key
        table = self.tables.get(model, {})
        found = None
        if key in table:
            depth = depth_of(table, key)
            is_lost = depth >= self.kept_conversations(model)
            found = Remembered(table[key].tokens, depth, is_lost=is_lost)
        elif (model, key) in self.lost:
            found = Remembered(self.lost[model, key], None, is_lost=True)
        # a later attempt goes on with what the first one has read
        if self.enabled and not item.background and entry.attempts == 1:
            self._note_turn(item.caller, goes_on=found is not None)
        return found

    def _note_turn(self, caller: str, *, goes_on: bool) -> None:
        requests, went_on = self.turns.pop(caller, (0.0, 0.0))
        if requests >= TURNS:
            requests /= 2
            went_on /= 2
        self.turns[caller] = (requests + 1.0, went_on + goes_on)
        if len(self.turns) > MOST_CALLERS:
            del self.turns[next(iter(self.turns))]

    def turn_share(self, caller: str) -> float:
        """The share of a caller's requests that go on with a conversation."""
        requests, went_on = self.turns.get(caller, (0.0, 0.0))
        return (went_on + LIKELY_TURNS) / (requests + LIKELY_TURNS + 1.0)

    def kept_conversations(self, model: str) -> int:
        """How many conversations the server keeps in the prompt cache of a resident model."""
        slots = self._residents[model].parallel
        return max(slots, self._estimates.reading.kept.get(model, slots + UNSEEN_KEPT))

    def warm(self, model: str) -> dict[ConversationKey, Conversation]:
        """The conversations that are warm on a model, the one that was used last first."""
        table = self.tables.get(model)
        if not table or model not in self._residents:
            return {}
        return dict(islice(reversed(table.items()), self.kept_conversations(model)))

    def reread_s(self, model: str, now: float) -> float:
        """Expected seconds of reading again what goes with a model, as far as they count."""
        if not self.tables.get(model):
            return 0.0
        return min(self._lost_s(model, now), MOST_READ_S)

    def _lost_s(self, model: str, now: float) -> float:
        """Expected seconds of reading again what is lost, should the model be unloaded now."""
        kept = self.kept_over_stop(model)
        expected = self.expected_s(model, now).items()
        return sum(seconds for key, seconds in expected if key not in kept)

    def kept_over_stop(self, model: str) -> dict[ConversationKey, Conversation]:
        """The conversations that outlive an unload of a resident model, the one that was used last
        first: an engine that saves them saves what is in its slots.
        """
        if not self._listing.saves(model):
            return {}
        in_slots = islice(self.warm(model).items(), self._residents[model].parallel)
        return {key: each for key, each in in_slots if each.tokens >= LEAST_TOKENS}

    def expected_s(self, model: str, now: float) -> dict[ConversationKey, float]:
        """Expected seconds of reading each warm conversation again, the one that was used last
        first.
        """
        running = self._residents[model].running.values()
        in_use = {entry.item.conversation_key for entry in running}
        speed = self._estimates.reading.speed(model)
        seen = set[str]()
        found = dict[ConversationKey, float]()
        for key, conversation in self.warm(model).items():
            if self._waiting.waits_in(key, model):
                chance = 1.0
            else:
                used_at = now if key in in_use else conversation.used_at
                share = self.turn_share(conversation.caller)
                is_latest = conversation.caller not in seen
                chance = conversation.chance(now - used_at, share, is_latest=is_latest)
            seen.add(conversation.caller)
            found[key] = chance * conversation.tokens / speed
        return found

    def warmth(self, model: str, now: float) -> Warmth:
        """For people: what is warm on a model."""
        tokens = [each.tokens for each in self.warm(model).values() if each.tokens]
        reread_s = self._lost_s(model, now) if tokens else 0.0
        return Warmth(len(tokens), round(sum(tokens)), reread_s)

    def reread_of_s(self, caller: str, model: str) -> float:
        """Expected seconds of reading the last conversation of a caller again, if it returns."""
        if not self.tables.get(model):
            return 0.0
        warm = self.warm(model).items()
        found = ((key, each) for key, each in warm if each.caller == caller and each.tokens)
        key, conversation = next(found, (None, None))
        if conversation is None or key in self.kept_over_stop(model):
            return 0.0
        seconds = conversation.tokens / self._estimates.reading.speed(model)
        return self.turn_share(caller) * min(seconds, MOST_READ_S)

    def reread_of_attempt_s(self, entry: Entry, model: str) -> float:
        """Seconds of reading what was cached of a prompt when its attempt was dispatched."""
        remembered = entry.remembered
        if remembered is None or remembered.is_lost or self._listing.saves(model):
            return 0.0
        return min(remembered.tokens / self._estimates.reading.speed(model), MOST_READ_S)

    def lost_again_s(self, item: QueueItem, model: str) -> float:
        """Expected seconds of reading the conversation of an item again, once it is warm on a model
        that is not in memory and is left for another one.
        """
        if not item.conversation or not self.enabled or self._listing.saves(model):
            return 0.0
        key = item.conversation_key
        chance = 1.0 if (model, key) in self.lost else self.turn_share(item.caller)
        return chance * min(self._estimates.prompt_s(item, model), MOST_READ_S)

    def cached_tokens(self, item: QueueItem, model: str, kept_tokens: int = 0) -> float:
        """How much of the prompt of an item, and of what it keeps of its answer, the server need
        not read.
        """
        if not item.conversation:
            return 0.0
        key = item.conversation_key
        table = self.tables.get(model, {})
        conversation = table.get(key)
        if conversation is None:
            conversation = self.saved.get(model, {}).get(key)
        elif depth_of(table, key) >= self.kept_conversations(model):
            return 0.0
        if conversation is None:
            return 0.0
        return conversation.warm_tokens(self._estimates.prompt_tokens(item, model) + kept_tokens)

    def returned(self, model: str, key: ConversationKey, now: float) -> None:
        """A request goes on with a known conversation that nobody used."""
        known = self.tables[model][key]
        known.gaps_s = (*known.gaps_s, now - known.used_at)[-GAPS:]

    def note(self, model: str, key: ConversationKey, conversation: Conversation) -> None:
        """A conversation was read, or went on, and is the one that was used last."""
        table = self.tables.setdefault(model, {})
        table.pop(key, None)
        table[key] = conversation
        self.lost.pop((model, key), None)
        if len(table) > MOST_CONVERSATIONS:
            self._lose(model, next(iter(table)))

    def save(self, model: str) -> None:
        """A resident model goes, and its engine saves what it can before."""
        kept = self.kept_over_stop(model)
        if kept:
            self.saved[model] = dict(reversed(kept.items()))

    def unloaded(self, model: str) -> None:
        """The caches of a model are gone with it, but for what was saved."""
        saved = self.saved.get(model, {})
        for key in list(self.tables.get(model, ())):
            if key not in saved:
                self._lose(model, key)
        self.tables.pop(model, None)

    def loaded(self, model: str) -> None:
        """What was saved of a model's conversations is read when they go on."""
        saved = self.saved.pop(model, None)
        if saved:
            self.tables[model] = saved

    def _lose(self, model: str, key: ConversationKey) -> None:
        conversation = self.tables[model].pop(key)
        if conversation.tokens > 0:
            self.lost[model, key] = conversation.tokens
        if len(self.lost) > MOST_LOST:
            del self.lost[next(iter(self.lost))]


def depth_of(table: dict[ConversationKey, Conversation], key: ConversationKey) -> int:
    """How many others were used after this one."""
    if next(reversed(table)) == key:
        return 0
    keys = list(table)
    return len(keys) - 1 - keys.index(key)


def prompt_of(entry: Entry, usage: Usage) -> Prompt:
    """What an attempt that has ended tells of reading."""
    item = entry.item
    began_at = entry.first_byte_at
    if item.conversation and entry.attempts > 1:  # the times of all attempts say nothing of one
        return Prompt(replace(usage, prompt_s=None), in_conversation=True)
    return Prompt(
        usage,
        in_conversation=bool(item.conversation),
        first_byte_s=(
            began_at - entry.dispatched_at if began_at is not None and item.streaming else None
        ),
        is_cold=entry.remembered is None or entry.remembered.is_lost,
    )


def came(device: DeviceState, entry: Entry, now: float) -> None:
    """A request has arrived that goes on with a conversation."""
    if not device.estimates.learns:
        return
    key = entry.item.conversation_key
    resident = device.residency.residents.get(entry.wanted_model or "")
    if resident is None or device.gateway.waiting.waits_in(key, resident.model):
        return
    caches = device.residency.caches
    running = resident.running.values()
    # what is not known is most of what comes, and many may run: so that is asked first
    if key in caches.tables.get(resident.model, ()) and not any(
        each.item.conversation_key == key for each in running
    ):
        caches.returned(resident.model, key, now)


def was_read(device: DeviceState, entry: Entry, now: float) -> None:
    """The prompt of an attempt has been read: its first byte is here.

    Of a conversation that was warm there is more to know only at the end.
    """
    if entry.remembered is None or entry.remembered.is_lost:
        _note(device, entry, now, None, entry.kept_tokens)


def was_stopped(device: DeviceState, entry: Entry, kept_tokens: int, now: float) -> None:
    """An attempt was interrupted; `kept_tokens` of its answer were written."""
    read_by = entry.dispatched_at + device.read_s(entry.item, entry.model or "")
    if entry.first_byte_at is None and now < read_by:
        return
    if entry.remembered is not None and entry.remembered.is_lost:
        _count_again(device, entry, entry.remembered.tokens)
    _note(device, entry, now, None, kept_tokens)


def went_on(device: DeviceState, entry: Entry, prompt: Prompt, now: float) -> None:
    """An attempt has ended with its answer.

    What belongs to no conversation takes a place in the cache as well.
    """
    usage = prompt.usage
    remembered = entry.remembered
    if remembered is not None:
        _learn(device, entry, prompt, remembered)
    _note(device, entry, now, usage.prompt_tokens, usage.output_tokens or 0)


def _learn(device: DeviceState, entry: Entry, prompt: Prompt, remembered: Remembered) -> None:
    """Was the conversation still cached? What was not, has been read again."""
    estimates = device.estimates
    model = entry.model or ""
    read_before = min(remembered.tokens, prompt.usage.prompt_tokens or remembered.tokens)
    if read_before < SHORTENED * remembered.tokens:
        return
    cached_tokens = estimates.reading.cached_tokens(model, prompt)
    if cached_tokens is None:
        cached_tokens = 0.0 if remembered.is_lost else read_before
    elif remembered.depth is not None and read_before >= LEAST_TOKENS and estimates.learns:
        is_kept = cached_tokens >= MOSTLY * read_before
        believed = device.residency.caches.kept_conversations(model)
        estimates.reading.learn_kept(model, remembered.depth, believed, is_kept=is_kept)
    if cached_tokens < MOSTLY * read_before:
        _count_again(device, entry, read_before - cached_tokens)


def _count_again(device: DeviceState, entry: Entry, tokens: float) -> None:
    model = entry.model or ""
    caches = device.residency.caches
    seconds = tokens / device.estimates.reading.speed(model)
    caches.reread_tokens[model] = caches.reread_tokens.get(model, 0.0) + tokens
    caches.reread_s_by_model[model] = caches.reread_s_by_model.get(model, 0.0) + seconds


def _note(
    device: DeviceState, entry: Entry, now: float, prompt_tokens: int | None, answer_tokens: int
) -> None:
    """Write down how far the server has come with a conversation."""
    item = entry.item
    model = entry.model or ""
    caches = device.residency.caches
    if not caches.enabled or model not in device.residency.residents:
        return
    guessed = device.estimates.prompt_tokens(item, model)
    key = item.conversation_key
    known = caches.tables.get(model, {}).get(key)
    habit = None if known is None else known.habit
    conversation = Conversation(
        caller=item.caller,
        tokens=(prompt_tokens or guessed) + answer_tokens if item.conversation else 0.0,
        guessed_tokens=guessed + answer_tokens,
        guessed_prompt_tokens=guessed,
        used_at=now,
        habit=habit or device.gateway.arrivals.habit_of(item.caller, model),
        band=item.band,
        gaps_s=() if known is None else known.gaps_s,
    )
    caches.note(model, key, conversation)


def warm_on(device: DeviceState, caller: str, conversation: str) -> str | None:
    """The model in memory on which a conversation of this caller is warm, the one that has read
    most of it; None where there is none.
    """
    key = (caller, conversation)
    caches = device.residency.caches
    found = {
        model: caches.warm(model)[key].tokens
        for model in caches.tables
        if device.is_there(model) and key in caches.warm(model)
    }
    return max(found, key=lambda model: (found[model], model), default=None)
