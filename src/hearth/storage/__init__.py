"""What outlives the process: one SQLite file, written by one thread, read through connections that
cannot write.

Nothing on the way of a request waits for the disk, except what must be durable before it is
answered.
"""
