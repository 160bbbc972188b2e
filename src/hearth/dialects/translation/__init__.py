"""Ollama's native requests for engines that speak OpenAI's API, and their answers back."""
