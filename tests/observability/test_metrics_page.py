"""`GET /metrics` over HTTP: who may see it, as what it is sent, and that a real gateway's page is whole."""

from __future__ import annotations

import asyncio

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from hearth.api.app import HearthApp
from hearth.bootstrap import running_gateway
from hearth.config.gateway_config import GatewayConfig
from hearth.config.loading import parse_config
from hearth.config.settings import AuthSettings, BackendMode, KeySettings, Settings
from hearth.observability.metrics.families import Kind
from tests.api.house import KEYS, LOW_KEY, FakeGateway, ask
from tests.observability.test_metrics import ALL


async def test_any_key_opens_the_page_and_no_key_does_not():
    app = FakeGateway(keys=KEYS).app()
    assert (await ask(app, "GET", "/metrics")).status == 401
    got = await ask(app, "GET", "/metrics", key=LOW_KEY)
    assert got.status == 200
    assert got.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert got.headers["cache-control"] == "no-store"
    assert b"\nhearth_backend_up 1.0\n" in got.body
    assert b"\nprocess_resident_memory_bytes " in got.body


EVERYTHING = """
storage: {{path: "{folder}/hearth.db"}}
cloud: {{api_key: "${{KEY}}", base_url: "http://127.0.0.1:9"}}
alerts: {{webhook_url: "http://127.0.0.1:9/"}}
"""
EMPTY_AT_REST = {"hearth_alerts_active", "hearth_pinned", "hearth_queue_model_depth"}
"""Gauges with a label for something that there is none of."""


async def test_the_page_of_a_real_gateway_has_every_metric_while_it_works_and_a_number_for_all_it_can_know(tmp_path):
    config = parse_config(EVERYTHING.format(folder=tmp_path), source="f", environ={"KEY": "x"})
    running = running_gateway(config, port=0, backend_mode=BackendMode.EMULATOR, store=True)
    async with running as (_, url), aiohttp.ClientSession() as caller:
        body = {"model": "llama3.1:8b", "prompt": "hi", "stream": False, "options": {"num_predict": 2}}
        asked = asyncio.ensure_future(caller.post(f"{url}/api/generate", json=body))
        pages = [await (await caller.get(f"{url}/metrics")).text() for _ in range(3)]
        assert (await asked).status == 200
        pages.append(await (await caller.get(f"{url}/metrics")).text())
    for page in pages:
        assert {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE hearth_")} == set(ALL)
    found = {each.name: [sample.value for sample in each.samples] for each in text_string_to_metric_families(pages[-1])}
    assert [found[f"hearth_{name}"] for name in ("requests", "backend_emulated", "ready")] == [[1.0]] * 3
    assert found["hearth_connections"] >= [1.0]
    assert [len(found[f"hearth_cloud_{name}"]) for name in ("spent_today_usd", "reserved_usd")] == [2, 2], "a number for each lane"
    silent = {name for name in ALL if not found[name.removesuffix("_total")] and not name.startswith("hearth_gpu_")}
    assert {name for name in silent if ALL[name].kind is Kind.GAUGE} == EMPTY_AT_REST
    assert {name for name in silent if not ALL[name].labels} == set()


async def test_nothing_that_a_caller_makes_up_is_a_label():
    key = KeySettings(name="n8n", sha256="0" * 64)
    config = GatewayConfig(settings=Settings(auth=AuthSettings(keys=(key,))), source=None)
    async with running_gateway(config, port=0, backend_mode=BackendMode.EMULATOR) as (gateway, _):
        app = HearthApp(gateway)
        for each in range(5):
            await ask(app, "POST", f"/made/up/{each}", key=f"made-up-{each}", x_caller=f"caller-{each}")
        [rejected] = [metric for metric in gateway.metrics() if metric.name == "hearth_requests_rejected"]
        assert [(each.labels, each.value) for each in rejected.samples] == [({"caller": "unknown", "reason": "unauthenticated"}, 5)]
