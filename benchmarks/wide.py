"""`hearth serve` for a crowd: the same gateway and server, with room for more connections. `python
-m benchmarks.wide CONFIG CONNECTIONS`.

`hearth serve` refuses connections beyond `hearth.admission.peers.CONNECTION_LIMIT`, which no home
comes near; how Hearth holds up with more waiting callers than that can only be measured without
this limit.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hearth.admission.peers import ConnectionLimits, Connections
from hearth.api.app import HearthApp
from hearth.api.server import HearthServer
from hearth.bootstrap import Signals, build_gateway, run
from hearth.config.loading import load_gateway_config

GRACE_S = 1.0


async def serve(file: Path, connections: int) -> None:
    """Run until a signal ends it."""
    config = load_gateway_config(file)
    gateway = await build_gateway(config)
    settings = config.settings.server
    limits = ConnectionLimits(
        all=connections, this_machine=connections, all_others=0, one_machine=0
    )
    room = Connections(events=gateway.events, clock=gateway.clock, limits=limits)
    signals = Signals()
    server = HearthServer(HearthApp(gateway), lambda: settings, connections=room)
    try:
        await gateway.start()
        await server.start(settings.host, settings.port)
        await signals.stop_requested.wait()
    finally:
        await gateway.stop(GRACE_S)
        await server.stop(GRACE_S)
        signals.close()


if __name__ == "__main__":
    run(serve(Path(sys.argv[1]), int(sys.argv[2])))
