"""Embedding calls that come at the same time become one call of the model server.

`accumulator` decides when, `batch` is one such call and what became of it, `members` are the callers' own requests in it.
"""
