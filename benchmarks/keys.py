"""The API keys of the measured Hearth; every proxy is sent one, whether it looks at it or not."""

from __future__ import annotations

EXTERNAL = "sk-bench-external"
"""An external caller's. LiteLLM takes it as its master key, which has to begin with `sk-`."""
INTERNAL = "sk-bench-internal"


def authorization(key: str = EXTERNAL) -> dict[str, str]:
    """The header as clients write it."""
    return {"Authorization": f"Bearer {key}"}
