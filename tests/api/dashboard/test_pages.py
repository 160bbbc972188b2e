"""The dashboard's own files: who gets them, how, and what is in them."""

from __future__ import annotations

import hashlib
import re

import pytest

from hearth.api.dashboard.page import CONTENT_SECURITY_POLICY, FILES, STATIC
from hearth.config.settings import ServerSettings
from tests.api.house import ADMIN_KEY, HttpHouse

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


@pytest.mark.parametrize(
    ("path", "refusal"),
    [("/", 401), ("/llm/queue/status", 401), ("/dashboard", 405), ("/dashboard/requests", 405)],
)
async def test_a_browser_gets_the_page_without_a_key(keyed, path, refusal):
    page = await keyed.ask("GET", path, accept=BROWSER)
    assert (page.status, page.headers["content-type"], page.headers["vary"]) == (
        200,
        "text/html; charset=utf-8",
        "accept",
    )
    head = await keyed.ask("HEAD", path, accept=BROWSER)
    assert head.headers["etag"] == page.headers["etag"]
    for method in ("POST", "DELETE"):
        got = await keyed.ask(method, path, accept=BROWSER, content_type="application/json")
        assert got.status == refusal


@pytest.mark.parametrize("path", ["/", "/llm/queue/status"])
@pytest.mark.parametrize(
    "accept",
    ["", "*/*", "application/json", JAVA + "*; q=.2, */*; q=.2", JAVA + "*/*; q=0.2"],
)
async def test_a_program_gets_what_it_always_got(keyed, path, accept):
    accepts = {"accept": accept} if accept else {}
    assert (await keyed.ask("GET", path, **accepts)).status == 401
    assert b"<html" not in (await keyed.ask("GET", path, key=ADMIN_KEY, **accepts)).body


@pytest.mark.parametrize("path", NO_PAGES)
async def test_there_is_no_page_elsewhere(keyed, path):
    assert (await keyed.ask("GET", path, accept=BROWSER)).status == 401


@pytest.mark.parametrize("path", ["/", "/static/app.js"])
async def test_a_page_is_refused_to_other_hosts_and_sites_as_every_address_is(keyed, path):
    assert (await keyed.ask("GET", path, accept=BROWSER, host="evil.test")).status == 421
    site = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}
    assert (await keyed.ask("GET", path, accept=BROWSER, **site)).status == 403


@pytest.mark.parametrize(
    ("base_path", "path", "root"),
    [
        ("", "/", "."),
        ("", "/llm/queue/status", "../.."),
        ("", "/dashboard", "."),
        ("", "/dashboard/requests", ".."),
        ("/a/hearth", "/", "/a/hearth"),
        ("/a/hearth", "/a/hearth", "/a/hearth"),
        ("/a/hearth", "/a/hearth/llm/queue/status", "/a/hearth"),
    ],
)
async def test_the_page_names_its_files_as_seen_from_it_or_below_the_path_of_a_proxy(
    base_path, path, root
):
    async with HttpHouse(server=ServerSettings(base_path=base_path)) as house:
        page = await house.ask("GET", path, accept=BROWSER)
    named = re.findall(r' (?:src|href)="([^"]+)"', page.body.decode())
    assert len(named) == STATIC.joinpath("index.html").read_text().count('"/static/')
    assert all(each.startswith(f"{root}/static/") for each in named)


@pytest.mark.parametrize(("path", "file"), FILES.items())
async def test_each_file_has_its_type_rules_and_bytes_and_is_not_sent_twice(keyed, path, file):
    got = await keyed.ask("GET", path)
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
    again = await keyed.ask("GET", path, if_none_match=f'W/{got.headers["etag"]}, "other"')
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", got.headers["etag"])
    assert (await keyed.ask("GET", path, if_none_match='"other"')).status == 200


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
        "LICENSE-material-design-icons.txt",
        "LICENSE-preact.txt",
        "LICENSE-uPlot.txt",
    }


OURS = [path for path in STATIC.rglob("*") if path.is_file() and path.parent.name != "vendor"]


def test_a_line_of_a_script_has_room():
    scripts = [path for path in OURS if path.suffix == ".js" and path.name != "icon_paths.js"]
    long = [
        f"{path.name}:{number}"
        for path in scripts
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if len(line) > 100
    ]
    assert len(scripts) > 20
    assert long == []


@pytest.mark.parametrize("path", sorted(OURS))
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
    imported = re.findall(r'from "(\.[^"]+)"', text)
    named = {
        f"/static/{(path.parent / target).resolve().relative_to(STATIC)}" for target in imported
    } | set(re.findall(r'"(/static/[^"]+)"', text))
    assert named <= set(FILES)
    assert path.name != "index.html" or {"/static/app.js", "/static/app.css"} <= named
