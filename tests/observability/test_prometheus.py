"""The real Prometheus of Debian (package `prometheus`): its own tools judge page, rules and
dashboard, and it scrapes a gateway.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from hearth.bootstrap import running_gateway
from hearth.config.settings import AuthSettings, BackendMode, GatewayConfig, KeySettings, Settings
from hearth.observability.metrics import render
from tests.observability.samples import all_kinds, ended, interrupted, rejected, sample
from tests.observability.test_metrics import DOCS, RULES, expressions
from tests.support.fake_webhooks import Webhooks, serving
from tests.support.house import House
from tests.support.patience import within_limit
from tests.support.processes import started
from tests.support.virtual_time import in_virtual_time

HERE = Path(__file__).parent
PROMTOOL = shutil.which("promtool")
PROMETHEUS = shutil.which("prometheus")
pytestmark = pytest.mark.skipif(
    PROMTOOL is None or PROMETHEUS is None, reason="needs Debian's package `prometheus`"
)
KEY = "hearth_for_prometheus"


def promtool(*arguments: str, stdin: bytes = b"", cwd: Path = HERE) -> str:
    done = subprocess.run(
        [str(PROMTOOL), *arguments], input=stdin, capture_output=True, cwd=cwd, check=False
    )
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


@in_virtual_time
async def test_promtool_finds_nothing_wrong_with_the_page():
    async with House("a", "b", resident="a") as house:
        for event in (*map(sample, all_kinds()), ended(), interrupted(), rejected()):
            for sink in vars(house.gateway.records).values():
                sink.emit(event)
        page = render(house.gateway.metrics())
    assert promtool("check", "metrics", stdin=page) == ""


def test_the_alert_rules_are_valid_and_fire_when_and_only_when_they_should():
    assert "SUCCESS" in promtool("check", "rules", str(RULES))
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yml")
    alerts = {
        rule["alert"]
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    cases = (HERE / "rules_test.yml").read_text()
    assert {alert for alert in alerts if f'alertname="{alert}"' not in cases} == set()


def test_every_expression_of_the_dashboard_is_one_that_prometheus_understands(tmp_path):
    dashboard = json.loads((DOCS / "grafana" / "hearth.json").read_text(encoding="utf-8"))
    plain = [
        each.replace("$__rate_interval", "5m").replace("$job", ".+")
        for each in expressions(dashboard)
    ]
    rules = [
        {"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(plain)
    ]
    (tmp_path / "panels.yml").write_text(
        json.dumps({"groups": [{"name": "panels", "rules": rules}]})
    )
    assert f"{len(plain)} rules found" in promtool("check", "rules", str(tmp_path / "panels.yml"))


async def test_prometheus_scrapes_a_gateway_with_a_key_and_fires_an_alert_about_it(tmp_path):
    key = KeySettings(name="prometheus", sha256=hashlib.sha256(KEY.encode()).hexdigest())
    config = GatewayConfig(settings=Settings(auth=AuthSettings(keys=(key,))), source=None)
    alertmanager = Webhooks()
    async with (
        serving(alertmanager) as alerts_at,
        running_gateway(config, port=0, backend_mode=BackendMode.EMULATOR) as (_, url),
        prometheus(tmp_path, url.removeprefix("http://"), alerts_at.removeprefix("http://")),
    ):
        await within_limit(alertmanager.arrived.wait())
    labels = alertmanager.seen[0].json[0]["labels"]
    assert (labels["alertname"], labels["backend_mode"]) == ("ScrapedTheEmulator", "emulator")


@asynccontextmanager
async def prometheus(folder: Path, target: str, alerts_at: str) -> AsyncIterator[None]:
    """The real one, with the configuration that docs/metrics.md shows, our rules, and one rule that
    always fires.
    """
    (folder / "hearth.key").write_text(KEY)
    always = {
        "alert": "ScrapedTheEmulator",
        "expr": "hearth_build_info * on (job) group_left hearth_backend_emulated == 1",
    }
    (folder / "always.yml").write_text(
        json.dumps({"groups": [{"name": "always", "rules": [always]}]})
    )
    job = {
        "job_name": "hearth",
        "authorization": {"type": "Bearer", "credentials_file": str(folder / "hearth.key")},
        "static_configs": [{"targets": [target]}],
    }
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [job],
        "rule_files": [str(RULES), str(folder / "always.yml")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alerts_at]}]}]},
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    promtool("check", "config", str(folder / "prometheus.yml"))
    command = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    )
    async with started(
        str(PROMETHEUS),
        *command,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    ):
        yield
