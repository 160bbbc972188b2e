"""MkDocs asks here: the generated pages, and the parts of the navigation that follow from which
files there are.

The HTTP reference comes from a gateway that is started for it, with the emulator behind it and
nothing on the disk.
"""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from pathlib import Path
from typing import Any, cast

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from docs_build.faults_page import faults_page
from docs_build.http_page import http_page
from docs_build.settings_page import settings_page
from docs_build.vocabulary_page import alerts_page, events_page, metrics_page
from hearth.bootstrap import running_gateway
from hearth.config.settings import BackendMode, GatewayConfig

_SOURCES = {
    "config/llm_gateway.yaml": "reference/settings.md",
    "tests/bootstrap/outside/openapi.json": "reference/http.md",
    "src/hearth/events": "reference/events.md",
    "src/hearth/observability/metric_families.py": "reference/metrics.md",
    "src/hearth/config/choices.py": "reference/alerts.md",
    "tests/faults/table.py": "reference/faults.md",
    "CHANGELOG.md": "changelog.md",
}
"""What pages link to in the repository, and the generated page that takes its place in the site."""
_SOURCE_LINK = re.compile(rf"\]\(((?:\.\./)*)\.\./({'|'.join(map(re.escape, _SOURCES))})\)")
_REPOSITORY_LINK = re.compile(r"\]\(docs/([^)]*)\)")
_NAMED_PAGE = re.compile(r"`docs/([^`]+\.md)`")
_EVERY = "*.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write out the entries of the navigation that stand for all files of a folder."""
    config.nav = [_entry(each, Path(config.docs_dir)) for each in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {
        "reference/settings.md": settings_page(),
        "reference/faults.md": faults_page(),
        "reference/events.md": events_page(),
        "reference/metrics.md": metrics_page(),
        "reference/alerts.md": alerts_page(),
        "reference/http.md": http_page(asyncio.run(openapi())),
        "changelog.md": changelog_page(Path(config.docs_dir)),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:  # noqa: ANN401 - what MkDocs has beside it
    """Lead links to what a generated page was made from to that page."""
    return _SOURCE_LINK.sub(lambda link: f"]({link[1]}{_SOURCES[link[2]]})", markdown)


def changelog_page(pages: Path) -> str:
    """The changelog, whose names of pages are links where the page is still there."""
    text = _REPOSITORY_LINK.sub(r"](\1)", Path("CHANGELOG.md").read_text("utf-8"))
    return _NAMED_PAGE.sub(
        lambda name: f"[{name[1]}]({name[1]})" if (pages / name[1]).is_file() else name[0], text
    )


async def openapi() -> dict[str, Any]:
    """What a gateway serves at `/openapi.json`."""
    async with running_gateway(GatewayConfig(), port=0, backend_mode=BackendMode.EMULATOR) as (
        _,
        url,
    ):
        return await asyncio.to_thread(_fetched, f"{url}/openapi.json")


def _fetched(url: str) -> dict[str, Any]:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(url, timeout=30) as answer:
        return cast("dict[str, Any]", json.load(answer))


def _entry(entry: Any, folder: Path) -> Any:  # noqa: ANN401
    """An entry of the navigation as MkDocs has it: a path, or a title with a path or a list of
    entries.
    """
    if isinstance(entry, dict):
        return {title: _entry(each, folder) for title, each in entry.items()}
    if isinstance(entry, list):
        return [_entry(each, folder) for each in entry]
    return _all_of(entry, folder) if entry.endswith(_EVERY) else entry


def _all_of(pattern: str, folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.glob(pattern))
