"""Ray Serve with the replicas of `examples/ray_serve`, for as long as its standard input is open.

Run by the Python of Ray's own environment, with that folder in `PYTHONPATH`:
`python ray_cluster.py MODEL_FILE PORT FOLDER`. Each change in the number of replicas that run is a
line of JSON on standard output. A line on standard input has one replica killed.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import llama_app  # type: ignore[import-not-found]
import ray  # type: ignore[import-not-found]
from ray import serve

LOOK_S = 0.3
NAME = "smollm2"
_REPLICAS = "SERVE_REPLICA::"


def say(**fields: object) -> None:
    sys.stdout.write(f"{json.dumps(fields)}\n")
    sys.stdout.flush()


def kill_one() -> None:
    actors = ray.util.list_named_actors(all_namespaces=True)
    name = min(each["name"] for each in actors if each["name"].startswith(_REPLICAS))
    ray.kill(ray.get_actor(name, namespace="serve"))
    say(killed=name)


def obey() -> None:
    for _ in sys.stdin:
        kill_one()
    ended.set()


def running() -> int:
    application = serve.status().applications["default"]
    states = application.deployments["Llama"].replica_states
    return int(states.get("RUNNING", 0))


if __name__ == "__main__":
    model, port, folder = sys.argv[1:]
    ray.init(num_cpus=2, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
    serve.run(llama_app.build(llama_app.Arguments(model=model, name=NAME)))
    ended = threading.Event()
    threading.Thread(target=obey, daemon=True).start()
    known = -1
    while not ended.is_set():
        count = running()
        if count != known:
            known = count
            say(replicas=count, at=round(time.monotonic(), 2))
        ended.wait(LOOK_S)
    serve.shutdown()
    ray.shutdown()
