"""llama.cpp's server as a router of several models, over HTTP."""
