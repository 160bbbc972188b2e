"""What `compose.yaml` starts, as far as it can be started without containers: the same command with the same files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import yaml

from hearth.config.loading import load_gateway_config
from hearth.config.rendering import config_for_a_service
from tests.support.patience import WITHIN_S

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
STATE = "/var/lib/hearth"


def image_config() -> str:
    """The configuration as the image's build makes it, by the sed expressions of the Containerfile."""
    text = config_for_a_service()
    for line in (ROOT / "Containerfile").read_text().splitlines():
        if "| sed" in line:
            expressions = [part.strip(" '") for part in line.partition("| sed")[2].partition(">")[0].split("-e") if part.strip()]
            command = ["sed", *(argument for each in expressions for argument in ("-e", each))]
            text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


def serve(folder: Path) -> tuple[dict[str, str], str]:
    """One start and stop of the service; its answer to a call with the first key, and that key."""
    arguments = [str(each).replace(STATE, str(folder)) for each in COMPOSE["services"]["hearth"]["command"]]
    arguments[arguments.index("--host") + 1] = "127.0.0.1"
    command = [sys.executable, "-c", "from hearth.cli import main; main()", *arguments, "--port", "0"]
    environ = {"HOME": str(folder), "PATH": "", "XDG_STATE_HOME": str(folder), "HEARTH_CONFIG": str(folder / "llm_gateway.yaml")}
    with subprocess.Popen(command, env=environ, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = next((said["url"] for line in process.stdout if (said := json.loads(line))["event"] == "gateway_started"), None)
        key = (folder / "first.key").read_text().strip()
        asked = Request(f"{url}/llm/health", headers={"Authorization": f"Bearer {key}", "Host": "hearth:8411"})
        with urlopen(asked, timeout=WITHIN_S) as answer:
            health: dict[str, str] = json.load(answer)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0
    return health, key


def test_the_first_start_makes_the_key_that_open_webui_reads_and_later_ones_keep_it(tmp_path: Path):
    config = tmp_path / "llm_gateway.yaml"
    config.write_text(image_config())
    assert load_gateway_config(config).settings.server.allowed_hosts == ("hearth",)
    health, key = serve(tmp_path)
    assert health["version"]
    assert (tmp_path / "first.key").stat().st_mode & 0o077 == 0
    (made,) = load_gateway_config(config).settings.auth.keys
    assert (made.name, made.admin) == ("first", True)
    assert serve(tmp_path)[1] == key


def test_the_services_share_what_they_need():
    services, volumes = COMPOSE["services"], COMPOSE["volumes"]
    named = {mount.partition(":")[0] for service in services.values() for mount in service["volumes"]}
    assert named == set(volumes)
    key = services["hearth"]["command"][services["hearth"]["command"].index("--first-key") + 1]
    mounted = {mount.split(":")[1] for mount in services["webui"]["volumes"]}
    assert key.startswith(f"{STATE}/")
    assert any(f"{folder}/{Path(key).name}" in services["webui"]["entrypoint"][2] for folder in mounted)
    assert services["webui"]["environment"]["OPENAI_API_BASE_URL"] == "http://hearth:8411/v1"
    assert "http://ollama:11434" in services["hearth"]["command"]
