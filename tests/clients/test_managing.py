"""What the `ollama` command does for the owner of a machine, through a gateway without keys: it
sends none.
"""

from __future__ import annotations

from pathlib import Path

import ollama
import pytest

from tests.support.home import GUEST_KEY, KEYS, LLAMA, Home, StartHome, house_settings
from tests.support.http import ask

MIB = 1024**2
LARGE_BYTES = 3 * MIB
COPY = "mine:latest"


@pytest.fixture
async def native(home: Home):
    async with home.native() as client:
        yield client


async def _names(native: ollama.AsyncClient) -> set[str | None]:
    return {model.model for model in (await native.list()).models}


async def test_without_keys_the_owner_of_the_machine_manages_models(native):
    pulled = [part async for part in await native.pull(LLAMA, stream=True)]
    assert pulled[-1].status == "success"
    await native.copy(LLAMA, COPY)
    made = await native.create("made", from_=LLAMA, system="Be brief.")
    assert made.status == (await native.push(COPY)).status == "success"
    assert {COPY, "made:latest"} <= await _names(native)
    assert (await native.generate("made", "hello", options={"num_predict": 2})).done
    await native.delete(COPY)
    assert COPY not in await _names(native)


async def test_running_a_new_model_pulls_it_when_it_is_missing(native):
    """As `ollama run` does: it asks for the model, and pulls what is not found."""
    with pytest.raises(ollama.ResponseError) as missing:
        await native.show("nowhere")
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="pull model manifest"):
        await native.pull("nowhere")


async def test_a_file_of_a_model_may_be_larger_than_any_other_body(
    start_home: StartHome, tmp_path: Path
):
    settings = house_settings()
    server = settings.server.replace(max_body_mib=1.0)
    home = await start_home(settings.replace(server=server))
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"GGUF" * (LARGE_BYTES // 4))
    async with home.native() as native:
        digest = await native.create_blob(weights)
        missing = "sha256:" + "0" * 64
        found = [
            (await home.ask("HEAD", f"/api/blobs/{each}")).status for each in (digest, missing)
        ]
        assert found == [200, 404]
        with pytest.raises(ollama.ResponseError, match="larger than"):
            await native.generate(LLAMA, "x" * LARGE_BYTES)


@pytest.mark.parametrize(
    ("header", "value"), [("host", "evil.test"), ("origin", "http://evil.test")]
)
async def test_host_and_origin_are_still_checked(home: Home, header, value):
    got = await home.ask("POST", "/api/pull", {"model": LLAMA}, **{header: value})
    assert got.status in (403, 421)


async def test_with_keys_only_an_admin_manages_and_only_this_machine_learns_the_address(
    start_home: StartHome,
):
    home = await start_home(house_settings(keys=KEYS))
    asked = {"model": LLAMA}
    here = await home.ask("POST", "/api/pull", asked, key=GUEST_KEY)
    assert here.status == 403
    assert f"OLLAMA_HOST={home.direct_url}" in here.error
    far = await ask(home.app, "POST", "/api/pull", asked, key=GUEST_KEY, peer="192.168.1.9")
    assert (far.status, far.error) == (
        403,
        "managing models needs an admin key; ask the owner for one",
    )


async def test_ollamas_client_sends_the_key_of_its_environment(start_home: StartHome, monkeypatch):
    home = await start_home(house_settings(keys=KEYS))
    monkeypatch.setenv("OLLAMA_API_KEY", GUEST_KEY)
    async with ollama.AsyncClient(host=home.url, trust_env=False) as client:
        assert (await client.list()).models
    monkeypatch.delenv("OLLAMA_API_KEY")
    async with ollama.AsyncClient(host=home.url, trust_env=False) as client:
        with pytest.raises(ollama.ResponseError) as refused:
            await client.list()
    assert refused.value.status_code == 401
