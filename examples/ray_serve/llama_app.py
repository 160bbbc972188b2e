"""llama.cpp's server as autoscaling replicas of Ray Serve, behind OpenAI's routes.

`serve run llama_app:build model=FILE` serves one model on port 8000: 1 to 3 replicas, each with a
llama.cpp server of its own.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import xllamacpp
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from ray import serve

SLOTS = 2
"""Requests that a replica answers at the same time."""
NOT_PASSED_ON = {"connection", "content-length", "keep-alive", "transfer-encoding"}
routes = FastAPI()


class Arguments(BaseModel):
    """What `serve run` is given.

    Attributes:
        model: path of a GGUF file. name: what callers call it; empty for the name of the file.
        min_replicas: 0 lets it scale to nothing. max_replicas, cpus: of a replica, in processors.
    """

    model: str
    name: str = ""
    min_replicas: int = 1
    max_replicas: int = 3
    cpus: float = 0.5


async def _parts(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body as it comes; a caller who leaves ends the connection, which frees the slot."""
    try:
        async for part in answer.content.iter_any():
            yield part
    finally:
        answer.close()


@serve.deployment(
    max_ongoing_requests=SLOTS,
    # what comes beyond this is answered with 503, which Hearth takes as "not yet"
    max_queued_requests=32,
    backpressure_config={"status_code": 503, "retry_after_s": 1},
)
@serve.ingress(routes)
class Llama:
    """One replica."""

    def __init__(self, model: str, name: str) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = model
        params.model_alias = {name}
        params.hostnames = ["127.0.0.1"]
        params.port = 0
        params.n_parallel = SLOTS
        params.n_ctx = 2048 * SLOTS
        params.cpuparams.n_threads = 1
        self._server = xllamacpp.Server(params)
        self._session: aiohttp.ClientSession | None = None

    @routes.api_route("/v1/{path:path}", methods=["GET", "POST"])
    async def forward(self, path: str, request: Request) -> StreamingResponse:
        """Pass a request on to the llama.cpp server, and its answer back as it comes."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None)
            self._session = aiohttp.ClientSession(timeout=timeout)
        answer = await self._session.request(
            request.method,
            f"{self._server.listening_address}/v1/{path}",
            data=await request.body(),
            headers={"Content-Type": "application/json"},
        )
        headers = {
            name: value
            for name, value in answer.headers.items()
            if name.lower() not in NOT_PASSED_ON
        }
        return StreamingResponse(_parts(answer), status_code=answer.status, headers=headers)


def build(args: Arguments) -> serve.Application:
    """The application that `serve run llama_app:build` starts."""
    deployment = Llama.options(
        ray_actor_options={"num_cpus": args.cpus},
        autoscaling_config={
            "min_replicas": args.min_replicas,
            "max_replicas": args.max_replicas,
            "target_ongoing_requests": SLOTS,
            "metrics_interval_s": 1,
            "look_back_period_s": 4,
            "upscale_delay_s": 2,
            "downscale_delay_s": 20,
        },
    )
    return deployment.bind(args.model, args.name or Path(args.model).stem)
