"""An Ollama that needs no GPU: the same wire, the same scheduler, service times from the facts of
its models.
"""

from hearth.emulator.models import EmulatedModel, default_profiles, load_profiles
from hearth.emulator.server import Emulator

__all__ = ["EmulatedModel", "Emulator", "default_profiles", "load_profiles"]
