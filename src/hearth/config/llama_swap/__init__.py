"""From a configuration of llama-swap to one of Hearth: `hearth config import`."""
