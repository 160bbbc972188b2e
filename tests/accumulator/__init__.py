"""Embedding calls that share a call of the model server."""
