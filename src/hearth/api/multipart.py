"""A form with one file, read as it comes in: the file in pieces, the few fields beside it whole.

The grammar is python-multipart's. Its own `FormParser` and Starlette's form would spool the whole file to the folder for temporary files
first, where no caller's share of the store bounds it, and which may lie in memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from hearth.errors import BadRequest, UnsupportedMedia

MAX_FIELD_BYTES = 4096
MAX_FIELDS = 16
MAX_NAME_CHARS = 255
_SECONDS = re.compile(r"[0-9]{1,9}")


def boundary_of(content_type: str) -> bytes:
    """What divides the parts of a form. Raises UnsupportedMedia where the media type is another, BadRequest without a boundary."""
    media, options = parse_options_header(content_type)
    if media != b"multipart/form-data":
        raise UnsupportedMedia("send the file as multipart/form-data")
    boundary = options.get(b"boundary", b"")
    if not 1 <= len(boundary) <= 70:
        raise BadRequest("the Content-Type of a form needs a boundary of 1 to 70 characters")
    return boundary


class FileForm:
    """What has come of a form so far.

    Attributes:
        fields: text by name; filename: of the file in the part `file`, None before it begins.
    """

    def __init__(self, boundary: bytes) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._disposition: dict[bytes, bytes] = {}
        self._header, self._content = bytearray(), bytearray()
        self._value, self._found = bytearray(), bytearray()
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._content.extend(data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": lambda data, start, end: self._take(data[start:end]),
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    def feed(self, data: bytes) -> bytes:
        """What the next bytes of the body hold of the file. Raises BadRequest for what is no form, or one with more than it may have."""
        self._found.clear()
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise BadRequest("the body is not a usable form") from error
        return bytes(self._found)

    def end(self) -> None:
        """The body has ended. Raises BadRequest where the form has not."""
        if not self._ended:
            raise BadRequest("the body ends before the form does")

    @property
    def _name(self) -> bytes:
        return self._disposition.get(b"name", b"")

    def _begin_part(self) -> None:
        self._disposition = {}
        self._value.clear()

    def _end_header(self) -> None:
        if self._header.strip().lower() == b"content-disposition":
            self._disposition = parse_options_header(bytes(self._content))[1]
        self._header.clear()
        self._content.clear()

    def _end_headers(self) -> None:
        if self._name != b"file":
            if len(self.fields) >= MAX_FIELDS:
                raise BadRequest("the form has too many fields")
        elif self.filename is not None:
            raise BadRequest("file: send one")
        else:
            self.filename = name_of(self._disposition.get(b"filename", b"").decode("utf-8", "replace"))

    def _take(self, data: bytes) -> None:
        if self._name == b"file":
            self._found += data
            return
        self._value += data
        if len(self._value) > MAX_FIELD_BYTES:
            raise BadRequest("a field of the form is too long")

    def _end_part(self) -> None:
        if self._name != b"file":
            self.fields[self._name.decode("utf-8", "replace")] = self._value.decode("utf-8", "replace")

    def _end(self) -> None:
        self._ended = True


def name_of(filename: str) -> str:
    """The last part of a file's name, without anything that cannot be shown; `upload.jsonl` where nothing is left."""
    last = filename.replace("\\", "/").rpartition("/")[2]
    shown = "".join(each for each in last if each.isprintable())
    return shown[:MAX_NAME_CHARS] or "upload.jsonl"


def life_s_of(fields: Mapping[str, str], default_s: float) -> float:
    """How long the file is to be kept, in seconds: `expires_after[seconds]`, counted from now.

    Raises:
        BadRequest: it is not a number from an hour to 30 days, or counted from anything else.
    """
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return default_s
    if anchor != "created_at" or seconds is None or not _SECONDS.fullmatch(seconds) or not 3600 <= int(seconds) <= 2592000:
        raise BadRequest("expires_after: anchor must be created_at, and seconds 3600 to 2592000")
    return float(seconds)
