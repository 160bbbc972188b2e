"""The emulator in place of an Ollama that is not there: when it may be, how its answers are marked,
and the way to an Ollama that comes.
"""
