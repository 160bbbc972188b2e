"""What the model server was asked, by whose canary is in it, and what may still go on after somebody has left."""

from __future__ import annotations

from collections.abc import Sequence

from tests.dst.asks import Ask, askers_of
from tests.support.fake_ollama import CallRecord, Ending


def calls_by_asker(calls: Sequence[CallRecord]) -> dict[int, list[CallRecord]]:
    """Upstream calls by whose canary is in them; a call for several is everybody's."""
    found: dict[int, list[CallRecord]] = {}
    for call in calls:
        for number in askers_of(call.body):
            found.setdefault(number, []).append(call)
    return found


def nothing_goes_on(ask: Ask, left_at: float, calls: Sequence[CallRecord], asks: Sequence[Ask] = ()) -> None:
    """Nothing is asked for who has left, and what was being asked has been stopped; a call for several when the last of them leaves."""
    for call in calls:
        company = [asks[number] for number in askers_of(call.body)] if asks else [ask]
        last_at = left_at if all(other.left_at is not None for other in company) else None
        if last_at is not None and len(company) > 1:
            last_at = max(other.left_at or 0.0 for other in company)
        late = call.opened_at > left_at or (last_at is not None and (call.ended_at is None or call.ended_at > last_at))
        assert not late, f"request {ask.number} was left at {left_at} and goes on: {call}"


def shares_add_up(asks: Sequence[Ask], calls: Sequence[CallRecord], tokens_told: dict[int, int | None]) -> None:
    """Of a call for several, what each is told to have cost adds up to what the model server counted."""
    for call in calls:
        company = [asks[number] for number in askers_of(call.body)]
        told = [tokens_told.get(ask.number) for ask in company]
        if len(company) < 2 or call.ending is not Ending.COMPLETED or None in told:
            continue
        if any(ask.runs > 1 or not ask.whole or ask.status != 200 for ask in company):
            continue
        counted = sum(ask.prompt_tokens for ask in company)
        assert sum(tokens or 0 for tokens in told) == counted, f"{told} were told of {counted} tokens, in {call}"
