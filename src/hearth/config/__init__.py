"""The settings of the owner's file. Imports nothing: the pure scheduler reads `hearth.config.choices` and must not pull pydantic in."""
