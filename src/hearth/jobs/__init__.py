"""Durable jobs: accepted once the disk has them, fed to the GPU's queue a few at a time, ended exactly once.

`service.Jobs` is the way in; what waits is in the store, and `runner.JobRunner` owns what is on its way.
"""
