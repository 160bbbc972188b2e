"""A running gateway as the commands see it: its address and key, the questions, and reading what it answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import click

from hearth.cli.lazy import CommandFailed, GatewayUnreachable, Unusable

_HUGE = 1e15
"""Nothing that is shown is larger; NaN, infinities and numbers that overflow are not shown either."""


def part(of: Mapping[str, object], name: str) -> Mapping[str, object]:
    """The object under a name, else an empty one."""
    value = of.get(name)
    return value if isinstance(value, dict) else {}


def parts(of: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    """The objects of the list under a name."""
    value = of.get(name)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text(of: Mapping[str, object], name: str) -> str:
    """The value under a name as text; empty for None, objects and lists."""
    value = of.get(name)
    return "" if value is None or isinstance(value, dict | list) else str(value)


def texts(of: Mapping[str, object], name: str) -> tuple[str, ...]:
    """The texts of the list under a name."""
    value = of.get(name)
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def number(of: Mapping[str, object], name: str) -> float | None:
    """The number under a name; truth values are none."""
    value = of.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < _HUGE else None


def without_controls(text: str) -> str:
    """`text` with line breaks and tabs, and a mark in place of every other control character."""
    return "".join(each if each.isprintable() or each in "\n\t" else "\ufffd" for each in text)


def printable(value: object) -> str:
    """`value` as one line of text without control or other unprintable characters: a name cannot move the cursor."""
    return "".join(each if each.isprintable() else "\ufffd" for each in str(value))


_ANSWER_CAP_BYTES = 4 * 1024 * 1024
_FETCH_TIMEOUT_S = 5.0


def read_address(text: str) -> SplitResult:
    """The parts of `http://host:port/path`, the scheme optional. Raises ValueError for anything else."""
    address = urlsplit(text if "://" in text else f"http://{text}")
    if address.scheme not in {"http", "https"} or not address.hostname or address.port == 0:
        raise ValueError(f"{text} is no HTTP address")
    return address


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer that comes bit by bit: its headers, names in lower case, and an object per line."""

    headers: Mapping[str, str]
    lines: Iterator[dict[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayClient:
    """One gateway.

    Attributes:
        address: `http://host:port`, also https, with or without a path before `/llm` (`read_address`).
        key: sent as `Authorization: Bearer`, None for a gateway without keys.
    """

    address: SplitResult
    key: str | None = None

    def fetch(self, path: str) -> dict[str, object]:
        """The JSON object at `path`.

        Raises:
            GatewayUnreachable: nothing answers there, or something that is not Hearth.
            CommandFailed: the gateway refuses.
        """
        with self._opened(path, _FETCH_TIMEOUT_S) as response, self._reaching():
            return self._object(response.read(_ANSWER_CAP_BYTES))

    def status(self) -> dict[str, object]:
        """What runs, who waits, and the GPU. Raises as `fetch` does."""
        return self.fetch("/llm/queue/status")

    def order(self, path: str, body: Mapping[str, object] | None = None, *, timeout_s: float = 10.0) -> dict[str, object]:
        """What the gateway answers to a POST of JSON, or of nothing; `timeout_s` as for a socket. Raises as `fetch` does."""
        sent = None if body is None else json.dumps(body).encode()
        typed = {} if body is None else {"Content-Type": "application/json"}
        with self._opened(path, timeout_s, method="POST", body=sent, headers=typed) as response, self._reaching():
            return self._object(response.read(_ANSWER_CAP_BYTES))

    def stream(self, path: str, *, silence_s: float) -> Iterator[dict[str, object]]:
        """The JSON objects of a server-sent event stream, until it ends. Silence longer than `silence_s` is GatewayUnreachable."""
        with self._opened(path, silence_s) as response, self._reaching():
            while line := response.readline(_ANSWER_CAP_BYTES):
                if line.startswith(b"data:"):
                    yield self._object(line.removeprefix(b"data:"))

    @contextmanager
    def send(self, path: str, body: Mapping[str, object], headers: Mapping[str, str]) -> Iterator[Answer]:
        """POST JSON and read the answer line by line, however long it takes; leaving the block hangs up. Raises as `fetch` does."""
        typed = {**headers, "Content-Type": "application/json"}
        with self._opened(path, None, method="POST", body=json.dumps(body).encode(), headers=typed) as response:
            yield Answer(headers={name.lower(): value for name, value in response.headers.items()}, lines=self._lines(response))

    def _lines(self, response: HTTPResponse) -> Iterator[dict[str, object]]:
        with self._reaching():
            yield from (self._object(line) for line in iter(response.readline, b"") if line.strip())

    @contextmanager
    def _opened(
        self,
        path: str,
        timeout_s: float | None,
        *,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[HTTPResponse]:
        connection = _connection(self.address, timeout_s)
        try:
            with self._reaching():
                self._request(connection, method, path, body, headers)
                response = connection.getresponse()
            with response:
                with self._reaching():
                    self._check(response)
                yield response
        finally:
            connection.close()

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Only around what the connection does: what fails where an answer is written to is not the gateway's."""
        try:
            yield
        except (OSError, HTTPException) as error:
            raise GatewayUnreachable(self._advice(str(error) or type(error).__name__)) from error

    def _request(self, connection: HTTPConnection, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> None:
        """Raises CommandFailed for what no header can carry, and does not repeat it: it may be the key."""
        try:
            connection.request(method, self.address.path.rstrip("/") + path, body, {**self._headers(), **headers})
        except ValueError as error:
            raise CommandFailed(
                "the key (--key, HEARTH_KEY), or another option, has a character that cannot be sent: copy it again."
            ) from error

    def _headers(self) -> Mapping[str, str]:
        accepts = {"Accept": "application/json, text/event-stream"}
        return accepts if self.key is None else {**accepts, "Authorization": f"Bearer {self.key}"}

    def _check(self, response: HTTPResponse) -> None:
        if response.status in {401, 403}:
            why = f" ({refusal})" if (refusal := _refusal(response)) else ""
            raise CommandFailed(f"{self.address.geturl()} wants a key that may do that: give it with --key or in HEARTH_KEY{why}.")
        if response.status == 421:
            raise CommandFailed(f"{self.address.geturl()} does not answer to that host name: add it to server.allowed_hosts.")
        if response.status != 200:
            if (refusal := _refusal(response)) is not None:
                raise Unusable(refusal) if response.status == 400 else CommandFailed(refusal)
            raise GatewayUnreachable(self._advice(f"it answered {response.status}, which is not what Hearth says there"))

    def _object(self, body: bytes) -> dict[str, object]:
        try:
            value = json.loads(body)
        except ValueError as error:
            raise GatewayUnreachable(self._advice("its answer is not JSON")) from error
        if not isinstance(value, dict):
            raise GatewayUnreachable(self._advice("its answer is not a JSON object"))
        return value

    def _advice(self, what: str) -> str:
        return (
            f"no gateway at {self.address.geturl()}: {what}.\n"
            "Is it running? Start it with `hearth serve`, or name another address with --url or in HEARTH_URL."
        )


def _refusal(response: HTTPResponse) -> str | None:
    """The text of an error as Hearth writes it, `{"error": "..."}`; None where something else answers."""
    try:
        value = json.loads(response.read(_ANSWER_CAP_BYTES))
    except ValueError:
        return None
    text = value.get("error") if isinstance(value, dict) else None
    return without_controls(text) if isinstance(text, str) else None


def _connection(address: SplitResult, timeout_s: float | None) -> HTTPConnection:
    maker = HTTPSConnection if address.scheme == "https" else HTTPConnection
    return maker(address.hostname or "", address.port, timeout=timeout_s)


C = TypeVar("C", bound=Callable[..., Any])

_DEFAULT_URL = "http://127.0.0.1:8411"


def gateway_options(command: C) -> C:
    """Add the options; the command gets `address` (a SplitResult) and `key` (a str or None)."""
    url = click.option(
        "--url",
        "address",
        callback=_address,
        default=_DEFAULT_URL,
        envvar="HEARTH_URL",
        show_default=True,
        show_envvar=True,
        help="Where the gateway listens.",
    )
    key = click.option(
        "--key", envvar="HEARTH_KEY", show_envvar=True, help="API key; better in the environment, where `ps` does not show it."
    )
    return url(key(command))


def _address(_context: click.Context, _parameter: click.Parameter, value: str) -> SplitResult:
    try:
        return read_address(value)
    except ValueError as error:
        raise click.BadParameter(f"{value} is not an address; write http://HOST:PORT") from error
