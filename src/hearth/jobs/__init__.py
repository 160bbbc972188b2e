"""Durable jobs: accepted once the disk has them, fed to the GPU's queue a few at a time, ended exactly once.

`desk.Jobs` is the way in and the one owner of what waits and runs; the record is `storage`'s, behind the ports.
"""
