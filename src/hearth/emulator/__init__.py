"""An Ollama that needs no GPU: the same wire, the same scheduler, service times from `service_model`.

An HTTP server of its own that runs inside another program's event loop. It must never be imported by the layers below it, and it knows
nothing of the gateway. Started by `bootstrap`, `cli` and tests.
"""

from hearth.emulator.models import EmulatedModel
from hearth.emulator.profiles import load_profiles
from hearth.emulator.quirks import Quirk, QuirkName, parse_quirk
from hearth.emulator.server import Emulator

__all__ = ["EmulatedModel", "Emulator", "Quirk", "QuirkName", "load_profiles", "parse_quirk"]
