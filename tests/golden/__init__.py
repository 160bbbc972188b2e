"""What callers and owners see from outside, frozen: the redesign may change nothing of it
(docs/decisions/0017).
"""
