"""What outlives the process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """What outlives the process: one database file."""

    enabled: bool = True
    """Keep a log of finished requests; without it, rate limits and statistics begin anew with every start. restart"""
    path: str = ""
    """The file, absolute or beginning with `~/`; empty is `$XDG_STATE_HOME/hearth/hearth.db`. restart"""
    retention_days: float = 90.0
    """Days after which an entry is forgotten. restart"""
    max_mib: float = 512.0
    """Size of the data in MiB beyond which the oldest entries are forgotten. restart"""
    reserve_mib: float = 8.0
    """MiB put aside beside the file for the day the disk is full; 0 for none. restart"""
