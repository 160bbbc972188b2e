"""What the owner wants: the settings tree, and how a YAML file becomes one.

This file imports nothing: the pure scheduler reads `hearth.config.settings`, and must not pull pydantic or PyYAML in with it.
"""
