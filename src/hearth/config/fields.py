"""What a section of the settings is made of: its base, and a type for each kind of value with its
range or its rule for text.

Checks of text raise ValueError with a text for the owner, as pydantic expects, and never name the
value.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import types
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin
from urllib.parse import SplitResult, urlsplit

from cronsim import CronSimError
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    PlainValidator,
    Strict,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from hearth.config import active_hours
from hearth.config.choices import Window
from hearth.types import Priority

MAX_TEXT_CHARS = 1000
MIN_PROMPT_CHARS = 8
MAX_NAME_CHARS = 256
MAX_CRON_CHARS = 100
MAX_MODE_CHARS = 64
MIN_SECRET_CHARS = 16
YEAR_S = 366.0 * 86400
_SOME_MONDAY_S = 1_704_067_200.0
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?", re.ASCII)


OFF_FOR_FALSE = BeforeValidator(lambda value: "off" if value is False else value)
"""For a choice with `off`, which without quotes is false in YAML."""


def schema_or_false(*choices: str) -> WithJsonSchema:
    """The schema of such a choice."""
    return WithJsonSchema({"anyOf": [{"type": "string", "enum": [*choices]}, {"const": False}]})


class Reload(StrEnum):
    """When a changed value takes effect.

    A field that names none is `HOT`; what stands under a field is as the field is.
    """

    HOT = "hot"
    NEXT_LOAD = "hot, from the next load"
    RESTART = "restart"


RESTART = Reload.RESTART


def _none_is(empty: type, schema: CoreSchema) -> CoreSchema:
    """A heading with nothing under it is empty: every line below it may be commented out."""
    accepted = core_schema.nullable_schema(schema)
    return core_schema.no_info_before_validator_function(
        lambda value: empty() if value is None else value, schema, json_schema_input_schema=accepted
    )


class Section(BaseModel):
    """A mapping of the file.

    Immutable; the docstring under a field is its documentation: effect, unit, why this default.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
        defer_build=True,
        validate_default=True,
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401 - pydantic's own
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            if field.description:
                field.description += f" {cls.reload_of(name)}"

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return _none_is(dict, handler(source))

    @classmethod
    def reload_of(cls, name: str) -> Reload:
        """When a change of this field takes effect."""
        return next(
            (each for each in cls.model_fields[name].metadata if isinstance(each, Reload)),
            Reload.HOT,
        )

    def replace(self, **changes: Any) -> Self:  # noqa: ANN401 - whatever the fields take
        """The same with other values in these fields."""
        return type(self)(
            **{name: getattr(self, name) for name in type(self).model_fields} | changes
        )

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self  # nothing of it can change; pydantic copies the defaults of fields


def within(annotation: object, step: str) -> object:
    """What stands under a key of a section or of a mapping, or at an index of a list; None where
    that is unknown.
    """
    if isinstance(annotation, type) and issubclass(annotation, Section):
        known = annotation.model_fields.get(step)
        inner: object = None if known is None else known.annotation
    else:
        inner = next(
            (
                each
                for each in reversed(get_args(annotation))
                if each is not Ellipsis and not isinstance(each, str)
            ),
            None,
        )
    while get_origin(inner) in {types.UnionType, Union, Annotated}:
        inner = next(each for each in get_args(inner) if each is not type(None))
    return inner


class _Items:
    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return _none_is(tuple, handler(source))


class _AsReadOnly:
    """Read-only once it is checked."""

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        inner = handler(source)
        written = core_schema.wrap_serializer_function_ser_schema(
            lambda value, write: write(dict(value)), schema=inner
        )
        return _none_is(
            dict,
            core_schema.no_info_after_validator_function(
                types.MappingProxyType, inner, serialization=written
            ),
        )


K = TypeVar("K")
V = TypeVar("V")
EMPTY: dict[Any, Any] = {}
"""The default of a `ReadOnlyTable`; each gets a read-only one of its own."""
Items = Annotated[tuple[V, ...], _Items]
ReadOnlyTable = Annotated[Mapping[K, V], _AsReadOnly]


def _matching(pattern: str, refusal: str) -> AfterValidator:
    compiled = re.compile(pattern, re.ASCII)

    def check(text: str) -> str:
        if compiled.fullmatch(text) is None:
            raise ValueError(refusal)
        return text

    return AfterValidator(check)


