"""Every setting and every address is documented, and what is said of who may use an address is
true.

Events and metrics have such tests beside their own: `observability/test_events_doc.py` and
`observability/test_metrics.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from docs_build.http_page import Address, groups
from docs_build.settings_page import sections
from tests.api.house import ADMIN_KEY, LOW_KEY, HttpHouse
from tests.config.reading import kind_of, section_in, settings_classes
from tests.support.places import ROOT

SETTINGS = [setting for section in sections() for setting in section.settings]


def test_every_setting_is_in_the_reference():
    kinds = {
        (cls, name): section_in(kind_of(cls, name))
        for cls in settings_classes()
        for name in cls.model_fields
    }
    assert {each.path.rpartition(".")[2] for each in SETTINGS} - {"key"} == {
        name for (_, name), inner in kinds.items() if inner is None
    }


def test_the_reference_says_what_a_setting_does_and_when_an_edit_counts():
    silent = [
        each.path
        for each in SETTINGS
        if len(each.text) < 15 or not each.mode.startswith(("hot", "restart"))
    ]
    assert silent == []


async def addresses(house: HttpHouse) -> list[Address]:
    """The reference, made from the description that this gateway serves."""
    described = (await house.ask("GET", "/openapi.json", key=ADMIN_KEY)).json
    return [address for group in groups(described) for address in group.addresses]


def served(house: HttpHouse) -> Iterator[tuple[str, str]]:
    """Every method and path that the gateway answers."""
    for path, address in house.app.routes.addresses.items():
        yield from ((method, path) for method in address.handlers)


def matches(path: str, documented: str) -> bool:
    """Whether a path of the tables is the documented one; a table's prefix stands for what
    follows.
    """
    if path.startswith("/static/"):
        return documented == "/static/{file}"
    return re.sub(r"\{[^}]*\}", "", documented) == re.sub(r"\{[^}]*\}", "", path)


async def test_every_address_is_in_the_reference(keyed: HttpHouse):
    listed = await addresses(keyed)
    for method, path in served(keyed):
        known = [each for each in listed if each.method == method and matches(path, each.path)]
        assert (
            known
            or (method == "HEAD" and path.startswith(("/static/", "/dashboard")))
            or (method, path) == ("HEAD", "/openapi.json")
        ), (method, path)


_NOT_FOR_ALL = ("admins", "admin keys", "keys with may_lease", "keys with may_set_mode")


async def test_who_may_use_an_address_is_as_the_reference_says(keyed: HttpHouse):
    for address in await addresses(keyed):
        path = re.sub(r"\{[^}]*\}", "1", address.path).replace("/static/1", "/static/app.css")
        nobody = (await keyed.ask(address.method, path, {})).status
        assert (nobody != 401) == (address.who == "everybody"), address
        if path.endswith("/stream"):
            continue
        low = (await keyed.ask(address.method, path, {}, key=LOW_KEY)).status
        assert (low == 403) == (address.who in _NOT_FOR_ALL), address
        if path.endswith("/hold"):
            continue
        assert (await keyed.ask(address.method, path, {}, key=ADMIN_KEY)).status not in (
            401,
            403,
            405,
        ), address


def test_every_test_that_the_security_policy_names_is_there():
    named = re.findall(
        r"`((?:\.\./docs/)?test_\w+\.py)`", (ROOT / "SECURITY.md").read_text("utf-8")
    )
    assert len(named) > 8
    assert [name for name in named if not (ROOT / "tests" / "security" / name).is_file()] == []


def test_every_path_of_tests_that_the_makefile_names_is_there():
    named = re.findall(r"\btests/[\w/.]+", (ROOT / "Makefile").read_text("utf-8"))
    assert len(named) > 8
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_file_that_the_architecture_names_is_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    pictures = [
        (ROOT / "docs" / name).read_text("utf-8") for name in ("parts.svg", "request-path.svg")
    ]
    named = re.findall(r"`([\w/.*-]+(?:\.(?:py|toml|yml)|/))`", page)
    drawn = [
        name
        for picture in pictures
        for name in re.findall(r"[\w/]+(?:\.py|/)(?=[,<])", picture.partition("</defs>")[2])
    ]
    assert (len(named) > 60, len(drawn) > 40) == (True, True)
    roots = (ROOT, ROOT / "src" / "hearth")
    there = {name for name in (*named, *drawn) for root in roots if any(root.glob(name))}
    assert {*named, *drawn} - there == set()
