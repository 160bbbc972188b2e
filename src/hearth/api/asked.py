"""How a handler of Hearth's own pages learns who asks: as FastAPI dependencies that read what `api.app` has settled.

Must never decide anything. Used by `api.control` and the pages that it serves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Response
from pydantic import BaseModel, ValidationError

from hearth.admission.auth import Identity
from hearth.api.visit import Visit
from hearth.dialects.gojson import GoJsonError, decode
from hearth.errors import BadRequest

Asked = TypeVar("Asked", bound=BaseModel)
VISIT = "hearth.visit"
IDENTITY = "hearth.identity"
NOT_JSON = "the body is not usable JSON"
_PROBLEMS_TOLD = 10
_PROBLEM_CHARS = 500


def visit_of(request: Request) -> Visit:
    """The request as the other handlers see it."""
    visit: Visit = request.scope[VISIT]
    return visit


def identity_of(request: Request) -> Identity:
    """Whose key it was."""
    identity: Identity = request.scope[IDENTITY]
    return identity


def problem_of(place: Sequence[object], problem: Mapping[str, Any]) -> str:
    """`field: what is wrong with it`; pydantic's own words already say what to do."""
    if problem.get("type") == "json_invalid":
        return f"{NOT_JSON}: {problem['ctx']['error']} at character {place[-1]}"
    what = "unknown field; leave it out" if problem.get("type") == "extra_forbidden" else str(problem.get("msg"))
    return f"{'.'.join(map(str, place)) or 'body'}: {what}"


def in_a_line(problems: Sequence[str]) -> str:
    """The first problems, and how many more there are: an answer is not to be as long as whatever was sent."""
    more = f"; and {len(problems) - _PROBLEMS_TOLD} more" if len(problems) > _PROBLEMS_TOLD else ""
    return "; ".join(each[:_PROBLEM_CHARS] for each in problems[:_PROBLEMS_TOLD]) + more


def asked_in(model: type[Asked], content: bytes) -> Asked:
    """What a body asks for, where no framework reads it. Raises BadRequest for what is no `model`."""
    try:
        return model.model_validate(decode(content))
    except ValidationError as error:
        raise BadRequest(in_a_line([problem_of(each["loc"], each) for each in error.errors(include_input=False)])) from None
    except GoJsonError as error:
        raise BadRequest(f"{NOT_JSON}: {error.message}") from error


async def send_response(visit: Visit, response: Response) -> None:
    """Send a framework's response, with the request id on it."""
    await visit.answer.head(response.status_code, (*response.raw_headers, (b"x-request-id", visit.request_id.encode("ascii"))))
    await visit.answer.end(bytes(response.body))


CurrentVisit = Annotated[Visit, Depends(visit_of)]
Caller = Annotated[Identity, Depends(identity_of)]
