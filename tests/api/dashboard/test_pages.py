"""The dashboard's own files: who gets them, how, and what is in them."""

from __future__ import annotations

import hashlib
import re

import pytest

from hearth.api.dashboard.page import CONTENT_SECURITY_POLICY, FILES, STATIC
from hearth.config.settings import ServerSettings
from tests.api.house import ADMIN_KEY, KEYS, FakeGateway, ScriptedExchange

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
JAVA = "text/html, image/gif, image/jpeg, "
"""What older ones of Java's URLConnection send for a program that says nothing of its own, with one
of two ends.
"""
KINDS = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
NO_PAGES = (
    "/api/tags",
    "/llm/health",
    "/llm/log",
    "/nope",
    "/static/",
    "/static/index.html",
    "/static/vendor",
    "/static/../app.py",
)


def gateway() -> FakeGateway:
    gateway = FakeGateway(keys=KEYS)
    gateway.engine.answer = ScriptedExchange(200, (), (b"Ollama is running",))
    return gateway


async def test_a_browser_gets_the_page_without_a_key_and_a_program_what_it_always_got():
    house = gateway()
    for path in ("/", "/llm/queue/status"):
        page = await house.ask("GET", path, accept=BROWSER)
        assert (page.status, page.headers["content-type"], page.headers["vary"]) == (
            200,
            "text/html; charset=utf-8",
            "accept",
        )
        assert (await house.ask("HEAD", path, accept=BROWSER)).headers["etag"] == page.headers[
            "etag"
        ]
        for accept in ("*/*", "application/json", JAVA + "*; q=.2, */*; q=.2", JAVA + "*/*; q=0.2"):
            assert (await house.ask("GET", path, accept=accept)).status == 401
            assert b"<html" not in (await house.ask("GET", path, key=ADMIN_KEY, accept=accept)).body
        assert b"<html" not in (await house.ask("GET", path, key=ADMIN_KEY)).body
        for method in ("POST", "DELETE"):
            assert (
                await house.ask(method, path, accept=BROWSER, content_type="application/json")
            ).status == 401
    assert {(await house.ask("GET", path, accept=BROWSER)).status for path in NO_PAGES} == {401}
    # other hosts and other sites are refused as at every address
    for path in ("/", "/static/app.js"):
        assert (await house.ask("GET", path, accept=BROWSER, host="evil.test")).status == 421
        assert (
            await house.ask(
                "GET", path, accept=BROWSER, sec_fetch_site="cross-site", sec_fetch_mode="no-cors"
            )
        ).status == 403


async def test_the_page_names_its_files_as_seen_from_it_or_below_the_path_of_a_proxy():
    for base_path, path, root in (
        ("", "/", "."),
        ("", "/llm/queue/status", "../.."),
        ("/a/hearth", "/", "/a/hearth"),
        ("/a/hearth", "/a/hearth", "/a/hearth"),
        ("/a/hearth", "/a/hearth/llm/queue/status", "/a/hearth"),
    ):
        house = FakeGateway(server=ServerSettings(base_path=base_path))
        page = await house.ask("GET", path, accept=BROWSER)
        named = re.findall(r' (?:src|href)="([^"]+)"', page.body.decode())
        assert len(named) == 6
        assert all(each.startswith(f"{root}/static/") for each in named), (path, named)


async def test_each_file_has_its_type_rules_and_bytes_and_is_not_sent_twice():
    house = gateway()
    for path, file in FILES.items():
        got = await house.ask("GET", path)
        assert (got.status, got.headers["content-type"], got.headers["cache-control"]) == (
            200,
            KINDS[file.suffix],
            "no-cache",
        )
        assert got.headers["content-security-policy"].encode() == CONTENT_SECURITY_POLICY
        assert (got.headers["x-content-type-options"], got.body) == (
            "nosniff",
            (STATIC / path.removeprefix("/static/")).read_bytes(),
        )
        again = await house.ask("GET", path, if_none_match=f'W/{got.headers["etag"]}, "other"')
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", got.headers["etag"])
        assert (await house.ask("GET", path, if_none_match='"other"')).status == 200


def test_the_policy_lets_nothing_in_from_elsewhere_and_nothing_inline():
    rules = dict(rule.split(" ", 1) for rule in CONTENT_SECURITY_POLICY.decode().split("; "))
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert {
        rules[name] for name in ("default-src", "frame-ancestors", "base-uri", "form-action")
    } == {"'none'"}


def test_what_others_wrote_is_here_as_they_published_it_with_licences():
    vendor = STATIC / "vendor"
    listed = {
        name: digest
        for digest, name in (
            line.split("  ") for line in (vendor / "SHA256SUMS").read_text().splitlines()
        )
    }
    present = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in vendor.iterdir()
        if path.name != "SHA256SUMS"
    }
    assert present == listed
    assert {name for name in present if name.startswith("LICENSE")} == {
        "LICENSE-htm.txt",
        "LICENSE-preact.txt",
        "LICENSE-uPlot.txt",
    }


@pytest.mark.parametrize("path", sorted(path for path in STATIC.iterdir() if path.is_file()))
def test_our_files_load_nothing_foreign_and_write_text_only_as_text(path):
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|\bsrc=\"//", text)
    assert not re.search(
        (
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new "
            r"Function|setAttribute\(|dangerouslySet"
        ),
        text,
    )
    assert not re.search(r"<script>|<style|\son[a-z]+=\"|\sstyle=\"", text)
    named = {f"/static/{target}" for target in re.findall(r'from "\./([^"]+)"', text)} | set(
        re.findall(r'"(/static/[^"]+)"', text)
    )
    assert named <= set(FILES)
    assert path.name != "index.html" or {"/static/app.js", "/static/app.css"} <= named
