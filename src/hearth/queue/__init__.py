"""The live shell around the scheduler: what is accepted, what waits, and what is done upon each
decision.
"""
