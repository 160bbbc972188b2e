"""The wheel as an owner gets it: built, installed into an environment of its own outside the sources, and run from an empty directory."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from hearth.types import __version__
from tests.support.patience import WITHIN_S

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "hearth"
MODEL = {"name": "tiny:latest", "vram_gib": 1.0}

pytestmark = pytest.mark.timeout(240)


def run(*command: str | Path, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ.get("PATH", ""), "HOME": str(cwd), "PYTHONUNBUFFERED": "1", **environ}
    done = subprocess.run(
        [str(each) for each in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=WITHIN_S * 2, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = ("wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    run(sys.executable, "-m", "pip", *build, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def hearth(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command, in an environment that has Hearth from the wheel and everything else from the tests' own."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-c", "import hearth; print(hearth.__file__)", cwd=folder).stdout
    assert where.startswith(str(site)), "not from the wheel"
    return folder / "bin" / "hearth"


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


@contextmanager
def running(*command: str | Path, cwd: Path, until: str) -> Iterator[tuple[subprocess.Popen[str], re.Match[str]]]:
    """A command that goes on, once it has printed a line that matches; it is told to stop at the end, and must end with 0."""
    env = {"PATH": "", "HOME": str(cwd), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([str(each) for each in command], cwd=cwd, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = next((match for line in process.stdout if (match := re.search(until, line))), None)
            assert found is not None, "it ended before it was up"
            yield process, found
        except BaseException:
            process.kill()
            raise
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WITHIN_S)
        assert process.returncode == 0


def fetch(url: str, body: object = None, **headers: str) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data=data, headers={"Content-Type": "application/json", **headers})
    with urlopen(request, timeout=WITHIN_S) as answer:
        content: bytes = answer.read()
    return content


def test_the_wheel_has_every_file_of_the_package_the_configuration_and_nothing_else(wheel: Path):
    ours = {
        str(Path("hearth") / path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    shipped = {f"hearth/config/shipped/{name}" for name in ("llm_gateway.yaml", "llm_gateway.schema.json")}
    shipped |= {f"hearth/cli/units/{name}" for name in ("system.service", "user.service")}
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == ours | shipped
    assert {name for name in ours if name.endswith((".sql", ".js", ".css", ".html", "py.typed"))}


def test_the_metadata_names_the_licence_the_command_and_the_extras(wheel: Path):
    archive = zipfile.ZipFile(wheel)
    texts = {name.partition(".dist-info/")[2]: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name}
    assert "licenses/LICENSE" in texts
    assert "hearth = hearth.cli:main" in texts["entry_points.txt"]
    assert {"otel", "plots"} <= set(re.findall(r"^Provides-Extra: (.+)$", texts["METADATA"], re.MULTILINE))


def test_the_installed_command_says_its_version_and_knows_its_configuration(hearth: Path, empty: Path):
    assert run(hearth, "--version", cwd=empty).stdout == f"hearth {__version__}\n"
    example = run(hearth, "config", "example", cwd=empty).stdout
    assert example == (ROOT / "config" / "llm_gateway.yaml").read_text(encoding="utf-8")
    (empty / "mine.yaml").write_text(example)
    assert "ok" in run(hearth, "config", "check", "mine.yaml", cwd=empty).stdout
    schema = run(hearth, "config", "schema", cwd=empty).stdout
    assert json.loads(schema)["$schema"].startswith("https://json-schema.org/")


def test_the_installed_command_writes_a_unit(hearth: Path, empty: Path):
    run(hearth, "install-service", "--unit-dir", "units", cwd=empty)
    assert f"ExecStart={hearth} serve" in (empty / "units" / "hearth.service").read_text()


def test_the_installed_gateway_answers_shows_its_dashboard_and_keeps_its_log(hearth: Path, empty: Path):
    models = empty / "models.yaml"
    models.write_text(json.dumps([{**MODEL, "load_s": 0.01, "prompt_tokens_per_s": 10_000, "decode_tokens_per_s": 1000}]))
    listening = r"listens on (http://\S+),"
    with running(hearth, "emulate", "--port", "0", "--models", models, cwd=empty, until=listening) as (_, emulator):
        serve = (hearth, "serve", "--port", "0", "--ollama-url", emulator[1])
        with running(*serve, cwd=empty, until=r'"gateway_started","url":"(http://[^"]+)"') as (_, gateway):
            url = gateway[1]
            chat = {"model": "tiny", "stream": False, "messages": [{"role": "user", "content": "hi"}], "options": {"num_predict": 3}}
            assert json.loads(fetch(f"{url}/api/chat", chat))["done"] is True
            page = fetch(f"{url}/", Accept="text/html").decode()
            for address in re.findall(r'(?:src|href)="(/static/[^"]+)"', page):
                assert fetch(url + address)
            assert "/static/" in page
            assert json.loads(run(hearth, "status", "--url", url, "--json", cwd=empty).stdout)
    assert (empty / ".local" / "state" / "hearth" / "hearth.db").is_file()
