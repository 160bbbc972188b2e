"""Claude in the dialects of the house: what Ollama's, OpenAI's and Anthropic's own requests become, and what Claude's answers become.

Pure, like everything in `dialects`: no vendor SDK, clock or socket. `asking` turns a body into the parameters of Anthropic's
`POST /v1/messages`, `answering` turns the events of its stream into the bytes that the caller expects. Prices, keys, retries and the
decision to ask Claude at all are made elsewhere.
"""
