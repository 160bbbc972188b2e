"""Durable jobs: accepted once the disk has them, fed to the GPU's queue a few at a time, ended
exactly once.
"""
