"""The way of a request that Claude answers in place of the GPU: chosen (`service`, `routing`), paid
for (`budget`), asked (`calls`).
"""
