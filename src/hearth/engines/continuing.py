"""The rest of an interrupted answer, asked of the model: what to ask, and what to make of what
comes.

A model's answer is a function of the text before it: the prompt as the model server renders it, and
the text so far. Asked for what follows these (`raw`), it writes what it would have written, or
draws it from the same distribution. What comes is written by the writer of the caller's dialect,
which is given the names and numbers that the caller knows. Measured on a real Ollama 0.33:
docs/decisions/0016-an-interrupted-stream-is-continued.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from hearth.dialects.begun import Begun
from hearth.dialects.frames import WholeFrames, at, frames_in, object_in
from hearth.dialects.gojson import JsonObject, JsonValue, decode, encode, lookup
from hearth.dialects.messages_writer import MessagesWriter
from hearth.dialects.native_form import Native, native_form
from hearth.dialects.replay import Sent
from hearth.dialects.responses_writer import ResponsesWriter
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint, Route, route_of
from hearth.dialects.stream import MOST_NANOSECONDS, Ending, count_in, fields_in, runner_died
from hearth.dialects.writers import (
    Generation,
    NativeWriter,
    OpenAiWriter,
    TextPart,
    ToolCall,
    Writer,
)
from hearth.errors import BackendError, RunnerDied, StreamDiverged
from hearth.types import (
    JSON_BODY,
    NO_TIME,
    NO_USAGE,
    BackendCall,
    Headers,
    ResumeMode,
    Usage,
    without_none,
)

_HERE = "the answer begins here 5f3c9a"
"""Stands for an answer in a rendering, to see what the model's template writes before one."""
_TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "none",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    },
}
_TO_ASK_AGAIN = re.compile(r"(?<![\s\ufffd])[\s\ufffd]++\Z")
"""An end that no tokenizer reads as it was written: blanks belong to the word after them, U+FFFD
stands for broken text.
"""
_OPEN_THOUGHT = re.compile(
    r"(?:<(think|thinking|thought|reasoning)>|\[(THINK)\])\s*\Z", re.IGNORECASE
)
_AFTER_A_THOUGHT = "\n\n"
"""What models write between a thought and their answer; the model server leaves it out."""
_NATIVE = INFERENCE_ROUTES[Endpoint.GENERATE]


def template_probe(
    model: str,
    load: JsonObject,
    *,
    answered: bool,
    begun: str = "",
    offering: bool = False,
    think: bool | None = None,
) -> BackendCall:
    """Asks how a model's prompts are rendered; a server that cannot be asked generates a word in
    place of that.

    Args:
        load: the options that the model is loaded with.
        answered: the conversation ends with an answer, which has `begun` so; offering: with a
        tool on offer.
        think: what the caller asks of thoughts, None for nothing.
    """
    said = f"{begun}{_HERE}"
    answer: list[JsonValue] = [{"role": "assistant", "content": said}] if answered else []
    turns: list[JsonValue] = [{"role": "user", "content": "?"}, *answer]
    fields: JsonObject = {"model": model, "messages": turns, "options": {**load, "num_predict": 1}}
    if offering:
        fields["tools"] = [_TOOL]
    if think is not None:
        fields["think"] = think
    return _rendering(Endpoint.CHAT, fields, JSON_BODY)


def ends_with_the_answer(answered: str) -> bool:
    """The template goes on with an answer that was begun, in place of closing it and beginning
    another one.
    """
    return answered.endswith(_HERE)


def goes_on_with_the_answer(prefix: str, answered: str) -> bool:
    """It does so exactly behind what the model has read."""
    return answered == prefix + _HERE


def prefix_of_text(lead: str, plain: str, answered: str, *, thinks: bool) -> str:
    """What stands before an answer of which no thought was sent.

    Args:
        lead: see `lead_in`; plain, answered: renderings without an answer and with one. thinks: a
        thought that the template opens was closed at once.
    """
    closing = _closing(plain) if thinks else None
    return _led(plain, lead) if closing is None else _closed(plain, answered, closing)


def left_out_of(prefix: str, answered: str) -> str:
    """What a template writes before its own answer, such as a thought that is opened, or empty, but
    leaves out before one that was begun; empty for nothing, or where the two have little in
    common.
    """
    before = answered.removesuffix(_HERE)
    return prefix[len(before) :] if prefix.startswith(before) else ""


