"""A running gateway as the commands see it: its address and key, the questions, and reading what it
answers.

On the standard library's client: another one costs more time to import than most commands take.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

import click

from hearth.cli import CommandFailed, GatewayUnreachable, Unusable
from hearth.errors import Unauthenticated
from hearth.types import SERVICE, JsonDict, JsonMapping

Json = JsonMapping
ViewName = Literal["status", "models", "log", "jobs", "job", "keys"]


class NotNow(CommandFailed):
    """The gateway refuses, and may not a little later: it stops, drains, or a disk is full."""


_NO_MODEL = re.compile(r"model '.*' not found")
_ANSWER_CAP_BYTES = 64 * 1024 * 1024
_FETCH_TIMEOUT_S = 5.0
_COMPLETION_TIMEOUT_S = 1.0
_DEFAULT_URL = "http://127.0.0.1:8411"
_HUGE = 1e15
"""Nothing that is shown is larger; NaN, infinities and numbers that overflow are not shown
either.
"""


def part(of: Json, name: str) -> Json:
    """The object under a name, else an empty one."""
    value = of.get(name)
    return value if isinstance(value, dict) else {}


def parts(of: Json, name: str) -> list[Json]:
    """The objects of the list under a name."""
    value = of.get(name)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text(of: Json, name: str) -> str:
    """The value under a name as printable text; empty for None, objects and lists."""
    value = of.get(name)
    return "" if value is None or isinstance(value, dict | list) else printable(value)


def texts(of: Json, name: str) -> tuple[str, ...]:
    """The texts of the list under a name, printable."""
    value = of.get(name)
    if not isinstance(value, list):
        return ()
    return tuple(printable(each) for each in value if isinstance(each, str))


def number(of: Json, name: str) -> float | None:
    """The number under a name; truth values are none."""
    value = of.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < _HUGE else None


def count(of: Json, name: str) -> int:
    """The number under a name as a whole one; 0 where there is none."""
    return int(number(of, name) or 0)


def duration(seconds: float | None) -> str:
    """Seconds as a person writes them: `0.8 s`, `42 s`, `3 min`, `2 h 5 min`; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def flag(of: Json, name: str) -> bool:
    """The truth value under a name; False for anything else."""
    return of.get(name) is True


def without_controls(text: str) -> str:
    """`text` with line breaks and tabs, and a mark in place of every other control character."""
    return "".join(each if each.isprintable() or each in "\n\t" else "\ufffd" for each in text)


def printable(value: object) -> str:
    """`value` as one line of text without control or other unprintable characters: a name cannot
    move the cursor.
    """
    return "".join(each if each.isprintable() else "\ufffd" for each in str(value))


def program() -> str:
    """This command as this shell finds it: `hearth` where PATH leads here, else the path that it
    was called by.
    """
    called = Path(sys.argv[0])
    found = shutil.which("hearth")
    if called.name != "hearth" or (found is not None and Path(found).resolve() == called.resolve()):
        return "hearth"
    return str(called)


