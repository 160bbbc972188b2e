"""An Ollama that needs no GPU: the same wire, the same scheduler, service times from the facts of
its models.
"""

from hearth.emulator.engine import DEFAULT_VRAM_GIB
from hearth.emulator.models import EmulatedModel, default_profiles, load_profiles
from hearth.emulator.server import Emulator

__all__ = ["DEFAULT_VRAM_GIB", "EmulatedModel", "Emulator", "default_profiles", "load_profiles"]
