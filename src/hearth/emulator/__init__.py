"""An Ollama that needs no GPU: the same wire, the same scheduler, service times from `service_model`."""

from hearth.emulator.models import EmulatedModel, load_profiles
from hearth.emulator.quirks import Quirk, QuirkName, parse_quirk
from hearth.emulator.server import Emulator

__all__ = ["EmulatedModel", "Emulator", "Quirk", "QuirkName", "load_profiles", "parse_quirk"]
