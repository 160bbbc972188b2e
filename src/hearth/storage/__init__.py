"""What outlives the process: one SQLite file, written by one thread, read through connections that cannot write.

Nothing on the way of a request waits for the disk, except what must be durable before it is answered. `bootstrap` opens a `store.Store`
and hands its parts out; nobody else names this package.
"""
