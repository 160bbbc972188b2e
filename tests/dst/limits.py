"""Rate limits once more, by brute force: every admission is kept, and every question looks at all of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable
from types import coroutine
from typing import Any, TypeVar, cast

from hearth.config.settings import CallerLimits, RateLimitSettings
from hearth.errors import HearthError

T = TypeVar("T")

WINDOWS_S = (60.0, 3600.0)
CLOSE_S = 1e-5  # instants that went through the wall clock of a store are only as exact as this


class AllStamps:
    """Who was admitted when; `rebuilt` says that some of it came from a store."""

    def __init__(self, past: Iterable[tuple[str, float]] = ()) -> None:
        self.stamps: dict[str, list[float]] = {}
        for caller, at in past:
            self.note(caller, at)

    def note(self, caller: str, at: float) -> None:
        self.stamps.setdefault(caller, []).append(at)

    def free_at(self, caller: str, now: float, limits: RateLimitSettings) -> float:
        """The first instant from now on at which one more is within both limits."""
        stamps = self.stamps.get(caller, [])
        instants = sorted({now, *(stamp + window for stamp in stamps for window in WINDOWS_S if stamp + window > now)})
        return next((at for at in instants if self._allows(stamps, at, caller, limits)), float("inf"))

    def is_close(self, caller: str, now: float) -> bool:
        """A stamp is about to leave a window, or just has."""
        return any(abs(stamp + window - now) < CLOSE_S for stamp in self.stamps.get(caller, []) for window in WINDOWS_S)

    @staticmethod
    def _allows(stamps: list[float], at: float, caller: str, limits: RateLimitSettings) -> bool:
        own = limits.callers.get(caller, CallerLimits())
        per_minute = limits.default.requests_per_minute if own.requests_per_minute is None else own.requests_per_minute
        per_hour = limits.default.requests_per_hour if own.requests_per_hour is None else own.requests_per_hour
        allowed = (per_minute or 0, per_hour or 0)
        return all(sum(stamp + window > at >= stamp for stamp in stamps) < limit for window, limit in zip(WINDOWS_S, allowed, strict=True))


@coroutine
def admitted(asking: Coroutine[Any, Any, T], judge: Callable[[HearthError | None], None]) -> Generator[Any, Any, T]:
    """What comes of it; `judge` hears of the refusal, if any, in the instant in which it is let in: before it waits for anything."""
    try:
        waits_for = asking.send(None)
    except StopIteration as done:
        judge(None)
        return cast("T", done.value)
    except HearthError as refusal:
        judge(refusal)
        raise
    judge(None)
    try:
        while True:
            try:
                value = yield waits_for
            except BaseException as thrown:  # noqa: BLE001 - a cancel, too, is for whoever asks
                waits_for = asking.throw(thrown)
            else:
                waits_for = asking.send(value)
    except StopIteration as done:
        return cast("T", done.value)