@dataclass(frozen=True, slots=True)
class GatewayClient:
    """One gateway.

    Attributes:
        url: `http://host:port`, also https, the scheme optional, with or without a path before
        `/llm`. key: sent as `Authorization: Bearer`, None for a gateway without keys.

    Raises:
        GatewayUnreachable: nothing answers there, or something that is not Hearth.
        CommandFailed, Unusable: the gateway refuses.
    """

    url: str
    key: str | None = None

    @property
    def address(self) -> SplitResult:
        """The parts of the URL. Raises ValueError for what is not an HTTP address."""
        address = urlsplit(self.url if "://" in self.url else f"http://{self.url}")
        if address.scheme not in {"http", "https"} or not address.hostname or address.port == 0:
            raise ValueError(f"{self.url} is not an HTTP address")
        return address

    def fetch(self, path: str, *, timeout_s: float = _FETCH_TIMEOUT_S) -> JsonDict:
        """The JSON object at `path`."""
        return self.ask("GET", path, timeout_s=timeout_s)

    def check_alive(self) -> None:
        """Raises GatewayUnreachable where no gateway answers. It asks no key of anybody."""
        if self.fetch("/healthz").get("service") != SERVICE:
            raise self._unreachable("it is not Hearth")

    def status(self) -> JsonDict:
        """What runs, who waits, and the GPU."""
        return self.fetch("/llm/queue/status")

    def ask(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        timeout_s: float = 10.0,
        headers: Mapping[str, str] | None = None,
    ) -> JsonDict:
        """The JSON object that answers a request with a JSON body, or without a body; `timeout_s`
        as for a socket.
        """
        with (
            self._opened(method, path, body, timeout_s=timeout_s, headers=headers) as response,
            self._reaching(),
        ):
            return self._object(response.read(_ANSWER_CAP_BYTES))

    def stream(self, path: str, *, silence_s: float) -> Iterator[JsonDict]:
        """The JSON objects of a server-sent event stream, until it ends.

        Silence longer than `silence_s` is GatewayUnreachable.
        """
        with self._opened("GET", path, timeout_s=silence_s) as response, self._reaching():
            while line := response.readline(_ANSWER_CAP_BYTES):
                if line.startswith(b"data:"):
                    yield self._object(line.removeprefix(b"data:"))

    def lines(self, path: str, *, silence_s: float) -> Iterator[bytes]:
        """The lines of an answer that is no JSON object, each with its end.

        Silence longer than `silence_s`, or an end before the last line, is GatewayUnreachable.
        """
        with self._opened("GET", path, timeout_s=silence_s) as response, self._reaching():
            yield from iter(response.readline, b"")

    @contextmanager
    def send(
        self,
        path: str,
        body: Json,
        headers: Mapping[str, str],
        *,
        timeout_s: float | None = None,
    ) -> Iterator[tuple[Message, Iterator[JsonDict]]]:
        """POST JSON; gives the headers of the answer and an object for each of its lines, however
        long it takes, but for a silence of `timeout_s`. Leaving disconnects.
        """

        def lines() -> Iterator[JsonDict]:
            with self._reaching():
                yield from (
                    self._object(line) for line in iter(response.readline, b"") if line.strip()
                )

        with self._opened("POST", path, body, timeout_s=timeout_s, headers=headers) as response:
            yield response.headers, lines()

    @contextmanager
    def _opened(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        timeout_s: float | None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[HTTPResponse]:
        sent = {"Accept": "application/json, text/event-stream", **(headers or {})}
        if self.key is not None:
            sent["Authorization"] = f"Bearer {self.key}"
        if body is not None:
            sent["Content-Type"] = "application/json"
        address = self.address
        maker = HTTPSConnection if address.scheme == "https" else HTTPConnection
        connection = maker(address.hostname or "", address.port, timeout=timeout_s)
        try:
            with self._reaching():
                try:
                    connection.request(
                        method,
                        address.path.rstrip("/") + path,
                        None if body is None else json.dumps(body).encode(),
                        sent,
                    )
                except ValueError as error:  # not repeated: it may be the key
                    what = (
                        "the key (--key, HEARTH_KEY), or another option, has a character that"
                        " cannot be sent: copy it again."
                    )
                    raise CommandFailed(what) from error
                response = connection.getresponse()
            with response:
                with self._reaching():
                    self._check(response)
                yield response
        finally:
            connection.close()

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Only around what the connection does: what fails where an answer is written to is not the
        gateway's.
        """
        try:
            yield
        except (OSError, HTTPException) as error:
            raise self._unreachable(_why_unreachable(error)) from error

    def _check(self, response: HTTPResponse) -> None:
        """Raise a refusal as Hearth writes it: `{"error": "..."}`, and its `problems`, a
        line each.
        """
        if 200 <= response.status < 300:
            return
        url = self.address.geturl()
        found = None
        with suppress(ValueError):
            found = json.loads(response.read(_ANSWER_CAP_BYTES))
        answer: Json = found if isinstance(found, dict) else {}
        error = answer.get("error")
        refusal = None
        if isinstance(error, str):
            refusal = "\n  ".join((without_controls(error), *texts(answer, "problems")))
        if response.status == 401:
            is_told = refusal is not None and refusal != Unauthenticated().message
            raise CommandFailed(
                f"{url} {f'refuses: {refusal}' if is_told else self._no_key_text()}"
            )
        if response.status == 403:
            why = f": {refusal}" if refusal else ""
            raise CommandFailed(
                f"{url} does not allow that{why}.\nUse a key that may, with --key or HEARTH_KEY."
            )
        if response.status == 421:
            raise CommandFailed(
                f"{url} does not answer to that host name: add it to server.allowed_hosts."
            )
        if refusal is None:
            raise self._unreachable(f"it answered {response.status}, so it is not Hearth")
        if response.status == 503:
            raise NotNow(refusal)
        if response.status == 404 and _NO_MODEL.fullmatch(refusal):
            raise CommandFailed(f"{refusal}; `hearth models` lists those that are there")
        raise Unusable(refusal) if response.status == 400 else CommandFailed(refusal)

    def _no_key_text(self) -> str:
        if self.key is None:
            return (
                "requires an API key: use --key or HEARTH_KEY. `hearth key new NAME` makes"
                " one on its machine."
            )
        return (
            "does not know the key of --key or HEARTH_KEY: `hearth key list` on its machine"
            " shows whose it knows. A key is shown only once, when it is made."
        )

    def _object(self, body: bytes) -> JsonDict:
        try:
            value = json.loads(body)
        except ValueError as error:
            raise self._unreachable("its answer is not JSON") from error
        if not isinstance(value, dict):
            raise self._unreachable("its answer is not a JSON object")
        return value

    def _unreachable(self, what: str) -> GatewayUnreachable:
        advice = (
            "Is it running? Start it with `hearth serve`, or name another address with --url or in"
            " HEARTH_URL."
        )
        return GatewayUnreachable(f"no gateway at {self.address.geturl()}: {what}.\n{advice}")


def _why_unreachable(error: OSError | HTTPException) -> str:
    if getattr(error, "reason", None) == "WRONG_VERSION_NUMBER":  # of ssl.SSLError
        return "it does not speak HTTPS; write http://"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def read_text(path: Path) -> str:
    """The text in a file, `-` for stdin. Raises UsageError, also where it is empty."""
    if str(path) == "-" and sys.stdin.isatty():
        click.echo("Type the text; Ctrl-D ends it.", err=True)
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        found = raw.decode("utf-8-sig")
    except OSError as error:
        raise click.UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{path}: is not text in UTF-8") from error
    if not found.strip():
        raise click.UsageError("the text is empty: name a file, or pipe the text in")
    return found


def draw(kind: ViewName, answer: Json, *, as_json: bool) -> None:
    """Print an answer as JSON or as `views` draws it; rich is not paid for by JSON."""
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    from hearth.cli.views import console_for, view  # noqa: PLC0415

    console_for(sys.stdout).print(view(kind, answer))


def _checked_url(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        return GatewayClient(value).address.geturl()
    except ValueError as error:
        raise click.BadParameter(f"{value} is not an address; write http://HOST:PORT") from error


def gateway_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--url` and `--key`; the command gets a `client` of the gateway that they name."""

    @click.option(
        "--url",
        metavar="URL",
        callback=_checked_url,
        default=_DEFAULT_URL,
        envvar="HEARTH_URL",
        show_envvar=True,
        help="Where the gateway listens.",
    )
    @click.option(
        "--key",
        metavar="KEY",
        envvar="HEARTH_KEY",
        show_envvar=True,
        help="API key; better in the environment, where `ps` does not show it.",
    )
    @functools.wraps(command)
    def with_client(*args: object, url: str, key: str | None, **options: object) -> object:
        return command(*args, client=GatewayClient(url, key), **options)

    return with_client


def json_option(help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--json`, which is `as_json` to the command."""
    return click.option("--json", "as_json", is_flag=True, help=help_text)


AS_ANSWERED = json_option("Print what the gateway answers.")


Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def _completing(find: Callable[[GatewayClient], list[str]]) -> Completer:
    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        url = context.params["url"]
        if url is None:  # click drops an invalid value here instead of refusing it
            return []
        try:
            names = find(GatewayClient(url, context.params["key"]))
        except click.ClickException:  # no gateway
            return []
        return sorted({name for name in names if name.startswith(incomplete)})

    return complete


def _models(client: GatewayClient) -> list[str]:
    return [
        text(each, "name")
        for each in parts(client.fetch("/llm/models", timeout_s=_COMPLETION_TIMEOUT_S), "models")
    ]


def _callers(client: GatewayClient) -> list[str]:
    status = client.fetch("/llm/queue/status", timeout_s=_COMPLETION_TIMEOUT_S)
    queued = [part(status, f"{lane}_queue") for lane in ("internal", "external")]
    items = [
        *parts(status, "running"),
        *(item for queue in queued for item in parts(queue, "next_items")),
    ]
    with suppress(click.ClickException):  # a gateway without a store has no log
        items += parts(client.fetch("/llm/log?limit=500", timeout_s=_COMPLETION_TIMEOUT_S), "items")
    return [*part(status, "rate_limits"), *(text(item, "caller") for item in items)]


def _modes(client: GatewayClient) -> list[str]:
    return [*texts(client.fetch("/llm/mode", timeout_s=_COMPLETION_TIMEOUT_S), "names")]


complete_modes = _completing(_modes)
complete_models = _completing(_models)
complete_callers = _completing(_callers)
"""For `shell_complete`: names that the gateway of `--url` knows; none where it does not answer."""
