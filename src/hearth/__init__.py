"""Hearth: a gateway for the one GPU in a home."""

__version__ = "0.1.0"
