"""Forms with one file, as they come in and as they are sent on.

python-multipart's own `FormParser` and Starlette's form would spool the file to the folder for
temporary files, where nothing bounds it, and which may lie in memory.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import weakref
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from hearth.errors import BadRequest, UnsupportedMedia
from hearth.types import frozen

MAX_FIELD_BYTES = 4096
MAX_FIELDS = 16
MAX_NAME_CHARS = 255
PIECE_BYTES = 256 * 1024
"""A spooled file is sent on in pieces of this size."""
_ON_DISK = "/var/tmp"  # noqa: S108
"""Where `/tmp` is often in memory; the file has no name there."""
_MEDIA_TYPE = re.compile(r"[!-.0-:<-~]+/[!-:<-~]+(?: ?; ?[!-:<-~]+)*")
"""No text matches it in two ways, else one that does not match would take for ever."""


def boundary_of(content_type: str) -> bytes:
    """What divides the parts of a form.

    Raises UnsupportedMedia where the media type is another, BadRequest without a boundary.
    """
    media, options = parse_options_header(content_type)
    if media != b"multipart/form-data":
        raise UnsupportedMedia("send the file as multipart/form-data")
    boundary = options.get(b"boundary", b"")
    if not 1 <= len(boundary) <= 70:
        raise BadRequest("the Content-Type of a form needs a boundary of 1 to 70 characters")
    return boundary


class FileForm:
    """What has come of a form so far: `fields` by name, `others` in their order with those that
    came several times, and the `filename` and `media_type` of the part `file`, the name None
    before it begins.
    """

    def __init__(
        self,
        boundary: bytes,
        *,
        max_field_bytes: int = MAX_FIELD_BYTES,
        max_fields: int = MAX_FIELDS,
        unnamed: str = "upload.jsonl",
    ) -> None:
        """`unnamed`: what a file without a name is called."""
        self._max_field_bytes = max_field_bytes
        self._max_fields = max_fields
        self._unnamed = unnamed
        self.media_type = ""
        self.others: list[tuple[str, str]] = []
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._disposition: dict[bytes, bytes] = {}
        self._content_type = ""
        self._header = bytearray()
        self._content = bytearray()
        self._value = bytearray()
        self._found = bytearray()
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._take_header_field,
                "on_header_value": self._take_header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._take_part,
                "on_part_end": self._end_part,
                "on_end": self._end_form,
            },
        )

    def feed(self, data: bytes) -> bytes:
        """What the next bytes of the body hold of the file.

        Raises BadRequest for what is no form, or one with more than it may have.
        """
        self._found.clear()
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise BadRequest("the body is not a valid form") from error
        return bytes(self._found)

    def end(self) -> None:
        """The body has ended. Raises BadRequest where the form has not."""
        if not self._ended:
            raise BadRequest("the form is incomplete")

    @property
    def _name(self) -> bytes:
        return self._disposition.get(b"name", b"")

    def _begin_part(self) -> None:
        self._disposition = {}
        self._content_type = ""
        self._value.clear()

    def _take_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _take_header_value(self, data: bytes, start: int, end: int) -> None:
        self._content += data[start:end]

    def _end_header(self) -> None:
        name = self._header.strip().lower()
        if name == b"content-disposition":
            self._disposition = parse_options_header(bytes(self._content))[1]
        elif name == b"content-type":
            self._content_type = self._content.decode("latin-1").strip()
        self._header.clear()
        self._content.clear()

    def _end_headers(self) -> None:
        if self._name != b"file":
            if len(self.others) >= self._max_fields:  # those of one name count each
                raise BadRequest("the form has too many fields")
        elif self.filename is not None:
            raise BadRequest("file: send one")
        else:
            self.media_type = self._content_type
            self.filename = name_of(
                self._disposition.get(b"filename", b"").decode("utf-8", "replace"), self._unnamed
            )

    def _take_part(self, data: bytes, start: int, end: int) -> None:
        if self._name == b"file":
            self._found += data[start:end]
            return
        self._value += data[start:end]
        if len(self._value) > self._max_field_bytes:
            raise BadRequest("a field of the form is too long")

    def _end_part(self) -> None:
        if self._name != b"file":
            name = self._name.decode("utf-8", "replace")
            self.fields[name] = self._value.decode("utf-8", "replace")
            self.others.append((name, self.fields[name]))

    def _end_form(self) -> None:
        self._ended = True


def name_of(filename: str, unnamed: str) -> str:
    """The last part of a file's name, without anything that cannot be shown; `unnamed` where
    nothing is left.
    """
    last = filename.replace("\\", "/").rpartition("/")[2]
    shown = "".join(each for each in last if each.isprintable())
    return shown[:MAX_NAME_CHARS] or unnamed


class Spool:
    """The file of one upload, on the disk under no name, so that it is gone with whoever holds it.

    Its methods block. OSError where the disk does not take it.
    """

    def __init__(self) -> None:
        is_there = os.access(_ON_DISK, os.W_OK) and "TMPDIR" not in os.environ
        self._file, path = tempfile.mkstemp(prefix="hearth-", dir=_ON_DISK if is_there else None)
        Path(path).unlink()
        weakref.finalize(self, os.close, self._file)
        self.size_bytes = 0

    def append(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            written = os.pwrite(self._file, left, self.size_bytes)
            self.size_bytes += written
            left = left[written:]

    def read(self, place: int, size_bytes: int) -> bytes:
        """Fewer bytes at the end."""
        return os.pread(self._file, size_bytes, place)


@frozen
class SpooledForm:
    """A `FormBody`: the fields as they came, with the model's name as its server knows it, and then
    the file.

    Attributes:
        boundary: of 1 to 70 characters, which nobody can know before. others: the fields.
    """

    boundary: str
    others: tuple[tuple[str, str], ...]
    filename: str
    media_type: str
    file: Spool
    model: str

    def naming(self, model: str) -> SpooledForm:
        return replace(self, model=model)

    @property
    def size_bytes(self) -> int:
        return len(self._head()) + self.file.size_bytes + len(self._end())

    async def pieces(self) -> AsyncIterator[bytes]:
        yield self._head()
        place = 0
        while place < self.file.size_bytes:
            piece = await asyncio.to_thread(self.file.read, place, PIECE_BYTES)
            place += len(piece)
            yield piece
        yield self._end()

    def _head(self) -> bytes:
        lines = list[str]()
        for name, text in self.others:
            value = self.model if name == "model" else text
            lines += [f"--{self.boundary}", _disposition(name), "", value]
        file = f'{_disposition("file")}; filename="{_quoted(self.filename)}"'
        kind = self.media_type
        media_type = kind if _MEDIA_TYPE.fullmatch(kind) else "application/octet-stream"
        lines += [f"--{self.boundary}", file, f"Content-Type: {media_type}", "", ""]
        return "\r\n".join(lines).encode()

    def _end(self) -> bytes:
        return f"\r\n--{self.boundary}--\r\n".encode()


def _disposition(name: str) -> str:
    return f'Content-Disposition: form-data; name="{_quoted(name)}"'


def _quoted(name: str) -> str:
    """As browsers escape names (HTML, multipart form data)."""
    return name.replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22")
