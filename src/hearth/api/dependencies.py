"""What stands between FastAPI and the handlers of Hearth's own pages: who asks, bodies that are
bounded before they are parsed, errors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Response
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from hearth.admission.auth import Identity
from hearth.api.body import RequestBody
from hearth.api.request import Message, Request
from hearth.dialects.gojson import GoJsonError, decode
from hearth.errors import BadRequest

Asked = TypeVar("Asked", bound=BaseModel)
REQUEST = "hearth.request"
IDENTITY = "hearth.identity"
BODY = "hearth.body"
"""Where the handlers find them in the scope."""
_NOT_JSON = "the body is not valid JSON"
_PROBLEMS_SHOWN = 10
_MOST_PROBLEMS = 10_000
"""More are not listed: pydantic lists all in one call, which keeps the interpreter's lock."""
_PROBLEM_CHARS = 500
SMALL_BODY_BYTES = 64 * 1024
"""More than any page takes whose body FastAPI parses, on the event loop."""
_MAX_KEY_CHARS = 255


def _in_scope(name: str) -> Any:  # noqa: ANN401 - as `Depends` has it
    async def found(http: HttpRequest) -> object:  # FastAPI calls others in a thread
        return http.scope[name]

    return Depends(found)


CurrentRequest = Annotated[Request, _in_scope(REQUEST)]
Caller = Annotated[Identity, _in_scope(IDENTITY)]
CurrentBody = Annotated[RequestBody, _in_scope(BODY)]

RouteHandler = Callable[[HttpRequest], Coroutine[Any, Any, Response]]
LargeEndpoint = Callable[..., Awaitable[Response]]


class SmallBodyRoute(APIRoute):
    """A page whose body is read within a bound before FastAPI parses it.

    What FastAPI refuses is a BadRequest.
    """

    def get_route_handler(self) -> RouteHandler:
        """As FastAPI says."""
        handle = super().get_route_handler()
        has_body = not {"POST", "PUT"}.isdisjoint(self.methods or ())

        async def bounded(http: HttpRequest) -> Response:
            request: Request = http.scope[REQUEST]
            pending = [
                await http.scope[BODY].read(limit_bytes=SMALL_BODY_BYTES) if has_body else b""
            ]

            async def receive() -> Message:
                """The body that was read already, then what really comes."""
                return (
                    {"type": "http.request", "body": pending.pop(), "more_body": False}
                    if pending
                    else await request.receive()
                )

            try:
                response = await handle(HttpRequest(http.scope, receive))
            except RequestValidationError as error:
                raise BadRequest(
                    _in_a_line([_problem_of(each["loc"][1:], each) for each in error.errors()])
                ) from None
            except HTTPException as error:
                raise BadRequest(_NOT_JSON) from error
            response.headers["x-request-id"] = request.request_id
            return response

        return bounded


async def answer_large(
    model: type[BaseModel],
    endpoint: LargeEndpoint,
    request: Request,
    body: RequestBody,
) -> None:
    """Have a page answer whose body may be long, and is read as a `model`."""
    response = await endpoint(
        await body.parsed(partial(validated, model), await body.read()), request, body
    )
    response.headers["x-request-id"] = request.request_id
    await request.answer.head(response.status_code, tuple(response.raw_headers))
    await request.answer.end(bytes(response.body))


def validated(model: type[Asked], content: bytes) -> Asked:
    """Raises BadRequest."""
    try:
        return model.model_validate(decode(content))
    except ValidationError as error:
        if error.error_count() > _MOST_PROBLEMS:
            raise BadRequest(f"{error.error_count():,} fields are wrong") from None
        raise BadRequest(
            _in_a_line(
                [_problem_of(each["loc"], each) for each in error.errors(include_input=False)]
            )
        ) from None
    except GoJsonError as error:
        raise BadRequest(f"{_NOT_JSON}: {error.message}") from error


def _problem_of(place: Sequence[object], problem: Mapping[str, Any]) -> str:
    """`field: what is wrong with it`; pydantic's own words already say what to do."""
    if problem.get("type") == "json_invalid":
        return f"{_NOT_JSON}: {problem['ctx']['error']} at character {place[-1]}"
    what = (
        "unknown field; leave it out"
        if problem.get("type") == "extra_forbidden"
        else str(problem.get("msg")).removeprefix("Value error, ")
    )
    return f"{'.'.join(map(str, place)) or 'body'}: {what}"


def _in_a_line(problems: Sequence[str]) -> str:
    """The first problems, and how many more there are: an answer is not to be as long as whatever
    was sent.
    """
    more = (
        f"; and {len(problems) - _PROBLEMS_SHOWN} more" if len(problems) > _PROBLEMS_SHOWN else ""
    )
    return "; ".join(each[:_PROBLEM_CHARS] for each in problems[:_PROBLEMS_SHOWN]) + more


def idempotency_key_of(request: Request) -> str | None:
    """None where there is none.

    Raises BadRequest for one that is too long, empty, not printable, or there twice.
    """
    raw = request.headers.values.get(b"idempotency-key")
    if raw is None:
        return None
    key = raw.decode("latin-1")
    if (
        b"idempotency-key" in request.headers.repeated
        or not 1 <= len(key) <= _MAX_KEY_CHARS
        or not key.isascii()
        or not key.isprintable()
    ):
        raise BadRequest(f"send one Idempotency-Key of 1 to {_MAX_KEY_CHARS} printable characters")
    return key


def replayed_header(*, is_new: bool) -> dict[str, str]:
    """What the answer says where the key was used before."""
    return {} if is_new else {"idempotency-replayed": "true"}
