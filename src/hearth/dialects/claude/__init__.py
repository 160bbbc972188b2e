"""Claude in the dialects that Ollama speaks.

`asking` turns a body into parameters of Anthropic's `POST /v1/messages`, `answering` turns the events of its stream into the bytes that the
caller expects. Prices, keys, retries and the decision to ask Claude are made elsewhere.
"""
