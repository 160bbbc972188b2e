"""The way of a request that Claude answers in place of the GPU: chosen, paid for, asked, and told about like any other.

desk (who, when) -> bounding -> purse (money) -> calls (one conversation) -> metering (the bill)
"""
