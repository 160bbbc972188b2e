"""What the documentation's site makes from the program itself: the reference of the settings and
that of the HTTP API.

`hooks` joins it to MkDocs. Nothing here is committed as text, so it cannot be out of date.
"""
