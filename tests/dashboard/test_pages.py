"""The dashboard's own files: who gets them, how, and what is in them."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from pathlib import Path

import pytest

from hearth.api.app import HearthApp
from hearth.api.dashboard.pages import CONTENT_SECURITY_POLICY, DashboardPages
from tests.api.house import ADMIN_KEY, KEYS, FakeExchange, FakeGateway, ask
from tests.support.cases import for_each

STATIC = Path(str(files("hearth.api").joinpath("static")))
OWN = sorted(path for path in STATIC.iterdir() if path.is_file())
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
JAVA = "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"
"""What older ones of Java's URLConnection send for a program that says nothing of its own; newer ones end it with `*/*; q=0.2`."""
KINDS = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}


@pytest.fixture
def gateway() -> FakeGateway:
    gateway = FakeGateway(keys=KEYS)
    gateway.backend.answer = FakeExchange(200, (), (b"Ollama is running",))
    return gateway


@pytest.fixture
def app(gateway: FakeGateway) -> HearthApp:
    return gateway.app()


@pytest.mark.parametrize("path", ["/", "/llm/queue/status"])
async def test_a_browser_gets_the_page_without_a_key_and_a_program_what_it_always_got(path, app):
    page = await ask(app, "GET", path, accept=BROWSER)
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.headers["vary"] == "accept"
    assert (await ask(app, "HEAD", path, accept=BROWSER)).headers["etag"] == page.headers["etag"]
    for accept in ("*/*", "application/json", JAVA, JAVA.replace("*; q=.2, */*; q=.2", "*/*; q=0.2")):
        assert (await ask(app, "GET", path, accept=accept)).status == 401
        assert b"<html" not in (await ask(app, "GET", path, key=ADMIN_KEY, accept=accept)).body
    assert b"<html" not in (await ask(app, "GET", path, key=ADMIN_KEY)).body


async def test_only_these_two_addresses_have_a_page(app):
    for path in ("/api/tags", "/llm/health", "/llm/log", "/nope", "/static/", "/static/index.html", "/static/vendor", "/static/../app.py"):
        assert (await ask(app, "GET", path, accept=BROWSER)).status == 401
    for method in ("POST", "DELETE"):
        assert (await ask(app, method, "/", accept=BROWSER, content_type="application/json")).status == 401


async def test_the_door_holds_for_the_page_too(app):
    for path in ("/", "/static/app.js"):
        assert (await ask(app, "GET", path, accept=BROWSER, host="evil.test")).status == 421
        assert (await ask(app, "GET", path, accept=BROWSER, sec_fetch_site="cross-site", sec_fetch_mode="no-cors")).status == 403


@pytest.mark.parametrize("path", DashboardPages().paths)
async def test_each_file_has_its_type_its_rules_and_its_bytes(path, app):
    got = await ask(app, "GET", path)
    assert got.status == 200
    assert got.headers["content-type"] == KINDS[Path(path).suffix]
    assert got.headers["content-security-policy"].encode() == CONTENT_SECURITY_POLICY
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["cache-control"] == "no-cache"
    assert got.body == (STATIC / path.removeprefix("/static/")).read_bytes()


async def test_what_a_browser_has_already_is_not_sent_again(app):
    tag = (await ask(app, "GET", "/static/app.js")).headers["etag"]
    again = await ask(app, "GET", "/static/app.js", if_none_match=f'W/{tag}, "other"')
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    assert (await ask(app, "GET", "/static/app.js", if_none_match='"other"')).status == 200


def test_the_policy_lets_nothing_in_from_elsewhere_and_nothing_inline():
    rules = dict(rule.split(" ", 1) for rule in CONTENT_SECURITY_POLICY.decode().split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"


def test_what_others_wrote_is_here_as_they_published_it_with_licences():
    vendor = STATIC / "vendor"
    lines = [line.split("  ") for line in (vendor / "SHA256SUMS").read_text().splitlines()]
    listed = {name: digest for digest, name in lines}
    present = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in vendor.iterdir() if path.name != "SHA256SUMS"}
    assert present == listed
    assert {name for name in present if name.startswith("LICENSE")} == {"LICENSE-htm.txt", "LICENSE-preact.txt", "LICENSE-uPlot.txt"}


@for_each("path", OWN)
def test_our_own_files_load_nothing_from_elsewhere_and_write_text_only_as_text(path):
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|\bsrc=\"//", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|setAttribute\(", text)
    assert not re.search(r"<script>|<style|\son[a-z]+=\"|\sstyle=\"", text)
    assert "dangerouslySet" not in text


def test_each_file_that_the_page_names_exists():
    served = set(DashboardPages().paths)
    named = set(re.findall(r'"(/static/[^"]+)"', (STATIC / "index.html").read_text()))
    assert {"/static/app.js", "/static/app.css"} <= named <= served
    for path in STATIC.glob("*.js"):
        for target in re.findall(r'from "\./([^"]+)"', path.read_text()):
            assert f"/static/{target}" in served
