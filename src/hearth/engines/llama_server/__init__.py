"""llama.cpp's server with the one model that it was started with, over HTTP."""
