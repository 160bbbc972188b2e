"""The model server and the card of the live house: one attempt and its answer, loads, and looking
at both.
"""
