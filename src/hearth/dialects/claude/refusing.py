"""One sentence for everything that cannot be carried to Claude: which field, and what to do about it.

Must never quote what a caller wrote. Called by the other modules here.
"""

from __future__ import annotations

from hearth.errors import Untranslatable

LOCAL = "leave it out, or ask a local model"


def refused(field: str, advice: str = LOCAL) -> Untranslatable:
    """The error for `field`, a path such as `messages[2].content`; `advice` completes the sentence."""
    return Untranslatable(f"Claude cannot take `{field}`: {advice}")
