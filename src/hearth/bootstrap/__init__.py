"""The one place that names concrete adapters and puts the gateway together.

Nothing here decides anything at run time: it chooses, connects, starts and stops.
"""

from hearth.bootstrap.assembly import build_gateway
from hearth.bootstrap.durable import open_store
from hearth.bootstrap.process import Signals, run
from hearth.bootstrap.serving import running_gateway, serve

__all__ = ["Signals", "build_gateway", "open_store", "run", "running_gateway", "serve"]
