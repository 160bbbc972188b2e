"""How a handler of Hearth's own pages learns who asks: as FastAPI dependencies that read what `api.app` has settled.

Must never decide anything. Used by `api.control` and `api.jobs`.
"""

from __future__ import annotations

from typing import Annotated

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


CurrentVisit = Annotated[Visit, Depends(visit_of)]
Caller = Annotated[Identity, Depends(identity_of)]
