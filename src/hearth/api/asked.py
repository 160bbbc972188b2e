"""How a handler of Hearth's own pages learns who asks: as FastAPI dependencies that read what `api.app` has settled.

Must never decide anything. Used by `api.control` and `api.jobs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Depends, Request

from hearth.admission.auth import Identity
from hearth.api.visit import Visit

VISIT = "hearth.visit"
IDENTITY = "hearth.identity"


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
    what = "unknown field; leave it out" if problem.get("type") == "extra_forbidden" else str(problem.get("msg"))
    return f"{'.'.join(map(str, place)) or 'body'}: {what}"


CurrentVisit = Annotated[Visit, Depends(visit_of)]
Caller = Annotated[Identity, Depends(identity_of)]
