"""The processes of a measurement: stub, nginx and Hearth, each as an owner would run it, on free ports of loopback."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import which

from benchmarks.process import Child, free_port
from benchmarks.stub import MODEL

HEARTH = """\
scheduling: {{active_hours: "00:00-24:00", preempt_min_remaining_s: 0}}
queue: {{max_external_depth: 100000, max_internal_depth: 100000, max_interrupt_count: 100}}
rate_limits: {{default: {{requests_per_minute: 100000, requests_per_hour: 100000}}}}
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
  upstream model_server {{ server 127.0.0.1:{upstream_port}; keepalive 128; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location / {{ proxy_pass http://model_server; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }}
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
    port, file = free_port(), place / "nginx.conf"
    file.write_text(NGINX.format(place=place, port=port, upstream_port=upstream.port))
    return Child([program, "-p", str(place), "-c", str(file)], port, log=place / "nginx.log")


def write_config(upstream: Child, place: Path, *, port: int, parallel: int) -> Path:
    """A file with limits out of the way and `parallel` slots."""
    file = place / f"hearth-{port}.yaml"
    file.write_text(HEARTH.format(model=MODEL, parallel=parallel, upstream=upstream.url, port=port, place=place))
    return file


def serve_command(file: Path) -> list[str]:
    """`hearth serve` with this configuration."""
    return [sys.executable, "-c", "from hearth.cli import main; main()", "serve", "--config", str(file)]


def hearth(upstream: Child, place: Path, *, parallel: int) -> Child:
    """`hearth serve`, its log in JSON to nowhere."""
    port = free_port()
    return Child(serve_command(write_config(upstream, place, port=port, parallel=parallel)), port)


def wide_hearth(upstream: Child, place: Path, *, connections: int) -> Child:
    """Hearth with one slot and room for a crowd; see `benchmarks.wide`."""
    port = free_port()
    file = write_config(upstream, place, port=port, parallel=1)
    return Child([sys.executable, "-m", "benchmarks.wide", str(file), str(connections)], port, log=place / "wide.log")
