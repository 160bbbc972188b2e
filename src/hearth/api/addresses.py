"""Which handler answers which address, with which methods, and who may come.

One exact-match table built at start, two prefixes for addresses that contain a name, and Hearth's own pages. Deny by default: what is
not here does not exist, and only `/healthz` and the dashboard's own files, which hold no data, are open to callers without a key. Must
never look at a request. Called by `api.app`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from hearth.api.batches import BATCHES_PATH
from hearth.api.dashboard.pages import DashboardPages
from hearth.api.files import CONTENT_SUFFIX, FILES_PATH, FileTransfer
from hearth.api.inference import Inference
from hearth.api.passthrough import Passthrough, refuse_unserved
from hearth.api.visit import Handler
from hearth.dialects.routes import COUNT_TOKENS_PATH, INFERENCE_ROUTES, INFO_ROUTES, MANAGEMENT_ROUTES, TRANSCRIPTIONS_PATH, PlainRoute
from hearth.types import Dialect

_ADMIN_PREFIX = "/llm/admin/"
_OWN_PREFIX = "/llm/"
_OWN_PAGES = frozenset({"/readyz", "/openapi.json", "/metrics"})
_PUBLIC_PAGE = "/healthz"


class Access(Enum):
    """Who may use an address."""

    PUBLIC = auto()
    CALLER = auto()
    ADMIN = auto()
    MODEL_MANAGER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What is behind a path.

    Attributes:
        handlers: by method; empty means that the handler of `any_method` sorts methods out itself.
        binary: takes `application/octet-stream`; form: takes `multipart/form-data`; zstd: takes JSON in that coding.
        page: what a browser gets instead, where it asks for a page.
        shared: pages of `server.allowed_origins` may use it.
        forwards: the model server is asked, which no link of another site may cause.
    """

    access: Access
    handlers: Mapping[str, Handler]
    any_method: Handler | None = None
    binary: bool = False
    form: bool = False
    zstd: bool = False
    page: Address | None = None
    shared: bool = False
    forwards: bool = False

    def handler(self, method: str) -> Handler | None:
        """The handler for a method, None where it is not allowed."""
        return self.handlers.get(method, self.any_method)


class AddressBook:
    """All addresses of the gateway."""

    def __init__(
        self, inference: Inference, passthrough: Passthrough, files: FileTransfer, own_pages: Handler, dashboard: DashboardPages
    ) -> None:
        post = {"POST": inference.handle}
        self._exact = {
            path: Address(access=Access.CALLER, handlers=post, shared=True, zstd=route.dialect is not Dialect.OLLAMA)
            for path, route in INFERENCE_ROUTES.items()
        }
        count = {"POST": passthrough.count_tokens}
        self._exact[COUNT_TOKENS_PATH] = Address(access=Access.CALLER, handlers=count, shared=True, zstd=True)
        self._prefixed: dict[str, Address] = {}
        self._add(INFO_ROUTES, Access.CALLER, passthrough.handle)
        self._exact[TRANSCRIPTIONS_PATH] = Address(access=Access.CALLER, handlers={"POST": refuse_unserved}, form=True)
        self._add(MANAGEMENT_ROUTES, Access.MODEL_MANAGER, passthrough.handle)
        self._public = Address(access=Access.PUBLIC, handlers={}, any_method=own_pages)
        self._own = Address(access=Access.CALLER, handlers={}, any_method=own_pages)
        self._admin = Address(access=Access.ADMIN, handlers={}, any_method=own_pages)
        self._exact[FILES_PATH] = replace(self._own, handlers={"POST": files.upload}, form=True)
        self._exact[BATCHES_PATH] = self._own
        self._content = Address(access=Access.CALLER, handlers={"GET": files.content})
        self._add_dashboard(dashboard)

    def _add(self, routes: tuple[PlainRoute, ...], access: Access, handle: Handler) -> None:
        for route in routes:
            prefix, brace, _ = route.path.partition("{")
            handlers = dict.fromkeys(route.methods, handle)
            shared = access is Access.CALLER and route.path != "/"
            address = Address(access=access, handlers=handlers, binary=bool(brace), shared=shared, forwards=True)
            (self._prefixed if brace else self._exact)[prefix] = address

    def _add_dashboard(self, dashboard: DashboardPages) -> None:
        page = Address(access=Access.PUBLIC, handlers=dict.fromkeys(("GET", "HEAD"), dashboard.page))
        self._exact["/"] = replace(self._exact["/"], page=page)
        self._exact["/llm/queue/status"] = replace(self._own, page=page)
        file = Address(access=Access.PUBLIC, handlers=dict.fromkeys(("GET", "HEAD"), dashboard.file))
        self._exact |= dict.fromkeys(dashboard.paths, file)

    def find(self, path: str) -> Address | None:
        """The address at a decoded path; None where there is none."""
        found = self._exact.get(path)
        return found if found is not None else self._find_other(path)

    def _find_other(self, path: str) -> Address | None:
        if path == _PUBLIC_PAGE:
            return self._public
        if path.startswith(_ADMIN_PREFIX) or path == "/openapi.json":
            return self._admin
        if path.startswith(_OWN_PREFIX) or path in _OWN_PAGES:
            return self._own
        if path.startswith((f"{FILES_PATH}/", f"{BATCHES_PATH}/")):
            return self._content if path.startswith(FILES_PATH) and path.endswith(CONTENT_SUFFIX) else self._own
        for prefix, address in self._prefixed.items():
            if path.startswith(prefix) and not path.endswith("/"):
                return address
        return None


def is_odd(path: str, target: str) -> bool:
    """True for a spelling that another reader of the same bytes might understand differently; none is ever needed.

    Only a model name in `/v1/models/{name}` may contain an escape, since clients write `:` and `/` as one.
    """
    if not path.startswith("/") or "//" in path or ";" in path or "\\" in path or not path.isprintable():
        return True
    if "/../" in f"{path}/" or "/./" in f"{path}/":
        return True
    return "%" in target.partition("?")[0] and not target.startswith("/v1/models/")
