"""Ollama, over HTTP."""
