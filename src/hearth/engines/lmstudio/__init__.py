"""LM Studio as an engine."""
