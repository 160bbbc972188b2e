"""The page Keys in a real browser: who calls, keys that are made, rotated and revoked, and what to
paste into each kind of program.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "playwright.async_api", reason="playwright is not installed: `make setup` brings it"
)

from playwright.async_api import Page, expect

from hearth.admission.auth import digest_of
from hearth.config.loading import load_gateway_config
from tests.api.dashboard.browsing import KEYS, Site, house_with, opened, whole_house
from tests.api.dashboard.looking import (
    COUNT_SHIFTS,
    ENDS,
    MOST_SHIFT,
    Fault,
    faults_of,
    fits,
    look,
    violations,
)
from tests.support.home import LLAMA

DOCS = Path(__file__).parents[3] / "docs" / "clients"
HOSTILE = "Küche & <b>Flur</b>"
ROWS = (
    ("owner", "hearth_owner", "admin: true"),
    ("n8n", "hearth_n8n", "models: ['llama3*']"),
    (HOSTILE, "hearth_kitchen", "lane: internal"),
)
LIMITS = "rate_limits: {callers: {n8n: {requests_per_minute: 5}}}\n"


@asynccontextmanager
async def home(folder: Path, rows: tuple[tuple[str, str, str], ...] = ROWS) -> AsyncIterator[Site]:
    """A whole house with a file that its owner has written."""
    file = folder / "hearth.yaml"
    lines = [
        f"    - name: {json.dumps(name, ensure_ascii=False)}  # whose\n"
        f"      sha256: {digest_of(key)}\n      {right}\n"
        for name, key, right in rows
    ]
    file.write_text(LIMITS + ("auth:\n  keys:\n" + "".join(lines) if rows else ""))
    async with whole_house(folder, source=file) as house:
        assert house.gateway.reload()
        yield house


def kept(house: Site) -> dict[str, str]:
    """The digests in the file by name."""
    assert house.gateway.config.source is not None
    settings = load_gateway_config(house.gateway.config.source).settings
    return {key.name: key.sha256 for key in settings.auth.keys}


async def shown_secret(page: Page) -> str:
    box = page.locator(".secret")
    await expect(box).to_contain_text("It is shown only now")
    return (await box.locator("code").first.text_content() or "").strip()


async def test_an_admin_makes_a_key_once_shown_and_finds_it_in_the_setting(browser, tmp_path):
    async with home(tmp_path) as house:
        path = "/dashboard/keys?for=claude-code&new=1"
        watched = await opened(browser, house, path=path, key="hearth_owner")
        page = watched.page
        await expect(page.locator(".caller-card")).to_have_count(3)
        assert await violations(page) == []
        await page.get_by_label("Name of the program or person").fill("tv")
        await page.get_by_label("An assistant").check()
        await page.get_by_label("May take the GPU").check()
        await page.get_by_role("button", name="Make the key").click()
        secret = await shown_secret(page)
        assert kept(house)["tv"] == digest_of(secret)
        block = page.locator(".connect .block code")
        await expect(block).to_contain_text(f"ANTHROPIC_AUTH_TOKEN={secret}")
        await expect(block).to_contain_text(f"ANTHROPIC_BASE_URL={house.url}")
        row = page.get_by_role("listitem").filter(has_text="tv")
        await expect(row.locator(".badge")).to_have_text(["assistant", "may take the GPU"])
        assert await violations(page) == []
        await page.get_by_role("button", name="I have it").click()
        await expect(page.get_by_text(secret)).to_have_count(0)
        await page.reload()
        await expect(row).to_be_visible()
        assert secret not in await page.content()
        assert watched.complaints == []


async def test_callers_are_shown_with_their_use_and_keys_are_rotated_and_revoked(browser, tmp_path):
    async with home(tmp_path) as house:
        body = {"model": LLAMA, "prompt": "hi", "stream": False, "options": {"num_predict": 2}}
        assert (await (await house.post("/api/generate", body, key="hearth_n8n")).head())[0] == 200
        watched = await opened(browser, house, path="/dashboard/keys", key="hearth_owner")
        page = watched.page
        row = page.get_by_role("listitem").filter(has_text="n8n")
        await expect(row.get_by_role("meter", name="n8n: this minute")).to_have_attribute(
            "aria-valuetext", "1 of 5 this minute"
        )
        await expect(row).to_contain_text("llama3*")
        await expect(page.get_by_role("heading", name=HOSTILE, exact=True)).to_be_visible()
        await expect(row.get_by_role("link")).to_have_attribute(
            "href", "/dashboard/requests?caller=n8n"
        )
        own = page.get_by_role("listitem").filter(has_text="the key that you use")
        await expect(own.get_by_role("button")).to_have_text(["Rotate"])
        await watched.order(f"Rotate the key of {HOSTILE}", "Rotate")
        secret = await shown_secret(page)
        assert kept(house)[HOSTILE] == digest_of(secret)
        await watched.order("Revoke the key of n8n", "Revoke", "The key of n8n is revoked.")
        await expect(row.locator(".badge")).to_have_text(["no key"])
        assert sorted(kept(house)) == [HOSTILE, "owner"]
        await watched.order("Rotate the key of owner", "Rotate")
        await expect(page.locator(".secret h2")).to_have_text("The key of owner")
        secret = await shown_secret(page)
        stored = await page.evaluate("sessionStorage.getItem('hearth.key')")
        assert (stored, kept(house)["owner"]) == (secret, digest_of(secret))
        await watched.order(
            f"Revoke the key of {HOSTILE}", "Revoke", f"The key of {HOSTILE} is revoked."
        )
        await expect(page.get_by_text("owner (admin)")).to_be_visible()
        assert list(kept(house)) == ["owner"]


async def test_the_first_key_is_an_admins_and_signs_the_page_in(browser, tmp_path):
    async with home(tmp_path, rows=()) as house:
        page = (await opened(browser, house, path="/dashboard/keys")).page
        await expect(page.get_by_label("Admin")).to_be_disabled()
        await page.get_by_label("Name of the program or person").fill("me")
        await page.get_by_role("button", name="Make the key").click()
        secret = await shown_secret(page)
        await expect(page.get_by_text("me (admin)")).to_be_visible()
        assert kept(house) == {"me": digest_of(secret)}


async def test_a_file_that_cannot_be_written_has_lines_to_paste(browser, tmp_path):
    async with home(tmp_path) as house:
        (tmp_path / "hearth.yaml.new").mkdir()
        path = "/dashboard/keys?new=1"
        watched = await opened(browser, house, path=path, key="hearth_owner")
        page = watched.page
        await page.get_by_label("Name of the program or person").fill("tv")
        await page.get_by_role("button", name="Make the key").click()
        secret = await shown_secret(page)
        box = page.locator(".secret")
        await expect(box).to_contain_text("It is not valid yet")
        await expect(box).to_contain_text("hearth key new tv --write --config")
        await expect(box).to_contain_text(digest_of(secret))
        assert "tv" not in kept(house)
        await page.get_by_role("button", name="I have it").click()
        await watched.order("Rotate the key of n8n", "Rotate")
        await expect(box).to_contain_text("this line in place of the sha256 of n8n")
        await watched.order("Revoke the key of n8n", "Revoke", "hearth key revoke n8n --config")
        assert kept(house)["n8n"] == digest_of("hearth_n8n")


async def test_others_see_their_own_key_and_the_address(browser, tmp_path):
    async with home(tmp_path) as house:
        watched = await opened(browser, house, path="/dashboard/keys", key="hearth_n8n")
        page = watched.page
        await expect(page.locator(".caller-card h3")).to_have_text(["n8n"])
        await expect(page.get_by_role("button", name="New key")).to_have_count(0)
        await expect(page.locator(".caller-card").get_by_role("button")).to_have_count(0)
        await page.get_by_label("Program", exact=True).select_option("n8n")
        await expect(page).to_have_url(f"{house.url}/dashboard/keys?for=n8n")
        await expect(page.locator(".connect .pairs")).to_contain_text(house.url)
        assert watched.complaints == []


async def test_the_command_to_paste_works_below_the_path_of_a_proxy(browser):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    async with house_with("a:1", keys=KEYS, base_path="/hearth") as house:
        path = "/hearth/dashboard/keys?for=curl"
        page = (await opened(browser, house, path=path)).page
        await page.get_by_label("Key", exact=True).fill("hearth_friend")
        await page.keyboard.press("Enter")
        code = page.locator(".connect .block code")
        await expect(code).to_contain_text(f"{house.url}/hearth/v1/chat/completions")
        line = await code.text_content()
        assert line is not None
        command = line.replace("hearth_...", "hearth_friend") + " -s -o /dev/null -w '%{http_code}'"
        running = await asyncio.create_subprocess_shell(command, stdout=asyncio.subprocess.PIPE)
        assert (await running.communicate())[0] == b"200"


async def test_the_page_does_not_move_and_fingers_hit_every_button(browser, tmp_path):
    faults: dict[Fault, float] = {}
    async with home(tmp_path) as house:
        for scheme, width in ENDS:
            path = "/dashboard/keys?new=1&for=codex"
            watched = await opened(
                browser, house, path=path, key="hearth_owner", width=width, script=COUNT_SHIFTS
            )
            page = watched.page
            await look(page, scheme, width)
            await expect(page.locator(".caller-card")).to_have_count(3)
            await expect(page.locator(".connect")).to_be_visible()
            assert await page.evaluate("shift") <= MOST_SHIFT
            assert await fits(page)
            faults |= await faults_of(page, scheme, width)
            await page.close()
    assert faults == {}


async def settings_of(page: Page) -> dict[str, list[dict[str, Any]]]:
    """What the page says for each program, with the names that the documentation uses."""
    found: dict[str, list[dict[str, Any]]] = await page.evaluate(
        """async () => {
          const { PROGRAMS } = await import("/static/programs.js");
          const asked = { address: "http://gpu-box:8411", key: "hearth_...", keyed: true };
          return Object.fromEntries(PROGRAMS.map(({ name, coding, blocks }) =>
            [name, blocks({ ...asked, model: coding ? "qwen2.5-coder:14b" : "llama3.1:8b" })]));
        }"""
    )
    return found


async def test_the_settings_are_those_of_the_documentation(browser):
    async with house_with("a:1") as house:
        page = (await opened(browser, house, path="/dashboard/keys")).page
        found = await settings_of(page)
    for name in ("claude-code", "codex", "continue", "librechat", "open-webui", "home-assistant"):
        said = (DOCS / f"{name}.md").read_text().replace("127.0.0.1", "gpu-box")
        plain = re.sub(r'"', "", said)
        for block in found[name]:
            lines = block.get("lines", "").splitlines() or [
                value for _, value in block["fields"] if value != "hearth_..."
            ]
            missing = [
                line
                for line in lines
                if line.replace('"', "") not in plain and "HEARTH_KEY=" not in line
            ]
            assert missing == [], name
    said = (DOCS / "opencode.md").read_text().replace("127.0.0.1", "gpu-box")
    documented = json.loads(said[said.index("```json") + 7 : said.index("\n```\n")])
    del documented["$schema"]  # which editors ask for, and OpenCode does not
    shown = json.loads(found["opencode"][0]["lines"])
    for each in (documented, shown):
        each["provider"]["hearth"]["models"] = list(each["provider"]["hearth"]["models"])
    assert shown == documented


async def test_who_is_no_admin_any_more_sees_its_own_key(browser, tmp_path):
    rows = (*ROWS[:1], ("boss", "hearth_boss", "admin: true"))
    async with home(tmp_path, rows) as house:
        watched = await opened(browser, house, path="/dashboard/keys", key="hearth_boss")
        await expect(watched.page.locator(".caller-card")).to_have_count(2)
        file = tmp_path / "hearth.yaml"
        before, _, _ = file.read_text().rpartition("admin: true")
        file.write_text(before + "lane: external\n")
        assert house.gateway.reload()
        await expect(watched.page.locator(".caller-card h3")).to_have_text(["boss"])
        assert watched.complaints == []
