"""llama-swap, which starts and stops the servers of several models, over HTTP."""
