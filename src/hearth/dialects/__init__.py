"""The three APIs that callers speak: what a body asks for, what an error looks like, how a stream
ends.

Pure: bytes and values in, bytes and values out. No clock, no event loop, no HTTP library.
"""
