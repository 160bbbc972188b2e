"""`hearth doctor`: what it says of a home that is in order and of one that is not, and each check
beside values that are wrong.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth.backends.all_cards import summed
from hearth.backends.logind import ADDRESS_VARIABLE
from hearth.bootstrap.model_server import table_of
from hearth.cli.doctor import address_of, check_clock, check_gpu, check_status
from hearth.cli.doctor_engines import (
    Finding,
    check_aliases,
    check_engines,
    check_models,
    check_ollama_settings,
    ollama_environment,
)
from hearth.cli.doctor_yielding import check_pressure
from hearth.clock import SystemClock
from hearth.config.choices import AlertType
from hearth.config.loading import parse_config
from hearth.config.settings import ModelSettings, ServerSettings, Settings
from hearth.engines.small_model.files import VARIABLE
from hearth.types import GpuReading
from tests.bootstrap.by_hand import untouched
from tests.cli.conftest import emulated, serving
from tests.cli.stub_gateway import StubGateway
from tests.engines.small_model.installing import install_weights
from tests.support.cases import for_each
from tests.support.llama_server_wire import recorded as wire


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def written(folder: Path, ollama_url: str, more: str = "", port: int | None = None) -> str:
    path = folder / "mine.yaml"
    base = (
        f"ollama: {{url: {ollama_url!r}}}\nstorage: {{path: {folder}/state/hearth.db}}\n"
        f"server: {{port: {port or free_port()}}}\n"
    )
    path.write_text(base + more)
    return str(path)


def test_a_home_in_order_ends_with_0_and_every_subject_is_named(hearth, tmp_path, monkeypatch):
    monkeypatch.setenv(ADDRESS_VARIABLE, "unix:path=/nonexistent/bus")
    port = free_port()
    home = "gpu: {home_model: 'llama3.1:8b', nvml: false}\n"
    config = Path(
        written(tmp_path, "http://127.0.0.1:1", f"{home}backend: {{mode: ollama}}\n", port)
    )
    with serving(config, port=port) as (_, ollama_url):
        result = hearth("doctor", written(tmp_path, ollama_url, home, port))
    assert (result.exit_code, "FAIL" in result.stdout) == (0, False), result.output
    subjects = [line.split()[1] for line in result.stdout.splitlines() if line.startswith("ok")]
    known = ["configuration", "models", "GPU", "suspend", "keys", "disk", "clock", "port"]
    known.append("dashboard")
    # yield: where a launcher of games is installed
    assert [each for each in subjects if each not in {"Ollama", "yield"}] == known
    assert "0.33.0 at http" in result.stdout
    assert "home model llama3.1:8b" in result.stdout


def test_a_missing_ollama_in_whose_place_the_small_model_answers_is_no_failure(
    tmp_path, monkeypatch
):
    url = f"http://127.0.0.1:{free_port()}"
    (failed,) = check_engines(untouched(url))
    install_weights(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(VARIABLE, "")
    (found,) = check_engines(untouched(url))
    (configured,) = check_engines(untouched(url, models={"a": ModelSettings(parallel=2)}))
    assert [each.level for each in (failed, found, configured)] == ["FAIL", "warn", "FAIL"]
    assert found.subject == "Ollama"
    assert "smollm2:135m, a small model on the CPU, answers" in found.says
    assert found.advice.startswith("start it")


def test_what_is_wrong_is_named_with_what_to_do_and_ends_with_1(hearth, tmp_path, busy):
    with socket.create_server(("127.0.0.1", 0)) as other:
        config = written(
            tmp_path, "http://127.0.0.1:1", "gpu: {nvml: false}\n", other.getsockname()[1]
        )
        taken = json.loads(hearth("doctor", config, "--json").stdout)
    with emulated() as ollama_url:
        home = "gpu: {home_model: 'none:1b', nvml: false}\n"
        broken = hearth(
            "doctor",
            written(
                tmp_path, ollama_url, f"{home}models: {{'other:2b': {{parallel: 2}}}}\nbudget: 7\n"
            ),
        )
        missing = hearth(
            "doctor",
            written(tmp_path, ollama_url, f"{home}alerts: {{disk_free_warning_mib: 900000000}}\n"),
        )
    found = {each["subject"]: (each["level"], each["advice"]) for each in taken}
    assert found["Ollama"] == ("FAIL", "start it (`systemctl start ollama`), or correct ollama.url")
    assert found["port"] == ("FAIL", "stop it, or set server.port")
    assert (
        broken.exit_code,
        "FAIL configuration   " in broken.stdout,
        "budget: must be a mapping" in broken.stdout,
    ) == (1, True, True)
    for words in (
        "     -> ollama pull none:1b\n",
        "FAIL disk",
        "is free: no gateway runs",
        "\n2 wrong, ",
    ):
        assert words in missing.stdout
    busy.put("/healthz", {"service": "hearth"})  # a gateway that wants a key
    busy.put("/llm/queue/status", {"error": "no key"}, 401)
    port = int(busy.url.rpartition(":")[2])
    locked = hearth(
        "doctor", written(tmp_path, "http://127.0.0.1:1", "backend: {mode: emulator}\n", port)
    ).stdout
    for words in ("give an API key in HEARTH_KEY", "FAIL dashboard", "warn Ollama"):
        assert words in locked


def test_an_odd_list_of_models_is_named_with_route_status_and_expectation(hearth, tmp_path, busy):
    busy.put("/api/version", {"version": "0.33.0"})
    busy.put("/api/tags", {"models": []})
    busy.put("/api/ps", {"error": "not found"}, 404)
    said = json.loads(
        hearth("doctor", written(tmp_path, busy.url, "gpu: {nvml: false}\n"), "--json").stdout
    )
    (found,) = (each for each in said if each["subject"] == "Ollama")
    assert (found["level"], found["advice"]) == (
        "FAIL",
        "set ollama.url to the address of Ollama itself",
    )
    assert found["says"].startswith(
        "GET /api/ps answered 404 with an object; 200 with an object with the list `models`"
    )


def llama_server(folder: Path, url: str, more: str = "") -> str:
    engines = f"engines: {{main: {{kind: llama_server, url: {url!r}}}}}\n"
    path = folder / "mine.yaml"
    path.write_text(
        f"{engines}storage: {{path: {folder}/state/hearth.db}}\nserver: {{port: {free_port()}}}\n"
        f"gpu: {{nvml: false, home_model: tiny.gguf}}\n{more}"
    )
    return str(path)


def test_a_llama_server_is_examined_with_its_slots_and_its_model(hearth, tmp_path, busy):
    busy.put("/props", wire("props").answered)
    busy.put("/v1/models", wire("route_v1_models").answered)
    right = hearth("doctor", llama_server(tmp_path, busy.url))
    for words in (
        f"ok   llama-server    b0-unknown at {busy.url}",
        "ok   slots           tiny.gguf: 2 at the same time",
        "ok   models          1 installed; home model tiny.gguf",
    ):
        assert words in right.stdout
    more = "models: {tiny.gguf: {parallel: 4}, 'other:8b': {}}\n"
    wrong = hearth("doctor", llama_server(tmp_path, busy.url, more)).stdout
    for words in (
        "2 at the same time, and Hearth sends 4",
        "remove models.tiny.gguf.parallel, or start it with `-np 4`",
        "start llama-server with it: llama-server -m FILE --alias other:8b",
    ):
        assert words in wrong
    assert "ollama" not in (right.stdout + wrong).lower()


def engine_of(folder: Path, kind: str, url: str, **row: object) -> str:
    given = json.dumps({"kind": kind, "url": url, **row})
    path = folder / "mine.yaml"
    path.write_text(
        f"engines: {{main: {given}}}\nstorage: {{path: {folder}/state/hearth.db}}\n"
        f"server: {{port: {free_port()}}}\ngpu: {{nvml: false}}\n"
    )
    return str(path)


def test_a_server_with_openais_api_is_asked_for_so_many_requests_as_its_row_says(
    hearth, tmp_path, busy
):
    busy.put("/v1/models", {"object": "list", "data": [{"id": "gpt-x"}]})
    unsaid = hearth("doctor", engine_of(tmp_path, "openai", busy.url)).stdout
    assert "engines.main.parallel is not set: 1 at the same time" in unsaid
    assert "set engines.main.parallel to what the server takes at once" in unsaid
    said = hearth("doctor", engine_of(tmp_path, "openai", busy.url, parallel=6)).stdout
    assert "ok   slots           6 at the same time for each model" in said
    assert "1 installed" in said


def test_jit_loading_of_lm_studio_is_warned_of(hearth, tmp_path, busy):
    entry = {"key": "a", "type": "llm", "loaded_instances": []}
    busy.put("/api/v1/models", {"models": [entry]})
    for served, is_on in (([{"id": "a"}], True), ([], False)):
        busy.put("/v1/models", {"object": "list", "data": served})
        found = hearth("doctor", engine_of(tmp_path, "lmstudio", busy.url)).stdout
        assert ("JIT loading is on" in found) is is_on
        assert "1 installed" in found


def test_a_llama_server_that_does_not_answer_right_is_named_with_what_to_do(hearth, tmp_path, busy):
    gone = hearth("doctor", llama_server(tmp_path, "http://127.0.0.1:1")).stdout
    assert "start it (`llama-server -m FILE`), or correct engines.main.url" in gone
    busy.put("/props", wire("key_none").answered, 401)
    refused = hearth("doctor", llama_server(tmp_path, busy.url)).stdout
    assert "engines.main.api_key is not the key of this server" in refused
    assert "set engines.main.api_key to the key that it was started with" in refused
    busy.put("/props", wire("loading_503_props").answered, 503)
    loading = hearth("doctor", llama_server(tmp_path, busy.url)).stdout
    assert "wait until it has loaded its model" in loading
    assert "set engines.main.url" not in refused + loading
    busy.put("/props", wire("key_none").answered, 401)
    checked = hearth("config", "check", llama_server(tmp_path, busy.url))
    assert "so it is unknown whether tiny.gguf is installed" in checked.stderr


def ollama(environ: dict[str, str] | None, config: str) -> Iterator[Finding]:
    return check_ollama_settings(environ, settings(config))


def models(installed: list[str], config: str) -> Iterator[Finding]:
    of_config = settings(config)
    return check_models(installed, of_config, table_of(of_config, SystemClock()))


def aliases(installed: list[str], config: str) -> Iterator[Finding]:
    of_config = settings(config)
    return check_aliases(installed, of_config, table_of(of_config, SystemClock()))


def gpu(reading: GpuReading, config: str) -> Iterator[Finding]:
    return check_gpu(reading, settings(config))


def pressure(reading: GpuReading | None, watch: str) -> Iterator[Finding]:
    return check_pressure(reading, settings(f"gpu: {{yield: {{watch: {watch}}}}}"))


def settings(text: str) -> Settings:
    return parse_config(text, source="f", environ={}).settings


SLEEPY = "{engines: {v: {kind: vllm, url: 'http://a', sleep: [offload]}}"
CARD = GpuReading(name="RTX 3090", total_mib=24 * 1024, used_mib=6 * 1024)
BOTH = summed([CARD, CARD])
SPARK = GpuReading(
    name="NVIDIA GB10", total_mib=124_610.0, used_mib=8 * 1024, unified=True, gpu_used_mib=61.0
)
HOT = GpuReading(name="x", throttle_reasons=("hardware_thermal",))
NOW = time.time()


@for_each(
    ("found", "expected"),
    [
        (aliases(["a:1b"], "{}"), []),
        (
            aliases(["a:1b", "coder:latest"], "aliases: {coder: ['a:1b', 'b:1b']}"),
            [
                "FAIL coder is an installed model as well",
                "warn aliases.coder: b:1b is not installed, so it is passed over",
                "ok coder: a:1b, b:1b (an answer names the model that ran in the header",
            ],
        ),
        (pressure(None, "named"), []),
        (pressure(None, "pressure"), ["warn gpu.yield.watch is pressure, and no memory of a GPU"]),
        (pressure(HOT, "pressure"), ["warn gpu.yield.watch is pressure, and no memory of a GPU"]),
        (pressure(CARD, "pressure"), []),
        (ollama(None, "{}"), ["ok cannot be read"]),
        (ollama({}, "{}"), ["ok OLLAMA_NUM_PARALLEL 1, OLLAMA_MAX_LOADED_MODELS automatic"]),
        (
            ollama(
                {"OLLAMA_NUM_PARALLEL": "2", "OLLAMA_MAX_LOADED_MODELS": "3"}, "gpu: {parallel: 2}"
            ),
            ["ok OLLAMA_NUM_PARALLEL 2"],
        ),
        (ollama({}, "gpu: {parallel: 2}"), ["warn OLLAMA_NUM_PARALLEL is 1, and Hearth sends 2"]),
        (
            ollama({}, "models: {'a:1b': {parallel: 3}}"),
            ["warn OLLAMA_NUM_PARALLEL is 1, and Hearth sends 3 requests"],
        ),
        (
            ollama({"OLLAMA_NUM_PARALLEL": "4"}, "{}"),
            ["warn OLLAMA_NUM_PARALLEL is 4, and Hearth sends 1 at once"],
        ),
        (ollama({"OLLAMA_NUM_PARALLEL": "x"}, "{}"), ["ok OLLAMA_NUM_PARALLEL 1"]),
        (
            ollama({"OLLAMA_MAX_LOADED_MODELS": "1"}, "{}"),
            ["warn OLLAMA_MAX_LOADED_MODELS is 1: a small model never stays"],
        ),
        (
            ollama({"OLLAMA_HOST": "0.0.0.0:11434"}, "{}"),
            ["warn OLLAMA_HOST is 0.0.0.0:11434: programs on", "ok OLLAMA_NUM"],
        ),
        (
            ollama({"OLLAMA_HOST": "http://192.168.1.2"}, "{}"),
            ["warn OLLAMA_HOST is http", "ok OLLAMA_NUM"],
        ),
        (ollama({"OLLAMA_HOST": "127.0.0.1:11434"}, "{}"), ["ok OLLAMA_NUM"]),
        (models([], "{}"), ["FAIL none is installed"]),
        (models(["a:latest"], "gpu: {home_model: A}"), ["ok 1 installed; home model A"]),
        (models(["a:1b"], "{}"), ["ok 1 installed; home model none"]),
        (
            models(["a:1b"], "gpu: {home_model: 'b:1b'}"),
            ["FAIL gpu.home_model: b:1b is not installed"],
        ),
        (
            models(["a:1b"], "models: {'b:1b': {parallel: 1}}"),
            ["warn models.b:1b: b:1b is not installed"],
        ),
        (gpu(CARD, "{}"), ["ok RTX 3090, 6.0 of 24.0 GiB used"]),
        (gpu(GpuReading(name="x"), "gpu: {vram_gb: 8}"), ["ok x, memory unknown"]),
        (gpu(CARD, "gpu: {vram_gb: 32}"), ["FAIL gpu.vram_gb is 32, and RTX 3090 has 24.0 GiB"]),
        (gpu(BOTH, "gpu: {vram_gb: 48, device: all}"), ["ok 2 x RTX 3090, 12.0 of 48.0 GiB used"]),
        (
            gpu(SPARK, "gpu: {vram_gb: 100}"),
            ["ok NVIDIA GB10, 8.0 of 121.7 GiB of unified memory used, up to 109.7 GiB for models"],
        ),
        (
            gpu(SPARK, "gpu: {vram_gb: 100, reserve_gb: 32}"),
            ["FAIL gpu.vram_gb is 100, and models may have 89.7 GiB of unified memory"],
        ),
        (
            gpu(SPARK, f"{SLEEPY}, gpu: {{sleep: {{host_ram_gb: 8}}}}}}"),
            ["ok NVIDIA GB10", "warn gpu.sleep.host_ram_gb: has no effect in unified memory"],
        ),
        (gpu(CARD, f"{SLEEPY}, gpu: {{sleep: {{host_ram_gb: 8}}}}}}"), ["ok RTX 3090"]),
        (gpu(SPARK, f"{SLEEPY}}}"), ["ok NVIDIA GB10"]),
        (gpu(HOT, "{}"), ["warn x, memory unknown; throttled: hardware thermal"]),
        (check_clock("yes", NOW), ["ok synchronised"]),
        (check_clock("", NOW), ["ok "]),
        (check_clock("no", NOW), ["warn not synchronised"]),
        (check_clock("yes", 0.0), ["FAIL it is "]),
        (check_status({}), []),
        (check_status({"backend": {"up": True}}), []),
        (check_status({"backend": {"up": False}}), ["FAIL it cannot reach its model server"]),
        (
            check_status({"backend": {"up": True, "emulator": True}}),
            ["FAIL the emulator answers: texts are made up"],
        ),
        (
            check_status({"storage": {"clock_in_doubt": True}}),
            ["warn it jumped ahead, so no old data is deleted"],
        ),
        (
            check_status(
                {"storage": {"wal_frames_unreadable": 3, "damaged_copy": "hearth.db.damaged-1"}}
            ),
            ["warn 3 frames could not be read at the start; hearth.db.damaged-1 is kept"],
        ),
        (check_status({"storage": {"wal_frames_unreadable": 0, "damaged_copy": None}}), []),
        (
            check_status({"conversations": {"problem": "/full: No space left on device"}}),
            ["warn conversations are lost with each unload: /full: No space left on device"],
        ),
        (
            check_status(
                {
                    "conversations": {
                        "problem": None,
                        "models": [
                            {"model": "a", "switched_off": True},
                            {"model": "b", "switched_off": False},
                        ],
                    }
                }
            ),
            ["warn conversations are no longer saved, since that failed twice: a"],
        ),
        (
            check_status({"config": {"problems": ["a:1: x"]}}),
            ["FAIL the configuration was refused, the old one is in force: a:1: x"],
        ),
        (
            check_status({"config": {"restart_pending": ["server.port"]}}),
            ["warn settings wait for a restart: server.port"],
        ),
        (
            check_status(
                {
                    "alerts": {
                        "active": [
                            {"type": "gpu_lost", "severity": "critical", "subject": ""},
                            {"type": "of_an_older_gateway", "subject": ""},
                        ]
                    }
                }
            ),
            ["warn critical alert gpu_lost", "warn alert of_an_older_gateway"],
        ),
        (
            check_status(
                {
                    "alerts": {
                        "targets": [
                            {"name": "ntfy", "state": "ready", "problem": None},
                            {"name": "discord", "state": "stopped", "problem": "it was deleted"},
                        ]
                    }
                }
            ),
            ["FAIL alerts to discord are stopped: it was deleted"],
        ),
    ],
)
def test_findings_are_compared_with_the_configuration_and_the_gateway(found, expected):
    said = [f"{each.level} {each.says}" for each in found]
    assert len(said) == len(expected)
    assert all(line.startswith(begins) for line, begins in zip(said, expected, strict=True)), said


def test_doctor_says_itself_what_to_do_about_a_gateway():
    active = [{"type": each.value, "subject": "llama3.1:8b"} for each in AlertType]
    found = check_status(
        {
            "alerts": {"active": [*active, {"type": "of_another_version"}]},
            "storage": {"wal_frames_unreadable": 3, "damaged_copy": "hearth.db.damaged-1"},
            "conversations": {"models": [{"model": "a", "switched_off": True}]},
        }
    )
    advice = [each.advice for each in found]
    assert len(advice) == len(AlertType) + 3
    assert [each for each in advice if len(each) < 8 and each != "nothing"] == []
    assert [each for each in advice if "docs/" in each] == []


def test_too_much_memory_for_one_gpu_is_answered_with_how_all_are_counted():
    both = "; if the model server splits models over several GPUs, set gpu.device: all"
    for config, stated in (("", True), (", device: all", False)):
        (finding,) = gpu(CARD, f"gpu: {{vram_gb: 32{config}}}")
        assert finding.advice.endswith(both) == stated
    (finding,) = gpu(SPARK, "gpu: {vram_gb: 120}")
    assert "all" not in finding.advice


def test_the_environment_of_the_serving_process_is_read(tmp_path):
    for pid, name, command, environ in (
        ("1", "bash", b"bash\0serve\0", b"A=1\0"),
        ("20", "ollama", b"ollama\0run\0", b"A=2\0"),
        (
            "300",
            "ollama",
            b"/usr/bin/ollama\0serve\0",
            b"OLLAMA_NUM_PARALLEL=4\0EMPTY=\0X=a=b\0odd\0",
        ),
    ):
        folder = tmp_path / pid
        folder.mkdir()
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cmdline").write_bytes(command)
        (folder / "environ").write_bytes(environ)
    assert ollama_environment(tmp_path) == {"OLLAMA_NUM_PARALLEL": "4", "EMPTY": "", "X": "a=b"}


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
        ("nas.lan", "nas.lan"),
    ],
)
def test_a_gateway_that_listens_everywhere_is_asked_on_this_machine(host: str, reached: str):
    assert address_of(ServerSettings(host=host, port=7)) == f"http://{reached}:7"


def as_ollama(stub: StubGateway) -> None:
    model = {"name": "a:latest", "model": "a:latest", "size": 1, "digest": "1", "details": {}}
    stub.put("/api/version", {"version": "0.33.0"})
    stub.put("/api/tags", {"models": [model]})
    stub.put("/api/ps", {"models": []})


def test_of_several_engines_each_is_named_with_its_setting_and_what_they_share(
    hearth, tmp_path, busy
):
    def said(more: str = "") -> str:
        path = tmp_path / "mine.yaml"
        path.write_text(
            f"engines:\n  one: {{kind: ollama, url: {busy.url!r}}}\n"
            f"  two: {{kind: ollama, url: {second.url!r}}}\n{more}"
            f"storage: {{path: {tmp_path}/state/hearth.db}}\n"
            f"server: {{port: {free_port()}}}\ngpu: {{nvml: false}}\n"
        )
        out: str = hearth("doctor", str(path)).stdout
        return out

    with StubGateway().listening() as second:
        as_ollama(busy)
        as_ollama(second)
        shared = said()
        assert "warn models          a is listed by one, two: whichever of them" in shared
        assert "set models.a.engine: one" in shared
        assert "listed by" not in said("models: {a: {engine: two}}\n")
        second.put("/api/version", {})
        assert "engines.two.url must lead to Ollama" in said()
