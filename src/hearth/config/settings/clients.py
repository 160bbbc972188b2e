"""Habits of well-known clients."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BackgroundTasks(StrEnum):
    """Which model answers what a chat client asks for on its own account."""

    RESIDENT = "resident"
    AS_ASKED = "as_asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Habits of well-known clients, and what is done about them."""

    background_tasks: BackgroundTasks = BackgroundTasks.RESIDENT
    """Open WebUI's titles, tags and follow-ups: answered by whatever model is `resident`, so that they never cause a swap, or by the model
    `as_asked`. hot"""
    strip_attribution: bool = True
    """Take Claude Code's changing attribution line out of its system prompt, which else spoils the prompt cache on every turn. hot"""
