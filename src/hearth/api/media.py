"""Speech, pictures and ranks: the way of a request to the engine that has its model, as work of the
queue like any other.

Its bytes go on as they are, and so do those of the answer.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256

from hearth.api.body import RequestBody
from hearth.api.forms import FileForm, Spool, SpooledForm, boundary_of
from hearth.api.request import Request
from hearth.api.streaming import Relay
from hearth.api.submitting import submit
from hearth.clock import new_id
from hearth.dialects.audio import Audio, audio_in
from hearth.dialects.media import MediaRequest, check_name, naming, read_media
from hearth.dialects.request import Envelope
from hearth.dialects.routes import MEDIA_ROUTES, Route
from hearth.errors import BadRequest, BodyTooLarge, CallerError, NoRoomForBodies, NotFound
from hearth.gateway import Gateway
from hearth.types import JSON_BODY, MIB, BackendCall, Headers

_FORWARDED = (b"accept", b"user-agent")
"""Never a credential, a cookie or an origin."""
_FORM_BYTES = 1024 * 1024
"""What a form may have beside its file."""
_FIELD_BYTES = 64 * 1024
_MOST_FIELDS = 64
_UPLOADS_AT_ONCE = 8
"""So many of the largest may be on the disk together."""
_FORMATS = "wav, flac, ogg, opus, mp3, m4a, mp4, webm, aac, aiff, amr, caf or wma"
CallOn = Callable[[str], BackendCall]
"""Makes the call on a model, by the name that its engine reads."""


class Media:
    """Answers `dialects.routes.MEDIA_ROUTES`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._spools = weakref.WeakSet[Spool]()

    async def refuse(self, request: Request, _: RequestBody) -> None:
        """Raises NotFound, before anything of the body is read: no engine has this address."""
        raise NotFound(
            f"no engine here serves {request.path}: name one under `engines` whose server does,"
            " or a command under `models.NAME.run` that starts one"
        )

    async def handle(self, request: Request, body: RequestBody) -> None:
        """Answer a request whose body is JSON. Raises HearthError where it is refused."""
        route = MEDIA_ROUTES[request.path]
        content = await body.read()
        asked = await body.parsed(partial(read_media, route), content)
        headers = (*JSON_BODY, *_forwarded(request))

        def call_on(name: str) -> BackendCall:
            is_same = name == asked.model
            return BackendCall(
                method="POST",
                path=request.path,
                headers=headers,
                body=content if is_same else naming(asked.fields, name),
            )

        own_name = self._gateway.engines.wire_name(asked.model)
        digest = sha256(request.path.encode() + b" " + content).digest()
        envelope = self._envelope(route, asked, own_name, digest=digest)
        await self.relay(request, body, route, envelope, call_on, prompt=asked.prompt)

    async def upload(self, request: Request, body: RequestBody) -> None:
        """Answer a request whose body is a form with a recording; it is on the disk before it is
        queued. Raises HearthError where it is refused.
        """
        route = MEDIA_ROUTES[request.path]
        came = self._form_of(request)
        try:
            form, asked = await self._received(came, body)
            audio = await asyncio.to_thread(_checked_audio, form.file)
        except CallerError:
            body.admission.count_refused()
            raise
        media_type = f"multipart/form-data; boundary={form.boundary}".encode()
        headers = ((b"content-type", media_type), *_forwarded(request))

        def call_on(name: str) -> BackendCall:
            return BackendCall(
                method="POST", path=request.path, headers=headers, form=form.naming(name)
            )

        own_name = self._gateway.engines.wire_name(asked.model)
        envelope = self._envelope(route, asked, own_name, audio_s=audio.duration_s)
        await self.relay(request, body, route, envelope, call_on)

    @property
    def _limit_bytes(self) -> int:
        return int(self._gateway.settings.server.max_upload_mib * MIB)

    def _form_of(self, request: Request) -> FileForm:
        """One of which nothing has come. Raises UnsupportedMedia, BadRequest, BodyTooLarge by what
        the headers say.
        """
        boundary = boundary_of(request.headers.text(b"content-type"))
        declared = request.headers.values.get(b"content-length", b"")
        if declared.isdigit() and int(declared[:20]) > self._limit_bytes + _FORM_BYTES:
            raise _too_large(self._limit_bytes)
        return FileForm(
            boundary, max_field_bytes=_FIELD_BYTES, max_fields=_MOST_FIELDS, unnamed="audio"
        )

    async def _received(
        self, came: FileForm, body: RequestBody
    ) -> tuple[SpooledForm, MediaRequest]:
        """The form, once all of it has come. Raises BadRequest, BodyTooLarge, CallerGone,
        NoRoomForBodies.
        """
        body.hold(2 * MIB)  # what waits for the disk, and the copy that goes there
        file = await self._spooled(came, body, self._limit_bytes)
        if came.filename is None:
            raise BadRequest("file: send one, as the part `file` of the form")
        model = came.fields.get("model", "")
        check_name(model)
        form = SpooledForm(
            boundary=new_id("hearth-"),
            others=tuple(came.others),
            filename=came.filename,
            media_type=came.media_type,
            file=file,
            model=model,
        )
        asked = MediaRequest(
            model=model,
            streaming=came.fields.get("stream", "").lower() in ("true", "1"),
            prompt_tokens=0,
            prompt="",
            fields={},
        )
        return form, asked

    async def _spooled(self, form: FileForm, body: RequestBody, limit_bytes: int) -> Spool:
        """The file of the form. Raises as `_received`."""
        try:
            file = await asyncio.to_thread(Spool)
            self._spools.add(file)
            waiting = bytearray()
            came = 0
            async for piece in body.pieces():
                waiting += form.feed(piece)
                came += len(piece)
                if max(file.size_bytes + len(waiting), came - _FORM_BYTES) > limit_bytes:
                    raise _too_large(limit_bytes)
                if len(waiting) >= MIB:
                    self._check_room(limit_bytes)
                    await asyncio.to_thread(file.append, bytes(waiting))
                    waiting.clear()
            form.end()
            await asyncio.to_thread(file.append, bytes(waiting))
        except OSError as error:
            raise NoRoomForBodies(f"the disk does not take the upload: {error.strerror}") from error
        return file

    def _check_room(self, limit_bytes: int) -> None:
        """Raises NoRoomForBodies."""
        if sum(each.size_bytes for each in self._spools) > _UPLOADS_AT_ONCE * limit_bytes:
            raise NoRoomForBodies(
                "the uploads of open requests take all the room on the disk that there is for"
                " them; try again when some have ended"
            )

    def _envelope(
        self,
        route: Route,
        asked: MediaRequest,
        own_name: str,
        *,
        digest: bytes = b"",
        audio_s: float = 0.0,
    ) -> Envelope:
        return Envelope(
            dialect="openai",
            kind=route.kind,
            model=asked.model,
            streaming=asked.streaming,
            prompt_tokens=asked.prompt_tokens,
            max_tokens=None,
            body=b"",
            rewritten=("model",) if own_name != asked.model else (),
            digest=digest,
            refusal=self._refusal(route, asked.model),
            audio_s=audio_s,
        )

    def _refusal(self, route: Route, model: str) -> BadRequest | None:
        """What a caller is told whose model is with an engine that has no such address; of the
        models of an alias it is told once they are those that the caller may use.
        """
        is_alias = bool(self._gateway.aliases.named(model))
        if is_alias or self._gateway.name_of(model) is None or self._able(route, (model,)):
            return None
        return self._refused(route, model)

    def _refused(self, route: Route, model: str) -> BadRequest:
        title = self._gateway.engines.of(model).title
        return BadRequest(
            f"{model} is a model of {title}, which has no {route.path}: name a model of an engine"
            " that has it"
        )

    def _able(self, route: Route, models: Sequence[str]) -> tuple[str, ...]:
        engine_of = self._gateway.engines.of
        return tuple(each for each in models if route.path in engine_of(each).addresses)

    async def relay(
        self,
        request: Request,
        body: RequestBody,
        route: Route,
        envelope: Envelope,
        call_on: CallOn,
        *,
        prompt: str = "",
    ) -> None:
        """Queue the request, and pass its answer on. Raises HearthError."""
        engines = self._gateway.engines

        async def calls_on(models: Sequence[str]) -> tuple[tuple[str, ...], CallOn]:
            able = self._able(route, models)
            if not able:
                raise self._refused(route, models[0])
            return able, lambda model: call_on(engines.own_name(model))

        is_alias = bool(self._gateway.aliases.named(envelope.model))
        ticket = await submit(
            self._gateway,
            request,
            body.admission,
            envelope,
            call_on(engines.wire_name(envelope.model)),
            calls_on=calls_on if is_alias else None,
            prompt=prompt,
        )
        relay = Relay(
            self._gateway,
            request,
            ticket,
            route,
            envelope.model,
            streaming=False,
            rewritten=("model",) if is_alias else envelope.rewritten,
            names_model=is_alias,
            verbatim=True,
        )
        await relay.run()


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"file: it is larger than {limit_bytes / MIB:g} MiB, which is the limit here",
        remedy="server.max_upload_mib",
    )


def _checked_audio(file: Spool) -> Audio:
    """Raises BadRequest for what nobody can listen to."""
    if not file.size_bytes:
        raise BadRequest("file: it is empty")
    audio = audio_in(file.read, file.size_bytes)
    if audio is None:
        raise BadRequest(f"file: it is no recording in a known format: send {_FORMATS}")
    if not audio.duration_s:
        raise BadRequest(f"file: the {audio.container} holds no sound: it is 0 seconds long")
    return audio


def _forwarded(request: Request) -> Headers:
    values = request.headers.values
    return tuple((name, values[name]) for name in _FORWARDED if name in values)