def load_options_in(body: bytes) -> JsonObject:
    """What a native body says of how its model is loaded."""
    options = lookup(object_in(body), "options")
    return _load_options(options) if isinstance(options, dict) else {}


def _load_options(options: JsonObject) -> JsonObject:
    return {"num_ctx": options["num_ctx"]} if "num_ctx" in options else {}


def prompt_tokens_in(answer: bytes) -> int | None:
    """How many tokens a prompt has, by the answer to it; None where it does not say."""
    return count_in(object_in(answer), "prompt_eval_count")


def rendered_in(answer: bytes) -> str | None:
    """The prompt that a model server shows; None where it shows none."""
    shown = object_in(answer).get("_debug_info")
    text = at(shown, ("rendered_template",))
    return text if isinstance(text, str) and not at(shown, ("image_count",)) else None


def lead_in(plain: str, answered: str) -> str:
    """What a model's template writes between the prompt and an answer, such as the name of a
    channel.
    """
    return (
        answered[len(plain) : answered.index(_HERE)]
        if answered.startswith(plain) and _HERE in answered[len(plain) :]
        else ""
    )


def _led(plain: str, lead: str) -> str:
    return plain if plain.endswith(lead) else plain + lead


def _closing(plain: str) -> str | None:
    """What closes the thought that a template opens at the end; None where it opens none."""
    found = _OPEN_THOUGHT.search(plain)
    if found is None:
        return None
    return f"[/{found[2]}]" if found[2] else f"</{found[1]}>"


def _closed(plain: str, answered: str, closing: str) -> str:
    between = lead_in(plain, answered)
    return plain + (between if closing in between else closing + _AFTER_A_THOUGHT)


