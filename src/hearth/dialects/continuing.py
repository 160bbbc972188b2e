"""Goes on with a stream that was interrupted by asking the model for the rest of its text.

A model's answer is a function of the text before it: the prompt as the model server renders it, and what was said so far. Asked for what
follows these (`raw`), it says what it would have said, or draws it from the same distribution. What comes is written in the caller's
dialect, under the names, numbers and counts that the caller knows; `Replay` joins it to the last byte that was sent. Pure. Measured on a
real Ollama 0.33: docs/decisions/0016-an-interrupted-stream-is-continued.md.
"""

from __future__ import annotations

import re
from collections import deque

from hearth.dialects.continuing_writers import TOOL_CALLS, Ended, SentFrames, writer_for
from hearth.dialects.frames import ROLE, Frame, Reading, WholeFrames, at, object_in
from hearth.dialects.gojson import GoJsonError, JsonObject, JsonValue, decode, encode, lookup
from hearth.dialects.native_form import Native, native_form
from hearth.dialects.replay import Replay, Sent
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint, Route
from hearth.dialects.stream import MOST_NANOSECONDS, MOST_TOKENS
from hearth.errors import BackendError, StreamDiverged
from hearth.types import BackendCall, Headers, Usage, value

_HERE = "the answer begins here 5f3c9a"
"""Stands for an answer in a rendering, to see what the model's template writes before one."""
_TOOL: JsonObject = {
    "type": "function",
    "function": {"name": "none", "description": "", "parameters": {"type": "object", "properties": {}}},
}
_TEXTS = frozenset({"content", "text", "response.output_text.delta"})
_THOUGHTS = frozenset({"thinking", "reasoning", "response.reasoning_summary_text.delta"})
_IGNORED = frozenset({ROLE, "signature"})
_OPENINGS = ("message_start", "content_block_start", "response.created", "response.in_progress", "response.output_item.added")
_TO_ASK_AGAIN = re.compile(r"[\s\ufffd]+\Z")
"""An end that no tokenizer reads as it was written: blanks belong to the word after them, U+FFFD stands for broken text."""
_OPEN_THOUGHT = re.compile(r"(?:<(?:think|thinking|thought|reasoning)>|\[THINK\])\s*\Z", re.IGNORECASE)
_NATIVE = INFERENCE_ROUTES[Endpoint.GENERATE]


@value
class Spent:
    """Seconds that earlier attempts took: altogether, for the prompt, for the text."""

    total_s: float = 0.0
    prompt_s: float = 0.0
    decode_s: float = 0.0


NO_TIME = Spent()


def template_probe(model: str, load: JsonObject, *, answered: bool, offering: bool = False) -> BackendCall:
    """Asks how a model's prompts are rendered; a server that cannot be asked says a word in place of that.

    Args:
        load: the options that the model is loaded with.
        answered: the conversation ends with an answer; offering: with a tool on offer.
    """
    answer: list[JsonValue] = [{"role": "assistant", "content": _HERE}] if answered else []
    turns: list[JsonValue] = [{"role": "user", "content": "?"}, *answer]
    fields: JsonObject = {"model": model, "messages": turns, "options": {**load, "num_predict": 1}}
    if offering:
        fields["tools"] = [_TOOL]
    return _rendering(Endpoint.CHAT, fields, ((b"content-type", b"application/json"),))


def ends_with_the_answer(answered: str) -> bool:
    """The template goes on with an answer that was begun, in place of closing it and beginning another one."""
    return answered.endswith(_HERE)


def load_options_in(body: bytes) -> JsonObject:
    """What a native body says of how its model is loaded."""
    fields = object_in(body)
    options = lookup(fields, "options")
    return {name: options[name] for name in ("num_ctx",) if name in options} if isinstance(options, dict) else {}


def rendered_in(answer: bytes) -> str | None:
    """The prompt that a model server shows; None where it shows none."""
    try:
        fields = decode(answer)
    except GoJsonError:
        return None
    shown = fields.get("_debug_info") if isinstance(fields, dict) else None
    text = shown.get("rendered_template") if isinstance(shown, dict) else None
    return text if isinstance(text, str) and not (isinstance(shown, dict) and shown.get("image_count")) else None


