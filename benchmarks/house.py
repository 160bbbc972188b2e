"""The processes of a measurement: stub, nginx, two bare proxies and Hearth, each as an owner would
run it, on free ports of loopback.
"""

from __future__ import annotations

import sys
import urllib.request
from hashlib import sha256
from pathlib import Path
from shutil import which

from benchmarks.keys import EXTERNAL, INTERNAL, authorization
from benchmarks.process import Child, free_port
from benchmarks.stub import MODEL

HEARTH = """\
scheduling: {{active_hours: "00:00-24:00", preempt_min_remaining_s: 0, preempt_restart_bound_s: 0}}
queue: {{max_external_depth: 100000, max_internal_depth: 100000, max_interrupt_count: 100}}
rate_limits:
  default:
    requests_per_minute: 1000000
    requests_per_hour: 1000000
    embeddings_per_minute: 1000000
    embeddings_per_hour: 1000000
    reading_s_per_minute: 60
auth:
  keys:
  - {{name: bench, sha256: "{external}"}}
  - {{name: house, sha256: "{internal}", lane: internal}}
gpu: {{home_model: "{model}", parallel: {parallel}, vram_gb: 0}}
backend: {{mode: ollama}}
ollama: {{url: "{upstream}", first_byte_timeout_s: 300}}
keepalive: {{after_s: 300}}
storage: {{path: "{place}/hearth-{port}.db"}}
server: {{port: {port}, log_format: json, shutdown_grace_s: 1}}
"""

NGINX = """\
daemon off;
master_process off;
worker_processes 1;
pid {place}/nginx.pid;
error_log {place}/nginx.err crit;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  client_body_temp_path {place}/body;
  proxy_temp_path {place}/proxy;
  fastcgi_temp_path {place}/fastcgi;
  uwsgi_temp_path {place}/uwsgi;
  scgi_temp_path {place}/scgi;
  upstream model_server {{
    server 127.0.0.1:{upstream_port};
    keepalive 128;
    keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location / {{
      proxy_pass http://model_server;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


def stub() -> Child:
    """The model server that does nothing."""
    port = free_port()
    return Child([sys.executable, "-m", "benchmarks.stub", str(port)], port)


def nginx_path() -> str | None:
    """Where nginx is, None where it is not."""
    return which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin")


def nginx(program: str, upstream: Child, place: Path) -> Child:
    """A plain reverse proxy: connections are kept, nothing is buffered or logged, one process."""
    port = free_port()
    file = place / "nginx.conf"
    file.write_text(NGINX.format(place=place, port=port, upstream_port=upstream.port))
    return Child([program, "-p", str(place), "-c", str(file)], port, log=place / "nginx.log")


def passthrough(upstream: Child) -> Child:
    """What Python costs with aiohttp on both sides and nothing between; see
    `benchmarks.passthrough`.
    """
    port = free_port()
    return Child([sys.executable, "-m", "benchmarks.passthrough", str(port), upstream.url], port)


def bare(upstream: Child) -> Child:
    """What Hearth costs without a gateway; see `benchmarks.bare`."""
    port = free_port()
    return Child([sys.executable, "-m", "benchmarks.bare", str(port), upstream.url], port)


def config_text(
    upstream: Child, place: Path, *, port: int, parallel: int, model: str = MODEL
) -> str:
    """Keys, limits, store, metrics and log are on, with limits that nobody reaches; `parallel`
    slots.
    """
    digests = {
        name: sha256(key.encode()).hexdigest()
        for name, key in (("external", EXTERNAL), ("internal", INTERNAL))
    }
    return HEARTH.format(
        model=model, parallel=parallel, upstream=upstream.url, port=port, place=place, **digests
    )


def write_config(upstream: Child, place: Path, *, port: int, parallel: int) -> Path:
    """The same as a file in a folder of its own, as an owner has it: Hearth watches that folder,
    and writes its database beside it.
    """
    file = place / "config" / f"hearth-{port}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(config_text(upstream, place, port=port, parallel=parallel))
    return file


def get(url: str, timeout_s: float) -> bytes:
    """What Hearth answers the external caller. Raises OSError for any answer but 2xx."""
    request = urllib.request.Request(url, headers=authorization())  # noqa: S310 - a URL of our own
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310 - as above
        content: bytes = answer.read()
    return content


def serve_command(file: Path) -> list[str]:
    """`hearth serve` with this configuration."""
    return [
        sys.executable,
        "-c",
        "from hearth.cli import main; main()",
        "serve",
        "--config",
        str(file),
    ]


def hearth(upstream: Child, place: Path, *, parallel: int) -> Child:
    """`hearth serve`, its log in JSON to nowhere."""
    port = free_port()
    return Child(serve_command(write_config(upstream, place, port=port, parallel=parallel)), port)


def wide_hearth(upstream: Child, place: Path, *, connections: int) -> Child:
    """Hearth with one slot and room for a crowd; see `benchmarks.wide`."""
    port = free_port()
    file = write_config(upstream, place, port=port, parallel=1)
    return Child(
        [sys.executable, "-m", "benchmarks.wide", str(file), str(connections)],
        port,
        log=place / "wide.log",
    )