def _plain_text(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must not contain line breaks or control characters")
    if text != text.strip():
        raise ValueError("must not begin or end with a space")
    if len(text) > MAX_TEXT_CHARS:
        raise ValueError(f"must not be longer than {MAX_TEXT_CHARS} characters")
    return text


def _prompt_part(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    if len(text) > MAX_TEXT_CHARS:
        raise ValueError(f"must not be longer than {MAX_TEXT_CHARS} characters")
    return text


def _prompt_text(text: str) -> str:
    if text != text.lstrip():
        raise ValueError("must not begin with white space: that of a prompt does not count")
    if len(text.rstrip()) < MIN_PROMPT_CHARS:
        raise ValueError(
            f"must have at least {MIN_PROMPT_CHARS} characters: less would be in what users write"
        )
    return _prompt_part(text)


def _name(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    if len(text) > MAX_NAME_CHARS:
        raise ValueError(f"must not be longer than {MAX_NAME_CHARS} characters")
    return text


def _not_empty(entries: tuple[V, ...]) -> tuple[V, ...]:
    if not entries:
        raise ValueError("must have at least one entry")
    return entries


def _time_zone(text: str) -> str:
    active_hours.zone_of(text)
    return text


def _cron(text: str) -> str:
    """A five-field cron expression that names some instant."""
    if len(text) > MAX_CRON_CHARS or len(text.split()) != 5:
        raise ValueError("must have five fields: minute, hour, day of month, month, day of week")
    try:
        first = active_hours.next_cron(text, active_hours.zone_of("UTC"), _SOME_MONDAY_S)
    except CronSimError as error:
        raise ValueError(f"is not a cron expression: {str(error).lower()}") from None
    if first is None:
        raise ValueError("never matches a date")
    return text


def http_url(text: str) -> str:
    """An absolute http or https URL of a host, without user, query or fragment; returned without a
    trailing slash.
    """
    parts = _url_parts(text)
    if parts is None:
        raise ValueError("must be a URL that begins with http:// or https:// and names a host")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("must be a URL without user, password, query or fragment")
    return text.rstrip("/")


_ROUTES = (
    "chat/completions|chat|completions|embeddings|embed|generate|messages|models|ps|responses"
    "|tags|version"
)
_API_PATH = re.compile(f"/(v1|api)(/({_ROUTES}))?$")


def server_url(text: str) -> str:
    """The same, of a model server: without the paths of its APIs, which clients append to it and
    many have to be given with it.
    """
    url = http_url(text)
    path = _API_PATH.search(urlsplit(url).path)
    if path is not None:
        raise ValueError(f"must be the address without {path[0]}: {url.removesuffix(path[0])}")
    return url


def _webhook_url(text: str) -> str:
    """It may carry credentials, so no problem quotes it."""
    parts = _url_parts(text)
    if parts is None or not text.isascii():
        raise ValueError(
            "must be the whole URL that messages are posted to, beginning with https://, or empty"
        )
    if parts.fragment:
        raise ValueError("must be a URL without fragment (`#...`)")
    return text


def _url_parts(text: str) -> SplitResult | None:
    """None for what is no absolute http or https URL of a host."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if usable and not any(each.isspace() for each in text) else None


def _listen_host(text: str) -> str:
    try:
        usable = "%" not in str(ipaddress.ip_address(text))
    except ValueError:
        usable = _HOST.fullmatch(text) is not None
    if not usable:
        raise ValueError("must be a host name or an IP address, without port")
    return text


def _allowed_host(text: str) -> str:
    return _listen_host(text[1:-1] if text.startswith("[") and text.endswith("]") else text)


def _host_pattern(text: str) -> str:
    """A wildcard stands for whole labels only: `gpu*` would admit `gpu.evil.example`."""
    if text not in ("", "*"):
        _allowed_host(text.removeprefix("*."))
    return text


_OWN_FIRST = frozenset(
    {
        "api",
        "v1",
        "llm",
        "static",
        "healthz",
        "readyz",
        "metrics",
        "openapi.json",
    }
)
"""How addresses of Hearth begin."""
_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*", re.ASCII)


def _base_path(text: str) -> str:
    """A path without escapes, and without a slash at its end; empty for none."""
    path = text.rstrip("/")
    if _PATH.fullmatch(path) is None:
        raise ValueError(
            "must be a path such as /hearth, of letters, digits, '-', '_', '.' and '~'"
        )
    if path and path.split("/")[1] in _OWN_FIRST:
        raise ValueError("begins as an address of Hearth's own does; choose another name")
    return path


def signing_secret(text: str) -> str:
    """What messages are signed with: long enough that nobody guesses it, or the empty string."""
    if text and len(text) < MIN_SECRET_CHARS:
        raise ValueError(
            f"must have at least {MIN_SECRET_CHARS} characters (`openssl rand -hex 32` makes a good"
            " one)"
        )
    if text.startswith("whsec_"):
        try:
            usable = 24 <= len(base64.b64decode(text.removeprefix("whsec_"), validate=True)) <= 64
        except ValueError:  # also for letters that are not ASCII
            usable = False
        if not usable:
            raise ValueError(
                "must have base64 of 24 to 64 bytes after whsec_ (`openssl rand -base64 32`"
                " makes it)"
            )
    return text


def _priority(value: object) -> Priority:
    for each in Priority:
        if value is each or value == each.name.lower():
            return each
    raise ValueError("must be critical, normal or background")


Flag = Annotated[bool, Strict()]
Integer = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
Duration = Annotated[Number, Field(ge=0, le=YEAR_S)]
Timeout = Annotated[Number, Field(gt=0, le=YEAR_S)]
Count = Annotated[Integer, Field(ge=0, le=1_000_000_000)]
Depth = Annotated[Integer, Field(ge=1, le=1_000_000)]
Slots = Annotated[Integer, Field(ge=1, le=1024)]
Percentage = Annotated[Number, Field(ge=0, le=100)]
Gibibytes = Annotated[Number, Field(ge=0, le=1_000_000)]
Mebibytes = Annotated[Number, Field(gt=0, le=1_000_000)]
Usd = Annotated[Number, Field(ge=0, le=1_000_000)]
TokenPrice = Annotated[Number, Field(ge=0, le=100_000)]

PlainText = Annotated[str, Strict(), AfterValidator(_plain_text)]
Name = Annotated[PlainText, AfterValidator(_name)]
_WITHOUT_SPACES = _matching(r"[^ ]*", "is not a model name: it must not contain spaces")
PromptPart = Annotated[str, Strict(), AfterValidator(_prompt_part)]
PromptText = Annotated[str, Strict(), AfterValidator(_prompt_text)]
HeaderName = Annotated[
    PlainText,
    _matching(
        r"([Xx]-(?![Aa][Pp][Ii]-[Kk][Ee][Yy]$)[A-Za-z0-9-]{1,62})?",
        "must be the name of a header that begins with X-, such as x-openwebui-user-id, and is not"
        " X-API-Key",
    ),
    AfterValidator(str.lower),
]
ModelName = Annotated[PlainText, _WITHOUT_SPACES, AfterValidator(_name)]
_NAME_PART = "[A-Za-z0-9_*][A-Za-z0-9_.*-]{0,79}"  # `*` is refused with a better reason
AliasName = Annotated[
    ModelName,
    _matching(
        rf"([A-Za-z0-9_*][A-Za-z0-9_*-]{{0,79}}/)?{_NAME_PART}(:{_NAME_PART})?",
        "is no name that a request could have: at most 80 letters (a to z), digits, '-', '_' and"
        " '.', and a tag as long behind ':'",
    ),
]
"""As `dialects.request.is_model_name` has it, without a host."""
ModelNames = Annotated[
    tuple[ModelName, ...],
    AfterValidator(_not_empty),
    WithJsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 1}),
]
ModelNameOrNothing = Annotated[
    PlainText, _WITHOUT_SPACES, AfterValidator(lambda text: text and _name(text))
]
GpuDevice = Annotated[
    PlainText,
    _matching(
        r"[0-9]{1,3}|(GPU|MIG)-[0-9A-Za-z/-]{1,80}|all",
        'must be the number of a GPU in quotes, such as "0", its UUID, such as "GPU-..."'
        " (`nvidia-smi -L`), or all",
    ),
]
TimeZone = Annotated[PlainText, AfterValidator(_time_zone)]
Cron = Annotated[PlainText, AfterValidator(_cron)]
HttpUrl = Annotated[PlainText, AfterValidator(http_url)]
ServerUrl = Annotated[PlainText, AfterValidator(server_url)]
ServerUrlOrNothing = Annotated[PlainText, AfterValidator(lambda text: text and server_url(text))]
HttpUrlOrNothing = Annotated[PlainText, AfterValidator(lambda text: text and http_url(text))]
WebhookUrl = Annotated[PlainText, AfterValidator(lambda text: text and _webhook_url(text))]
BasePath = Annotated[PlainText, AfterValidator(_base_path)]
ListenHost = Annotated[PlainText, AfterValidator(_listen_host)]
AllowedHost = Annotated[PlainText, AfterValidator(_allowed_host)]
"""As it stands in a Host header, without the port."""
HostPattern = Annotated[PlainText, AfterValidator(_host_pattern)]
"""The same; `*.` at its beginning stands for one or more labels, `*` alone for every host. Empty is
none: an optional variable that is not set."""
BrowserOrigin = Annotated[
    PlainText,
    _matching(
        r"[A-Za-z][A-Za-z0-9+.-]*://(\*|(\*\.)?[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(\*|\d{1,5}))?",
        'must be an origin such as "http://localhost:*", "app://obsidian.md" or'
        ' "vscode-webview://*"',
    ),
    AfterValidator(str.lower),
]
"""What browsers send as Origin; `*` stands for any host, any part of one, or any port."""
Digest = Annotated[
    PlainText,
    _matching(
        r"[0-9a-fA-F]{64}",
        "must be 64 hex digits (the SHA-256 of the key; `hearth key new NAME` prints one)",
    ),
    AfterValidator(str.lower),
]
ApiKey = Annotated[
    PlainText, _matching(r"[!-~]*", "contains a character that HTTP headers do not allow")
]
SigningSecret = Annotated[PlainText, AfterValidator(signing_secret)]
FilePath = Annotated[
    PlainText, _matching(r"((~/|/).*)?", "must be an absolute path, or begin with ~/")
]
"""What is relative would depend on where Hearth was started."""


def _mode_name(text: str) -> str:
    if text.lower() == "off":
        raise ValueError("must not be off, which stands for no mode; choose another name")
    if not all(each.isalnum() or each in "_-" for each in text) or len(text) > MAX_MODE_CHARS:
        raise ValueError(f"must be letters, digits, '-' and '_', at most {MAX_MODE_CHARS} of them")
    return text


def _times(value: object) -> object:
    """The times of one text or of a list, whose items are still to be parsed."""
    return value if isinstance(value, list | tuple) else (value,)


def _time(value: object) -> Window | str:
    """Hours, or a cron expression."""
    if isinstance(value, str) and len(value.split()) == 5:
        return _cron(value)
    try:
        return active_hours.parse_window(value)
    except ValueError:
        raise ValueError(
            'must be hours such as "22:00-06:00" or "Mon-Fri 09:00-17:00", or a cron expression'
            ' such as "0 22 * * *", in quotes'
        ) from None


def _times_value(times: tuple[Window | str, ...]) -> str | list[str]:
    texts = [each if isinstance(each, str) else active_hours.window_text(each) for each in times]
    return texts[0] if len(texts) == 1 else texts


PriorityName = Annotated[
    Priority,
    BeforeValidator(_priority, json_schema_input_type=Literal["critical", "normal", "background"]),
    PlainSerializer(lambda priority: priority.name.lower(), return_type=str),
]
_TIME = "([01][0-9]|2[0-3]):[0-5][0-9]"
_WINDOW_PATTERN = f"^({active_hours.DAYS_PATTERN} )?{_TIME}-({_TIME}|24:00)$"
_WINDOW_TEXT = Annotated[str, Field(pattern=_WINDOW_PATTERN)]
_Window = Annotated[
    Window,
    BeforeValidator(active_hours.parse_window, json_schema_input_type=_WINDOW_TEXT),
]
ActiveHours = Annotated[
    tuple[_Window, ...],
    BeforeValidator(
        active_hours.parse_hours,
        json_schema_input_type=_WINDOW_TEXT | list[_WINDOW_TEXT],
    ),
    PlainSerializer(active_hours.hours_value, return_type=str | list[str]),
]
ModeName = Annotated[Name, AfterValidator(_mode_name)]
_TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
ModeTime = Annotated[
    tuple[Annotated[Window | str, PlainValidator(_time)], ...],
    BeforeValidator(_times),
    PlainSerializer(_times_value, return_type=str | list[str]),
    WithJsonSchema({"anyOf": [{"type": "string"}, _TEXTS]}),
]
"""When a mode begins: hours and cron expressions."""
