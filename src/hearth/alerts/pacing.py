"""When the next post to one target may go out: never more than 20 in a minute, and never before the target wants one again.

Pure: every instant is an argument, in seconds on the monotonic clock. Published numbers about Discord's limits disagree; its answers rule,
and our own cap keeps clear of all of them.
"""

from __future__ import annotations

from collections import deque

POSTS_PER_MINUTE = 20
MINUTE_S = 60.0


class Pacer:
    """The recent posts to one target and what it said about more."""

    def __init__(self) -> None:
        self._posts: deque[float] = deque(maxlen=POSTS_PER_MINUTE)
        self.blocked_until = float("-inf")

    def posted(self, now: float) -> None:
        """A post goes out."""
        self._posts.append(now)

    def block(self, until: float) -> None:
        """No post before this instant."""
        self.blocked_until = max(self.blocked_until, until)

    def free_at(self) -> float:
        """The first instant at which the next post may go out."""
        full = len(self._posts) == POSTS_PER_MINUTE
        return max(self.blocked_until, self._posts[0] + MINUTE_S if full else float("-inf"))
