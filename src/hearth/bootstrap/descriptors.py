"""File descriptors: a shell gives a process fewer of them than it may have."""

from __future__ import annotations

import resource

from hearth.api.connections import CONNECTION_LIMIT, SPARE_DESCRIPTORS


def raise_descriptor_limit() -> None:
    """Take as many descriptors as all connections can need, each with one to the model server, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTION_LIMIT + SPARE_DESCRIPTORS
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