def lead_in(plain: str, answered: str) -> str:
    """What a model's template writes between the prompt and an answer, such as the name of a channel."""
    return answered[len(plain) : answered.index(_HERE)] if answered.startswith(plain) and _HERE in answered[len(plain) :] else ""


class Continuation:
    """One later run of an interrupted stream. What `ask` asks for comes in through `feed`; what comes out is for the caller."""

    def __init__(self, route: Route, call: BackendCall, sent: Sent) -> None:
        """Read the request and what was sent.

        Raises:
            StreamDiverged: it cannot be continued: it is no plain text, or not any more, or not yet.
        """
        fields = decode(call.body)
        native = native_form(route.path, fields) if isinstance(fields, dict) else None
        self._begun = _Begun()
        self._replay = Replay(route, sent, self._begun.note)
        self._replay.trust()
        closed = native is not None and native.chat is not None and self._begun.endings > 0  # a call may be what follows
        if not isinstance(fields, dict) or native is None or closed or not self._begun.is_plain_text:
            raise StreamDiverged("an answer of this kind cannot be continued")
        self._native: Native = native
        self._headers = call.headers
        self._writer = writer_for(route, fields, self._begun.sent)
        self._lines = WholeFrames(_NATIVE)
        self._missing = self._read = ""
        self._called = False
        self._asked_from_before = self._stops_within = self._mute = self._used_up = False
        self._known_tokens = 0
        self._last: JsonObject | None = None
        self.usage = Usage()
        """What the whole answer counts, once it has ended."""

    @property
    def tokens(self) -> int:
        """Of the text so far: a frame each."""
        return self._begun.tokens

    @property
    def complete(self) -> bool:
        """The model server has said that this is all."""
        return self._last is not None

    def rendering(self, *, answered: bool) -> BackendCall:
        """Asks for the prompt as the model server renders it; `answered`: with a stand-in for the text so far."""
        fields = self._native.fields
        if answered:
            fields = self._answered(fields, _HERE, "reasoning" if self._native.path is Endpoint.OPENAI_CHAT else "thinking")
        return _rendering(self._native.path, fields, self._headers)

    def _answered(self, fields: JsonObject, text: str, thoughts: str) -> JsonObject:
        """The conversation with an answer that the model has begun; `thoughts`: the name of theirs."""
        said: JsonObject = {thoughts: "".join(self._begun.thoughts)} if self._begun.thoughts else {}
        messages = lookup(fields, "messages")
        return {**fields, "messages": [*(messages if isinstance(messages, list) else []), {"role": "assistant", "content": text, **said}]}

    @property
    def has_thought(self) -> bool:
        """There are thoughts before the text: their place in the prompt is seen only in a rendering with an answer."""
        return bool(self._begun.thoughts)

    def prefix(self, lead: str, plain: str, answered: str | None) -> str:
        """What stands before the text so far when the model reads it.

        Args:
            lead: see `lead_in`; plain, answered: the renderings.

        Raises:
            StreamDiverged: the template shows that it cannot be known.
        """
        if not self.has_thought:
            if _OPEN_THOUGHT.search(plain) and self._native.turns:
                raise StreamDiverged("the model was still thinking")
            return plain + (lead if self._native.turns else "")
        between = lead_in(plain, answered or "")
        if self._native.path is Endpoint.GENERATE or "".join(self._begun.thoughts).strip() not in between:
            raise StreamDiverged("the model's template does not show where the answer follows the thoughts")
        return plain + between

    def ask(self, prefix: str, *, from_before: bool) -> BackendCall:
        """Asks for the rest of the text.

        Args:
            from_before: ask from before an end that cannot be read again as it is, and drop what is said once more.
        """
        text = "".join(self._begun.texts)
        kept = self._kept(text) if from_before and not self._begun.endings else text
        self._missing = text[len(kept) :]
        self._asked_from_before = bool(self._missing)
        self._known_tokens = self.tokens - self._begun.frames_with(len(self._missing))
        self._read = prefix + kept
        asked: JsonObject = {"model": lookup(self._native.fields, "model"), "prompt": self._read, "raw": True}
        if self._native.chat is not None:
            asked = self._answered(self._native.chat, kept, "thinking")
        fields: JsonObject = {**asked, "stream": True, "truncate": False, "options": self._options()}
        shift = lookup(self._native.fields, "shift")
        if shift is not None and self._native.path is not Endpoint.OPENAI_CHAT:
            fields["shift"] = shift
        path = Endpoint.GENERATE if self._native.chat is None else Endpoint.CHAT
        return BackendCall(method="POST", path=path.value, headers=self._headers, body=encode(fields))

    @property
    def offers_tools(self) -> bool:
        """Calls may follow the text, so that only `/api/chat` can be asked for the rest."""
        return self._native.chat is not None

    def rendering_of(self, ask: BackendCall) -> BackendCall | None:
        """Where tools are on offer: asks how the model server reads what `ask` asks, which has to be `is_read_as` it."""
        if self._native.chat is None:
            return None
        fields = decode(ask.body)
        return _rendering(Endpoint.CHAT, fields if isinstance(fields, dict) else {}, self._headers)

    def is_read_as(self, rendering: str | None) -> bool:
        """The text so far is the end of it: the template neither closes an answer that is begun nor opens another turn after it."""
        return rendering == self._read

    @property
    def asked_from_before(self) -> bool:
        """Something was asked for again, so that what comes may not fit."""
        return self._asked_from_before

    @property
    def nothing_said(self) -> bool:
        """No text has been sent yet."""
        return not self._begun.texts

    def _kept(self, text: str) -> str:
        """The text without an end that is a blank, or may be the beginning of what ends the answer."""
        while True:
            kept = _TO_ASK_AGAIN.sub("", text)
            kept = kept[: len(kept) - max((_overlap(kept, stop) for stop in self._native.stops), default=0)]
            self._stops_within = self._stops_within or len(kept) < len(_TO_ASK_AGAIN.sub("", text))
            if kept == text:
                return kept
            text = kept

    def _options(self) -> JsonObject:
        """Where nothing more may come, a word is asked for, to be dropped: what Ollama does with a limit of 0 is no answer."""
        options, limit, seed = dict(self._native.options), self._native.options.get("num_predict"), self._native.options.get("seed")
        left = int(limit) - self._known_tokens if isinstance(limit, int | float) and limit > 0 else None
        self._used_up = left is not None and left <= 0
        self._mute = self._begun.endings > 0 or self._used_up
        if left is not None or self._mute:
            options["num_predict"] = 1 if self._mute or left is None else left
        if isinstance(seed, int) and seed >= 0:
            options["seed"] = (seed + self._known_tokens) % 2**31  # the draws of the text so far are not drawn again
        return options

    def feed(self, chunk: bytes) -> bytes:
        """What may be passed on now.

        Raises:
            StreamDiverged: what was asked for again is not said again; nothing has come out yet.
            BackendError: the model server has ended the rest with an error.
        """
        return b"".join([self._line(object_in(raw)) for raw in self._lines.split(chunk)])

    def _line(self, fields: JsonObject) -> bytes:
        if error := fields.get("error"):
            raise BackendError(f"the model server said: {str(error)[:500]}")
        message = fields.get("message")
        said: JsonObject = message if isinstance(message, dict) else {"content": fields.get("response")}
        text, calls = said.get("content"), said.get("tool_calls")
        new = self._new(text) if isinstance(text, str) and not self._mute else ""
        if said.get("thinking") or (calls and self._missing):
            raise StreamDiverged("the rest says something else than was asked from")
        if fields.get("done") is True:
            self._last = fields
            if self._missing and not self._mute and not self._stops_within:
                raise StreamDiverged("the rest ended before it had said again what was asked from")
        out = b""
        if new:
            self._begun.texts.append(new)
            out = self._replay.feed(self._writer.text(new, fields))
        if isinstance(calls, list) and calls and not self._mute:
            out += self._calls([call for call in calls if isinstance(call, dict)], fields)
        return out

    def _calls(self, calls: list[JsonObject], line: JsonObject) -> bytes:
        self._called = True
        return b"".join(map(self._replay.feed, self._writer.calls(calls, "".join(self._begun.texts), line)))

    def _new(self, text: str) -> str:
        """What of it the caller has not got."""
        again = min(len(self._missing), len(text))
        if not text.startswith(self._missing[:again]):
            raise StreamDiverged("the rest says something else than was asked from")
        self._missing = self._missing[again:]
        return text[again:]

    def finish(self, before: Spent, wall_s: float) -> bytes:
        """The end of the caller's stream, where the rest has ended.

        Args:
            wall_s: seconds since 1970.
        """
        if self._last is None:
            return b""
        last, known = self._last, self._known_tokens
        output = self.tokens if self._mute else known + _count(last, "eval_count")
        prompt = max(0, _count(last, "prompt_eval_count") - known)
        reason = ("length" if self._used_up else "stop") if self._mute else last.get("done_reason")
        ended = Ended(
            line=_whole_line(last, prompt, output, before),
            reason=TOOL_CALLS if self._called else self._begun.reason or (reason if isinstance(reason, str) else "stop"),
            prompt_tokens=prompt,
            output_tokens=output,
            text="".join(self._begun.texts),
            wall_s=int(wall_s),
        )
        decode_s = before.decode_s + _count(last, "eval_duration", MOST_NANOSECONDS) / 1e9
        self.usage = Usage(prompt_tokens=prompt or None, output_tokens=output, decode_s=decode_s or None)
        frames = self._writer.ending(ended)[self._begun.endings :]
        return b"".join([self._replay.feed(frame) for frame in frames]) + self._replay.finish()