class _RestReader:
    """Reads the lines of a rest, and writes what is new in them for the caller.

    Attributes:
        missing: what was asked for again and has not come yet. stops_within: a sequence that stops
        the answer may begin in it. is_mute: nothing of what comes is for the caller. calls: those
        that came. last: the line that ended the rest; empty before.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._frames = WholeFrames(_NATIVE)
        self.missing = ""
        self.stops_within = False
        self.is_mute = False
        self.calls: list[ToolCall] = []
        self.last: JsonObject = {}

    def feed(self, chunk: bytes, wall_s: float) -> bytes:
        """What may be passed on now; `wall_s` is seconds since 1970. Raises StreamDiverged: what
        was asked for again does not come again, or thoughts follow the text. BackendError: the
        model server has ended the rest with an error. RunnerDied: with its model.
        """
        frames: list[bytes] = []
        for line in self._frames.feed(chunk).split(b"\n"):
            if line:
                frames += self._line(line, wall_s)
        return b"".join(frames)

    def _line(self, line: bytes, wall_s: float) -> list[bytes]:
        fields = fields_in(line)
        error = fields.get("error")
        message = fields.get("message")
        if isinstance(error, str) and runner_died(error):
            raise RunnerDied(error)
        if error:
            raise BackendError(f"the model server said: {str(error)[:500]}")
        answer: JsonObject = (
            message if isinstance(message, dict) else {"content": fields.get("response")}
        )
        text = answer.get("content")
        calls = answer.get("tool_calls")
        new = self._new(text) if isinstance(text, str) and not self.is_mute else ""
        if answer.get("thinking") or (calls and self.missing):
            raise StreamDiverged("the continuation differs from the text already sent")
        if fields.get("done") is True:
            self.last = fields
            if self.missing and not self.is_mute and not self.stops_within:
                raise StreamDiverged(
                    "the continuation ended before it reached the text already sent"
                )
        frames = self._writer.write_text(new, wall_s) if new else []
        for call in calls if isinstance(calls, list) and not self.is_mute else ():
            self.calls.append(_tool_call(call))
            frames += self._writer.write(self.calls[-1], wall_s)
        return frames

    def _new(self, text: str) -> str:
        """What of it the caller has not got."""
        if not self.missing:
            return text
        again = min(len(self.missing), len(text))
        if not text.startswith(self.missing[:again]):
            raise StreamDiverged("the continuation differs from the text already sent")
        self.missing = self.missing[again:]
        return text[again:]


class Rest:
    """One later run of an interrupted stream, an `engines.port.LaterRun`. What `ask` asks for comes
    in through `feed`; what comes out is for the caller.

    Attributes:
        before: what earlier attempts took. prompt: as the model reads it, without an answer.
        prompt_tokens: those of the prompt, None where they were not counted. asked_from_before:
        something was asked for again, so that what comes may not fit.
    """

    mode: ResumeMode = "continued"
    verified_chars = 0

    def __init__(
        self,
        call: BackendCall,
        sent: Sent,
        read: Callable[[Endpoint, JsonObject], Native | None] = native_form,
    ) -> None:
        """Read the request, by `read`, and what was sent. Raises StreamDiverged: it cannot be
        continued: it is no plain text, or not any more, or not yet.
        """
        self._read_request = read
        route = route_of(call.path)
        fields = decode(call.body)
        native = read(route.path, fields) if isinstance(fields, dict) else None
        if not isinstance(fields, dict) or native is None or not sent.replayable:
            raise StreamDiverged("an answer of this kind cannot be continued")
        self._route = route
        self._native = native
        self._headers = call.headers
        self._conversation = call.conversation
        self._begun = Begun(route)
        for frame in frames_in(route, sent.data):
            self._begun.note(frame)
        closed = self.offers_tools and self._begun.endings > 0  # a call may be what follows
        if closed or not self._begun.is_plain or (self.has_no_text and self.has_thought):
            raise StreamDiverged("an answer of this kind cannot be continued")
        self._writer = _writer_for(route, fields, self._begun, hides_usage=call.hides_usage)
        # the frames of the end that were sent are written once more, to be left out
        self._writer.resume(self._parts_before(), self._begun.next_number - self._begun.endings)
        self._reader = _RestReader(self._writer)
        self.before = NO_TIME
        self.prompt = ""
        self._read = ""
        self._said_first = ""
        self.prompt_tokens: int | None = None
        self._known_tokens = 0
        self._used_up = False
        self.asked_from_before = False

    @property
    def again_tokens(self) -> int:
        """Of the text so far, at least: a frame has one or more."""
        return self._begun.tokens

    @property
    def has_no_text(self) -> bool:
        """No text has been sent yet."""
        return not self._begun.texts

    @property
    def has_thought(self) -> bool:
        """There are thoughts before the text: their place in the prompt is seen only in a rendering
        with an answer.
        """
        return bool(self._begun.thoughts)

    @property
    def offers_tools(self) -> bool:
        """Calls may follow the text, so that only `/api/chat` can be asked for the rest."""
        return self._native.chat is not None

    @property
    def thinks(self) -> bool:
        """The caller does not forbid thoughts."""
        return self._native.thinks

    def again(self, call: BackendCall, sent: Sent) -> Rest:
        """Another run, to go on from what has been sent by now, behind the same prompt."""
        other = Rest(call, sent, self._read_request)
        other._native = self._native
        other.prompt = self.prompt
        other.prompt_tokens = self.prompt_tokens
        return other

    def _parts_before(self) -> list[TextPart]:
        texts = "".join(self._begun.thoughts), "".join(self._begun.texts)
        return [
            TextPart(text=text, thinking=is_thought)
            for text, is_thought in zip(texts, (True, False), strict=True)
            if text
        ]

    def rendering(self, *, answered: bool) -> BackendCall:
        """Asks for the prompt as the model server renders it; `answered`: with a stand-in for the
        text so far.
        """
        path = self._native.path
        fields = self._native.fields
        if answered and path is Endpoint.GENERATE:
            path = Endpoint.CHAT
            fields = _as_conversation(fields)
        if answered:
            fields = self._answered(
                fields, _HERE, "reasoning" if path is Endpoint.OPENAI_CHAT else "thinking"
            )
        return _rendering(path, fields, self._headers)

    def _answered(self, fields: JsonObject, text: str, thoughts: str) -> JsonObject:
        """The conversation with an answer that the model has begun; `thoughts`: the name of
        theirs.
        """
        before: JsonObject = {thoughts: "".join(self._begun.thoughts)} if self.has_thought else {}
        messages = lookup(fields, "messages")
        return {
            **fields,
            "messages": [
                *(messages if isinstance(messages, list) else []),
                {"role": "assistant", "content": text, **before},
            ],
        }

    def relax_thinking(self) -> bool:
        """Ask without a wish for thoughts from now on; False where that changes nothing.

        Ollama's Anthropic layer drops the wish for a model that has none, its own routes refuse it.
        """
        native = self._native
        if self._route.dialect != "anthropic" or not lookup(native.fields, "think"):
            return False
        fields = {name: one for name, one in native.fields.items() if name != "think"}
        self._native = replace(native, fields=fields, chat=None if native.chat is None else fields)
        return True

    def needs_answered(self, plain: str) -> bool:
        """The place of the text is seen only in a rendering with an answer, too."""
        return self.has_thought or self._opened(plain) is not None

    def _opened(self, plain: str) -> str | None:
        """What closes a thought that the template has opened and the model has closed at once: text
        was sent, and no thought.

        None where it opens none, or where the model server does not part thoughts from text.
        """
        if not self._native.turns or self.has_thought or not self.thinks:
            return None
        closing = _closing(plain)
        in_text = closing is not None and closing in "".join(self._begun.texts)
        return None if in_text else closing

    def prefix(self, lead: str, plain: str, answered: str | None) -> str:
        """What stands before the text so far when the model reads it.

        Args:
            lead: see `lead_in`; plain, answered: the renderings.

        Raises:
            StreamDiverged: the template shows that it cannot be known.
        """
        self.prompt = plain
        between = lead_in(plain, answered or "")
        closing = self._opened(plain)
        thoughts = "".join(self._begun.thoughts).strip()
        if closing is not None:
            return _closed(plain, answered or "", closing)
        if not self.has_thought:
            return _led(plain, lead) if self._native.turns else plain
        if not self._native.turns or thoughts not in between:
            raise StreamDiverged(
                "the model's template does not show where the answer follows the thoughts"
            )
        return plain + between

    def place(self, prefix: str, *, from_before: bool) -> None:
        """Say where the rest begins.

        Args:
            from_before: ask from before an end that cannot be read again as it is, and drop what is
            generated once more.
        """
        text = "".join(self._begun.texts)
        kept = self._kept(text) if from_before and not self._begun.endings else text
        self._reader.missing = text[len(kept) :]
        self.asked_from_before = bool(self._reader.missing)
        self._read = prefix + kept
        self._known_tokens = self._tokens_of(None)

    @property
    def is_limited(self) -> bool:
        """The caller limits the tokens of the answer."""
        return self._limit is not None

    @property
    def _limit(self) -> int | None:
        limit = self._native.options.get("num_predict")
        return int(limit) if isinstance(limit, int | float) and limit > 0 else None

    def counting(self, *, text: bool) -> BackendCall:
        """Asks for one token: the answer says how many the prompt has, or prompt and text so far.

        There is no other way: a stream that is cut does not say what it counted, and no route of
        Ollama's splits a text. It costs nothing but that token, since the rest reads the same
        prompt, which is in the cache then.
        """
        prompt = self._read if text else self.prompt
        options: JsonObject = {**_load_options(self._native.options), "num_predict": 1}
        fields = {**self._raw(prompt), "stream": False, "truncate": False, "options": options}
        return self._call(Endpoint.GENERATE, encode(fields))

    def count(self, read_tokens: int | None) -> None:
        """Prompt and text so far have so many tokens."""
        self._known_tokens = self._tokens_of(read_tokens)

    def _tokens_of(self, read_tokens: int | None) -> int:
        """Those of the text that is not asked for again.

        A count that cannot be right is none: no token is shorter than a byte. A model may have
        written a text in more tokens than it is read in.
        """
        least = self.again_tokens - self._begun.frames_with(len(self._reader.missing))
        if read_tokens is None or self.prompt_tokens is None:
            return least
        counted = read_tokens - self.prompt_tokens
        if counted > len(self._read[len(self.prompt) :].encode()) + 1:
            self.prompt_tokens = None
            return least
        return max(least, counted)

    def ask(self) -> BackendCall:
        """Asks for the rest of the text."""
        asked = self._raw(self._read)
        if self._native.chat is not None:
            said = f"{self._said_first}{self._text_read}"
            asked = self._answered(self._native.chat, said, "thinking") | self._shift()
        fields = {**asked, "stream": True, "truncate": False, "options": self._options()}
        path = Endpoint.CHAT if self.offers_tools else Endpoint.GENERATE
        return self._call(path, encode(fields))

    @property
    def _text_read(self) -> str:
        """The text so far, as far as it is not asked for again."""
        return "".join(self._begun.texts).removesuffix(self._reader.missing)

    def say_first(self, rendering: str | None) -> bool:
        """Have the begun answer say what the template leaves out before it, as `rendering` shows;
        False where that is nothing, or not to be seen.
        """
        text = self._text_read
        if rendering is None or self.has_thought or not rendering.endswith(text):
            return False
        prefix = self._read.removesuffix(text)
        self._said_first = left_out_of(prefix, rendering.removesuffix(text))
        return bool(self._said_first)

    def _call(self, path: Endpoint, body: bytes) -> BackendCall:
        """A call that runs the model."""
        return BackendCall(
            method="POST",
            path=path.value,
            headers=self._headers,
            body=body,
            conversation=self._conversation,
        )

    def _raw(self, prompt: str) -> JsonObject:
        """What has the model go on from a prompt as it is."""
        model = lookup(self._native.fields, "model")
        return {"model": model, "prompt": prompt, "raw": True, **self._shift()}

    def _shift(self) -> JsonObject:
        """With another value, the model would be loaded anew."""
        shift = lookup(self._native.fields, "shift")
        is_native = self._native.path is not Endpoint.OPENAI_CHAT
        return {"shift": shift} if is_native and shift is not None else {}

    def rendering_of(self, ask: BackendCall) -> BackendCall:
        """Where tools are on offer: asks how the model server reads what `ask` asks, which has to
        be `is_read_as` it.
        """
        return _rendering(Endpoint.CHAT, object_in(ask.body), self._headers)

    def is_read_as(self, rendering: str | None) -> bool:
        """The text so far is the end of it: the template neither closes an answer that is begun nor
        opens another turn after it.
        """
        return rendering == self._read

    def _kept(self, text: str) -> str:
        """The text without an end that is a blank, or may be the beginning of what ends the
        answer.
        """
        # Without its blanks the text may end with the beginning of a stop sequence, and without
        # that with blanks again.
        while True:
            kept = _TO_ASK_AGAIN.sub("", text)
            beginnings = [
                stop[:size]
                for stop in self._native.stops
                for size in range(1, min(len(stop) - 1, len(kept)) + 1)
            ]
            within = max(
                (len(beginning) for beginning in beginnings if kept.endswith(beginning)), default=0
            )
            self._reader.stops_within = self._reader.stops_within or within > 0
            kept = kept[: len(kept) - within]
            if kept == text:
                return kept
            text = kept

    def _options(self) -> JsonObject:
        """Where nothing more may come, a word is asked for, to be dropped: what Ollama does with a
        limit of 0 is no answer.
        """
        options = dict(self._native.options)
        seed = self._native.options.get("seed")
        left = None if self._limit is None else self._limit - self._known_tokens
        self._used_up = left is not None and left <= 0
        self._reader.is_mute = self._begun.endings > 0 or self._used_up
        if left is not None or self._reader.is_mute:
            options["num_predict"] = 1 if self._reader.is_mute or left is None else left
        if isinstance(seed, int) and seed >= 0:
            # the draws of the text so far are not drawn again
            options["seed"] = (seed + self._known_tokens) % 2**31
        return options

    def feed(self, chunk: bytes, wall_s: float) -> bytes:
        return self._reader.feed(chunk, wall_s)

    def end(self, wall_s: float) -> tuple[Ending, bytes]:
        """How the whole answer has ended, and the end of the caller's stream; empty where the rest
        has none.
        """
        last = self._reader.last
        before = self.before
        if not last:
            return Ending(complete=False, reported_error=False, usage=NO_USAGE), b""
        output, prompt = self._counts()
        reason = (
            ("length" if self._used_up else "stop")
            if self._reader.is_mute
            else last.get("done_reason")
        )
        done = Generation(
            parts=self._reader.calls,
            reason=self._begun.reason or (reason if isinstance(reason, str) else "stop"),
            prompt_tokens=prompt,
            output_tokens=output,
            total_ns=_spent_ns(last, "total_duration", before.total_s),
            load_ns=_spent_ns(last, "load_duration"),
            prompt_ns=_spent_ns(last, "prompt_eval_duration", before.prompt_s),
            output_ns=_spent_ns(last, "eval_duration", before.decode_s),
        )
        decode_s = before.decode_s + _spent_ns(last, "eval_duration") / 1e9
        usage = Usage(prompt_tokens=prompt or None, output_tokens=output, decode_s=decode_s or None)
        end = WholeFrames(self._route).split(b"".join(self._writer.end(done, wall_s)))
        ending = Ending(complete=True, reported_error=False, usage=usage)
        return ending, b"".join(end[self._begun.endings :])

    def _counts(self) -> tuple[int, int]:
        """Tokens of the whole answer and of the prompt; an end of its own counts as one."""
        read = count_in(self._reader.last, "prompt_eval_count")
        generated = count_in(self._reader.last, "eval_count") or 0
        if not self.is_limited:
            self.count(read)
        output = self._known_tokens + generated
        if self._reader.is_mute:
            known = max(self.again_tokens, self._known_tokens)
            output = known if self._limit is None else min(known, self._limit)
            output += not self._used_up and self._begun.reason != "length"
        prompt = self.prompt_tokens
        return output, max(0, (read or 0) - self._known_tokens) if prompt is None else prompt


def _writer_for(route: Route, fields: JsonObject, begun: Begun, *, hides_usage: bool) -> Writer:
    """What writes the answer to the request with these fields, under the names that its caller
    knows.
    """
    names = begun.names
    chat = route.path in (Endpoint.CHAT, Endpoint.OPENAI_CHAT)
    model = str(begun.first.get("model"))
    if route.is_native:
        return NativeWriter(model, chat=chat)
    if route.dialect == "anthropic":
        return MessagesWriter("", model, estimated_tokens=0)  # its first frame names it
    if route.path is Endpoint.OPENAI_RESPONSES:
        response = begun.first.get("response")
        message_id = str(names.get(f"item {len(begun.items)}"))
        in_progress = response if isinstance(response, dict) else {}
        return ResponsesWriter(message_id, in_progress, items=begun.items)
    options = lookup(fields, "stream_options")
    made_by = str(begun.first.get("system_fingerprint"))
    wants_usage = (
        not hides_usage and isinstance(options, dict) and lookup(options, "include_usage") is True
    )
    created = names.get("created")
    return OpenAiWriter(
        str(names.get("id")),
        model,
        chat=chat,
        created_wall_s=created if isinstance(created, int) else 0,
        made_by=made_by,
        include_usage=wants_usage,
    )


def _tool_call(call: JsonValue) -> ToolCall:
    name = at(call, ("function", "name"))
    arguments = at(call, ("function", "arguments"))
    return ToolCall(
        call_id=str(at(call, ("id",))),
        name=str(name),
        arguments=arguments if isinstance(arguments, dict) else {},
    )


def _as_conversation(fields: JsonObject) -> JsonObject:
    """A prompt as the conversation that Ollama makes of it; of another one, the rendering shows
    that.
    """
    turns: list[JsonValue] = [
        {"role": role, "content": text}
        for role, text in (("system", lookup(fields, "system")), ("user", lookup(fields, "prompt")))
        if text
    ]
    kept = {name: lookup(fields, name) for name in ("model", "options", "think", "shift")}
    return {**without_none(kept), "messages": turns}


def _rendering(path: Endpoint, fields: JsonObject, headers: Headers) -> BackendCall:
    body = encode({**fields, "stream": False, "_debug_render_only": True})
    return BackendCall(method="POST", path=path.value, headers=headers, body=body)


def _spent_ns(last: JsonObject, name: str, before_s: float = 0.0) -> int:
    """A duration over all runs; 0 where the last line has none."""
    return (
        (count_in(last, name, MOST_NANOSECONDS) or 0) + round(before_s * 1e9) if name in last else 0
    )
