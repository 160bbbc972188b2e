"""The wheel as an owner gets it: built, installed into an environment of its own outside the
sources, and run from an empty directory.
"""

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
from tests.support.places import ROOT

PACKAGE = ROOT / "src" / "hearth"
SPEED = {"load_s": 0.01, "prompt_tokens_per_s": 10_000, "decode_tokens_per_s": 1000}
MODEL = {"name": "tiny:latest", "vram_gib": 1.0, **SPEED}


def run(*command: str | Path, cwd: Path) -> str:
    env = {"PATH": os.environ.get("PATH", ""), "HOME": str(cwd), "PYTHONUNBUFFERED": "1"}
    words = [str(each) for each in command]
    done = subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=WITHIN_S * 2, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = (
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
        ROOT,
    )
    run(sys.executable, "-m", "pip", *build, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def hearth(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command, in an environment that has Hearth from the wheel and everything else from the
    tests' own.
    """
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=folder,
    )
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-c", "import hearth; print(hearth.__file__)", cwd=folder)
    assert where.startswith(str(site)), "not from the wheel"
    return folder / "bin" / "hearth"


@contextmanager
def running(*command: str | Path, cwd: Path, until: str) -> Iterator[str]:
    """A command that goes on, with what it has said where a line matches; it is told to stop at the
    end, and must end with 0.
    """
    env = {"PATH": "", "HOME": str(cwd), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [str(each) for each in command], cwd=cwd, env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            found = next(
                (match for line in process.stdout if (match := re.search(until, line))), None
            )
            assert found is not None, "it ended before it was up"
            yield found[1]
        except BaseException:
            process.kill()
            raise
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WITHIN_S)
        assert process.returncode == 0


def fetch(url: str, body: object = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(
        Request(
            url, data=data, headers={"Content-Type": "application/json", "Accept": "text/html"}
        ),
        timeout=WITHIN_S,
    ) as answer:
        content: bytes = answer.read()
    return content


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path):
    found = (
        path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    ours = {str(Path("hearth") / path.relative_to(PACKAGE)) for path in found}
    shipped = {
        f"hearth/config/shipped/{name}" for name in ("llm_gateway.yaml", "llm_gateway.schema.json")
    }
    units = ROOT / "systemd"
    shipped |= {f"hearth/cli/units/{unit.relative_to(units)}" for unit in units.rglob("*.service")}
    archive = zipfile.ZipFile(wheel)
    data = f"hearth_gateway-{__version__}.data/data"
    shipped.add(f"{data}/share/man/man1/hearth.1")
    assert {name for name in archive.namelist() if ".dist-info/" not in name} == ours | shipped
    texts = {
        name.partition(".dist-info/")[2]: archive.read(name).decode()
        for name in archive.namelist()
        if ".dist-info/" in name
    }
    assert "licenses/LICENSE" in texts
    assert "hearth = hearth.cli:main" in texts["entry_points.txt"]
    assert {"otel", "plots"} <= set(
        re.findall(r"^Provides-Extra: (.+)$", texts["METADATA"], re.MULTILINE)
    )


def test_the_installed_command_knows_version_and_configuration(hearth: Path, tmp_path: Path):
    assert run(hearth, "--version", cwd=tmp_path) == f"hearth {__version__}\n"
    example = run(hearth, "config", "example", cwd=tmp_path)
    assert example == (ROOT / "config" / "llm_gateway.yaml").read_text(encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(example)
    assert "ok" in run(hearth, "config", "check", "mine.yaml", cwd=tmp_path)
    assert json.loads(run(hearth, "config", "schema", cwd=tmp_path))["$schema"].startswith(
        "https://json-schema.org/"
    )
    assert (hearth.parents[1] / "share" / "man" / "man1" / "hearth.1").is_file()
    run(hearth, "install-service", "--unit-dir", "units", cwd=tmp_path)
    assert f"ExecStart={hearth} serve" in (tmp_path / "units" / "hearth.service").read_text()


def test_the_installed_gateway_answers_shows_its_dashboard_and_keeps_its_log(
    hearth: Path, tmp_path: Path
):
    models = tmp_path / "models.yaml"
    models.write_text(json.dumps([MODEL]))
    with running(
        hearth,
        "emulate",
        "--port",
        "0",
        "--models",
        models,
        cwd=tmp_path,
        until=r"listens on (http://\S+),",
    ) as emulator:
        serve = (hearth, "serve", "--port", "0", "--ollama-url", emulator)
        with running(
            *serve, cwd=tmp_path, until=r'"gateway_started","url":"(http://[^"]+)"'
        ) as url:
            chat = {
                "model": "tiny",
                "stream": False,
                "messages": [{"role": "user", "content": "hi"}],
                "options": {"num_predict": 3},
            }
            assert json.loads(fetch(f"{url}/api/chat", chat))["done"] is True
            addresses = re.findall(r'(?:src|href)="[.](/static/[^"]+)"', fetch(f"{url}/").decode())
            assert addresses
            assert all(fetch(url + address) for address in addresses)
            assert json.loads(run(hearth, "status", "--url", url, "--json", cwd=tmp_path))
    assert (tmp_path / ".local" / "state" / "hearth" / "hearth.db").is_file()