class _Begun:
    """What was sent, as it is heard frame by frame."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.tokens = self.endings = 0
        self.reason = ""
        self.sent = SentFrames()
        self._last_sizes: deque[int] = deque(maxlen=256)
        self._plain = True

    @property
    def is_plain_text(self) -> bool:
        """Nothing has come that plain text cannot follow."""
        return self._plain and bool(self.texts or not self.thoughts)

    def note(self, frame: Frame, reading: Reading) -> None:
        told = False
        for slot in (slot for slot in reading.slots if slot.text and slot.channel not in _IGNORED):
            told = True
            self._plain = self._plain and (slot.channel in _TEXTS or (slot.channel in _THOUGHTS and not self.texts))
            (self.texts if slot.channel in _TEXTS else self.thoughts).append(slot.text)
            if slot.channel in _TEXTS:
                self._last_sizes.append(len(slot.text))
                self.sent.text_frame = frame
        self.tokens += told
        if reading.marks:
            self._mark(frame)

    def _mark(self, frame: Frame) -> None:
        self.sent.note(frame)
        kind, block = frame.event, frame.fields.get("content_block", frame.fields.get("item"))
        called = at(frame.fields, ("message", "tool_calls")) or at(frame.fields, ("choices", 0, "delta", "tool_calls"))
        self._plain = self._plain and not called and not (isinstance(block, dict) and block.get("type") in ("tool_use", "function_call"))
        if self.texts and kind not in _OPENINGS:
            self.endings += 1
            self.reason = self.reason or _reason(frame.fields)
        elif not kind:
            self._plain = False

    def frames_with(self, characters: int) -> int:
        """How many of the last frames hold any of the last characters."""
        frames = 0
        for size in reversed(self._last_sizes):
            if characters <= 0:
                break
            characters -= size
            frames += 1
        return frames


def _reason(fields: JsonObject) -> str:
    """Why the answer ended, in Ollama's words, where a frame of the end says that."""
    delta, choices = fields.get("delta"), fields.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    said = delta.get("stop_reason") if isinstance(delta, dict) else choice.get("finish_reason") if isinstance(choice, dict) else None
    return {"max_tokens": "length", "end_turn": "stop"}.get(said, said) if isinstance(said, str) else ""


def _rendering(path: Endpoint, fields: JsonObject, headers: Headers) -> BackendCall:
    body = encode({**fields, "stream": False, "_debug_render_only": True})
    return BackendCall(method="POST", path=path.value, headers=headers, body=body)


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters can be the first ones of `stop`, which is not whole."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


def _whole_line(last: JsonObject, prompt: int, output: int, before: Spent) -> JsonObject:
    """The last native line, with what is counted over all runs."""
    line = dict(last) | ({"prompt_eval_count": prompt} if prompt else {}) | {"eval_count": output}
    spent = (("total_duration", before.total_s), ("prompt_eval_duration", before.prompt_s), ("eval_duration", before.decode_s))
    return line | {name: _count(last, name, MOST_NANOSECONDS) + round(seconds * 1e9) for name, seconds in spent if name in last}


def _count(fields: JsonObject, name: str, most: int = MOST_TOKENS) -> int:
    found = fields.get(name)
    return found if type(found) is int and 0 <= found <= most else 0
