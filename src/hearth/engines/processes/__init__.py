"""Servers that Hearth starts and stops itself, a tree of processes for each model."""
